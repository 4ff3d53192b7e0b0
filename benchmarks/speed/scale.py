"""How searches fare as a store grows: a million entries, thousands of tenants, one of them large.

    python -m benchmarks.speed.scale --entries 1000000 --tenants 2000

The store is filled by COPY, then kept as `maintain` keeps it (lexeme counts, HNSW for the largest
tenants). What is measured goes through the public interface, beside hand-written SQL.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from pgvector import HalfVector
from psycopg import sql

from benchmarks.speed import data as datasets
from benchmarks.speed.__main__ import ROOT, size_of
from benchmarks.speed.by_hand import HYBRID, ByHand
from benchmarks.speed.data import Data
from benchmarks.speed.measure import K, hybrid, in_turns, vacuum
from benchmarks.speed.ours import Ours
from zerda_pg.db.criteria import Criteria
from zerda_pg.db.gather import gather_sql
from zerda_pg.db.vectors import HalfvecParam
from zerda_pg.scope import Scope
from zerda_pg.testing import database_server, temporary_database

SMALL = 10_000
"""Entries up to which a tenant counts as small."""

LENGTHS = (2, 8, 50, 500)
"""Words of the queries that the lexical arm is asked."""


def main() -> None:
    """Fill, keep, measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.scale")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--tenants", type=int, default=2_000)
    parser.add_argument("--exponent", type=float, default=1.1)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    data = datasets.make(given.entries, given.tenants, given.queries, exponent=given.exponent)
    few = datasets.make(20_000, 100, given.queries)
    with database_server(), temporary_database() as url, temporary_database() as other:
        small = Ours(other)
        small.bulk(few)
        vacuum(other)
        ours = Ours(url)
        # the first write records the model, without which there is nothing to compare with
        ours.write("first", len(data), data.texts[0], data.vectors[0])
        hand = ByHand(url, model_id=1)
        start = time.perf_counter()
        hand.bulk(data)
        filled = time.perf_counter() - start
        start = time.perf_counter()
        upkeep = ours.store.maintain()
        kept = time.perf_counter() - start
        vacuum(url)
        result = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
            "entries": len(data),
            "tenants": given.tenants,
            "copied_rows_per_second": round(len(data) / filled),
            "maintain_seconds": round(kept, 1),
            "indexed": upkeep["indexed"],
            "database_mb": size_of(url),
            **small_tenants(ours, data, small, few),
            **measured(ours, hand, data),
            "plans": plans(url, data),
            "rows_read_in_order": read_in_order(url, ours, data),
        }
        hand.close()
        small.close()
        ours.close()
    (given.out / f"scale-{given.entries}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def small_tenants(ours: Ours, data: Data, small: Ours, few: Data) -> dict[str, Any]:
    """The small tenants of the large store, and those of a store that is small itself, in turns."""
    sizes = {tenant: len(rows) for tenant, rows in data.rows_of().items()}
    asked = [n for n, tenant in enumerate(data.query_tenants) if sizes[tenant] <= SMALL]
    calls = {
        "small_hybrid_ms": lambda n: hybrid(ours, data, asked[n]),
        "small_store_hybrid_ms": lambda n: hybrid(small, few, n),
        "small_dense_ms": lambda n: dense(ours, data, asked[n]),
        "small_store_dense_ms": lambda n: dense(small, few, n),
    }
    of_few = {tenant: len(rows) for tenant, rows in few.rows_of().items()}
    return {
        "small_tenant": int(np.median([sizes[data.query_tenants[n]] for n in asked])),
        "small_store_tenant": int(np.median([of_few[tenant] for tenant in few.query_tenants])),
        **in_turns(calls, range(len(asked)), warm_up=10),
    }


def dense(system: Ours, data: Data, number: int) -> list[int]:
    """The answer to a query of the data by its vector."""
    return system.dense(data.query_tenants[number], data.query_vectors[number], K)


def measured(ours: Ours, hand: ByHand, data: Data) -> dict[str, Any]:
    """The largest tenant, and the lexical arm there."""
    rows = data.rows_of()
    largest = max(rows, key=lambda tenant: len(rows[tenant]))
    found: dict[str, Any] = {"largest": len(rows[largest])}
    asked = range(len(data.query_texts))
    answers: dict[int, list[int]] = {}

    def nearest(n: int) -> None:
        answers[n] = ours.dense(largest, data.query_vectors[n], K)

    nearest(0)  # from which on the index is known
    calls = {
        "largest_dense_ms": nearest,
        "largest_hnsw_by_hand_ms": hnsw_by_hand(hand, largest, data),
    }
    found |= in_turns(calls, asked, warm_up=10)
    own = np.array(rows[largest])
    truth = [
        set(own[np.argsort(-(data.vectors[own] @ data.query_vectors[n]))[:K]].tolist())
        for n in asked
    ]
    found["largest_recall_at_10"] = round(
        float(np.mean([len(truth[n] & set(answers[n])) / K for n in asked])), 4
    )
    found["largest_hybrid_ms"] = percentiles(
        lambda n: ours.hybrid(largest, data.query_texts[n], data.query_vectors[n], K), asked
    )
    found["largest_lexical_ms"] = {
        length: lexical(ours, largest, data, length) for length in LENGTHS
    }
    return found


def percentiles(call: Callable[[int], Any], asked: Sequence[int]) -> dict[str, float]:
    """Milliseconds of calls after ten to warm up, and the longest."""
    return in_turns({"": call}, asked, warm_up=10)[""]


def lexical(ours: Ours, tenant: str, data: Data, words: int) -> dict[str, float]:
    """By words alone, with queries of so many words."""
    pool = " ".join(data.texts[:2000]).split()
    random = np.random.default_rng(words)
    memory = ours.store.tenant(tenant)
    texts = [" ".join(random.choice(pool, words)) for _ in range(60)]
    return percentiles(
        lambda n: memory.search(texts[n], k=K, mode="lexical", record_access=False), range(60)
    )


def hnsw_by_hand(hand: ByHand, tenant: str, data: Data) -> Callable[[int], None]:
    """The tenant's index by a literal statement, as an application would write it."""
    statement = f"""
        SELECT v.entry_id FROM zerda.embeddings v
        WHERE v.tenant_id = '{tenant}' AND v.model_id = 1 AND v.status = 'active'
          AND (v.expires_at IS NULL OR v.expires_at > now())
          AND (v.valid_to IS NULL OR v.valid_to > now())
        ORDER BY v.embedding::halfvec({datasets.DIMENSIONS}) <=> %s LIMIT {K}
    """
    hand.connection.execute("SET hnsw.ef_search = 400")

    def ask(n: int) -> None:
        rows = hand.connection.execute(statement, [HalfVector(data.query_vectors[n])]).fetchall()
        hand.fetch(tenant, [row[0] for row in rows])

    return ask


FIRST = 5
"""Executions that Postgres plans anew, before it keeps a plan for all."""


def plans(url: str, data: Data) -> dict[str, Any]:
    """Planning time of the hot statement as a store sends it, and the tables that it scans.

    Prepared, on one connection: first it is planned for each execution, then once for all.
    """
    statement = gather_sql(Criteria(scope=Scope(tenant_id="any")), HYBRID, "public")
    planning, scanned = [], set()
    with psycopg.connect(url, autocommit=True) as connection:
        for n in range(30):
            given = {
                "tenant": data.query_tenants[n], "query_text": data.query_texts[n],
                "language": "pg_catalog.english", "model": 1,
                "query_vector": HalfvecParam(data.query_vectors[n]),
            }  # fmt: skip
            connection.execute(statement, given, prepare=True)
            literal = HalfVector(data.query_vectors[n]).to_text()
            plan = explained(connection, statement, given | {"query_vector": literal})
            planning.append(plan["Planning Time"])
            scanned |= set(scans(plan["Plan"]))
    return {
        "planning_ms_at_first": round(float(np.median(planning[: FIRST // 2])), 3),
        "planning_ms_then": round(float(np.median(planning[FIRST:])), 3),
        "sequential_scans": sorted(scanned),
    }


def explained(
    connection: psycopg.Connection, statement: str, given: dict[str, Any]
) -> dict[str, Any]:
    """The plan of the statement that the connection has prepared."""
    found = connection.execute(
        "SELECT name FROM pg_prepared_statements WHERE statement LIKE 'WITH terms%'"
    ).fetchone()
    placed = dict.fromkeys(re.findall(r"%\((\w+)\)s", statement))
    values = sql.SQL(", ").join(sql.Literal(str(given[name])) for name in placed)
    name = sql.Identifier(found[0] if found else "")
    query = sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {}({})").format(name, values)
    row = connection.execute(query).fetchone()
    plan: dict[str, Any] = row[0][0] if row else {}
    return plan


def scans(plan: dict[str, Any]) -> list[str]:
    """Relations of sequential scans, the two small tables and the edges (there are none) aside."""
    own = [plan["Relation Name"]] if plan["Node Type"] == "Seq Scan" else []
    below = [name for child in plan.get("Plans", []) for name in scans(child)]
    return [name for name in own + below if name not in {"tenants", "embedding_models", "edges"}]


def read_in_order(url: str, ours: Ours, data: Data) -> dict[str, int]:
    """Rows that ten rounds of every call read by sequential scans, by table, by Postgres's count.

    Tables smaller than a few pages are read whole at any size, and rightly.
    """
    before = _sequential(url)
    for n in range(10):
        memory = ours.store.tenant(data.query_tenants[n])
        text, vector = data.query_texts[n], data.query_vectors[n]
        entry = memory.add(text, embedding=vector).entry
        memory.add_many([{"content": f"{text} {m}", "embedding": vector} for m in range(3)])
        other = memory.add(text, embedding=vector, supersedes=entry.id).entry
        memory.update(other.id, importance=0.9)
        memory.relate(other.id, entry.id, "related")
        memory.search(text, embedding=vector, filter={"tags_any": ["none"]})
        memory.search(text, embedding=vector, mode="lexical")
        memory.search_many([text], embedding=vector)
        memory.build_context(text, embedding=vector, token_budget=500)
        memory.get(other.id)
        memory.entries(limit=10)
        memory.neighbours(other.id)
        memory.delete(other.id)
    ours.store.flush()
    after = _sequential(url)
    return {table: rows - before[table] for table, rows in after.items() if rows > before[table]}


def _sequential(url: str) -> dict[str, int]:
    time.sleep(1.5)  # a backend reports what it did at most once a second
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE schemaname = 'zerda'"
        ).fetchall()
    return {str(table): int(count) for table, count in rows}


if __name__ == "__main__":
    main()
