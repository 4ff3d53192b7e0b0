"""`python -m benchmarks.recall.cost`: what a search costs on tenants of 1,000 and 10,000 entries.

The entries are conversations of made-up words with Zipf's frequencies; the queries are eight words
of the same sort. The hashing embedder stands in for a model: the query's embedding is not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg

from zerda_pg import MemoryStore
from zerda_pg.db.criteria import Criteria
from zerda_pg.db.gather import GatherShape, gather_sql
from zerda_pg.scope import Scope
from zerda_pg.scoped import Memory
from zerda_pg.testing import temporary_database

WORDS = 20_000
TURNS = 20
"""Messages of a session."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print medians, and with `--plan` where Postgres spends them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall.cost", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[1_000, 10_000])
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--plan", action="store_true", help="EXPLAIN (ANALYZE, BUFFERS)")
    options = parser.parse_args(arguments)
    chance = random.Random(7)
    with temporary_database() as url, MemoryStore.open(url, embedder="hashing") as store:
        for size in options.sizes:
            memory = _filled(store, size, chance)
            with psycopg.connect(_plain(url), autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
            print(json.dumps({"entries": size} | _timed(memory, options.queries, chance)))
            if options.plan:
                print(_plan(url, memory, chance))
    return 0


def _plain(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")


def _sentence(chance: random.Random, words: int) -> str:
    return " ".join(f"w{int(WORDS ** chance.random())}x" for _ in range(words))


def _filled(store: MemoryStore, size: int, chance: random.Random) -> Memory:
    memory = store.tenant(f"t{size}")
    started = datetime(2026, 1, 1, tzinfo=UTC)
    for session in range(size // TURNS):
        memory.add_messages(
            [
                {
                    "speaker": ("user", "assistant")[turn % 2],
                    "text": _sentence(chance, chance.choice([8, 25, 25, 60, 200])),
                    "timestamp": started + timedelta(hours=session, seconds=30 * turn),
                }
                for turn in range(TURNS)
            ],
            session_id=f"s{session}",
        )
    store.flush()
    return memory


def _timed(memory: Memory, queries: int, chance: random.Random) -> dict[str, dict[str, float]]:
    """Milliseconds without the query's embedding: median, and the best of all."""
    spent: dict[str, list[float]] = {"search": [], "build_context": [], "gather": []}
    for number in range(queries + 5):
        query = _sentence(chance, 8)
        started = time.perf_counter()
        report = memory.search(query, k=10, record_access=False).report
        search = (time.perf_counter() - started) * 1000 - report["milliseconds"]["embed"]
        started = time.perf_counter()
        packed = memory.build_context(query, token_budget=1000, record_access=False).report
        context = (time.perf_counter() - started) * 1000 - packed["milliseconds"]["embed"]
        if number >= 5:
            spent["search"].append(search)
            spent["build_context"].append(context)
            spent["gather"].append(report["milliseconds"]["gather"])
    return {
        name: {"median": round(statistics.median(times), 1), "least": round(min(times), 1)}
        for name, times in spent.items()
    }


def _plan(url: str, memory: Memory, chance: random.Random) -> str:
    """The hot statement's plan, with its parameters as literals."""
    tenant = memory.scope.tenant_id
    with psycopg.connect(_plain(url), autocommit=True) as connection:
        found = connection.execute(
            "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'vector'"
        ).fetchone()
        schema = found[0] if found else "public"
        vector = connection.execute(
            "SELECT embedding::text FROM zerda.embeddings WHERE tenant_id = %s LIMIT 1", [tenant]
        ).fetchone()
        sql = gather_sql(Criteria(scope=Scope(tenant_id=tenant)), GatherShape(best=64), schema)
        parameters = {
            "tenant": tenant,
            "query_text": _sentence(chance, 8),
            "language": "pg_catalog.english",
            "model": 1,
            "query_vector": vector[0] if vector else "",
        }
        cursor = psycopg.ClientCursor(connection)
        rows = cursor.execute("EXPLAIN (ANALYZE, BUFFERS) " + sql, parameters)
        return "\n".join(row[0] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
