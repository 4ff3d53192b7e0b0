"""Many processes on one server: throughput and latencies as they become more.

    python -m benchmarks.speed.processes [--processes 8] [--seconds 10]

Of the calls 80 % are hybrid searches that record their accesses and 20 % are `add`, in tenants
that all processes share. Vectors are given, so that it is the store that is measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import data as datasets
from benchmarks.speed.__main__ import ROOT
from benchmarks.speed.measure import K, Timings, vacuum
from benchmarks.speed.ours import Ours
from benchmarks.speed.servers import about
from zerda_pg import ZerdaError
from zerda_pg.testing import database_server, temporary_database

READS = 0.8
"""Share of the calls."""

WARM_UP = 20
"""Calls of each process that are not counted: connections, caches, prepared statements."""


def main() -> None:
    """Fill, let 1, 2, 4 … processes work, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.processes")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    given = parser.parse_args()
    data = datasets.make(given.entries, given.tenants, queries=500)
    counts = [n for n in (1, 2, 4, 8, 16, 32) if n < given.processes] + [given.processes]
    with database_server(), temporary_database() as url:
        ours = Ours(url)
        ours.bulk(data)
        ours.store.maintain()
        ours.close()
        vacuum(url)
        stages = [stage(url, data, count, given.seconds) for count in counts]
    result = about() | {"entries": len(data), "seconds": given.seconds, "stages": stages}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "processes.json").write_text(json.dumps(result, indent=2) + "\n")
    show(result)


def stage(url: str, data: datasets.Data, count: int, seconds: float) -> dict[str, Any]:
    """So many processes, all starting at once."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(count), context.Queue()
    workers = [
        context.Process(target=work, args=(url, data, number, seconds, barrier, answers))
        for number in range(count)
    ]
    for worker in workers:
        worker.start()
    found: list[dict[str, Any]] = [answers.get(timeout=seconds + 300) for _ in workers]
    for worker in workers:
        worker.join()
    reads = [s for one in found for s in one["reads"]]
    writes = [s for one in found for s in one["writes"]]
    return {
        "processes": count,
        "calls_per_second": round((len(reads) + len(writes)) / seconds, 1),
        "search_ms": vars(Timings.of(reads)),
        "add_ms": vars(Timings.of(writes)),
        "errors": [error for one in found for error in one["errors"]],
    }


def work(
    url: str, data: datasets.Data, number: int, seconds: float, barrier: Barrier, answers: Any
) -> None:
    """One process."""
    random = np.random.default_rng(number)
    ours = Ours(url)
    found: dict[str, list[Any]] = {"reads": [], "writes": [], "errors": []}

    def call(counted: bool) -> None:
        n = int(random.integers(len(data.query_texts)))
        tenant, vector = data.query_tenants[n], data.query_vectors[n]
        reading = random.random() < READS
        start = time.perf_counter()
        try:
            if reading:
                ours.hybrid(tenant, data.query_texts[n], vector, K, record=True)
            else:
                # ids of numbers, which no other process and no other stage gives
                ours.write(tenant, time.time_ns() * 64 + number, data.query_texts[n], vector)
        except ZerdaError as error:
            found["errors"].append(f"{type(error).__name__}: {error}")
        if counted:
            found["reads" if reading else "writes"].append(time.perf_counter() - start)

    for _ in range(WARM_UP):
        call(counted=False)
    barrier.wait()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        call(counted=True)
    ours.close()
    answers.put(found)


def show(result: dict[str, Any]) -> None:
    """Markdown."""
    print(f"{result['entries']} entries; {result['machine']}; {result['at']}\n")
    print("| processes | calls/s | search p50 | p99 | add p50 | p99 | errors |")
    print("| --- |" + " --- |" * 6)
    for one in result["stages"]:
        search, add = one["search_ms"], one["add_ms"]
        print(
            f"| {one['processes']} | {one['calls_per_second']} | {search['p50']} | "
            f"{search['p99']} | {add['p50']} | {add['p99']} | {len(one['errors'])} |"
        )


if __name__ == "__main__":
    main()
