"""Timing a system: the same calls, in the same order, for each."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from benchmarks.speed.data import Data, exact_neighbours

K = 10
SINGLE_WRITES = 200
WARM_UP = 30


class System(Protocol):
    """A store under test; row numbers of the data are its ids."""

    def bulk(self, data: Data) -> None:
        """Write every entry with its vector."""

    def write(self, tenant: str, row: int, text: str, vector: Any) -> None:
        """Write one entry."""

    def dense(self, tenant: str, vector: Any, k: int) -> list[int]:
        """Rows nearest to a vector."""


@dataclass(kw_only=True)
class Timings:
    """Milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timings:
        """Percentiles."""
        p50, p95, p99 = np.percentile(np.array(seconds) * 1000, [50, 95, 99])
        return cls(p50=round(p50, 3), p95=round(p95, 3), p99=round(p99, 3))


def timed(call: Callable[[int], Any], count: int, warm_up: int = WARM_UP) -> list[float]:
    """Seconds of each call after the warm-up."""
    seconds = []
    for number in range(count):
        start = time.perf_counter()
        call(number)
        if number >= warm_up:
            seconds.append(time.perf_counter() - start)
    return seconds


def measure(system: System, data: Data) -> dict[str, Any]:
    """Bulk, single writes and dense searches of a system."""
    start = time.perf_counter()
    system.bulk(data)
    bulk = len(data) / (time.perf_counter() - start)
    writes = timed(
        lambda n: system.write(
            # apart from the tenants that are searched, so that their truth stays true
            f"writes-{n % 10}",
            len(data) + n,
            data.texts[n] + f" {n}",
            data.vectors[n],
        ),
        SINGLE_WRITES,
        warm_up=20,
    )
    truth = exact_neighbours(data, K)
    answers: list[list[int]] = []

    def ask(number: int) -> None:
        answers.append(system.dense(data.query_tenants[number], data.query_vectors[number], K))

    searches = timed(ask, len(data.query_texts))
    return {
        "bulk_rows_per_second": round(bulk, 1),
        "write_ms": asdict(Timings.of(writes)),
        "dense_ms": asdict(Timings.of(searches)),
        **quality(answers, truth),
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def quality(answers: Sequence[Sequence[int]], truth: Sequence[set[int]]) -> dict[str, float]:
    """recall@10, and the share of answers with fewer rows than there are."""
    found = [
        len(wanted & set(answer)) / len(wanted)
        for answer, wanted in zip(answers, truth, strict=True)
    ]
    short = [len(answer) < len(wanted) for answer, wanted in zip(answers, truth, strict=True)]
    return {
        "recall_at_10": round(float(np.mean(found)), 4),
        "short_results": round(float(np.mean(short)), 4),
    }
