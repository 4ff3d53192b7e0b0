"""Packing: which candidates go into the prompt, under a token budget and a count.

One function for everything that packs; the policies differ in the order in which they try:

- `skip`: by rank; what does not fit is passed over, smaller ones after it may still fit.
- `stop`: by rank; ends at the first that does not fit.
- `value`: by gain over the floor per length^γ, then what is left by rank.
- `optimal`: the set with the greatest total score (0/1 knapsack with a count).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zerda_pg.scoring.knapsack import solve
from zerda_pg.scoring.signals import Floats

__all__ = ["Packed", "Policy", "Reason", "check_policy", "pack", "pack_measured", "value_order"]

Policy = Literal["skip", "stop", "value", "optimal"]
Reason = Literal["over_budget", "beyond_top_k"]

LENGTH_EXPONENT = 0.2
"""γ of `value`, no unit. Measured over four question sets with the default ranker, which itself
counts words in long texts for less: 0 loses 2 points of evidence where messages are long, 0.5
loses 4 to 5 where they are short. Packing by a plain mix of cosine and words, which does not
look at lengths, 0.25 to 0.5 were best."""

FLOOR_RANK = 90
"""Rank of the candidate whose score counts as worth nothing in `value`; measured with γ."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What was packed, in row numbers of the arrays given."""

    chosen: list[int]
    """Best rank first, whatever order the policy tried them in."""
    rejected: dict[int, Reason]
    """Every other row, best rank first: `over_budget`: no room was left for it;
    `beyond_top_k`: the count was reached before its turn (`optimal`: it would still fit)."""
    tokens: int
    """Tokens of the chosen, ≤ the budget."""
    exact: bool
    """False only where `optimal` had to fall back to the best greedy filling."""


def pack(
    scores: ArrayLike,
    lengths: ArrayLike,
    *,
    budget: int,
    top_k: int | None = None,
    policy: Policy = "skip",
    ids: Sequence[str] | None = None,
    order: Sequence[int] | None = None,
) -> Packed:
    """Choose rows under a budget and a count.

    `value` tries rows by `(score - floor) / length^γ` (`LENGTH_EXPONENT`), where the floor is the
    score of the candidate at `FLOOR_RANK`; of fewer, n, it is the n-th part of that rank of the
    lowest score, so that a short list of good candidates does not lose its last one to it.
    `optimal` is exact up to the size named in `knapsack.solve` and beyond it takes the best of
    several greedy fillings (`Packed.exact` is False).

    Args:
        scores: (n,) finite and ≥ 0.
        lengths: (n,) whole numbers ≥ 0, in tokens.
        budget: Greatest sum of lengths, in tokens, ≥ 0.
        top_k: Greatest number of rows; None: no limit.
        policy: One of `skip`, `stop`, `value`, `optimal`.
        ids: (n,) ties in score break by id, so that the rows' order does not matter; None:
            they keep the rows' order.
        order: Row numbers, best first, where a ranker has decided the rank itself; rows that
            are absent are no candidates. The scores are dealt out along it, greatest first: a
            ranker that diversifies moves a row down and leaves its score, and `value` and
            `optimal` must not undo that. None: by score, descending.

    Raises:
        ValueError: Naming the argument that is out of range.
    """
    points, sizes = _checked(scores, lengths, budget, top_k, policy)
    if order is None:
        rank = _rank(points, sizes, ids)
    else:
        rank = [int(row) for row in order]
        points[rank] = np.sort(points[rank])[::-1]
    count = len(rank) if top_k is None else top_k
    room = _Room(sizes, budget)
    exact = True
    if policy == "optimal":
        places, exact = solve(points[rank], sizes[rank], budget, count)
        taken = {rank[place] for place in places if room.take(rank[place])}
        full = len(taken) >= count
        reasons: dict[int, Reason] = {
            row: "beyond_top_k" if full and sizes[row] <= room.left else "over_budget"
            for row in rank
            if row not in taken
        }
    else:
        visit = _by_value(points, sizes, rank) if policy == "value" else rank
        taken, reasons = _fill(visit, room.take, count, stop=policy == "stop")
    return Packed(
        chosen=[row for row in rank if row in taken],
        rejected={row: reasons[row] for row in rank if row not in taken},
        tokens=budget - room.left,
        exact=exact,
    )


