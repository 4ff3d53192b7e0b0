"""MemorySelector: the seed's examples, hand-worked scores, laws, and bad configuration."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from zerda_pg.entry import MemoryEntry, MemoryType
from zerda_pg.scoring.packing import Policy
from zerda_pg.scoring.selector import MemorySelector, ScoredMemory, SelectionConfig

NOW = 1_700_000_000.0
HOUR = 3600.0


def entry(name: str, *, hours: float = 0.0, **fields: Any) -> MemoryEntry:
    content = fields.pop("content", f"text of {name}")
    return MemoryEntry(content, NOW - hours * HOUR, id=name, **fields)


@dataclass
class FakeHit:
    entry: MemoryEntry
    similarity: float | None


class LetterEmbedder:
    """Counts of a, b and c, unit norm: a pure function with readable cosines."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def embed(
        self, texts: Sequence[str], *, kind: Literal["document", "query"] = "document"
    ) -> NDArray[np.float32]:
        self.calls.append((kind, list(texts)))
        counts = np.array([[t.count(x) for x in "abc"] for t in texts], dtype=np.float32)
        return np.asarray(counts / np.linalg.norm(counts, axis=1, keepdims=True))


# --- the seed's examples


def seed_candidates() -> list[MemoryEntry]:
    return [
        MemoryEntry(
            content={"input": f"fact {i}", "output": "ok"},
            timestamp=time.time() - i * 3600,
            memory_type=MemoryType.SEMANTIC,
            importance=0.5,
        )
        for i in range(20)
    ]


def test_seed_basic() -> None:
    selector = MemorySelector(SelectionConfig(top_k=5, token_budget=1000))
    candidates = seed_candidates()
    selected = selector.select_entries("irrelevant query text", candidates)
    assert selected == candidates[:5]  # all have relevance 0.5: the newest win


def test_seed_with_similarities() -> None:
    selector = MemorySelector(SelectionConfig(top_k=5, token_budget=1000))
    candidates = seed_candidates()
    scores = {candidates[0].id: 0.9, candidates[5].id: 0.7}
    selected = selector.select_entries("What facts do we know?", candidates, scores)
    assert selected == [candidates[i] for i in (0, 5, 1, 2, 3)]


def test_seed_explain() -> None:
    selector = MemorySelector(SelectionConfig(top_k=5, token_budget=1000))
    candidates = seed_candidates()
    rows = selector.explain("query", candidates, {candidates[0].id: 0.9, candidates[5].id: 0.7})
    assert len(rows) == 5
    assert rows[0] == {
        "id": candidates[0].id,
        "content": "{'input': 'fact 0', 'output': 'ok'}",
        "relevance": 0.9,
        "recency": 1.0,
        "importance": 0.5,
        "composite": 0.8,
        "relevance_source": "given",
    }
    assert [row["relevance_source"] for row in rows[1:3]] == ["given", "neutral"]


def test_seed_error_handling() -> None:
    with pytest.raises(ValueError, match=r"^Weights must sum to 1\.0, got 1\.500$"):
        SelectionConfig(relevance_weight=0.5, recency_weight=0.5, importance_weight=0.5)


def test_seed_production_config() -> None:
    config = SelectionConfig(
        relevance_weight=0.4,
        recency_weight=0.4,
        importance_weight=0.2,
        recency_half_life_hours=2.0,
    )
    scored = MemorySelector(config).select("q", [entry("a", hours=2.0)], now=NOW)
    assert scored[0].composite_score == pytest.approx(0.4 * 0.5 + 0.4 * 0.5 + 0.2 * 0.5)


# --- scores by hand


def test_composite_by_hand() -> None:
    [scored] = MemorySelector().select(
        "q", [entry("a", hours=48.0, importance=0.8, decay_factor=0.5)], {"a": 0.9}, now=NOW
    )
    assert scored.relevance_score == 0.9
    assert scored.recency_score == pytest.approx(0.25)
    assert scored.importance_score == pytest.approx(0.4)
    assert scored.composite_score == pytest.approx(0.5 * 0.9 + 0.2 * 0.25 + 0.3 * 0.4)


def test_the_future_counts_as_now_and_the_distant_past_does_not_underflow() -> None:
    config = SelectionConfig(recency_half_life_hours=0.001)
    scored = MemorySelector(config).select(
        "q", [entry("old", hours=1e6), entry("next", hours=-5.0)], now=NOW
    )
    recency = {memory.entry.id: memory.recency_score for memory in scored}
    assert recency["next"] == 1.0
    assert 0.0 < recency["old"] < 1e-300


