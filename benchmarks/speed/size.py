"""What a store takes: bytes a row of each table and index, and bytes and milliseconds an entry.

    python -m benchmarks.speed.size [--entries 50000]

One tenant is large enough for an HNSW index, whose bytes are counted by the vectors in it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.speed import data as datasets
from benchmarks.speed.__main__ import ROOT, size_of
from benchmarks.speed.ours import Ours
from benchmarks.speed.servers import about
from zerda_pg.testing import database_server, temporary_database

MESSAGES = 2_000
"""Of a conversation, whose entries are linked: for the bytes of an edge."""

SIZES = """
    SELECT t.relname AS of_table, t.relname AS name, 'table' AS what,
           pg_table_size(t.oid) AS bytes
    FROM pg_class t WHERE t.relnamespace = 'zerda'::regnamespace AND t.relkind = 'r'
    UNION ALL
    SELECT t.relname, x.relname, a.amname, pg_relation_size(x.oid)
    FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid JOIN pg_class x ON x.oid = i.indexrelid
    JOIN pg_am a ON a.oid = x.relam WHERE t.relnamespace = 'zerda'::regnamespace
    ORDER BY 1, 3 DESC, 2
"""


def main() -> None:
    """Fill, index, count, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.size")
    parser.add_argument("--entries", type=int, default=50_000)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    given = parser.parse_args()
    data = datasets.make(given.entries, tenants=100, queries=1, exponent=1.5)
    with database_server(), temporary_database() as url:
        before = size_of(url)
        ours = Ours(url)
        start = time.perf_counter()
        ours.bulk(data)
        filled = time.perf_counter() - start
        ours.store.tenant("talks").add_messages(
            [{"role": "user", "text": data.texts[n] + f" {n}"} for n in range(MESSAGES)],
            session_id="one",
        )
        start = time.perf_counter()
        report = ours.store.maintain()
        maintained = time.perf_counter() - start
        ours.close()
        result = about() | {"indexed": report["indexed"], **measured(url)}
        result["add_many_ms_an_entry"] = round(filled / len(data) * 1000, 3)
        result["maintain_ms_an_entry"] = round(maintained / result["entries"] * 1000, 3)
        result["database_mb"] = round(size_of(url) - before, 1)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "size.json").write_text(json.dumps(result, indent=2) + "\n")
    show(result)


def measured(url: str) -> dict[str, Any]:
    """Rows of each table, bytes a row of it and of its indexes."""
    relations: list[dict[str, Any]] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")

        def count(query: str) -> int:
            row = connection.execute(query.encode()).fetchone()
            return int(row[0]) if row else 0

        indexed = count(
            "SELECT count(*) FROM zerda.embeddings v JOIN zerda.tenants t "
            "ON t.tenant_id = v.tenant_id AND t.ann_model_id = v.model_id"
        )
        for table, name, what, size in connection.execute(SIZES).fetchall():
            if table == "alembic_version":
                continue
            rows = indexed if what == "hnsw" else count(f"SELECT count(*) FROM zerda.{table}")
            relations.append(
                {"table": table, "name": name, "what": what, "rows": rows, "bytes": size}
            )
        entries = count("SELECT count(*) FROM zerda.entries")
    own = sum(r["bytes"] for r in relations if r["what"] != "hnsw")
    hnsw = [r for r in relations if r["what"] == "hnsw"]
    return {
        "relations": relations,
        "entries": entries,
        "bytes_an_entry": round(own / entries),
        "hnsw_bytes_a_vector": round(sum(r["bytes"] for r in hnsw) / max(1, indexed)),
    }


def show(result: dict[str, Any]) -> None:
    """Markdown."""
    print(f"{result['entries']} entries; {result['machine']}; {result['at']}\n")
    print("| relation | kind | rows | bytes a row |\n| --- | --- | --- | --- |")
    for r in result["relations"]:
        if r["rows"]:
            name = "HNSW of a tenant" if r["what"] == "hnsw" else f"`{r['name']}`"
            print(f"| {name} | {r['what']} | {r['rows']} | {r['bytes'] / r['rows']:.0f} |")
    print(f"\nbytes an entry, in all, without HNSW: {result['bytes_an_entry']}")
    print(f"ms an entry by add_many, vectors given: {result['add_many_ms_an_entry']}")
    print(f"ms an entry by the first maintain: {result['maintain_ms_an_entry']}")
    print(f"bytes a vector in an HNSW index: {result['hnsw_bytes_a_vector']}")


if __name__ == "__main__":
    main()
