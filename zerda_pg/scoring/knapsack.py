"""The 0/1 knapsack with a count: greatest total score under a token budget and a number of rows.

Bounds first, tables last. The Lagrangian dual over both limits gives an upper bound and, with a
good filling as lower bound, settles most rows (a row whose reduced profit exceeds the gap
between the bounds is in, or out, in every optimum: Martello and Toth, Knapsack Problems, 1990,
section 2.2.3). A dynamic programme over budget and count decides the rest, the core. For
200 rows, 3,000 tokens and a count of 50 that takes 0.1 to 2 ms where scores and lengths are those
of memories. It takes 10 to 20 ms where the bounds are weak: two distinct scores only, or scores
that follow the length but for a trace of noise (`benchmarks/packing.py`).

Where all scores are equal, or exactly a linear function of the length, the bounds settle nothing
and the table would have 30 million cells, 60 ms. There a total depends on the number of rows and
their tokens alone, so that one bit a cell, "can be reached", is enough, and Python's long
integers add a row to all of them at once: 3 to 4 ms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zerda_pg.scoring.signals import Floats

__all__ = ["solve"]

Ints = NDArray[np.int64]

SCORE_BITS = 40
"""Scores are rounded to 2^-40 of the power of two above the greatest one, so that sums are exact
in float64 (up to 2^13 rows), whatever the order of the addition."""

MAX_CELLS = 100_000_000
"""Largest table of the dynamic programme, in cells (a byte each, and about 3 ns of time)."""

DUAL_STEPS = 40
"""Halvings of the interval of the count's price: 2^-40, the resolution of the scores."""

MAX_SWAPS = 100
"""Exchanges tried to improve the lower bound; each is one (chosen × other) comparison."""


def solve(scores: Floats, lengths: Ints, budget: int, count: int) -> tuple[list[int], bool]:
    """The rows with the greatest total score.

    Of several optima it takes the one that prefers earlier rows (lexicographically), and of
    rows without any effect, such as those with score 0, all that fit: give the rows by rank.

    Exact while the core's table stays under 100 million cells (rows × budget × count, or rows ×
    budget where the count cannot bind): always for 600 rows, 3,000 tokens and a count of 50,
    and as a rule far beyond, since the core is small. Otherwise the best of several greedy
    fillings with exchanges, unless the bounds prove it optimal.

    Args:
        scores: (n,) ≥ 0, finite, best rank first.
        lengths: (n,) tokens, ≥ 0.
        budget: Greatest sum of lengths.
        count: Greatest number of rows.

    Returns:
        Row numbers, ascending, and whether the set is proven optimal.
    """
    fitting = np.flatnonzero(lengths <= budget)
    weights = lengths[fitting]
    top = scores[fitting].max(initial=0.0)
    profits = np.rint(np.ldexp(scores[fitting], SCORE_BITS - np.frexp(top)[1]))
    count = min(count, len(fitting))
    greatest = np.sort(np.argsort(-profits, kind="stable")[:count])
    if weights[greatest].sum() <= budget:
        return [int(row) for row in fitting[greatest]], True
    line = _line(profits, weights)
    if line is not None and _binds(weights, budget, count):
        on_line = _reached(*line, weights, budget, count)
        if on_line is not None:
            return [int(row) for row in fitting[on_line]], True
    price, fee = _duals(profits, weights, budget, count)
    reduced = profits - price * weights - fee
    upper = float(price * budget + fee * count + np.maximum(reduced, 0.0).sum())
    best = _best_filling(profits, weights, budget, count, reduced)
    lower = float(profits[best].sum())
    # a unit a row guards against rounding in `upper`; equal optima must survive, hence `>`
    slack = upper - lower + 1.0 + 1e-12 * upper
    inside = reduced > slack
    core = np.flatnonzero(np.abs(reduced) <= slack)
    left = budget - int(weights[inside].sum())
    chosen = _table(profits[core], weights[core], left, count - int(inside.sum()))
    if chosen is None:
        return sorted(int(row) for row in fitting[best]), slack <= 2.0
    rows = np.concatenate([np.flatnonzero(inside), core[chosen]])
    return sorted(int(row) for row in fitting[rows]), True


def _duals(profits: Floats, weights: Ints, budget: int, count: int) -> tuple[float, float]:
    """Prices of a token and of a place near the optimum of the Lagrangian dual.

    Any two prices ≥ 0 give a valid upper bound, so that an approximation costs only tightness.
    """
    low, high = 0.0, float(profits.max(initial=0.0))
    price, used = _price(profits, weights, budget, 0.0)
    if used <= count:
        return price, 0.0
    for _ in range(DUAL_STEPS):
        fee = (low + high) / 2.0
        price, used = _price(profits, weights, budget, fee)
        low, high = (fee, high) if used > count else (low, fee)
    return price, fee


def _price(profits: Floats, weights: Ints, budget: int, fee: float) -> tuple[float, int]:
    """The price of a token in the continuous knapsack, and how many rows that one takes."""
    gains = profits - fee
    density = gains / np.maximum(weights, 1e-9)
    order = np.argsort(-density, kind="stable")
    filled = np.cumsum(weights[order])
    critical = int(np.searchsorted(filled, budget, side="right"))
    worthwhile = int(np.count_nonzero(gains > 0.0))
    if critical >= worthwhile:
        return 0.0, worthwhile
    return float(density[order[critical]]), critical + 1


def _best_filling(profits: Floats, weights: Ints, budget: int, count: int, reduced: Floats) -> Ints:
    """The best of three greedy fillings, each improved by exchanges: the lower bound."""
    density = profits / np.maximum(weights, 1)
    fillings = []
    for key in (reduced, density, profits):
        inside = _filled(np.argsort(-key, kind="stable"), weights, budget, count)
        _exchange(inside, profits, weights, budget, count)
        fillings.append(np.flatnonzero(inside))
    return max(fillings, key=lambda rows: float(profits[rows].sum()))