@pytest.mark.parametrize(("basis", "recency"), [("created", 0.125), ("updated", 0.25)])
def test_recency_basis(basis: Literal["created", "updated"], recency: float) -> None:
    old = entry("a", hours=72.0, last_access=NOW - 24 * HOUR)
    old.updated_at = datetime.fromtimestamp(NOW - 48 * HOUR, UTC)
    for config, expected in (
        (SelectionConfig(recency_basis=basis), recency),
        (SelectionConfig(recency_basis="accessed"), 0.5),
    ):
        [scored] = MemorySelector(config).select("q", [old], now=NOW)
        assert scored.recency_score == pytest.approx(expected)


def test_never_updated_means_created() -> None:
    config = SelectionConfig(recency_basis="updated")
    [scored] = MemorySelector(config).select("q", [entry("a", hours=24.0)], now=NOW)
    assert scored.recency_score == pytest.approx(0.5)


def test_to_dict_cuts_and_rounds() -> None:
    scored = ScoredMemory(entry("a", content="x" * 500), 1 / 3, 2 / 3, 0.5, 0.123456)
    row = scored.to_dict()
    assert list(row) == ["id", "content", "relevance", "recency", "importance", "composite"]
    assert row["content"] == "x" * 120
    assert (row["relevance"], row["recency"], row["composite"]) == (0.3333, 0.6667, 0.1235)


# --- budget, reasons, ties


def test_a_large_one_is_skipped_and_a_smaller_one_still_fits() -> None:
    entries = [
        entry("large", content="x" * 400, importance=1.0),
        entry("small", content="y" * 40, importance=0.1),
    ]
    config = SelectionConfig(token_budget=20)
    assert MemorySelector(config).select_entries("q", entries, now=NOW) == [entries[1]]
    config = SelectionConfig(token_budget=20, packing="stop")
    assert MemorySelector(config).select_entries("q", entries, now=NOW) == []


def test_rejected_says_why() -> None:
    entries = [
        entry("a", content="x" * 40, importance=0.9),
        entry("b", content="x" * 4000, importance=0.8),
        entry("c", content="x" * 40, importance=0.7),
        entry("d", content="x" * 40, importance=0.6),
        entry("e", content="x" * 40, importance=0.0, hours=900.0),
    ]
    config = SelectionConfig(top_k=2, token_budget=100, min_composite_score=0.3)
    rows = MemorySelector(config).explain("q", entries, rejected=True, now=NOW)
    assert [(row["id"], row["reason"]) for row in rows] == [
        ("a", None),
        ("c", None),
        ("b", "over_budget"),
        ("d", "beyond_top_k"),
        ("e", "below_min_score"),
    ]


def test_ties_break_by_id_and_now_replays() -> None:
    entries = [entry(name) for name in "dbca"]
    selected = MemorySelector().select_entries("q", entries, now=NOW)
    assert [e.id for e in selected] == ["a", "b", "c", "d"]
    moment = datetime.fromtimestamp(NOW, UTC)
    first = MemorySelector().explain("q", entries, now=moment)
    assert first == MemorySelector().explain("q", entries, now=NOW)


def test_count_tokens_replaces_the_estimate() -> None:
    entries = [entry("a", content="one two three"), entry("b", content="four")]
    selector = MemorySelector(
        SelectionConfig(token_budget=2), count_tokens=lambda text: len(text.split())
    )
    assert [e.id for e in selector.select_entries("q", entries, now=NOW)] == ["b"]


def test_none_and_one() -> None:
    assert MemorySelector().select("q", []) == []
    assert MemorySelector().explain("q", [], rejected=True) == []
    assert len(MemorySelector().select("q", [entry("a")], now=NOW)) == 1


# --- where relevance comes from


def test_a_hit_s_similarity_is_used_and_a_given_one_goes_before_it() -> None:
    hits = [FakeHit(entry("a"), 0.9), FakeHit(entry("b"), None), FakeHit(entry("c"), 0.8)]
    rows = MemorySelector().explain("q", [*hits, entry("d")], {"c": 0.1}, now=NOW)
    assert {row["id"]: (row["relevance"], row["relevance_source"]) for row in rows} == {
        "a": (0.9, "query"),
        "b": (0.5, "neutral"),
        "c": (0.1, "given"),
        "d": (0.5, "neutral"),
    }


