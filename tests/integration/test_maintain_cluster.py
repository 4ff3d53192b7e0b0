"""`maintain(cluster=True)`: each tenant's rows side by side, and nothing else changes."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from conftest import CountRows

from zerda_pg import ConflictError, Memory, MemoryStore
from zerda_pg.db import maintenance

LATER = datetime.now(UTC) + timedelta(hours=1)

TENANTS = [f"t{n}" for n in range(8)]


def scatter(store: MemoryStore) -> None:
    """Some hundred entries for each tenant, as agents write them: in turn."""
    random.seed(7)
    for round_ in range(12):
        for tenant in random.sample(TENANTS, len(TENANTS)):
            store.tenant(tenant).add_many(
                [{"content": f"{round_} {n} of {tenant} " + "text " * 40} for n in range(25)]
            )
    store.flush()


def scattered(admin: psycopg.Connection) -> dict[str, float]:
    rows = admin.execute(
        "SELECT tablename, abs(correlation) FROM pg_stats WHERE schemaname = 'zerda' "
        "AND attname = 'tenant_id' AND tablename IN ('embeddings', 'entries', 'entry_state')"
    ).fetchall()
    return {str(table): float(correlation) for table, correlation in rows}


def found(memory: Memory) -> list[Any]:
    hits = memory.search("3 7 of", k=20, now=LATER, record_access=False)
    return [(hit.entry, hit.score) for hit in hits]


def test_rows_come_to_lie_side_by_side(
    anystore: MemoryStore, admin: psycopg.Connection, rows: CountRows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(maintenance, "ANALYZE_FROM_BYTES", 64 * 1024)
    scatter(anystore)
    before = found(anystore.tenant("t3")), rows()
    report = anystore.maintain()
    assert "clustered" not in report
    assert max(scattered(admin).values()) < maintenance.SCATTERED
    report = anystore.maintain(cluster=True)
    assert report["clustered"] == ["embeddings", "entries", "entry_state"]
    assert min(scattered(admin).values()) > 0.99
    counted = {name: count for name, count in rows().items() if name in before[1]}
    assert (found(anystore.tenant("t3")), counted) == before
    assert anystore.maintain(cluster=True)["clustered"] == []


def test_a_table_that_is_held_is_left_as_it_is(
    anystore: MemoryStore, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "ANALYZE_FROM_BYTES", 64 * 1024)
    monkeypatch.setattr(maintenance, "LOCK_WAIT", "50ms")
    scatter(anystore)
    anystore.maintain()
    with admin.transaction():
        admin.execute("SELECT FROM zerda.embeddings LIMIT 1")
        with pytest.raises(ConflictError, match="embeddings was in use"):
            anystore.maintain(cluster=True)
        assert len(found(anystore.tenant("t3"))) == 20
    # autovacuum, which may be at work, makes way after a second
    monkeypatch.setattr(maintenance, "LOCK_WAIT", "10s")
    assert anystore.maintain(cluster=True)["clustered"] == ["embeddings", "entries", "entry_state"]
