"""What was once found out about a model's files, remembered from process to process.

Hashing the files and checking the model costs a second; both need doing once for each state of the
files. The notes are a cache: they may be deleted, and a directory that cannot be written costs the
second again but breaks nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

__all__ = ["CheckedModels", "sha256_of"]

_RULES = 1
"""Part of each key: to be raised when the self-check or the notes change."""


class CheckedModels:
    """Notes on models, one small JSON file each.

    Args:
        directory: Where they are; None: `~/.cache/zerda_pg`.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = (directory or _default_directory()) / "models"

    def recall(self, files: Iterable[Path], packages: Iterable[str]) -> dict[str, str | int] | None:
        """The notes on a model in just this state of its files and libraries, else None."""
        identity = _identity(files, packages)
        try:
            note = json.loads(self._path(identity).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(note, dict) or note.pop("identity", None) != identity:
            return None
        return note

    def remember(
        self, files: Iterable[Path], packages: Iterable[str], note: dict[str, str | int]
    ) -> None:
        """Keep notes on a model that passed its checks, if the directory can be written."""
        identity = _identity(files, packages)
        path = self._path(identity)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Written aside and moved into place: another process never reads half a note.
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8"
            ) as file:
                json.dump({"identity": identity, **note}, file)
            Path(file.name).replace(path)

    def _path(self, identity: list[str]) -> Path:
        digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:32]
        return self._directory / f"{digest}.json"


def _identity(files: Iterable[Path], packages: Iterable[str]) -> list[str]:
    lines = [f"rules {_RULES}"]
    lines += [f"{package} {_version(package)}" for package in packages]
    for file in files:
        status = file.stat()
        lines.append(f"{os.fspath(file)} {status.st_size} {status.st_mtime_ns}")
    return lines


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # onnxruntime comes as onnxruntime-gpu too
        return "unknown"


def _default_directory() -> Path:
    try:
        return Path.home() / ".cache" / "zerda_pg"
    except RuntimeError:  # a container's user may have no home
        return Path(os.devnull)


def sha256_of(file: Path) -> str:
    """The hash of the file's contents, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