def test_an_embedder_makes_the_query_count() -> None:
    embedder = LetterEmbedder()
    entries = [
        entry("x", content="bbb"),
        entry("y", content="aaa"),
        entry("z", content="never read", embedding=[3.0, 0.0, 4.0]),
        entry("blank", content=" "),
    ]
    selector = MemorySelector(embedder=embedder)
    rows = selector.explain("a", entries, now=NOW)
    assert [(row["id"], row["relevance"]) for row in rows] == [
        ("y", 1.0),
        ("z", 0.6),
        ("blank", 0.5),
        ("x", 0.0),
    ]
    assert rows[2]["relevance_source"] == "neutral"
    assert embedder.calls == [("query", ["a"]), ("document", ["bbb", "aaa"])]
    assert selector.explain("  ", entries, now=NOW)[0]["relevance_source"] == "neutral"


def test_an_embedding_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"embedding of 'a' has 2 dimensions, the query 3"):
        MemorySelector(embedder=LetterEmbedder()).select("a", [entry("a", embedding=[1.0, 0.0])])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_similarity_that_is_no_number_names_the_id(value: float) -> None:
    with pytest.raises(ValueError, match="'the-id'"):
        MemorySelector().select("q", [entry("the-id")], {"the-id": value})
    with pytest.raises(ValueError, match="'the-id'"):
        MemorySelector().select("q", [FakeHit(entry("the-id"), value)])


# --- laws

CANDIDATES = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(0, 99)),
    max_size=12,
)


@given(
    CANDIDATES,
    st.integers(1, 60),
    st.integers(1, 6),
    st.sampled_from(["skip", "stop", "value", "optimal"]),
    st.integers(),
)
def test_budget_count_and_independence_of_the_input_s_order(
    rows: list[tuple[int, float, int]], budget: int, top_k: int, packing: Policy, seed: int
) -> None:
    entries = [
        entry(f"{i:02}", hours=hours, importance=importance, content="x" * size)
        for i, (hours, importance, size) in enumerate(rows)
    ]
    config = SelectionConfig(token_budget=budget, top_k=top_k, packing=packing)
    selector = MemorySelector(config)
    selected = selector.select_entries("q", entries, now=NOW)
    assert sum(max(1, len(e.content) // 4) for e in selected) <= budget
    assert len(selected) <= top_k
    shuffled = random.Random(seed).sample(entries, len(entries))
    assert selector.select_entries("q", shuffled, now=NOW) == selected
    everything = selector.explain("q", shuffled, rejected=True, now=NOW)
    assert sorted(row["id"] for row in everything) == [e.id for e in entries]


@given(CANDIDATES.filter(bool), st.data())
def test_more_similarity_never_lowers_a_rank(
    rows: list[tuple[int, float, int]], data: st.DataObject
) -> None:
    entries = [
        entry(f"{i:02}", hours=hours, importance=importance)
        for i, (hours, importance, _) in enumerate(rows)
    ]
    given_scores = {e.id: data.draw(st.floats(0.0, 1.0)) for e in entries}
    chosen = data.draw(st.sampled_from(entries))
    raised = data.draw(st.floats(given_scores[chosen.id], 1.0))
    config = SelectionConfig(top_k=99, token_budget=10**6, min_composite_score=0.0)
    selector = MemorySelector(config)
    before = selector.select_entries("q", entries, given_scores, now=NOW).index(chosen)
    given_scores[chosen.id] = raised
    assert selector.select_entries("q", entries, given_scores, now=NOW).index(chosen) <= before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("relevance_weight", 1.5),
        ("recency_weight", -0.1),
        ("importance_weight", math.nan),
        ("recency_half_life_hours", 0.0),
        ("recency_half_life_hours", -1.0),
        ("recency_half_life_hours", math.inf),
        ("recency_half_life_hours", math.nan),
        ("recency_half_life_hours", "day"),
        ("min_composite_score", 1.1),
        ("min_composite_score", math.nan),
        ("top_k", 0),
        ("top_k", 2.5),
        ("token_budget", 0),
        ("token_budget", True),
        ("packing", "best"),
        ("recency_basis", "born"),
    ],
)
def test_bad_configuration_names_field_and_value(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{field} .*") as caught:
        SelectionConfig(**{field: value})  # type: ignore[arg-type]
    assert isinstance(value, str | bool) or str(value) in str(caught.value)
