"""Timing a system: the same calls, in the same order, for each."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import psycopg

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


@runtime_checkable
class Hybrid(Protocol):
    """One that also searches by meaning and words together."""

    def hybrid(self, tenant: str, text: str, vector: Any, k: int) -> list[int]:
        """Rows that a text and its vector mean."""


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


def in_turns(
    calls: dict[str, Callable[[int], Any]],
    asked: Sequence[int],
    warm_up: int = WARM_UP,
    after: Callable[[], object] = lambda: None,
) -> dict[str, dict[str, float]]:
    """Milliseconds of several calls, one beside the other, so that noise hits all.

    Who asks second finds the tenant's vectors in the processor's cache, so they begin by turns.

    Args:
        calls: By name, of a number.
        asked: The numbers.
        warm_up: Of which so many are not counted.
        after: Done after each call, and not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for place, n in enumerate(asked):
        for name in calls if place % 2 else reversed(calls):
            start = time.perf_counter()
            calls[name](n)
            if place >= warm_up:
                seconds[name].append(time.perf_counter() - start)
            after()
    return {
        name: asdict(Timings.of(values)) | {"max": round(max(values) * 1000, 3)}
        for name, values in seconds.items()
    }


def measure(system: System, data: Data, url: str) -> dict[str, Any]:
    """Bulk, single writes and searches of a system by itself."""
    start = time.perf_counter()
    system.bulk(data)
    bulk = len(data) / (time.perf_counter() - start)
    vacuum(url)
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

    found = {
        "bulk_rows_per_second": round(bulk, 1),
        "write_ms": asdict(Timings.of(writes)),
        "dense_ms": asdict(Timings.of(timed(ask, len(data.query_texts)))),
    }
    if isinstance(system, Hybrid):
        found["hybrid_ms"] = asdict(Timings.of(timed(partial(hybrid, system, data), len(answers))))
    return {
        **found,
        **quality(answers, truth),
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def hybrid(system: Hybrid, data: Data, number: int) -> list[int]:
    """The answer to a query of the data."""
    tenant, text = data.query_tenants[number], data.query_texts[number]
    return system.hybrid(tenant, text, data.query_vectors[number], K)


def vacuum(url: str) -> None:
    """Planner statistics and visibility maps, as autovacuum would make them in time."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


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
