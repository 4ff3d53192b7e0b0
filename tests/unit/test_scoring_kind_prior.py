"""score_memory by hand, its word matching, and its validated weights."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.scoring.kind_prior import KindPriorWeights, score_memory
from zerda_pg.scoring.lexical import overlap


@pytest.mark.parametrize(
    ("kind", "prior"),
    [
        ("decision", 0.35),
        ("fact", 0.30),
        ("preference", 0.25),
        ("failure", 0.20),
        ("attempt", 0.05),
        ("idea", 0.0),
        ("relevance", 0.0),  # a field of the weights, not a kind
        (None, 0.0),
    ],
)
def test_kind_prior(kind: str | None, prior: float) -> None:
    assert score_memory(kind, 0.0, "", 0, "") == pytest.approx(prior)


@pytest.mark.parametrize(
    ("accesses", "bonus"), [(-1, 0.0), (0, 0.0), (1, 0.02), (5, 0.10), (6, 0.10), (10**9, 0.10)]
)
def test_access_bonus_is_capped_at_five(accesses: int, bonus: float) -> None:
    assert score_memory(None, 0.0, "", accesses, "") == pytest.approx(bonus)


def test_by_hand() -> None:
    # two of the four words are long enough and found: 0.30 + 0.8 · 0.30 + 0.5 · 0.25 + 3/50
    score = score_memory("fact", 0.8, "The LOG is rotated daily", 3, "Fix log is rotated")
    assert score == pytest.approx(0.30 + 0.24 + 0.125 + 0.06)


def test_everything_at_its_best_is_one() -> None:
    assert score_memory("decision", 1.0, "log", 99, "log") == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("task", "text", "substring", "word"),
    [
        ("log", "the dialog", 1.0, 0.0),
        ("log", "the log.", 1.0, 1.0),
        ("log?", "the log.", 0.0, 1.0),
        ("", "anything", 0.0, 0.0),
        (" \t\n", "anything", 0.0, 0.0),
        ("?!", "?!", 0.0, 0.0),
        ("to be log", "to be a log", 1 / 3, 1 / 3),  # short words stay in the denominator
        ("log log cat", "log", 2 / 3, 2 / 3),  # repeats count each time
        ("中 文", "中文", 1.0, 0.0),  # three bytes each
        ("中文", "中文", 1.0, 1.0),
        ("ä ß", "ä ß", 0.0, 0.0),  # two bytes each
        ("ÄÖ", "äö", 1.0, 1.0),  # four bytes, case folded
        ("\ud800x", "\ud800x", 1.0, 0.0),  # a lone surrogate does not raise
    ],
)
def test_overlap(task: str, text: str, substring: float, word: float) -> None:
    assert overlap(task, text) == pytest.approx(substring)
    assert overlap(task, text, "word") == pytest.approx(word)


def test_overlap_may_be_given() -> None:
    assert score_memory(None, 0.0, "log", 0, "log", overlap=0.5) == pytest.approx(0.125)
    assert score_memory(None, 0.0, "dialog", 0, "log", matching="word") == 0.0


@given(
    st.sampled_from(["decision", "attempt", None]),
    st.floats(0.0, 1.0),
    st.text(max_size=30),
    st.integers(0, 100),
    st.text(max_size=30),
)
def test_bounded_and_monotone(
    kind: str | None, relevance: float, text: str, accesses: int, task: str
) -> None:
    score = score_memory(kind, relevance, text, accesses, task)
    assert 0.0 <= score <= 1.0 + 1e-12
    assert score_memory(kind, min(1.0, relevance + 0.1), text, accesses, task) >= score
    assert score_memory(kind, relevance, text, accesses + 1, task) >= score
    assert score_memory(kind, relevance, text + task, accesses, task) >= score


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"relevance": math.nan}, "relevance"),
        ({"overlap": 1.5}, "overlap"),
        ({"overlap": math.nan}, "overlap"),
        ({"matching": "fuzzy"}, "matching"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], named: str) -> None:
    good = {"kind": None, "relevance": 0.5, "content": "", "access_count": 0, "task": "x"}
    with pytest.raises(ValueError, match=named):
        score_memory(**(good | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("decision", 1.5), ("overlap", math.nan), ("access_cap", -0.1), ("accesses_per_point", 0.0)],
)
def test_bad_weights_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        KindPriorWeights(**{field: value})


def test_weights_are_used() -> None:
    weights = KindPriorWeights(unknown=0.5, accesses_per_point=10.0, access_cap=0.3)
    assert score_memory("idea", 0.0, "", 2, "", weights=weights) == pytest.approx(0.7)
