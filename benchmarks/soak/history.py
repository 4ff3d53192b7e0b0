"""What a process did: a line before each operation, and a line that reached the disk after it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    """An operation."""

    operation: str
    tenant: str
    given: dict[str, Any]
    acknowledged: bool
    """False: it failed, or its process was killed, so that it may have happened or not."""
    result: Any


class History:
    """Appends to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def intend(self, operation: str, tenant: str, given: dict[str, Any]) -> None:
        """Before the operation; a killed process loses nothing that it has handed over."""
        self._write({"do": operation, "tenant": tenant, "given": given})

    def acknowledge(self, result: Any) -> None:
        """After it, on the disk before anything else is done."""
        self._write({"done": result})
        os.fsync(self._file)

    def unknown(self, error: str) -> None:
        """The database could not be reached."""
        self._write({"unknown": error})

    def surface(self, kind: str, error: str) -> None:
        """What should not have happened: `deadlock`, `error` or `foreign`."""
        self._write({"surfaced": kind, "error": error})
        os.fsync(self._file)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read(path: Path) -> tuple[list[Done], list[tuple[str, str]]]:
    """The operations in order, and what surfaced."""
    done: list[Done] = []
    surfaced: list[tuple[str, str]] = []
    pending: dict[str, Any] | None = None
    for line in _lines(path):
        if "surfaced" in line:
            surfaced.append((line["surfaced"], line["error"]))
            if pending is None or line["surfaced"] == "foreign":
                continue
        if "do" in line:
            if pending is not None:
                done.append(_done(pending, acknowledged=False, result=None))
            pending = line
        elif pending is not None:
            done.append(_done(pending, acknowledged="done" in line, result=line.get("done")))
            pending = None
    if pending is not None:
        done.append(_done(pending, acknowledged=False, result=None))
    return done, surfaced


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:  # the process was killed in the middle of a line
            return


def _done(line: dict[str, Any], *, acknowledged: bool, result: Any) -> Done:
    return Done(line["do"], line["tenant"], line["given"], acknowledged, result)
