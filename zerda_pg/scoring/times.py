"""When a query means: "on 3 May 2023", "in May", "last week" as spans of time."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np

from zerda_pg.scoring.signals import Floats

__all__ = ["Span", "spans_of", "within"]

Span = tuple[float, float]
"""Seconds since the epoch, from and to."""

DAY = 86400.0

LONGEST_DAYS = 36_500
"""A century: what lies further back is no memory of a conversation."""

_MONTHS = {
    name[:3]: number
    for number, name in enumerate(
        "january february march april may june july august september october november "
        "december".split(),
        1,
    )
}
_NAME = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY_OF = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_NAME}\b,?(?: (\d{{4}}))?")
_OF_DAY = re.compile(rf"\b{_NAME} (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}}))?")
_MONTH = re.compile(rf"\b{_NAME},? (\d{{4}})\b")
# without a year `may` and `march` are verbs, unless a preposition says otherwise
_BARE_MONTH = re.compile(rf"\b(?:in|during|since|last|this|of) {_NAME}\b(?!,? \d)")
_ISO = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_YEAR = re.compile(r"\b(?:in|during) (\d{4})\b")
_AGO = re.compile(r"\b(\d+|an?|two|three|four|five|six) (day|week|month|year)s? ago\b")
_LAST = re.compile(r"\b(yesterday|today|(?:last|past|this) (?:week|month|year))\b")

_NUMBERS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_UNIT_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}


def spans_of(query: str, now: float) -> list[Span]:
    """The spans that a query names, most exact first; empty where it names none.

    Args:
        query: English; of other languages ISO dates only.
        now: Seconds since the epoch, from which relative times count.
    """
    clock = datetime.fromtimestamp(now, UTC)
    found: list[Span] = []
    rest = query.lower()
    readers: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Span | None]], ...] = (
        (_ISO, lambda m: _day(int(m[1]), int(m[2]), int(m[3]))),
        (_DAY_OF, lambda m: _near(clock, m[3], _MONTHS[m[2][:3]], int(m[1]))),
        (_OF_DAY, lambda m: _near(clock, m[3], _MONTHS[m[1][:3]], int(m[2]))),
        (_MONTH, lambda m: _month(int(m[2]), _MONTHS[m[1][:3]])),
        (_BARE_MONTH, lambda m: _near(clock, None, _MONTHS[m[1][:3]], None)),
        (_YEAR, lambda m: _year(int(m[1]))),
        (_AGO, lambda m: _ago(clock, m[1], m[2])),
        (_LAST, lambda m: _last(clock, m[1])),
    )
    for pattern, read in readers:
        if matches := list(pattern.finditer(rest)):
            found += [span for match in matches if (span := read(match)) is not None]
            # what was read as a day is not read again as its month
            rest = pattern.sub(" ", rest)
    return found


def within(spans: list[Span], moments: Floats, slack_days: float = 0.0) -> Floats:
    """(n,) 1 for what happened within any of the spans or up to `slack_days` after it, else 0."""
    inside = np.zeros(len(moments))
    for start, end in spans:
        inside[(moments >= start) & (moments < end + slack_days * DAY)] = 1.0
    return inside


def _day(year: int, month: int, day: int) -> Span | None:
    try:
        start = datetime(year, month, day, tzinfo=UTC)
    except ValueError:
        return None
    return start.timestamp(), start.timestamp() + DAY


def _month(year: int, month: int) -> Span | None:
    if not 1 <= year <= 9999:
        return None
    start = datetime(year, month, 1, tzinfo=UTC).timestamp()
    return start, start + monthrange(year, month)[1] * DAY


def _year(year: int) -> Span | None:
    first, last = _month(year, 1), _month(year, 12)
    return None if first is None or last is None else (first[0], last[1])


def _near(clock: datetime, year: str | None, month: int, day: int | None) -> Span | None:
    """A day or month; without a year the last one that has begun by now."""
    for candidate in [int(year)] if year else [clock.year, clock.year - 1]:
        span = _month(candidate, month) if day is None else _day(candidate, month, day)
        if span is not None and (year or span[0] <= clock.timestamp()):
            return span
    return None


def _ago(clock: datetime, number: str, unit: str) -> Span | None:
    count = _NUMBERS.get(number) or int(number[:6])
    days = count * _UNIT_DAYS[unit]
    if days > LONGEST_DAYS:
        return None
    # "three weeks ago" is meant about as exactly as its unit
    about = _UNIT_DAYS[unit] / 2.0
    middle = clock.timestamp() - days * DAY
    return middle - about * DAY, middle + about * DAY


def _last(clock: datetime, words: str) -> Span | None:
    midnight = clock.replace(hour=0, minute=0, second=0, microsecond=0)
    today = midnight.timestamp()
    if words == "today":
        return today, today + DAY
    if words == "yesterday":
        return today - DAY, today
    which, unit = words.split()
    if which == "past":
        return clock.timestamp() - _UNIT_DAYS[unit] * DAY, clock.timestamp()
    start = {
        "week": midnight - timedelta(days=midnight.weekday()),
        "month": midnight.replace(day=1),
        "year": midnight.replace(month=1, day=1),
    }[unit]
    if which == "this":
        return start.timestamp(), clock.timestamp()
    if unit == "week":
        return start.timestamp() - 7 * DAY, start.timestamp()
    if unit == "month":
        if clock.month == 1:
            return _month(clock.year - 1, 12)
        return _month(clock.year, clock.month - 1)
    return _year(clock.year - 1)
