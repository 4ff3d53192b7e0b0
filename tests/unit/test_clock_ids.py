"""Times and identifiers at the boundary."""

from __future__ import annotations

import math
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.clock import aware, from_epoch, instant, parse_time, to_epoch
from zerda_pg.ids import MAX_ID_BYTES, check_id, new_id

NAIVE = datetime(2024, 1, 1)


def test_new_ids_are_ordered_uuids_of_version_7() -> None:
    before = time.time_ns() // 1_000_000
    made = [new_id() for _ in range(5000)]
    after = time.time_ns() // 1_000_000
    assert made == sorted(made)
    assert len(set(made)) == 5000
    for text in (made[0], made[-1]):
        value = uuid.UUID(text)
        assert (value.version, value.variant) == (7, uuid.RFC_4122)
        assert before <= value.int >> 80 <= after + 5


def test_new_ids_of_many_threads_are_distinct() -> None:
    made: list[str] = []

    def make() -> None:
        mine = [new_id() for _ in range(2000)]
        assert mine == sorted(mine)
        made.extend(mine)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == len(made) == 16_000


def test_ids_that_are_accepted() -> None:
    for text in ("a", "%", "a_", "\\", "order 17", "日本", "x" * MAX_ID_BYTES, "é" * 128, "'; --"):
        assert check_id(text, "id") == text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "id must not be empty"),
        (" \t", "id must not be empty"),
        (5, "id must be a string, got int"),
        (None, "id must be a string, got NoneType"),
        (uuid.uuid4(), "id must be a string, got UUID"),
        ("a\x00b", r"id must not contain NUL \(position 1\)"),
        ("ab\ud800", "id has a lone surrogate at position 2"),
        ("x" * 257, "id is 257 bytes long, at most 256 are allowed"),
        ("é" * 129, "id is 258 bytes long, at most 256 are allowed"),
    ],
)
def test_ids_that_are_refused(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        check_id(value, "id")


@pytest.mark.parametrize("value", [NAIVE, "2024-01-01T00:00:00", "2024-01-01", "2024-01-01 10:00"])
def test_naive_times_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^when must"):
        parse_time(value, "when")


@pytest.mark.parametrize(
    "value",
    ["soon", "", "2024-13-01T00:00:00Z", None, True, float("nan"), float("inf"), 1e300, -1e12, []],
)
def test_other_things_are_no_times(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^when must"):
        parse_time(value, "when")


def test_times_in_every_form() -> None:
    moment = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    for value in (
        moment,
        moment.astimezone(timezone(timedelta(hours=5, minutes=45))),
        "2024-02-29T12:30:00Z",
        "2024-02-29T14:30:00+02:00",
        "20240229T123000Z",
        moment.timestamp(),
        int(moment.timestamp()),
    ):
        assert parse_time(value, "when") == moment
        assert parse_time(value, "when").utcoffset() == timedelta(0)


def test_the_edges_of_the_calendar() -> None:
    east, west = (timezone(timedelta(hours=h)) for h in (14, -12))
    with pytest.raises(ValueError, match="when is outside the calendar in UTC"):
        aware(datetime(1, 1, 1, tzinfo=east), "when")
    with pytest.raises(ValueError, match="when is outside the calendar in UTC"):
        aware(datetime(9999, 12, 31, 23, tzinfo=west), "when")
    first, last = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))
    for value in (first, datetime(1, 1, 3, tzinfo=UTC), last.replace(microsecond=0)):
        assert aware(value, "when") == instant(value, "when") == value
        assert from_epoch(to_epoch(value, "when")) == value
        assert to_epoch(value.timestamp(), "when") == value.timestamp()
    assert aware(last, "when") == parse_time(last.isoformat(), "when") == last


@pytest.mark.parametrize(
    "value", [datetime.max.replace(tzinfo=UTC), 253402300800, -62135596801, 10**400, -math.inf]
)
def test_what_seconds_cannot_count(value: Any) -> None:
    """The last second's fractions would be the year 10000."""
    allowed = r"^when must be a time from 0001-01-01T00:00:00\+00:00 to 9999-12-31T23:59:59\+00:00,"
    with pytest.raises(ValueError, match=allowed):
        to_epoch(value, "when")
    if isinstance(value, datetime):
        with pytest.raises(ValueError, match=allowed):
            instant(value, "when")


@given(st.datetimes(datetime(1, 1, 3), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_seconds_and_back_again(moment: datetime) -> None:
    """To the microsecond in our times; a float of seconds is coarser in antiquity."""
    off = abs(from_epoch(to_epoch(moment, "when")) - moment)
    assert off <= timedelta(microseconds=0 if moment.year > 1700 else 8)
