"""Lines of JSON from a file, compressed or not, one at a time."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, TypeAlias

__all__ = ["BadLine", "Source", "count_lines", "numbered_lines", "opened", "parsed_lines"]

Source: TypeAlias = str | os.PathLike[str] | IO[bytes]
"""A path, or a file open for reading bytes."""

LONGEST_LINE = 100_000_000
"""Bytes: the longest content (20 million characters) fits, a file without line breaks does not
fill the memory."""

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadLine(ValueError):
    """What is wrong with a line."""


@contextmanager
def opened(source: Source) -> Iterator[IO[bytes]]:
    """The file, decompressed where it is gzip; a stream that was given stays open."""
    if isinstance(source, str | os.PathLike):
        with Path(source).open("rb") as file:
            yield _plain(file)
    else:
        yield _plain(source)


def _plain(file: IO[bytes]) -> IO[bytes]:
    buffered: Any = file if hasattr(file, "peek") else io.BufferedReader(file)
    if buffered.peek(2)[:2] == _GZIP:
        return gzip.GzipFile(fileobj=buffered)  # type: ignore[return-value]
    return buffered  # type: ignore[no-any-return]


def count_lines(source: Source) -> int | None:
    """How many lines a file has, for the progress; None where it can be read only once."""
    if not isinstance(source, str | os.PathLike) or not Path(source).is_file():
        return None
    try:
        with opened(source) as file:
            return sum(1 for _, line in numbered_lines(file) if line is not None)
    except (EOFError, OSError, zlib.error):
        return None


def parsed_lines(file: IO[bytes]) -> Iterator[tuple[int, object]]:
    """Number and value of each line that is not blank; a `BadLine` for what is no JSON."""
    number = 0
    try:
        for number, line in numbered_lines(file):
            yield number, _parsed(line)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        yield number + 1, BadLine("the compressed file is damaged here, or was cut off")


def numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Number and bytes of each line that is not blank; None for one that is too long."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if len(line) >= LONGEST_LINE and not line.endswith(b"\n"):
            while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif line.strip():
            yield number, line


def _parsed(line: bytes | None) -> object:
    if line is None:
        return BadLine(f"is longer than {LONGEST_LINE} bytes: is the file JSON Lines?")
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_refused)
    except UnicodeDecodeError as error:
        return BadLine(f"is not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        return BadLine(f"is not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        return BadLine(f"is not JSON that can be stored: {reason}")


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")
