"""Packing: every policy against brute force, its laws, and hand-worked cases."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.scoring import knapsack
from zerda_pg.scoring.packing import Policy, check_policy, pack, pack_measured

POLICIES: tuple[Policy, ...] = ("skip", "stop", "value", "optimal")

# few distinct values make ties, many make near-ties: both are wanted
SCORES = st.one_of(st.sampled_from([0.0, 5e-324, 0.1, 0.2, 0.3, 0.5, 1.0]), st.floats(0.0, 1.0))
ROWS = st.lists(st.tuples(SCORES, st.integers(0, 15)), max_size=9)


def brute_force(
    scores: Sequence[float], lengths: Sequence[int], budget: int, top_k: int
) -> tuple[float, list[int]]:
    """The greatest total, and of the sets that reach it the one that prefers earlier rows."""
    rows = range(len(scores))
    sets = [
        list(chosen)
        for size in range(min(top_k, len(scores)) + 1)
        for chosen in itertools.combinations(rows, size)
        if sum(lengths[row] for row in chosen) <= budget
    ]
    total = max(sum(scores[row] for row in chosen) for chosen in sets)
    best = [chosen for chosen in sets if sum(scores[row] for row in chosen) > total - 1e-11]
    return total, max(best, key=lambda chosen: [row in chosen for row in rows])


@given(ROWS, st.integers(0, 60), st.integers(1, 10))
def test_optimal_is_brute_force(rows: list[tuple[float, int]], budget: int, top_k: int) -> None:
    scores, lengths = [row[0] for row in rows], [row[1] for row in rows]
    packed = pack(scores, lengths, budget=budget, top_k=top_k, policy="optimal")
    total, _ = brute_force(scores, lengths, budget, top_k)
    assert packed.exact
    assert sum(scores[row] for row in packed.chosen) == pytest.approx(total, abs=1e-9)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=8),
    st.integers(0, 40),
    st.integers(1, 8),
)
def test_of_equal_totals_optimal_takes_the_better_ranked(
    rows: list[tuple[int, int]], budget: int, top_k: int
) -> None:
    rows = sorted(rows, key=lambda row: -row[0])
    scores, lengths = [row[0] / 4 for row in rows], [row[1] for row in rows]
    packed = pack(
        scores, lengths, budget=budget, top_k=top_k, policy="optimal", order=range(len(rows))
    )
    assert packed.chosen == brute_force(scores, lengths, budget, top_k)[1]


@given(ROWS, st.integers(0, 60), st.integers(1, 10), st.sampled_from(POLICIES))
def test_limits_hold_and_every_row_is_accounted_for(
    rows: list[tuple[float, int]], budget: int, top_k: int, policy: Policy
) -> None:
    scores, lengths = [row[0] for row in rows], [row[1] for row in rows]
    packed = pack(scores, lengths, budget=budget, top_k=top_k, policy=policy)
    assert sum(lengths[row] for row in packed.chosen) == packed.tokens <= budget
    assert len(packed.chosen) <= top_k
    assert sorted([*packed.chosen, *packed.rejected]) == list(range(len(rows)))
    assert [scores[row] for row in packed.chosen] == sorted(
        (scores[row] for row in packed.chosen), reverse=True
    )
    if policy != "stop":  # nothing that was left out would still have gone in
        for row, reason in packed.rejected.items():
            if reason == "over_budget":
                assert packed.tokens + lengths[row] > budget
            else:
                assert len(packed.chosen) == top_k


@given(ROWS, st.integers(0, 60), st.integers(1, 10), st.sampled_from(POLICIES), st.randoms())
def test_the_order_of_the_rows_does_not_matter(
    rows: list[tuple[float, int]], budget: int, top_k: int, policy: Policy, random: object
) -> None:
    labelled = [(f"id-{i:02}", *row) for i, row in enumerate(rows)]
    shuffled = list(labelled)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    results = []
    for version in (labelled, shuffled):
        ids, scores, lengths = [[row[i] for row in version] for i in range(3)]
        packed = pack(
            scores,
            lengths,
            budget=budget,
            top_k=top_k,
            policy=policy,
            ids=[str(name) for name in ids],
        )
        reasons = {ids[row]: reason for row, reason in packed.rejected.items()}
        results.append(([ids[row] for row in packed.chosen], reasons))
    assert results[0] == results[1]


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 60)), min_size=20, max_size=40),
    st.integers(20, 400),
    st.integers(1, 20),
)
def test_the_core_finds_what_the_whole_table_finds(
    rows: list[tuple[float, int]], budget: int, top_k: int
) -> None:
    scores = np.array([row[0] for row in rows])
    lengths = np.array([row[1] for row in rows], dtype=np.int64)
    chosen, exact = knapsack.solve(scores, lengths, budget, top_k)
    totals = np.full((top_k + 1, budget + 1), 0.0)
    for score, length in rows:
        if length <= budget:
            taken = totals[:-1, : budget + 1 - length] + score
            totals[1:, length:] = np.maximum(totals[1:, length:], taken)
    assert exact
    assert scores[chosen].sum() == pytest.approx(totals[top_k, budget], abs=1e-9)


@pytest.mark.parametrize(
    ("policy", "chosen", "rejected"),
    [
        ("skip", [1, 2], {0: "over_budget", 3: "beyond_top_k"}),
        ("stop", [], {0: "over_budget", 1: "over_budget", 2: "beyond_top_k", 3: "beyond_top_k"}),
        ("value", [1, 3], {0: "over_budget", 2: "beyond_top_k"}),
        ("optimal", [1, 2], {0: "over_budget", 3: "beyond_top_k"}),
    ],
)
def test_policies_by_hand(policy: Policy, chosen: list[int], rejected: dict[int, str]) -> None:
    # gains (score - 0.02) per length^0.25: 0.88 / 3.17 = 0.278, 0.78 / 2.65 = 0.295, 0.237, 0.270
    packed = pack([0.9, 0.8, 0.6, 0.5], [101, 49, 36, 10], budget=100, top_k=2, policy=policy)
    assert (packed.chosen, packed.rejected) == (chosen, rejected)


def test_value_takes_what_is_below_the_floor_by_rank_and_last() -> None:
    scores = np.concatenate([np.full(99, 0.9), [0.5, 0.4, 0.3]])
    lengths = np.concatenate([np.full(99, 10), [1, 5, 1]])
    packed = pack(scores, lengths, budget=996, policy="value")
    assert packed.chosen == [*range(99), 99, 100]
    assert packed.rejected == {101: "over_budget"}


def test_a_ranker_s_own_order_is_kept_and_what_it_drops_is_no_candidate() -> None:
    packed = pack([0.1, 0.9, 0.5], [1, 1, 1], budget=2, order=[0, 2])
    assert packed.chosen == [0, 2]
    assert packed.rejected == {}


def test_an_order_against_the_scores_decides_under_every_policy() -> None:
    # row 1 is a near-duplicate of row 0, so that a diversifying ranker put it last
    scores, lengths, order = np.array([0.9, 0.8, 0.4]), [10, 10, 10], [0, 2, 1]
    for policy in POLICIES:
        packed = pack(scores, lengths, budget=20, order=order, policy=policy)
        assert packed.chosen == [0, 2]
        assert packed.rejected == {1: "over_budget"}
    assert scores.tolist() == [0.9, 0.8, 0.4]  # the caller's array is not written to


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_and_one_that_does_not_fit(policy: Policy) -> None:
    assert pack([], [], budget=0, policy=policy).chosen == []
    packed = pack([1.0], [2], budget=1, policy=policy)
    assert (packed.chosen, packed.rejected) == ([], {0: "over_budget"})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"budget": -1}, "budget"),
        ({"top_k": 0}, "top_k"),
        ({"policy": "best"}, "policy"),
        ({"scores": [float("nan")]}, "scores"),
        ({"scores": [-0.1]}, "scores"),
        ({"lengths": [1.5]}, "lengths"),
        ({"lengths": [-1]}, "lengths"),
        ({"lengths": [1, 2]}, "lengths"),
        ({"ids": []}, "ids"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, object], named: str) -> None:
    good: dict[str, object] = {"scores": [0.5], "lengths": [3], "budget": 10}
    with pytest.raises(ValueError, match=named):
        pack(**(good | arguments))  # type: ignore[arg-type]


def test_check_policy_names_the_field() -> None:
    with pytest.raises(ValueError, match=r"packing must be one of skip, .*, got 'first'"):
        check_policy("first", "packing")


@pytest.mark.parametrize(("policy", "chosen"), [("skip", [0, 2]), ("stop", [0])])
def test_measured_packing_counts_the_whole(
    policy: Literal["skip", "stop"], chosen: list[int]
) -> None:
    words = ["one two", "three four five six", "seven"]

    def measure(rows: Sequence[int]) -> int:
        return 1 + sum(len(words[row].split()) for row in rows)  # 1: the heading

    packed = pack_measured([0, 1, 2], measure, budget=4, policy=policy)
    assert packed.chosen == chosen
    assert packed.tokens == measure(chosen)
    with pytest.raises(ValueError, match="policy must be skip or stop"):
        pack_measured([], measure, budget=4, policy="value")  # type: ignore[arg-type]


def test_beyond_the_exact_size_the_best_filling_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(knapsack, "MAX_CELLS", 10)
    lengths = [7, 8, 9, 10, 11, 12]
    packed = pack([0.1 + x / 40 for x in lengths], lengths, budget=31, top_k=3, policy="optimal")
    assert not packed.exact
    assert packed.tokens <= 31
    assert len(packed.chosen) == 3


LINES = {
    "equal": (0.5, 0.0),
    "proportional": (0.0, 1 / 512),
    "rising": (0.25, 1 / 1024),
    "falling": (0.875, -1 / 1024),
}
"""Base and slope; sums of such scores are exact, so that equal totals are."""


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=9),
    st.integers(0, 120),
    st.integers(1, 9),
    st.sampled_from([*LINES.values(), (0.125, 1 / 8), (1.0, -1 / 32), (0.0, 0.0)]),
)
def test_on_a_line_optimal_is_brute_force_and_prefers_the_better_ranked(
    lengths: list[int], budget: int, top_k: int, line: tuple[float, float]
) -> None:
    lengths = sorted(lengths, key=lambda length: -line[1] * length)
    scores = [max(0.0, line[0] + line[1] * length) for length in lengths]
    order = range(len(lengths))
    packed = pack(scores, lengths, budget=budget, top_k=top_k, policy="optimal", order=order)
    assert packed.exact
    assert packed.chosen == brute_force(scores, lengths, budget, top_k)[1]


def test_on_a_line_beyond_the_sizes_that_are_enumerable() -> None:
    generator = np.random.default_rng(3)
    lengths = generator.integers(5, 200, 60)
    for base, slope in LINES.values():
        scores = np.asarray(base + slope * lengths, dtype=np.float64)
        chosen, exact = knapsack.solve(scores, lengths, 900, 12)
        totals = np.zeros((13, 901))
        for score, length in zip(scores, lengths, strict=True):
            taken = totals[:-1, : 901 - length] + score
            totals[1:, length:] = np.maximum(totals[1:, length:], taken)
        assert exact
        assert len(chosen) <= 12
        assert lengths[chosen].sum() <= 900
        assert scores[chosen].sum() == pytest.approx(totals[12, 900], abs=1e-9)


@pytest.mark.parametrize("shape", ["random", *LINES])
def test_optimal_is_exact_at_the_sizes_that_occur(shape: str) -> None:
    generator = np.random.default_rng(7)
    for _ in range(20):
        lengths = np.maximum(5, generator.lognormal(3.6, 0.8, 200)).astype(np.int64)
        base, slope = LINES.get(shape, (0.0, 0.0))
        scores = generator.random(200) if shape == "random" else base + slope * lengths
        scores = np.maximum(scores, 0.0)
        assert pack(scores, lengths, budget=3000, top_k=50, policy="optimal").exact
