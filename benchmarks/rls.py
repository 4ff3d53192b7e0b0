"""What row-level security costs: the same calls by the tables' owner and by an agent.

    python -m benchmarks.rls [--entries 10000]

Interleaved, so that a noisy machine disturbs both alike; the ratios are what counts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from zerda_pg import Memory, MemoryStore

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from isolated import isolated_database

OUT = Path(__file__).parent / "out"


def fill(memory: Memory, entries: int) -> None:
    chance = random.Random(7)
    words = [f"word{n}" for n in range(8000)]

    def text() -> str:
        return " ".join(words[min(7999, int(chance.paretovariate(0.6)))] for _ in range(35))

    memory.add_many({"content": text(), "id": f"e{n}"} for n in range(entries))


def calls(memory: Memory) -> dict[str, Callable[[], object]]:
    number = iter(range(10**9))
    return {
        "get": lambda: memory.get("e1"),
        "add": lambda: memory.add(f"a new note {next(number)}", id="new"),
        "search": lambda: memory.search("word900 word40 word7", record_access=False),
        "search, dense": lambda: memory.search("word900", mode="dense", record_access=False),
        "search, lexical": lambda: memory.search(
            "word900 word40 word7", mode="lexical", record_access=False
        ),
        "build_context": lambda: memory.build_context("word900 word40", record_access=False),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    with isolated_database() as roles:
        with MemoryStore.open(roles.owner, embedder="hashing") as store:
            for tenant, entries in (("small", 100), ("large", options.entries)):
                fill(store.tenant(tenant), entries)
            store.maintain()
        with psycopg.connect(roles.admin, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        with (
            MemoryStore.open(roles.owner, embedder="hashing") as owner,
            MemoryStore.open(roles.agent, embedder="hashing") as agent,
        ):
            found = {
                f"{tenant}, {name}": measured
                for tenant in ("small", "large")
                for name, measured in _compare(
                    calls(owner.tenant(tenant)), calls(agent.tenant(tenant)), options.rounds
                ).items()
            }
    print("| call | owner, ms | agent, ms | ratio |\n| --- | --- | --- | --- |")
    for name, (one, two) in found.items():
        print(f"| {name} | {one:.2f} | {two:.2f} | {two / one:.2f} |")
    OUT.mkdir(exist_ok=True)
    (OUT / "rls.json").write_text(json.dumps(found, indent=2) + "\n")


def _compare(
    one: dict[str, Callable[[], object]], two: dict[str, Callable[[], object]], rounds: int
) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for name, by_owner in one.items():
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for times, call in zip(taken, (by_owner, two[name]), strict=True):
                since = time.perf_counter()
                call()
                times.append((time.perf_counter() - since) * 1000)
        found[name] = (statistics.median(taken[0]), statistics.median(taken[1]))
    return found


if __name__ == "__main__":
    main()