def _filled(order: NDArray[np.intp], weights: Ints, budget: int, count: int) -> NDArray[np.bool_]:
    inside = np.zeros(len(weights), dtype=np.bool_)
    for row in order:
        if count and weights[row] <= budget:
            inside[row] = True
            budget -= int(weights[row])
            count -= 1
    return inside


def _exchange(
    inside: NDArray[np.bool_], profits: Floats, weights: Ints, budget: int, count: int
) -> None:
    """Swap one chosen row for a better one that fits, or add one, while that gains."""
    for _ in range(MAX_SWAPS):
        room = budget - int(weights[inside].sum())
        ins, outs = np.flatnonzero(inside), np.flatnonzero(~inside)
        # a row of no profit and no weight stands for an empty place
        free = int(len(ins) < count)
        gain = profits[outs][None, :] - np.append(profits[ins], [0.0] * free)[:, None]
        grown = weights[outs][None, :] - np.append(weights[ins], [0] * free)[:, None]
        gain[grown > room] = 0.0
        if gain.max(initial=0.0) <= 0.0:
            return
        given, taken = np.unravel_index(int(gain.argmax()), gain.shape)
        if given < len(ins):
            inside[ins[given]] = False
        inside[outs[taken]] = True


def _table(profits: Floats, weights: Ints, budget: int, count: int) -> Ints | None:
    """Dynamic programme over the core; None where its table would be too large.

    `best[k, b]` is the greatest profit of the rows seen so far with at most k rows and b
    tokens. Rows are seen from the last to the first, so that reading back decides the first
    row first and prefers it.
    """
    rows = len(profits)
    budget = min(budget, int(weights.sum()))
    count = min(count, rows)
    binds = _binds(weights, budget, count)
    # where the count cannot bind, its dimension is one cell wide and taking a row does not move
    places, step = (count + 1, 1) if binds else (1, 0)
    if rows * places * (budget + 1) > MAX_CELLS:
        return None
    best = np.zeros((places, budget + 1))
    take = np.zeros((rows, places, budget + 1), dtype=np.bool_)
    before = np.concatenate([[0], np.cumsum(weights)])
    for row in range(rows - 1, -1, -1):
        weight = int(weights[row])
        seen = rows - row
        if step and seen < places:
            best[seen] = best[seen - 1]
        if weight > budget:
            continue
        # reading back, the rows before this one have used no more than all their places and tokens
        low = max(step, places - 1 - row)
        high = min(places, seen + 1)
        least = max(weight, budget - int(before[row]))
        kept = best[low:high, least:]
        taken = best[low - step : high - step, least - weight : budget + 1 - weight] + profits[row]
        np.greater_equal(taken, kept, out=take[row, low:high, least:])
        np.maximum(taken, kept, out=kept)
    chosen = []
    place, left = places - 1, budget
    for row in range(rows):
        place = min(place, rows - row) if step else place
        if take[row, place, left]:
            chosen.append(row)
            place -= step
            left -= int(weights[row])
    return np.array(chosen, dtype=np.int64)


def _binds(weights: Ints, budget: int, count: int) -> bool:
    """Whether more rows than the count allows could fit the budget."""
    shortest = np.cumsum(np.sort(weights))
    return int(np.searchsorted(shortest, budget, side="right")) > count


def _line(profits: Floats, weights: Ints) -> tuple[float, float] | None:
    """Base and slope, if every profit is base + slope · weight up to its rounding; else None."""
    if not len(profits):
        return None
    low, high = int(weights.argmin()), int(weights.argmax())
    run = int(weights[high] - weights[low])
    slope = float(profits[high] - profits[low]) / run if run else 0.0
    base = float(profits[low]) - slope * int(weights[low])
    # half a unit of rounding each, of the row and of the ends of the line
    return (base, slope) if np.abs(profits - base - slope * weights).max() <= 1.0 else None


def _reached(base: float, slope: float, weights: Ints, budget: int, count: int) -> Ints | None:
    """The same as `_table` where the profits lie on a line; None where it would be too large.

    Bit `k * stride + b` of `reached[n]` says that k of the last n rows can have b tokens in all.
    Totals that differ by less than the rows' rounding are equal. The first row is decided first
    and taken wherever a best total can still be reached with it.
    """
    places, stride = count + 1, 2 * budget + 1  # of two sums ≤ budget none runs into the next k
    if len(weights) * places * stride // 8 > MAX_CELLS:
        return None
    within = sum(((1 << (budget + 1)) - 1) << (place * stride) for place in range(places))
    reached = [1]
    for weight in reversed(weights.tolist()):
        known = reached[-1]
        more = known << (stride + weight) & within if weight <= budget else 0
        reached.append(known | more)
    size = (places * stride + 7) // 8
    raw = np.frombuffer(reached[-1].to_bytes(size, "little"), dtype=np.uint8)
    bits = np.unpackbits(raw, count=places * stride, bitorder="little").reshape(places, stride)
    totals = base * np.arange(places)[:, None] + slope * np.arange(stride)[None, :]
    totals[bits == 0] = -np.inf
    best = np.packbits(totals >= totals.max() - count, bitorder="little")
    wanted = int.from_bytes(best.tobytes(), "little")
    chosen: list[int] = []
    for row, weight in enumerate(weights.tolist()):
        rest = wanted >> (stride + weight)
        if weight <= budget and reached[len(weights) - 1 - row] & rest:
            chosen.append(row)
            wanted, budget = rest, budget - weight
    return np.array(chosen, dtype=np.int64)
