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
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.speed import data as datasets
from benchmarks.speed import report
from benchmarks.speed.by_hand import ByHand
from benchmarks.speed.measure import K, in_turns, measure
from benchmarks.speed.ours import Ours
from zerda_pg.testing import database_server, temporary_database

PEERS = ("langgraph", "langgraph-exact", "langchain", "mem0", "llama-index")
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
        results, paired = own_results(data)
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
        "in_turns": paired,
    }
    (given.out / "speed.json").write_text(json.dumps(whole, indent=2) + "\n")
    print(report.table(whole))
    report.plot(whole, given.out / "speed.png")


def own_results(data: datasets.Data) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """zerda_pg and the same by hand, each by itself, then both in turns on one database."""
    found: dict[str, dict[str, Any]] = {}
    with temporary_database() as url, temporary_database() as other:
        ours, hand = Ours(url), ByHand(url, model_id=1)
        found["zerda_pg"] = measure(ours, data, url) | {"database_mb": size_of(url)}
        Ours(other).close()  # makes the tables
        alone = ByHand(other, model_id=1)
        found["by_hand"] = measure(alone, data, other) | {"database_mb": size_of(other)}
        alone.close()
        paired = beside(ours, hand, data)
        hand.close()
        ours.close()
    return found, paired


def beside(ours: Ours, hand: ByHand, data: datasets.Data) -> dict[str, dict[str, float]]:
    """Our calls and the same by hand, in turns."""
    tenants, texts, vectors = data.query_tenants, data.query_texts, data.query_vectors
    groups: list[dict[str, Callable[[int], Any]]] = [
        {
            "dense": lambda n: ours.dense(tenants[n], vectors[n], K),
            "dense by hand": lambda n: hand.dense(tenants[n], vectors[n], K),
        },
        {
            "hybrid": lambda n: ours.hybrid(tenants[n], texts[n], vectors[n], K),
            "hybrid by hand": lambda n: hand.candidates(tenants[n], texts[n], vectors[n], K),
            "hybrid, recording": lambda n: ours.hybrid(
                tenants[n], texts[n], vectors[n], K, record=True
            ),
        },
        {
            "write": lambda n: ours.write("paired", n, texts[n], vectors[n]),
            "write by hand": lambda n: hand.write("paired", len(data) + n, texts[n], vectors[n]),
        },
    ]
    found: dict[str, dict[str, float]] = {}
    for calls in groups:
        # what is recorded in the background would be counted as the next call's time
        found |= in_turns(calls, range(len(texts)), after=ours.store.flush)
    return found


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


def size_of(url: str) -> float:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return round((row[0] if row else 0) / 1e6, 1)


if __name__ == "__main__":
    main()
