"""What recording accesses costs: the reader's time, and the size of the indexes.

    python -m benchmarks.speed.accesses [--recalls 20000]

First recalls with and without recording take turns. Then so many recorded ones follow, by vector
in small tenants, which are quick. Half way the sizes are read too: indexes that were filled in
order grow to what a B-tree keeps free, and then no more.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.speed import data as datasets
from benchmarks.speed.__main__ import ROOT
from benchmarks.speed.measure import K, vacuum
from benchmarks.speed.ours import Ours
from benchmarks.speed.servers import about
from zerda_pg.testing import database_server, temporary_database

WARM_UP = 20

SIZES = """
    SELECT i.indrelid = 'zerda.entry_state'::regclass AS own, sum(pg_relation_size(i.indexrelid))
    FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid
    WHERE t.relnamespace = 'zerda'::regnamespace GROUP BY 1
"""
UPDATES = """
    SELECT n_tup_upd, n_tup_hot_upd, pg_table_size(relid) FROM pg_stat_user_tables
    WHERE relid = 'zerda.entry_state'::regclass
"""


def main() -> None:
    """Fill, compare, recall, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.accesses")
    parser.add_argument("--recalls", type=int, default=20_000)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--tenants", type=int, default=100)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    given = parser.parse_args()
    data = datasets.make(given.entries, given.tenants, queries=300, exponent=0.0)
    with database_server(), temporary_database() as url:
        ours = Ours(url)
        ours.bulk(data)
        ours.store.maintain()
        vacuum(url)
        result = about() | {"entries": len(data), "recalls": given.recalls}
        result |= {"search": compared(ours, data), "before": sizes(url)}
        start = time.perf_counter()
        for n in range(given.recalls):
            query = n % len(data.query_texts)
            ours.store.tenant(data.query_tenants[query]).search(
                "by vector", k=K, mode="dense", embedding=data.query_vectors[query]
            )
            if n == given.recalls // 2:
                ours.store.flush()
                result["half_way"] = sizes(url)
        ours.store.flush()
        result["recalls_per_second"] = round(given.recalls / (time.perf_counter() - start))
        ours.close()
        result["after"] = sizes(url)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "accesses.json").write_text(json.dumps(result, indent=2) + "\n")
    show(result)


def compared(ours: Ours, data: datasets.Data) -> dict[str, float]:
    """Medians of hybrid searches in turn, and their ratio."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    for n, (tenant, text, vector) in enumerate(
        zip(data.query_tenants, data.query_texts, data.query_vectors, strict=True)
    ):
        for record in (n % 2 == 0, n % 2 == 1):
            start = time.perf_counter()
            ours.hybrid(tenant, text, vector, K, record=record)
            if n >= WARM_UP:
                taken[record].append((time.perf_counter() - start) * 1000)
            # what is counted beside the next search would be counted as its own time
            ours.store.flush()
    with_it, without = (float(np.median(taken[record])) for record in (True, False))
    return {
        "recording_ms": round(with_it, 3),
        "not_recording_ms": round(without, 3),
        "ratio": round(with_it / without, 3),
    }


def sizes(url: str) -> dict[str, int]:
    """Bytes of indexes, and updates so far."""
    with psycopg.connect(url) as connection:
        found: dict[bool, int] = dict(connection.execute(SIZES).fetchall())
        connection.execute("SELECT pg_stat_clear_snapshot()")
        row = connection.execute(UPDATES).fetchone() or (0, 0, 0)
    return {
        "entry_state_indexes": int(found[True]),
        "all_indexes": int(sum(found.values())),
        "updates": row[0],
        "hot_updates": row[1],
        "entry_state": row[2],
    }


def show(result: dict[str, Any]) -> None:
    """Markdown."""
    search = result["search"]
    print(f"{result['entries']} entries; {result['machine']}; {result['at']}\n")
    print(
        f"hybrid search, p50: {search['recording_ms']} ms recording, "
        f"{search['not_recording_ms']} ms not: ratio {search['ratio']}\n"
    )
    print(f"| | before | half way | after {result['recalls']} recalls |\n| --- | --- | --- | --- |")
    for name, before in result["before"].items():
        then, after = result["half_way"][name], result["after"][name]
        print(f"| {name.replace('_', ' ')} | {before} | {then} | {after} |")


if __name__ == "__main__":
    main()
