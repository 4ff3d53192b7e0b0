"""Against the original (the package `zerda`): same selection, same order, to 1e-9.

Where this package deliberately differs, the inputs keep away: the original's order of ties
depends on the input's order (inputs come sorted by id), and a time in the future scores above 1.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zerda_pg.entry import MemoryEntry
from zerda_pg.memory.working import WorkingMemory
from zerda_pg.scoring.forgetting import ForgettingConfig, ForgettingMechanism
from zerda_pg.scoring.selector import MemorySelector, SelectionConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    logging.getLogger("zerda").setLevel(logging.ERROR)
    original = pytest.importorskip("zerda.memory")

NOW = 1_700_000_000.0
CLOSE = pytest.approx

FRACTIONS = st.one_of(st.sampled_from([0.0, 0.05, 0.5, 1.0]), st.floats(0.0, 1.0))
CONTENTS = st.one_of(
    st.text(max_size=300),
    st.fixed_dictionaries({"input": st.text(max_size=40), "output": st.text(max_size=40)}),
    st.integers(),
)
FIELDS = st.fixed_dictionaries(
    {
        "content": CONTENTS,
        "age": st.floats(0.0, 1e9),
        "idle": st.floats(0.0, 1e9),
        "importance": FRACTIONS,
        "decay_factor": FRACTIONS,
        "access_count": st.integers(0, 60),
    }
)
ENTRIES = st.lists(FIELDS, max_size=15)


def both(rows: list[dict[str, Any]]) -> tuple[list[MemoryEntry], list[Any]]:
    """The same entries in this package and in the original."""
    ours, theirs = [], []
    for number, row in enumerate(rows):
        fields = {
            "content": row["content"],
            "timestamp": NOW - row["age"],
            "importance": row["importance"],
            "access_count": row["access_count"],
            "last_access": NOW - row["idle"],
            "decay_factor": row["decay_factor"],
            "metadata": {"id": f"id-{number:02}"},
        }
        ours.append(MemoryEntry(**copy.deepcopy(fields)))
        theirs.append(original.MemoryEntry(memory_type=original.MemoryType.SEMANTIC, **fields))
    return ours, theirs


def undecided(scored: list[Any], least: float) -> bool:
    """Whether rounding alone decides an order, or which side of the least score one is on.

    Equal in every part is decided: both sides compute the same and keep the order of the ids.
    """
    parts = [(s.relevance_score, s.recency_score, s.importance_score) for s in scored]
    return any(abs(s.composite_score - least) < 1e-9 for s in scored) or any(
        scored[i].composite_score - scored[i + 1].composite_score < 1e-9
        and parts[i] != parts[i + 1]
        for i in range(len(scored) - 1)
    )


@st.composite
def selection_fields(draw: st.DrawFn) -> dict[str, Any]:
    shares = draw(st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3))
    total = math.fsum(shares)
    return {
        "relevance_weight": shares[0] / total,
        "recency_weight": shares[1] / total,
        "importance_weight": shares[2] / total,
        "recency_half_life_hours": draw(st.floats(0.01, 1e5)),
        "min_composite_score": draw(st.floats(0.0, 0.7)),
        "top_k": draw(st.integers(1, 12)),
        "token_budget": draw(st.integers(1, 400)),
    }


@given(
    ENTRIES,
    selection_fields(),
    st.dictionaries(st.integers(0, 16), st.floats(-1.0, 1.0)),
    st.floats(0.0, 1e9),
)
def test_selector(
    rows: list[dict[str, Any]],
    fields: dict[str, Any],
    similarities: dict[int, float],
    later: float,
) -> None:
    ours, theirs = both(rows)
    scores = {f"id-{number:02}": value for number, value in similarities.items()}
    config = original.SelectionConfig(**fields)
    whole = original.SelectionConfig(
        **(fields | {"min_composite_score": -9.0, "top_k": 99, "token_budget": 10**9})
    )
    with mock.patch("time.time", return_value=NOW + later):
        everything = original.MemorySelector(whole).select("q", theirs, scores)
        expected = original.MemorySelector(config).select("q", theirs, scores)
    assume(not undecided(everything, fields["min_composite_score"]))
    selected = MemorySelector(SelectionConfig(**fields)).select("q", ours, scores, now=NOW + later)
    assert [s.entry.id for s in selected] == [s.entry.id for s in expected]
    for one, other in zip(selected, expected, strict=True):
        assert one.composite_score == CLOSE(other.composite_score, abs=1e-9)
        assert one.relevance_score == CLOSE(other.relevance_score, abs=1e-9)
        assert one.recency_score == CLOSE(other.recency_score, abs=1e-9)
        assert one.importance_score == CLOSE(other.importance_score, abs=1e-9)


@given(ENTRIES, st.integers(1, 12), st.integers(1, 400), st.lists(CONTENTS, max_size=4))
def test_working_memory(
    rows: list[dict[str, Any]], capacity: int, budget: int, added: list[Any]
) -> None:
    ours, theirs = both(rows)
    mine = WorkingMemory(capacity, budget, tenant_id="t")
    reference = original.WorkingMemory(capacity, budget, tenant_id="t")
    mine.load(ours)
    reference.load(theirs)
    assert [e.id for e in mine.get_all()] == [e.id for e in reference.get_all()]
    for number, content in enumerate(added):
        mine.add(content, importance=0.3 + number / 10)
        # its ids come from the content: equal contents must not become one entry there
        reference.add(content, importance=0.3 + number / 10, metadata={"id": f"new-{number}"})
    assert [e.content for e in mine.get_all()] == [e.content for e in reference.get_all()]
    assert mine.get_as_text() == reference.get_as_text()
    assert mine.stats() == reference.stats()


@given(
    ENTRIES,
    st.floats(1e-6, 5.0),
    st.floats(0.0, 1.0),
    st.floats(1.0, 10.0),
    FRACTIONS,
    FRACTIONS,
    st.integers(1, 3),
)
def test_forgetting(
    rows: list[dict[str, Any]],
    rate: float,
    boost: float,
    most: float,
    least: float,
    threshold: float,
    runs: int,
) -> None:
    ours, theirs = both(rows)
    fields: dict[str, Any] = {
        "base_decay_rate": rate,
        "recency_boost_per_access": boost,
        "max_recency_boost": most,
        "min_importance": least,
        "deletion_threshold": threshold,
    }
    mechanism = ForgettingMechanism(ForgettingConfig(**fields), compat=True)
    reference = original.ForgettingMechanism(original.ForgettingConfig(**fields))
    with mock.patch("time.time", return_value=NOW):
        for one, other in zip(ours, theirs, strict=True):
            left = mechanism.score_retention(one, now=NOW)
            assert left == CLOSE(reference.score_retention(other), abs=1e-9)
        report = reference.report(theirs)
        for _ in range(runs):
            assert mechanism.report(ours, now=NOW)["total"] == report["total"]
            alive, forgotten = mechanism.apply(ours, now=NOW)
            expected = reference.apply(theirs) if theirs else ([], [])
            for one, other in zip(ours, theirs, strict=True):
                assert one.importance == CLOSE(other.importance, abs=1e-9)
                assert one.decay_factor == CLOSE(other.decay_factor, abs=1e-9)
            # a score within rounding of the threshold may fall on either side of it
            if all(abs(e.effective_importance - threshold) > 1e-9 for e in theirs):
                assert [e.id for e in alive] == [e.id for e in expected[0]]
                assert [e.id for e in forgotten] == [e.id for e in expected[1]]


def test_defaults_are_the_original_s() -> None:
    for mine, theirs in (
        (SelectionConfig(), original.SelectionConfig()),
        (ForgettingConfig(), original.ForgettingConfig()),
    ):
        for name, value in vars(theirs).items():
            assert getattr(mine, name) == value, name
