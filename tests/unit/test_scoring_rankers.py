"""The rankers over Signals: by hand, against the pure functions, and their laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.scoring.kind_prior import score_memory
from zerda_pg.scoring.rankers import CompositeRanker, FusionRanker, KindPriorRanker
from zerda_pg.scoring.rerank import rerank
from zerda_pg.scoring.rerank_config import RerankConfig
from zerda_pg.scoring.selector import SelectionConfig
from zerda_pg.scoring.signals import Ranker, Ranking, Signals

DAY = 86400.0


def signals(rows: list[dict[str, Any]], lexical_total: float = 10.0) -> Signals:
    def floats(name: str, default: float) -> Any:
        return np.array([row.get(name, default) for row in rows], dtype=np.float64)

    return Signals(
        ids=[row["id"] for row in rows],
        kinds=[row.get("kind") for row in rows],
        similarity=floats("similarity", math.nan),
        lexical=floats("lexical", 0.0),
        lexical_total=lexical_total,
        age_seconds=floats("age", 0.0),
        updated_age_seconds=floats("updated", 0.0),
        accessed_age_seconds=floats("accessed", 0.0),
        importance=floats("importance", 0.5),
        access_count=np.array([row.get("accesses", 0) for row in rows], dtype=np.int64),
        degree=np.array([row.get("degree", 0) for row in rows], dtype=np.int64),
        touched=np.array([row.get("touched", False) for row in rows], dtype=np.bool_),
        vectors={r["id"]: np.array(r["vector"], np.float32) for r in rows if "vector" in r},
    )


class FixedRanker:
    """The given scores; drops rows whose score is NaN."""

    needs_vectors = True

    def __init__(self, scores: list[float]) -> None:
        self._scores = np.array(scores)

    def rank(self, signals: Signals, task: str) -> Ranking:
        kept = [row for row in range(len(signals)) if not np.isnan(self._scores[row])]
        return Ranking(order=kept, scores=np.nan_to_num(self._scores), contributions={})


def order_of(ranking: Ranking, rows: list[dict[str, Any]]) -> list[str]:
    return [rows[row]["id"] for row in ranking.order]


def test_composite_by_hand() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "b", "similarity": 0.8, "age": DAY, "importance": 0.4},
        {"id": "a", "age": 0.0, "importance": 0.5},  # no vector: 0.5, neither good nor bad
        {"id": "low", "similarity": 0.0, "age": 1e9, "importance": 0.0},
    ]
    ranking = CompositeRanker().rank(signals(rows), "task")
    assert order_of(ranking, rows) == ["b", "a"]
    assert ranking.scores[:2] == pytest.approx([0.4 + 0.1 + 0.12, 0.25 + 0.2 + 0.15])
    assert {name: part[0] for name, part in ranking.contributions.items()} == pytest.approx(
        {"similarity": 0.4, "recency": 0.1, "importance": 0.12}
    )


def test_composite_reads_the_chosen_clock_and_a_base() -> None:
    rows = [{"id": "a", "updated": DAY, "accessed": 2 * DAY}]
    for basis, recency in (("created", 1.0), ("updated", 0.5), ("accessed", 0.25)):
        config = SelectionConfig(recency_basis=basis)  # type: ignore[arg-type]
        ranking = CompositeRanker(config, base=FixedRanker([0.7])).rank(signals(rows), "task")
        assert ranking.contributions["recency"][0] == pytest.approx(0.2 * recency)
        assert ranking.contributions["relevance"][0] == pytest.approx(0.35)
    assert CompositeRanker(base=FixedRanker([0.7])).needs_vectors
    assert not CompositeRanker().needs_vectors


def test_kind_prior_is_score_memory_with_the_share_of_idf_mass() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "kind": "fact", "lexical": 5.0, "accesses": 3},
        {"id": "b", "kind": "decision", "lexical": 0.0, "accesses": 6},
        {"id": "c", "kind": None, "lexical": 12.0},
        {"id": "dropped", "kind": "decision"},
    ]
    ranker = KindPriorRanker(base=FixedRanker([0.8, 1.7, 0.1, math.nan]))
    ranking = ranker.rank(signals(rows), "task")
    assert ranking.scores[:3] == pytest.approx(
        [
            score_memory("fact", 0.8, "", 3, "task", overlap=0.5),
            score_memory("decision", 1.0, "", 6, "task", overlap=0.0),
            score_memory(None, 0.1, "", 0, "task", overlap=1.0),
        ]
    )
    assert order_of(ranking, rows) == ["b", "a", "c"]
    assert list(ranking.contributions) == ["kind", "relevance", "lexical", "access"]
    assert ranker.needs_vectors
    no_words = KindPriorRanker(base=FixedRanker([0.5])).rank(signals([rows[0]], 0.0), "")
    assert no_words.contributions["lexical"][0] == 0.0


def test_fusion_is_rerank() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "similarity": 0.9, "degree": 0, "updated": 60 * DAY},
        {"id": "b", "similarity": 0.8, "degree": 3, "updated": 30 * DAY},
        {"id": "c", "similarity": 0.7, "degree": 3, "updated": 90 * DAY, "touched": True},
    ]
    cfg = RerankConfig(w_importance=0.5, w_recency=0.5)
    ranking = FusionRanker(cfg).rank(signals(rows), "task")
    expected = rerank(
        [(row["id"], row["similarity"]) for row in rows],
        importance_map={"b": 1.0, "c": 1.0},
        recency_map={"a": 0.25, "b": 0.5, "c": 1.0},
        cfg=cfg,
    )
    assert order_of(ranking, rows) == [row["id"] for row in expected]
    greatest = 2.0 / 61
    by_id = {row["id"]: row["score"] / greatest for row in expected}
    assert ranking.scores == pytest.approx([by_id[row["id"]] for row in rows])


def test_fusion_without_boosts_is_similarity_order_and_then_the_words() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "w", "lexical": 2.0},
        {"id": "x", "lexical": 9.0},
        {"id": "y", "similarity": -0.1, "degree": 9},
        {"id": "z", "similarity": 0.3},
    ]
    ranking = FusionRanker(RerankConfig(mmr_lambda=0.1)).rank(signals(rows), "task")
    assert order_of(ranking, rows) == ["z", "y", "x", "w"]
    assert ranking.scores[3] == 1.0
    based = FusionRanker(base=FixedRanker([0.9, math.nan, 0.1, 0.2])).rank(signals(rows), "task")
    assert order_of(based, rows) == ["w", "z", "y"]
    nothing = FusionRanker(RerankConfig(w_sim=0.0)).rank(signals(rows), "task")
    assert order_of(nothing, rows) == ["z", "y", "x", "w"]
    assert nothing.scores.tolist() == [0.0] * 4


def test_fusion_diversifies_where_a_boost_is_active() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "similarity": 0.9, "vector": [1.0, 0.0]},
        {"id": "b", "similarity": 0.8, "vector": [1.0, 0.0]},
        {"id": "c", "similarity": 0.7, "vector": [0.0, 1.0]},
    ]
    ranker = FusionRanker(RerankConfig(w_importance=0.1, mmr_lambda=0.3))
    assert ranker.needs_vectors
    assert order_of(ranker.rank(signals(rows), "task"), rows) == ["a", "c", "b"]
    assert not FusionRanker(RerankConfig(mmr_lambda=0.3)).needs_vectors


def test_half_life_zero_leaves_what_was_touched() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "similarity": 0.9},
        {"id": "b", "similarity": 0.9, "touched": True},
    ]
    cfg = RerankConfig(w_recency=1.0, calendar_half_life=0.0)
    ranking = FusionRanker(cfg).rank(signals(rows), "task")
    assert order_of(ranking, rows) == ["b", "a"]
    assert ranking.contributions["recency"][0] == 0.0


RANKERS: list[Callable[[], Ranker]] = [
    CompositeRanker,
    lambda: CompositeRanker(base=CompositeRanker()),
    lambda: KindPriorRanker(base=CompositeRanker()),
    FusionRanker,
    lambda: FusionRanker(RerankConfig(w_importance=1.0, w_recency=0.5)),
    lambda: FusionRanker(RerankConfig(w_recency=0.5, mmr_lambda=0.5), base=CompositeRanker()),
]

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "similarity": st.one_of(st.just(math.nan), st.floats(-1.0, 1.0)),
            "lexical": st.one_of(st.just(math.nan), st.floats(0.0, 11.0)),
            "age": st.one_of(st.just(math.nan), st.floats(-1e6, 1e12)),
            "updated": st.one_of(st.just(math.nan), st.floats(-1e6, 1e12)),
            "importance": st.floats(0.0, 1.0),
            "accesses": st.integers(0, 9),
            "degree": st.integers(0, 4),
            "touched": st.booleans(),
            "kind": st.sampled_from([None, "fact", "attempt", "other"]),
            "vector": st.sampled_from([[1.0, 0.0], [0.6, 0.8]]),
        }
    ),
    max_size=8,
)


@given(ROWS, st.sampled_from(range(len(RANKERS))), st.randoms())
def test_scores_add_up_stay_in_range_and_do_not_depend_on_the_rows_order(
    rows: list[dict[str, Any]], which: int, generator: Any
) -> None:
    rows = [{"id": f"{i}", **row} for i, row in enumerate(rows)]
    shuffled = list(rows)
    generator.shuffle(shuffled)
    ranker = RANKERS[which]()
    ranking = ranker.rank(signals(rows), "task")
    assert order_of(ranking, rows) == order_of(ranker.rank(signals(shuffled), "task"), shuffled)
    assert ((ranking.scores >= 0.0) & (ranking.scores <= 1.0)).all()
    total = sum(ranking.contributions.values(), np.zeros(len(rows)))
    assert np.clip(total, 0.0, 1.0) == pytest.approx(ranking.scores)
    assert len(set(ranking.order)) == len(ranking.order)
