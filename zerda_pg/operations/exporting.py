"""Exporting a tenant: one snapshot, page by page, into a file that is whole or not there."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Connection

from zerda_pg.core import Core
from zerda_pg.db import portable
from zerda_pg.db.facts import Model
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, read_snapshot
from zerda_pg.text import dump_json

__all__ = ["FORMAT", "Progress", "export"]

FORMAT = 1
"""Of the file; raised with any change that an older package would misread."""

Progress = Callable[[int, int | None], None]


def export(
    core: Core,
    scope: Scope,
    path: str | os.PathLike[str],
    *,
    vectors: bool,
    progress: Progress | None,
) -> Steps[dict[str, Any]]:
    """Write what the scope sees to a file."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"path must be a path, got {type(path).__name__}")
    target = Path(path)
    model = yield from core.model_for_listing()
    # beside its final place, so that moving it there is one step
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")

    def work(connection: Connection) -> dict[str, int]:
        with partial.open("wb") as raw:
            if target.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6) as file:
                    return _write(connection, core, scope, file, model, vectors, progress)
            return _write(connection, core, scope, raw, model, vectors, progress)

    try:
        counts = yield from read_snapshot(work)
        partial.replace(target)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
    return {
        "path": str(target),
        "bytes": target.stat().st_size,
        **counts,
        "vectors": vectors and model is not None,
    }


def _write(
    connection: Connection,
    core: Core,
    scope: Scope,
    file: IO[bytes] | gzip.GzipFile,
    model: Model | None,
    vectors: bool,
    progress: Progress | None,
) -> dict[str, int]:
    """Header, sections and end; the lines of each section."""

    def put(line: str) -> None:
        file.write(line.encode("utf-8") + b"\n")

    put(dump_json(_header(scope, model, vectors)))
    counts: dict[str, int] = {}
    for section in portable.SECTIONS.values():
        counts[section.table] = 0
        after = None
        while True:
            lines, after = portable.export_page(
                connection, core.facts, scope, section,
                after=after, model_id=model.id if vectors and model is not None else None,
            )  # fmt: skip
            if not lines:
                break
            for line in lines:
                put(f'{{"{section.word}": {line}}}')
            counts[section.table] += len(lines)
            if progress is not None:
                progress(sum(counts.values()), None)
    put(dump_json({"end": counts}))
    return counts


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
