"""Which time a query means."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.scoring.times import spans_of, within

NOW = datetime(2024, 3, 13, 15, 30, tzinfo=UTC).timestamp()  # a Wednesday


def dates(query: str) -> list[tuple[str, str]]:
    """First and last day of each span."""
    return [
        (
            datetime.fromtimestamp(start, UTC).date().isoformat(),
            datetime.fromtimestamp(end - 1, UTC).date().isoformat(),
        )
        for start, end in spans_of(query, NOW)
    ]


@pytest.mark.parametrize(
    ("query", "first", "last"),
    [
        ("Who did Maria meet on May 3, 2023?", "2023-05-03", "2023-05-03"),
        ("Who did she meet on 3 May, 2023?", "2023-05-03", "2023-05-03"),
        ("the 21st of June 2022", "2022-06-21", "2022-06-21"),
        ("log of 2024-02-29", "2024-02-29", "2024-02-29"),
        ("on February 10", "2024-02-10", "2024-02-10"),
        ("on December 10", "2023-12-10", "2023-12-10"),  # this year's is still to come
        ("What happened in May 2023?", "2023-05-01", "2023-05-31"),
        ("What did I read in January?", "2024-01-01", "2024-01-31"),
        ("plans for the trip in 2022", "2022-01-01", "2022-12-31"),
        ("what did I say yesterday", "2024-03-12", "2024-03-12"),
        ("what did I say today", "2024-03-13", "2024-03-13"),
        ("the meeting last week", "2024-03-04", "2024-03-10"),
        ("the meeting last month", "2024-02-01", "2024-02-29"),
        ("my taxes last year", "2023-01-01", "2023-12-31"),
        ("the past week", "2024-03-06", "2024-03-13"),
        ("what did I cook two weeks ago", "2024-02-25", "2024-03-03"),
    ],
)
def test_a_time_is_understood(query: str, first: str, last: str) -> None:
    assert dates(query) == [(first, last)]


@pytest.mark.parametrize(
    "query",
    [
        "may I march in?",
        "I may go",
        "room 2023",
        "on 31 February 2024",
        "2023-13-45",
        "999999 years ago",
        "in 0000",
        "",
    ],
)
def test_what_is_no_time(query: str) -> None:
    assert spans_of(query, NOW) == []


def test_two_months_are_two_spans() -> None:
    assert [first for first, _ in dates("in January and in February")] == [
        "2024-01-01", "2024-02-01",
    ]  # fmt: skip


def test_within_a_span_or_shortly_after() -> None:
    spans = [(100.0, 200.0)]
    moments = np.array([50.0, 100.0, 199.0, 200.0, 200.0 + 86400.0 * 2])
    assert within(spans, moments).tolist() == [0, 1, 1, 0, 0]
    assert within(spans, moments, slack_days=1).tolist() == [0, 1, 1, 1, 0]
    assert within([], moments).tolist() == [0] * 5


@given(st.text(), st.floats(0, 4e9))
def test_any_text_is_taken(query: str, now: float) -> None:
    assert all(start < end for start, end in spans_of(query, now))


@given(
    st.sampled_from(["in {} {}", "{} 31 {}", "31 {} {}"]),
    st.sampled_from(["May", "june", "Feb", "Sept."]),
    st.integers(0, 99999),
)
def test_any_year_is_taken(form: str, month: str, year: int) -> None:
    assert all(start < end for start, end in spans_of(form.format(month, year), NOW))


@pytest.mark.parametrize("words", ["today", "yesterday", "last week", "last month", "last year"])
@pytest.mark.parametrize("clock", [datetime.min, datetime(1, 1, 7), datetime.max])
def test_at_the_ends_of_the_calendar(clock: datetime, words: str) -> None:
    now = clock.replace(tzinfo=UTC, microsecond=0).timestamp()
    before = [start for start, _ in spans_of(f"what happened {words}", now)]
    assert all(start <= now for start in before)
