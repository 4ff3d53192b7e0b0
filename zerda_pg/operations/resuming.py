"""What an interrupted export has left beside its file, for the next call to go on from.

An export that may be resumed writes `NAME.partial`. The next call sets it aside as
`NAME.partial.earlier` and copies from it what the database still has as it was; so whichever of
the two calls is interrupted, by a kill or by a full disk, no more is lost than was under way.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from zerda_pg.db.portable import (
    PAGE_BYTES,
    PAGE_ROWS,
    SECTIONS,
    Key,
    Section,
    line_names,
    stored_hash,
)
from zerda_pg.errors import ConflictError
from zerda_pg.ids import check_id
from zerda_pg.operations.lines import numbered_lines, opened
from zerda_pg.text import body_of, check_json

__all__ = ["RESUMED", "Earlier", "Kept", "partial_file", "remove_earlier"]

RESUMED = ("entry", "version")
"""Sections of which an earlier call's lines are used; the others are short and read again."""

SAME = ("zerda_pg", "tenant", "user", "vectors", "model")
"""Of the header: another export's lines are of no use."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """A line of an earlier call."""

    word: str
    row: Mapping[str, Any]
    line: bytes
    """As it stands in the file, without its line break."""

    def key(self, section: Section) -> Key:
        """Its place in the section."""
        return tuple(self.row[name] for name in section.key)

    def is_whole(self) -> bool:
        """Whether its text is the one that its hash is of."""
        body = body_of(self.row["content"])
        return (body, stored_hash(body)) == (self.row["body"], self.row["content_hash"])


class Earlier:
    """The whole lines of an earlier call, section by section."""

    def __init__(self, lines: Iterator[Kept]) -> None:
        self._lines = lines
        self._next = next(lines, None)

    @classmethod
    def of(cls, target: Path, header: Mapping[str, Any]) -> Earlier:
        """What was set aside, if it is of an export with the same header."""
        return cls(_lines(_earlier(target), header))

    def page(self, section: Section) -> Sequence[Kept]:
        """The section's next lines, bounded in rows and bytes; empty at its end."""
        page: list[Kept] = []
        size = 0
        while self._next is not None and self._next.word == section.word:
            if len(page) == PAGE_ROWS or size > PAGE_BYTES:
                break
            page.append(self._next)
            size += len(self._next.line)
            self._next = next(self._lines, None)
        return page


def _lines(path: Path, header: Mapping[str, Any]) -> Iterator[Kept]:
    """The lines up to the first one that is torn, damaged or out of order."""
    if not path.exists():
        return
    last: Key = ()
    with opened(path) as file:
        try:
            raw = numbered_lines(file)
            first = json.loads(next(raw, (0, b""))[1] or b"null")
            if not isinstance(first, Mapping) or any(first.get(n) != header[n] for n in SAME):
                return
            for _, line in raw:
                if line is None or not line.endswith(b"}}\n"):
                    return
                kept = _kept(line.removesuffix(b"\n"), vectors=header["vectors"])
                place = (RESUMED.index(kept.word), *kept.key(SECTIONS[kept.word]))
                if place <= last:
                    return
                last = place
                yield kept
        except (EOFError, OSError, RecursionError, ValueError, zlib.error):
            return


def _kept(line: bytes, *, vectors: bool) -> Kept:
    """A line that can be copied, if the database has its row.

    Raises:
        RecursionError: If it is nested too deeply.
        ValueError: If it is no such line.
    """
    value = json.loads(line.decode("utf-8"))
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError("is not one object in an object")
    word, row = next(iter(value.items()))
    if word not in RESUMED or not isinstance(row, Mapping):
        raise ValueError("is no row of a section that is resumed")
    section = SECTIONS[word]
    if list(row) != line_names(section, vectors=vectors):
        raise ValueError("has other columns")
    check_json(row["content"], "content")  # the others are compared with the database's
    for name, kind in section.key.items():
        if kind == "text":
            check_id(row[name], name)
        elif type(row[name]) is not int or not 0 <= row[name] < 2**31:
            raise ValueError(f"{name} is no {kind}")
    return Kept(word=word, row=row, line=line)


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


def _earlier(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial.earlier")


@contextmanager
def partial_file(target: Path) -> Iterator[IO[bytes]]:
    """The file to write, empty; what an earlier call wrote is set aside.

    It becomes the target when it is whole, and stays as it is when it is not.

    Raises:
        ConflictError: If another export is writing it.
    """
    partial, earlier = _partial(target), _earlier(target)
    with _held(partial) as file:
        written = file.tell()
        if written and (not earlier.exists() or earlier.stat().st_size < written):
            partial.replace(earlier)
        elif written:
            partial.unlink()
        else:
            yield from _moved(file, partial, target)
            return
        with _held(partial) as fresh:
            yield from _moved(fresh, partial, target)


def _moved(file: IO[bytes], partial: Path, target: Path) -> Iterator[IO[bytes]]:
    yield file
    file.flush()
    partial.replace(target)


@contextmanager
def _held(path: Path) -> Iterator[IO[bytes]]:
    """The file, at its end, until it is closed held by nobody else."""
    # only here: Windows has no such locks, and an export that is not to be resumed needs none
    import fcntl

    from zerda_pg.db.embedded_files import try_lock

    with path.open("ab") as file:
        if not try_lock(file.fileno(), fcntl.LOCK_EX):
            raise ConflictError(f"another export is writing {path}: wait for it")
        yield file


def remove_earlier(target: Path) -> None:
    """Remove what an earlier call has left, once it is copied."""
    _earlier(target).unlink(missing_ok=True)
