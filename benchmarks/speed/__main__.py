"""One run, one server: zerda_pg, hand-written SQL, and the peers.

    python -m benchmarks.speed --peers PYTHON

where PYTHON is the interpreter of an environment with `benchmarks/speed/peers.txt`. Without it
only zerda_pg and the hand-written SQL are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.speed import data as datasets
from benchmarks.speed import report
from benchmarks.speed.by_hand import ByHand
from benchmarks.speed.measure import K, Timings, measure, quality
from benchmarks.speed.ours import Ours
from zerda_pg.testing import database_server, temporary_database

PEERS = ("langgraph", "langchain", "mem0", "llama-index")
ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed")
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--tenants", type=int, default=100)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--peers", help="interpreter of the peers' environment")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    given = parser.parse_args()
    data = datasets.make(given.entries, given.tenants, given.queries)
    given.out.mkdir(parents=True, exist_ok=True)
    with database_server(), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        datasets.save(data, file)
        results = own_results(data)
        if given.peers:
            for name in PEERS:
                results[name] = peer_result(given.peers, name, file)
    whole = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "python": platform.python_version(),
        "entries": len(data),
        "tenants": given.tenants,
        "systems": results,
    }
    (given.out / "speed.json").write_text(json.dumps(whole, indent=2) + "\n")
    print(report.table(whole))
    report.plot(whole, given.out / "speed.png")


def own_results(data: datasets.Data) -> dict[str, dict[str, Any]]:
    """zerda_pg, then the same statements by hand on the database that it filled."""
    found: dict[str, dict[str, Any]] = {}
    with temporary_database() as url:
        ours = Ours(url)
        found["zerda_pg"] = measure(ours, data)
        analyze(url)
        hand = ByHand(url, model_id=1)
        try:
            searches = compared(ours, hand, data)
        finally:
            hand.close()
            ours.close()
        found["zerda_pg"] |= searches["zerda_pg"] | {"database_mb": size_of(url)}
        found["by_hand"] = searches["by_hand"]
    with temporary_database() as url:
        Ours(url).close()
        hand = ByHand(url, model_id=1)
        found["by_hand"] = measure(hand, data) | found["by_hand"] | {"database_mb": size_of(url)}
        hand.close()
    return found


def compared(ours: Ours, hand: ByHand, data: datasets.Data) -> dict[str, dict[str, Any]]:
    """Calls of one beside calls of the other, in turn, so that noise hits both."""
    truth = datasets.exact_neighbours(data, K)
    answers: dict[str, list[Any]] = {}
    seconds: dict[str, list[float]] = {}

    for n in range(len(data.query_texts)):
        tenant, text, vector = data.query_tenants[n], data.query_texts[n], data.query_vectors[n]
        calls: dict[str, Callable[[], Any]] = {
            "ours_dense": partial(ours.dense, tenant, vector, K),
            "hand_dense": partial(hand.dense, tenant, vector, K),
            "ours_hybrid": partial(ours.hybrid, tenant, text, vector, K, record=False),
            "hand_hybrid": partial(hand.hybrid, tenant, text, vector, K),
            "ours_recording": partial(ours.hybrid, tenant, text, vector, K, record=True),
            "ours_write": partial(ours.write, "paired", n, text, vector),
            "hand_write": partial(hand.write, "paired", len(data) + n, text, vector),
        }
        for name, call in calls.items():
            start = time.perf_counter()
            answer = call()
            seconds.setdefault(name, []).append(time.perf_counter() - start)
            answers.setdefault(name, []).append(answer)
            # what is recorded in the background would be counted as the next call's time
            ours.store.flush()
    warm = {name: values[30:] for name, values in seconds.items()}
    return {
        "zerda_pg": {
            "write_ms": asdict(Timings.of(warm["ours_write"])),
            "dense_ms": asdict(Timings.of(warm["ours_dense"])),
            "hybrid_ms": asdict(Timings.of(warm["ours_hybrid"])),
            "hybrid_recording_ms": asdict(Timings.of(warm["ours_recording"])),
            **quality(answers["ours_dense"], truth),
        },
        "by_hand": {
            "write_ms": asdict(Timings.of(warm["hand_write"])),
            "dense_ms": asdict(Timings.of(warm["hand_dense"])),
            "hybrid_ms": asdict(Timings.of(warm["hand_hybrid"])),
            **quality(answers["hand_dense"], truth),
        },
    }


def peer_result(python: str, name: str, file: Path) -> dict[str, Any]:
    """A peer in a process and a database of its own."""
    with temporary_database() as url:
        done = subprocess.run(
            [python, "-m", "benchmarks.speed.peers", name, url, str(file)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1]}
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return result | {"database_mb": size_of(url)}


def analyze(url: str) -> None:
    """Planner statistics, as autovacuum would make them in time."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def size_of(url: str) -> float:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return round((row[0] if row else 0) / 1e6, 1)


if __name__ == "__main__":
    main()
