"""The rerank family: the formula by hand at every boundary, the maps, the environment, the laws."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.errors import ConfigError
from zerda_pg.scoring.rerank import Candidate, CandidateLike, rerank, rerank_entries
from zerda_pg.scoring.rerank_config import RerankConfig, memory_rerank_config, rerank_disabled
from zerda_pg.scoring.rerank_maps import (
    Record,
    build_get_vector,
    build_importance_map,
    build_recency_map,
)

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def days_ago(days: float) -> str:
    return (NOW - timedelta(days=days)).isoformat().replace("+00:00", "Z")


# --- fusion


def test_fusion_by_hand() -> None:
    rows = rerank(
        [("a", 0.9), ("b", 0.8), ("c", 0.7)],
        importance_map={"c": 1.0, "b": 0.5},
        recency_map={"c": 0.9},
        cfg=RerankConfig(w_importance=0.5, w_recency=0.25),
    )
    assert rows[0] == {
        "id": "c",
        "source_graph": "",
        "similarity": 0.7,
        "keyword_tier": 0,
        "importance": 1.0,
        "recency": 0.9,
        "ranks": {"similarity": 3, "importance": 1, "recency": 1},
        "contributions": {"similarity": 1 / 63, "importance": 0.5 / 61, "recency": 0.25 / 61},
        "score": pytest.approx(1 / 63 + 0.75 / 61),
        "mmr_score": None,
        "rank": 1,
    }
    assert [(row["id"], row["score"]) for row in rows[1:]] == [
        ("b", pytest.approx(1 / 62 + 0.5 / 62)),
        ("a", pytest.approx(1 / 61)),
    ]
    assert (rows[2]["importance"], rows[2]["recency"]) == (None, None)
    assert rows[2]["ranks"] == {"similarity": 1}


def test_equal_values_share_a_rank() -> None:
    rows = rerank(
        [("a", 0.5), ("b", 0.5), ("c", 0.4)],
        importance_map={"a": 0.3, "b": 0.3, "c": 0.1},
        cfg=RerankConfig(w_importance=1.0),
    )
    assert [row["ranks"] for row in rows] == [
        {"similarity": 1, "importance": 1},
        {"similarity": 1, "importance": 1},
        {"similarity": 3, "importance": 3},
    ]


def test_ties_go_by_similarity_rank_then_graph_and_id() -> None:
    # a and b swap places in two channels of equal weight
    rows = rerank(
        [("b", 0.9), ("a", 0.8)],
        importance_map={"a": 0.9, "b": 0.8},
        cfg=RerankConfig(w_importance=1.0),
    )
    assert rows[0]["score"] == rows[1]["score"]
    assert ids(rows) == ["b", "a"]
    rows = rerank([("y", 0.5, "g"), ("z", 0.5, "f"), ("x", 0.5, "g")])
    assert ids(rows) == ["z", "x", "y"]


def test_a_keyword_tier_goes_before_similarity() -> None:
    assert ids(rerank([("a", 0.9), ("b", 0.1, "", 1), Candidate("c", 0.2, "", 1)])) == [
        "c",
        "b",
        "a",
    ]


def test_duplicates_keep_the_best_and_graphs_keep_apart() -> None:
    rows = rerank([("a", 0.2), ("a", 0.9), ("a", 0.5, "other"), ("a", 0.1, "", 1)])
    assert [(row["source_graph"], row["similarity"]) for row in rows] == [("", 0.1), ("other", 0.5)]


def test_maps_by_graph_go_before_the_bare_id() -> None:
    rows = rerank(
        [("a", 0.9, "g"), ("a", 0.9, "h"), ("a", 0.9, "i")],
        importance_map={("g", "a"): 0.9, ("i", "a"): 0.0, "a": 0.2},
        cfg=RerankConfig(w_importance=1.0),
    )
    assert {row["source_graph"]: row["importance"] for row in rows} == {
        "g": 0.9,
        "h": 0.2,
        "i": None,
    }


@pytest.mark.parametrize("nothing", [0.0, -1.0, math.nan])
def test_absent_zero_and_nan_are_the_same(nothing: float) -> None:
    candidates = [("a", 0.9), ("b", 0.8), ("c", 0.7)]
    cfg = RerankConfig(w_importance=1.0, w_recency=1.0)
    absent = rerank(candidates, importance_map={"c": 0.5}, recency_map={"b": 0.5}, cfg=cfg)
    written = rerank(
        candidates,
        importance_map={"c": 0.5, "a": nothing, "b": nothing},
        recency_map={"b": 0.5, "a": nothing},
        cfg=cfg,
    )
    assert absent == written


def test_none_one_and_limits() -> None:
    assert rerank([]) == []
    assert rerank_entries([], []) == []
    [only] = rerank([("a", 0.0)])
    assert (only["rank"], only["score"]) == (1, pytest.approx(1 / 61))
    assert ids(rerank([("a", 0.9), ("b", 0.8)], limit=1)) == ["a"]
    assert rerank([("a", 0.9)], limit=0) == []
    with pytest.raises(ValueError, match="limit"):
        rerank([("a", 0.9)], limit=-1)
    with pytest.raises(ValueError, match="similarity of 'a'"):
        rerank([("a", math.nan)])


# --- diversity

BOOST = {"importance_map": {"a": 0.5}}


def test_mmr_by_hand() -> None:
    vectors = {"a": [1.0, 0.0], "b": [1.0, 0.0], "c": [0.0, 2.0]}
    rows = rerank(
        [("a", 0.9), ("b", 0.8), ("c", 0.7)],
        importance_map={"a": 1.0},
        cfg=RerankConfig(w_importance=1.0, mmr_lambda=0.5),
        get_vector=build_get_vector(vectors),
    )
    scores = {"a": 2 / 61, "b": 1 / 62, "c": 1 / 63}
    rel = {name: (s - scores["c"]) / (scores["a"] - scores["c"]) for name, s in scores.items()}
    assert [(row["id"], row["mmr_score"]) for row in rows] == [
        ("a", pytest.approx(0.5)),
        ("c", pytest.approx(0.0)),
        ("b", pytest.approx(0.5 * rel["b"] - 0.5)),
    ]
    assert [row["rank"] for row in rows] == [1, 2, 3]


def test_lambda_zero_is_diversity_alone_and_one_is_none() -> None:
    candidates = [("a", 0.9), ("b", 0.8), ("c", 0.7)]
    get_vector = build_get_vector({"a": [1.0, 0.0], "b": [0.9, 0.1], "c": [-1.0, 0.0]})
    cfg = RerankConfig(w_importance=0.1, mmr_lambda=0.0)
    rows = rerank(candidates, cfg=cfg, get_vector=get_vector, **BOOST)  # type: ignore[arg-type]
    assert ids(rows) == ["a", "c", "b"]
    assert rows[1]["mmr_score"] == 0.0  # an opposite vector earns nothing beyond no penalty
    cfg = RerankConfig(w_importance=0.1, mmr_lambda=1.0)
    rows = rerank(candidates, cfg=cfg, get_vector=get_vector, **BOOST)  # type: ignore[arg-type]
    assert ids(rows) == ["a", "b", "c"]
    assert rows[0]["mmr_score"] is None


def test_mmr_only_when_a_boost_is_active() -> None:
    candidates = [("a", 0.9), ("b", 0.8), ("c", 0.7)]
    vectors = {"a": [1.0, 0.0], "b": [1.0, 0.0], "c": [0.0, 1.0]}
    cfg = RerankConfig(mmr_lambda=0.0)
    assert rerank_disabled(cfg)
    rows = rerank(candidates, cfg=cfg, get_vector=build_get_vector(vectors))
    assert ids(rows) == ["a", "b", "c"]
    assert rows == rerank_entries(candidates, [{"id": "c"}], cfg=cfg, vectors=vectors)


def test_a_missing_zero_or_broken_vector_costs_nothing() -> None:
    vectors = {"a": [1.0, 0.0], "b": [0.0, 0.0], "c": [math.nan, 1.0], "d": [1.0, 0.0]}
    rows = rerank(
        [("a", 0.9), ("b", 0.8), ("c", 0.7), ("e", 0.6), ("d", 0.5)],
        cfg=RerankConfig(w_importance=0.1, mmr_lambda=0.5),
        get_vector=build_get_vector(vectors),
        **BOOST,  # type: ignore[arg-type]
    )
    assert ids(rows) == ["a", "b", "c", "e", "d"]
    with pytest.raises(ValueError, match="length"):
        rerank(
            [("a", 0.9), ("b", 0.8)],
            cfg=RerankConfig(w_importance=0.1, mmr_lambda=0.5),
            get_vector=build_get_vector({"a": [1.0], "b": [1.0, 0.0]}),
        )


def test_all_equal_in_relevance_and_no_vectors_at_all() -> None:
    rows = rerank(
        [("b", 0.5), ("a", 0.5)],
        cfg=RerankConfig(w_importance=1.0, mmr_lambda=0.3),
        get_vector=build_get_vector(None),
        limit=5,
    )
    assert [(row["id"], row["mmr_score"]) for row in rows] == [("a", 0.3), ("b", 0.3)]


# --- the maps


def test_importance_is_the_logarithm_of_unique_neighbours() -> None:
    entries: list[Record] = [
        {"id": "hub", "related_to": ["x", "x", "hub"], "invalidates": "y, z ,"},
        {"id": "x", "parent_id": "hub"},
        {"id": "y", "parent_id": "root", "invalidated_by": "hub"},
        {"id": "alone"},
        {"related_to": ["hub"]},
        {"id": "", "related_to": ["hub"]},
    ]
    assert build_importance_map(entries) == {
        "hub": 1.0,  # x, y and z, which is no record
        "x": pytest.approx(math.log(2) / math.log(4)),
        "y": pytest.approx(math.log(3) / math.log(4)),  # hub and the root
    }
    assert build_importance_map([]) == {}
    assert build_importance_map([{"id": "a"}, {"id": "b"}]) == {}


def test_recency_by_hand() -> None:
    entries: list[Record] = [
        {"id": "new", "created_at": days_ago(0)},
        {"id": "month", "created_at": days_ago(30)},
        {"id": "edited", "created_at": days_ago(300), "updated_at": days_ago(60)},
        {"id": "naive", "created_at": "2026-01-01T00:00:00"},
        {"id": "offset", "created_at": "2026-01-01T02:00:00+02:00"},
        {"id": "future", "created_at": days_ago(-5)},
        {"id": "broken", "created_at": "yesterday", "updated_at": 17},
        {"id": "half-broken", "created_at": days_ago(30), "updated_at": "?"},
        {"id": "ancient", "created_at": "0001-01-01T00:00:00+14:00"},
        {"id": "touched", "created_at": days_ago(90)},
        {"id": "touched-broken"},
        {"created_at": days_ago(0)},
    ]
    touched = ["touched", "touched-broken", "elsewhere"]
    recency = build_recency_map(entries, touched_ids=touched, now=NOW)
    assert 0.0 < recency.pop("ancient") < 1e-300
    assert recency == {
        "new": 1.0,
        "month": pytest.approx(0.5),
        "edited": pytest.approx(0.25),
        "naive": pytest.approx(0.5),
        "offset": pytest.approx(0.5),
        "future": 1.0,
        "half-broken": pytest.approx(0.5),
        "touched": 1.0,
        "touched-broken": 1.0,
    }


@pytest.mark.parametrize("half_life", [0.0, -1.0])
def test_no_half_life_leaves_what_was_touched(half_life: float) -> None:
    entries = [{"id": "a", "created_at": days_ago(0)}, {"id": "b", "created_at": days_ago(9)}]
    recency = build_recency_map(entries, touched_ids={"b"}, now=NOW, half_life_days=half_life)
    assert recency == {"b": 1.0}


def test_recency_refuses_what_has_no_meaning() -> None:
    with pytest.raises(ValueError, match="half_life_days"):
        build_recency_map([], half_life_days=math.nan)
    with pytest.raises(ValueError, match="now"):
        build_recency_map([], now=datetime(2026, 1, 1))
    same = [{"id": "a", "created_at": days_ago(0)}, {"id": "a", "created_at": days_ago(90)}]
    assert build_recency_map(same, now=NOW) == build_recency_map(same[::-1], now=NOW) == {"a": 1.0}
    assert build_recency_map([{"id": "a", "created_at": datetime.now(UTC)}])["a"] > 0.99


def test_get_vector_ignores_the_graph() -> None:
    get_vector = build_get_vector({"a": [1.0]})
    assert get_vector("any", "a") == [1.0]
    assert get_vector("", "b") is None


def test_rerank_entries_by_hand() -> None:
    entries: list[Record] = [
        {"id": "a", "created_at": days_ago(365)},
        {"id": "b", "created_at": days_ago(1), "parent_id": "root"},
        {"id": "c", "created_at": days_ago(365), "related_to": ["b"]},
    ]
    candidates: list[CandidateLike] = [("a", 0.9), ("b", 0.8), ("c", 0.7)]
    cfg = RerankConfig(w_importance=1.0, w_recency=1.0)
    rows = rerank_entries(
        candidates, entries, cfg=cfg, touched_ids=["c"], now=NOW, top_k=2, vectors={}
    )
    assert [(row["id"], row["ranks"]) for row in rows] == [
        ("b", {"similarity": 2, "importance": 1, "recency": 2}),
        ("c", {"similarity": 3, "importance": 2, "recency": 1}),
    ]


# --- configuration


def test_defaults_and_environment() -> None:
    assert memory_rerank_config({}) == RerankConfig(1.0, 0.0, 0.0, 0.0, 1.0, 3, 30.0)
    environ = {
        "MEMORY_RERANK_W_SIM": "2",
        "MEMORY_RERANK_W_IMPORTANCE": "0.5",
        "MEMORY_RERANK_W_RECENCY": ".25",
        "MEMORY_RERANK_MMR_LAMBDA": "0.7",
        "MEMORY_RERANK_OVERFETCH": "5",
        "MEMORY_RECENCY_HALF_LIFE_DAYS": "-1",
    }
    assert memory_rerank_config(environ) == RerankConfig(2.0, 0.5, 0.25, 0.0, 0.7, 5, -1.0)


@pytest.mark.parametrize(("text", "overfetch"), [("0", 3), ("-4", 1), ("2.9", 2), ("0.5", 3)])
def test_overfetch_as_the_seed_reads_it(text: str, overfetch: int) -> None:
    assert memory_rerank_config({"MEMORY_RERANK_OVERFETCH": text}).overfetch == overfetch


def test_rerank_entries_reads_the_process_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_RERANK_W_IMPORTANCE", "9")
    rows = rerank_entries([("a", 0.9), ("b", 0.8)], [{"id": "b", "parent_id": "root"}])
    assert ids(rows) == ["b", "a"]
    monkeypatch.setenv("MEMORY_RERANK_W_IMPORTANCE", "much")
    with pytest.raises(ConfigError, match="MEMORY_RERANK_W_IMPORTANCE must be a number"):
        rerank_entries([("a", 0.9)], [])


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("MEMORY_RERANK_W_SIM", "-1"),
        ("MEMORY_RERANK_W_RECENCY", "nan"),
        ("MEMORY_RERANK_MMR_LAMBDA", "1.01"),
        ("MEMORY_RERANK_OVERFETCH", "three"),
        ("MEMORY_RECENCY_HALF_LIFE_DAYS", "inf"),
    ],
)
def test_a_bad_variable_is_named(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        memory_rerank_config({variable: text})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("w_sim", -0.1),
        ("w_importance", math.nan),
        ("w_recency", math.inf),
        ("w_calendar_recency", 0.1),
        ("mmr_lambda", -0.01),
        ("mmr_lambda", 1.01),
        ("mmr_lambda", math.nan),
        ("overfetch", 0),
        ("overfetch", 1.5),
        ("calendar_half_life", math.nan),
        ("w_sim", "1"),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        RerankConfig(**{field: value})


# --- laws

VALUES = st.one_of(st.just(0.0), st.sampled_from([0.2, 0.5, 1.0]), st.floats(0.0, 1.0))
POOL = st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=9)
WEIGHTS = st.sampled_from([0.0, 0.3, 1.0])


@given(POOL, WEIGHTS, WEIGHTS, st.sampled_from([0.0, 0.4, 1.0]), st.integers())
def test_the_input_s_order_never_matters(
    pool: list[tuple[float, float, float]], w_i: float, w_r: float, mmr: float, seed: int
) -> None:
    candidates: list[CandidateLike] = [(f"{i}", row[0]) for i, row in enumerate(pool)]
    arguments: dict[str, Any] = {
        "importance_map": {f"{i}": row[1] for i, row in enumerate(pool)},
        "recency_map": {f"{i}": row[2] for i, row in enumerate(pool)},
        "cfg": RerankConfig(w_importance=w_i, w_recency=w_r, mmr_lambda=mmr),
        "get_vector": build_get_vector({f"{i}": [row[1], row[2]] for i, row in enumerate(pool)}),
    }
    shuffled = random.Random(seed).sample(candidates, len(candidates))
    assert rerank(shuffled, **arguments) == rerank(candidates, **arguments)


@given(POOL, WEIGHTS, WEIGHTS, st.sampled_from([0, 1, 2]), st.data())
def test_raising_a_channel_never_lowers_a_rank(
    pool: list[tuple[float, float, float]],
    w_i: float,
    w_r: float,
    channel: int,
    data: st.DataObject,
) -> None:
    row = data.draw(st.integers(0, len(pool) - 1))
    raised = [list(values) for values in pool]
    raised[row][channel] = data.draw(st.floats(pool[row][channel], 1.0))

    def rank_of(values: Any) -> int:
        rows = rerank(
            [(f"{i}", v[0]) for i, v in enumerate(values)],
            importance_map={f"{i}": v[1] for i, v in enumerate(values)},
            recency_map={f"{i}": v[2] for i, v in enumerate(values)},
            cfg=RerankConfig(w_importance=w_i, w_recency=w_r),
        )
        return ids(rows).index(f"{row}")

    assert rank_of(raised) <= rank_of(pool)


@given(POOL, st.sampled_from([0.0, 0.5, 1.0]))
def test_disabled_is_pure_similarity_order(
    pool: list[tuple[float, float, float]], mmr: float
) -> None:
    candidates: list[CandidateLike] = [(f"{i}", row[0]) for i, row in enumerate(pool)]
    entries = [{"id": f"{i}", "parent_id": "root", "created_at": days_ago(i)} for i in range(9)]
    rows = rerank_entries(
        candidates,
        entries,
        cfg=RerankConfig(mmr_lambda=mmr),
        vectors={f"{i}": [1.0] for i in range(9)},
        touched_ids=["3"],
    )
    assert ids(rows) == [str(c[0]) for c in sorted(candidates, key=lambda c: (-c[1], c[0]))]  # type: ignore[index]
