"""Whether it matters where a tenant's rows lie: a store larger than shared_buffers.

    python -m benchmarks.speed.locality [--entries 30000] [--buffers 24MB]

The same entries lie as many agents write them at once; then rewritten in the order of the keys by
CLUSTER, first the vectors, then all; and as written into tables partitioned by a hash of the
tenant. Counted are the 8 kB blocks that a search looks at, and those that it has to fetch from
outside shared_buffers; timed are searches with the files put out of every cache (cold), and a mix
of all tenants once the system's cache has them (warm).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.speed import data as datasets
from benchmarks.speed.__main__ import ROOT, size_of
from benchmarks.speed.by_hand import ByHand
from benchmarks.speed.measure import K
from benchmarks.speed.ours import Ours
from benchmarks.speed.servers import about, database, put_out, server
from zerda_pg.db.criteria import Criteria
from zerda_pg.db.gather import GatherShape, gather_sql
from zerda_pg.db.vectors import HalfvecParam
from zerda_pg.scope import Scope

PORTION = 2
"""Entries that one agent writes before another one does: a question and its answer."""

PARTITIONS = 32
TABLES = ("entries", "entry_state", "embeddings")
"""In which a search reads rows of a tenant."""


def main() -> None:
    """Fill, search, rewrite, search, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.locality")
    parser.add_argument("--entries", type=int, default=30_000)
    parser.add_argument("--tenants", type=int, default=60)
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--buffers", default="24MB")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    given = parser.parse_args()
    data = interleaved(datasets.make(given.entries, given.tenants, given.queries))
    result: dict[str, Any] = about() | {"entries": len(data), "buffers": given.buffers, "ways": {}}
    with server(given.buffers) as (url, directory):
        with database(url, "flat") as own:
            fill(own, data)
            result["ways"]["as written"] = searched(own, directory, data)
            took = cluster(own, "embeddings")
            result["ways"]["vectors clustered"] = searched(own, directory, data)
            took += cluster(own, "entries") + cluster(own, "entry_state")
            result["clustered_in_s"] = round(took, 1)
            result["ways"]["clustered"] = searched(own, directory, data)
        with database(url, "partitioned") as own:
            partition(own)
            fill(own, data)
            result["ways"]["partitioned"] = searched(own, directory, data)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "locality.json").write_text(json.dumps(result, indent=2) + "\n")
    show(result)


def interleaved(data: datasets.Data) -> datasets.Data:
    """The same data set with portions of all tenants in a random order."""
    random = np.random.default_rng(11)
    portions = [
        rows[n : n + PORTION]
        for rows in data.rows_of().values()
        for n in range(0, len(rows), PORTION)
    ]
    random.shuffle(portions)
    order = [row for portion in portions for row in portion]
    return replace(
        data,
        tenants=[data.tenants[row] for row in order],
        texts=[data.texts[row] for row in order],
        vectors=data.vectors[order],
    )


def fill(url: str, data: datasets.Data) -> None:
    """By COPY, in the order of the data."""
    ours = Ours(url)
    ours.write("first", len(data), data.texts[0], data.vectors[0])
    hand = ByHand(url, model_id=1)
    hand.copy(range(len(data)), data)
    hand.close()
    ours.store.maintain()
    ours.close()


def cluster(url: str, table: str) -> float:
    """In the order of the key, and how many seconds it took; the table is locked meanwhile."""
    start = time.perf_counter()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CLUSTER zerda.{table} USING pk_{table}".encode())
    return time.perf_counter() - start


def partition(url: str) -> None:
    """The tables, still empty, made anew with partitions by a hash of the tenant."""
    with psycopg.connect(url, autocommit=True) as connection:
        keys = connection.execute(
            "SELECT c.conrelid::regclass::text, c.conname, pg_get_constraintdef(c.oid) "
            "FROM pg_constraint c WHERE c.contype = 'f' "
            "AND c.connamespace = 'zerda'::regnamespace AND c.conparentid = 0"
        ).fetchall()
        for table in TABLES:
            whole = f"zerda.{table}"
            statements = [
                f"ALTER TABLE {whole} RENAME TO {table}_whole",
                f"CREATE TABLE {whole} (LIKE {whole}_whole INCLUDING ALL) "
                "PARTITION BY HASH (tenant_id)",
                f"DROP TABLE {whole}_whole CASCADE",
                *(
                    f"CREATE TABLE {whole}_{n} PARTITION OF {whole} "
                    f"FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {n})"
                    for n in range(PARTITIONS)
                ),
            ]
            for statement in statements:
                connection.execute(statement.encode())
        for table, name, definition in keys:
            # those between tables that stayed are still there
            connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}".encode())
            connection.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}".encode())


def searched(url: str, directory: Path, data: datasets.Data) -> dict[str, float]:
    """Blocks and milliseconds of a hybrid search, medians over the queries."""
    found: dict[str, list[float]] = {}
    ours = Ours(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
        connection.execute("CHECKPOINT")
        for warm in (False, True):
            for n, tenant in enumerate(data.query_tenants):
                text, vector = data.query_texts[n], data.query_vectors[n]
                if not warm:
                    connection.execute("SELECT pg_buffercache_evict_all()")
                    put_out(directory)
                start = time.perf_counter()
                ours.hybrid(tenant, text, vector, K, record=False)
                took = (time.perf_counter() - start) * 1000
                found.setdefault("warm_ms" if warm else "cold_ms", []).append(took)
            for n, tenant in enumerate(data.query_tenants if warm else []):
                touched, fetched = blocks(connection, tenant, data, n)
                found.setdefault("blocks", []).append(touched)
                found.setdefault("blocks_fetched", []).append(fetched)
    ours.close()
    medians = {name: round(float(np.median(values)), 1) for name, values in found.items()}
    return medians | {"database_mb": size_of(url)}


def blocks(
    connection: psycopg.Connection, tenant: str, data: datasets.Data, n: int
) -> tuple[int, int]:
    """8 kB blocks that the hot statement looks at, and those that were not in shared_buffers."""
    statement = gather_sql(Criteria(scope=Scope(tenant_id="any")), GatherShape(), "public")
    parameters = {
        "tenant": tenant, "query_text": data.query_texts[n], "language": "pg_catalog.english",
        "model": 1, "query_vector": HalfvecParam(data.query_vectors[n]),
    }  # fmt: skip
    row = connection.execute(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode(), parameters
    ).fetchone()
    plan = row[0][0]["Plan"] if row else {}
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], plan["Shared Read Blocks"]


def show(result: dict[str, Any]) -> None:
    """Markdown."""
    print(f"{result['entries']} entries, shared_buffers {result['buffers']}; {result['machine']}")
    names = ("blocks", "blocks_fetched", "cold_ms", "warm_ms", "database_mb")
    print("\n| written | " + " | ".join(names) + " |\n|" + " --- |" * (len(names) + 1))
    for way, values in result["ways"].items():
        print(f"| {way} | " + " | ".join(str(values[name]) for name in names) + " |")
    print(f"\nCLUSTER of all took {result['clustered_in_s']} s")


if __name__ == "__main__":
    main()
