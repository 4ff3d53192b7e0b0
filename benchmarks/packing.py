"""How long packing takes: `python -m benchmarks.packing` prints the medians in milliseconds.

200 candidates, 3,000 tokens, a count of 50, over shapes of scores and lengths from the usual to
the worst for the bounds of `optimal`: scores that do not tell rows of different lengths apart.
"""

from __future__ import annotations

import statistics
import time
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from zerda_pg.scoring.packing import Policy, pack

CANDIDATES, BUDGET, TOP_K = 200, 3000, 50
REPEATS = 15

Shape = tuple[NDArray[np.float64], NDArray[np.int64]]


def shapes(seed: int = 0) -> dict[str, Shape]:
    """Scores and lengths, by what they are like."""
    generator = np.random.default_rng(seed)
    uniform = generator.random(CANDIDATES)
    lengths = np.maximum(5, generator.lognormal(3.9, 0.8, CANDIDATES)).astype(np.int64)
    share = lengths / lengths.max()
    return {
        "random scores": (uniform, lengths),
        "long memories": (uniform, lengths * 12),
        "two scores": (generator.choice([0.5, 0.6], CANDIDATES), lengths),
        "scores of one digit": (np.round(uniform, 1), lengths),
        "scores nearly equal": (0.5 + uniform * 1e-6, lengths),
        "all scores equal": (np.full(CANDIDATES, 0.5), lengths),
        "all lengths equal": (uniform, np.full(CANDIDATES, 80)),
        "proportional to length": (share, lengths),
        "linear in length": (0.2 + 0.5 * share, lengths),
        "falling with length": (0.9 - 0.5 * share, lengths),
        "nearly proportional": (0.9 * share + uniform * 1e-3, lengths),
    }


def median_ms(shape: Shape, policy: Policy) -> tuple[float, bool]:
    """Median over the repeats, in milliseconds, and whether the result is exact."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        packed = pack(*shape, budget=BUDGET, top_k=TOP_K, policy=policy)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times), packed.exact


def main() -> None:
    """Print a table."""
    policies = get_args(Policy)
    print(f"{'milliseconds, median':24}" + "".join(f"{policy:>10}" for policy in policies))
    for name, shape in shapes().items():
        cells = [median_ms(shape, policy) for policy in policies]
        inexact = "" if all(exact for _, exact in cells) else "  not exact"
        print(f"{name:24}" + "".join(f"{ms:10.2f}" for ms, _ in cells) + inexact)


if __name__ == "__main__":
    main()
