"""Times at the boundary: aware datetimes and seconds since the epoch, never naive."""

from __future__ import annotations

import math
from datetime import UTC, datetime

__all__ = ["aware", "from_epoch", "parse_time", "to_epoch"]

_EARLIEST = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


def aware(value: object, name: str) -> datetime:
    """Return `value` in UTC if it is an aware datetime.

    Raises:
        ValueError: If it is no datetime, naive, or at the edge of the calendar.
    """
    if not isinstance(value, datetime):
        raise ValueError(f"{name} must be an aware datetime, got {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(f"{name} must have a time zone: {value.isoformat()} is naive")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{name} is outside the calendar in UTC: {value.isoformat()}") from error


def to_epoch(value: object, name: str) -> float:
    """Seconds since the epoch from a number or an aware datetime.

    Raises:
        ValueError: If it is neither, not finite, naive, or outside the years 1 to 9999.
    """
    if isinstance(value, datetime):
        return aware(value, name).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"{name} must be seconds since the epoch or an aware datetime, "
            f"got {type(value).__name__}"
        )
    if not (math.isfinite(value) and _EARLIEST <= value <= _LATEST):
        raise ValueError(f"{name} must be a time between the years 1 and 9999, got {value}")
    return float(value)


def from_epoch(seconds: float) -> datetime:
    """An aware UTC datetime; microseconds, as Postgres keeps them."""
    return datetime.fromtimestamp(seconds, UTC)


def parse_time(value: object, name: str) -> datetime:
    """An aware datetime from one, from epoch seconds, or from ISO 8601 with an offset or `Z`.

    Raises:
        ValueError: If it is none of these, or has no offset.
    """
    if isinstance(value, str):
        try:
            return aware(datetime.fromisoformat(value), name)
        except ValueError as error:
            raise ValueError(
                f"{name} must be ISO 8601 with an offset or Z, got {value[:40]!r}"
            ) from error
    if isinstance(value, datetime):
        return aware(value, name)
    return from_epoch(to_epoch(value, name))