def pack_measured(
    rows: Sequence[int],
    measure: Callable[[Sequence[int]], int],
    *,
    budget: int,
    top_k: int | None = None,
    policy: Literal["skip", "stop"] = "skip",
) -> Packed:
    """Choose rows whose cost is only known of the whole, as of a rendered text.

    Headings, separators and the merging of tokens at seams make the cost of a text other than
    the sum of its parts: each trial measures the whole.

    Args:
        rows: Row numbers, best first.
        measure: Tokens of the text that these rows, best first, would give.
        budget: Greatest measure, in tokens, ≥ 0.
        top_k: Greatest number of rows; None: no limit.
        policy: `skip` or `stop`.

    Raises:
        ValueError: Naming the argument that is out of range.
    """
    _check_limits(budget, top_k)
    if policy not in {"skip", "stop"}:
        raise ValueError(f"policy must be skip or stop where the whole is measured, got {policy!r}")
    trial = _Measured(measure, budget)
    count = len(rows) if top_k is None else top_k
    taken, reasons = _fill(rows, trial.take, count, stop=policy == "stop")
    return Packed(
        chosen=trial.chosen,
        rejected={row: reasons[row] for row in rows if row not in taken},
        tokens=trial.tokens,
        exact=True,
    )


def value_order(scores: ArrayLike, lengths: ArrayLike, order: Sequence[int]) -> list[int]:
    """The order in which `value` tries the rows of `order`, which are given best first."""
    rank = [int(row) for row in order]
    points = np.array(scores, dtype=np.float64)
    points[rank] = np.sort(points[rank])[::-1]  # as `pack` does: the order decides the rank
    return _by_value(points, np.asarray(lengths, dtype=np.int64), rank)


def check_policy(value: object, name: str) -> None:
    """Raise a `ValueError` naming `name` unless `value` is a packing policy."""
    if value not in get_args(Policy):
        raise ValueError(f"{name} must be one of {', '.join(get_args(Policy))}, got {value!r}")


class _Room:
    """A token budget that is being used up."""

    def __init__(self, sizes: NDArray[np.int64], budget: int) -> None:
        self._sizes = sizes
        self.left = budget

    def take(self, row: int) -> bool:
        size = int(self._sizes[row])
        if size > self.left:
            return False
        self.left -= size
        return True


class _Measured:
    """A budget over the measure of the whole."""

    def __init__(self, measure: Callable[[Sequence[int]], int], budget: int) -> None:
        self._measure = measure
        self._budget = budget
        self.chosen: list[int] = []
        self.tokens = 0

    def take(self, row: int) -> bool:
        tokens = self._measure([*self.chosen, row])
        if tokens > self._budget:
            return False
        self.chosen.append(row)
        self.tokens = tokens
        return True


def _fill(
    visit: Sequence[int], take: Callable[[int], bool], count: int, *, stop: bool
) -> tuple[set[int], dict[int, Reason]]:
    """Take rows in the order of `visit`; the loop behind every greedy policy."""
    taken: set[int] = set()
    reasons: dict[int, Reason] = {}
    closed = False
    for place, row in enumerate(visit):
        if (place if closed else len(taken)) >= count:
            reasons[row] = "beyond_top_k"
        elif closed or not take(row):
            reasons[row] = "over_budget"
            closed = stop
        else:
            taken.add(row)
    return taken, reasons


def _rank(points: Floats, sizes: NDArray[np.int64], ids: Sequence[str] | None) -> list[int]:
    """Rows by score, descending; ties by id, then the shorter, so that input order is nothing."""
    if ids is None:
        return [int(row) for row in np.argsort(-points, kind="stable")]
    if len(ids) != len(points):
        raise ValueError(f"ids must have one entry a row: {len(ids)} for {len(points)} rows")
    return sorted(range(len(points)), key=lambda row: (-points[row], ids[row], sizes[row]))


def _by_value(points: Floats, sizes: NDArray[np.int64], rank: list[int]) -> list[int]:
    """The order in which `value` tries rows: gain per length^γ, ties (and no gain) by rank."""
    if not rank:
        return rank
    by_score = np.sort(points[rank])[::-1]
    floor = by_score[min(FLOOR_RANK, len(rank)) - 1] * min(1.0, len(rank) / FLOOR_RANK)
    gains = np.maximum(points[rank] - floor, 0.0)
    density = gains / np.maximum(sizes[rank], 1) ** LENGTH_EXPONENT
    return [rank[place] for place in np.argsort(-density, kind="stable")]


def _checked(
    scores: ArrayLike, lengths: ArrayLike, budget: int, top_k: int | None, policy: str
) -> tuple[Floats, NDArray[np.int64]]:
    check_policy(policy, "policy")
    _check_limits(budget, top_k)
    points = np.array(scores, dtype=np.float64).reshape(-1)
    sizes = np.asarray(lengths).reshape(-1)
    if len(points) != len(sizes):
        raise ValueError(f"lengths must have one number a score: {len(sizes)} for {len(points)}")
    if not (np.isfinite(points).all() and (points >= 0.0).all()):
        raise ValueError("scores must be finite and not negative")
    if len(sizes) and (sizes.dtype.kind not in "iu" or (sizes < 0).any()):
        raise ValueError("lengths must be whole numbers ≥ 0")
    return points, sizes.astype(np.int64)


def _check_limits(budget: int, top_k: int | None) -> None:
    if budget < 0:
        raise ValueError(f"budget must not be negative, got {budget}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
