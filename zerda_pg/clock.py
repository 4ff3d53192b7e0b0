"""Times at the boundary: aware datetimes and seconds since the epoch, never naive."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["aware", "from_epoch", "instant", "parse_time", "to_epoch"]

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)

# Seconds since the epoch are floats, which that far off keep 30 microseconds: the very last
# ones would be the year 10000.
_LAST_SECOND = _LAST.replace(microsecond=0)
_EARLIEST = _FIRST.timestamp()
_LATEST = _LAST_SECOND.timestamp()


def _uncounted(name: str, got: str) -> ValueError:
    return ValueError(
        f"{name} must be a time from {_FIRST.isoformat()} to {_LAST_SECOND.isoformat()}, "
        f"got {got[:40]}"
    )


def aware(value: object, name: str) -> datetime:
    """Return `value` in UTC if it is an aware datetime.

    Raises:
        ValueError: If it is no datetime, naive, or in UTC outside the years 1 to 9999.
    """
    if not isinstance(value, datetime):
        raise ValueError(f"{name} must be an aware datetime, got {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(f"{name} must have a time zone: {value.isoformat()} is naive")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(
            f"{name} is outside the calendar in UTC, from {_FIRST.isoformat()} to "
            f"{_LAST.isoformat()}: {value.isoformat()}"
        ) from error


def instant(value: object, name: str) -> datetime:
    """The same for a time that is also counted in seconds since the epoch.

    Raises:
        ValueError: As `aware`, and for what comes after the calendar's last second has begun.
    """
    moment = aware(value, name)
    if moment > _LAST_SECOND:
        raise _uncounted(name, moment.isoformat())
    return moment


def to_epoch(value: object, name: str) -> float:
    """Seconds since the epoch from a number or an aware datetime.

    Raises:
        ValueError: If it is neither, not finite, naive, or outside the years 1 to 9999.
    """
    if isinstance(value, datetime):
        return instant(value, name).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"{name} must be seconds since the epoch or an aware datetime, "
            f"got {type(value).__name__}"
        )
    if not _EARLIEST <= value <= _LATEST:  # nor is NaN
        raise _uncounted(name, f"{value} seconds since 1970")
    return float(value)


def from_epoch(seconds: float) -> datetime:
    """An aware UTC datetime; microseconds, as Postgres keeps them."""
    return datetime.fromtimestamp(seconds, UTC)


def parse_time(value: object, name: str) -> datetime:
    """An aware datetime from one, from epoch seconds, or from ISO 8601 with an offset or `Z`.

    Raises:
        ValueError: If it is none of these, has no offset, or is outside the years 1 to 9999.
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError as error:
            raise _not_iso(value, name) from error
        if moment.tzinfo is None:
            raise _not_iso(value, name)
        return aware(moment, name)
    if isinstance(value, datetime):
        return aware(value, name)
    return from_epoch(to_epoch(value, name))


def _not_iso(value: str, name: str) -> ValueError:
    return ValueError(
        f"{name} must be ISO 8601 with an offset or Z, of the years 1 to 9999; got {value[:40]!r}"
    )
