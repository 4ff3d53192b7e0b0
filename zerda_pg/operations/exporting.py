"""Exporting a tenant: one snapshot, page by page, into a file that is whole or not there."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from heapq import merge
from pathlib import Path
from typing import IO, Any, TypeAlias

from sqlalchemy import Connection

from zerda_pg.core import Core
from zerda_pg.db import portable
from zerda_pg.db.facts import Model
from zerda_pg.db.portable import SECTIONS, Key, Section
from zerda_pg.operations.resuming import RESUMED, Earlier, partial_file, remove_earlier
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, read_snapshot
from zerda_pg.text import dump_json

__all__ = ["FORMAT", "Progress", "export"]

FORMAT = 1
"""Of the file; raised with any change that an older package would misread."""

TOLD_BYTES = 100_000
"""How much is written between two calls of `progress`."""

Progress = Callable[[int, int | None], None]

Lines: TypeAlias = Iterator[tuple[Key, bytes]]


def export(
    core: Core,
    scope: Scope,
    path: str | os.PathLike[str],
    *,
    vectors: bool,
    resume: bool,
    progress: Progress | None,
) -> Steps[dict[str, Any]]:
    """Write what the scope sees to a file."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"path must be a path, got {type(path).__name__}")
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(target.parent))
    model = yield from core.model_for_listing()

    def work(connection: Connection) -> Export:
        header = _header(scope, model, vectors)
        run = Export(connection, core, scope, model.id if vectors and model is not None else None,
                     progress)  # fmt: skip
        with partial_file(target) if resume else _own_file(target) as raw:
            earlier = Earlier.of(target, header) if resume else None
            if target.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6) as file:
                    run.write(file, header, earlier)
            else:
                run.write(raw, header, earlier)
        if resume:
            remove_earlier(target)
        return run

    run = yield from read_snapshot(work)
    return {
        "path": str(target),
        "bytes": target.stat().st_size,
        **run.counts,
        "vectors": vectors and model is not None,
        "resumed": run.copied,
    }


@contextmanager
def _own_file(target: Path) -> Iterator[IO[bytes]]:
    """A file to write, which becomes the target when it is whole, and else goes."""
    # beside its final place, so that moving it there is one step
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as raw:
            yield raw
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


class Export:
    """Header, sections and end of a file, by one snapshot."""

    def __init__(
        self,
        connection: Connection,
        core: Core,
        scope: Scope,
        model_id: int | None,
        progress: Progress | None,
    ) -> None:
        self._connection = connection
        self._core = core
        self._scope = scope
        self._model_id = model_id
        self._progress = progress
        self.counts: dict[str, int] = {}
        self.copied = 0
        """Rows that were taken from an earlier call."""

    def write(
        self, file: IO[bytes] | gzip.GzipFile, header: Mapping[str, Any], earlier: Earlier | None
    ) -> None:
        """All of it; what an earlier call wrote and is still so is copied."""
        file.write(dump_json(header).encode() + b"\n")
        for section in SECTIONS.values():
            self.counts[section.table] = 0
            lines = self._fresh(section, None)
            if earlier is not None and section.word in RESUMED:
                lines = self._resumed(section, earlier)
            untold = 0
            for _, line in lines:
                untold += file.write(line + b"\n")
                self.counts[section.table] += 1
                if untold > TOLD_BYTES:
                    self._tell()
                    untold = 0
            if untold:
                self._tell()
        file.write(dump_json({"end": self.counts}).encode() + b"\n")

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(sum(self.counts.values()), None)

    def _fresh(
        self, section: Section, after: Key | None, until: Key | None = None,
        without: Sequence[Key] = (),
    ) -> Lines:  # fmt: skip
        """What the database has between two keys."""
        while True:
            page = portable.export_page(
                self._connection, self._core.facts, self._scope, section,
                after=after, until=until, without=without, model_id=self._model_id,
            )  # fmt: skip
            for key, line in page:
                yield key, f'{{"{section.word}": {line}}}'.encode()
            if not page:
                return
            after = page[-1][0]

    def _resumed(self, section: Section, earlier: Earlier) -> Lines:
        """The same, with what is unchanged taken from the file; in the order of the keys."""
        after: Key | None = None
        while page := earlier.page(section):
            same = portable.unchanged(
                self._connection, self._scope, section, [kept.row for kept in page]
            )
            kept = [
                (key, old.line)
                for old in page
                if (key := old.key(section)) in same and old.is_whole()
            ]
            until = page[-1].key(section)
            self.copied += len(kept)
            yield from merge(kept, self._fresh(section, after, until, [key for key, _ in kept]))
            after = until
        yield from self._fresh(section, after)


def _header(scope: Scope, model: Model | None, vectors: bool) -> dict[str, Any]:
    return {
        "zerda_pg": FORMAT,
        "tenant": scope.tenant_id,
        "user": scope.user_id,
        "exported_at": datetime.now(UTC).isoformat(),
        "vectors": vectors and model is not None,
        "model": None
        if model is None
        else {
            "name": model.name,
            "fingerprint": model.fingerprint,
            "dimensions": model.dimensions,
        },
    }
