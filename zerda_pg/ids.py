"""Identifiers made by the client: UUIDv7, ordered by time (RFC 9562, section 5.7)."""

from __future__ import annotations

import os
import threading
import time
import uuid

__all__ = ["MAX_ID_BYTES", "check_id", "new_id"]

MAX_ID_BYTES = 256
"""Longest key text, in UTF-8 bytes; a b-tree row of three such keys still fits a page."""

_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """A new UUIDv7: later calls of one process sort after earlier ones.

    The 12 bits after the milliseconds count sub-millisecond time (RFC 9562, section 6.2,
    method 3), bumped where the clock stands still or steps back.
    """
    global _last  # noqa: PLW0603 - one counter a process is the point
    nanoseconds = time.time_ns()
    stamp = (nanoseconds // 1_000_000 << 12) | (nanoseconds % 1_000_000 * 4096 // 1_000_000)
    with _lock:
        _last = stamp = max(stamp, _last + 1)
    random_bits = int.from_bytes(os.urandom(8), "big") & ((1 << 62) - 1)
    value = (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random_bits
    return str(uuid.UUID(int=value))


def check_id(value: object, name: str) -> str:
    """Return `value` if it can be a key: text, not blank, at most 256 bytes, valid Unicode.

    Raises:
        ValueError: Naming `name` and what is wrong.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{name} must not be empty")
    if "\x00" in value:
        raise ValueError(f"{name} must not contain NUL (position {value.index(chr(0))})")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has a lone surrogate at position {error.start}") from error
    if size > MAX_ID_BYTES:
        raise ValueError(f"{name} is {size} bytes long, at most {MAX_ID_BYTES} are allowed")
    return value
