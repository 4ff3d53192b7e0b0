"""Two thousand tenants in one database cost a search of one of them nothing."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from conftest import plain

from zerda_pg import MemoryStore
from zerda_pg.db import recall
from zerda_pg.db.direct import fetch

COPIES = """
INSERT INTO zerda.entries (tenant_id, id, version, memory_type, kind, content, body, tags, metadata,
    language, status, created_at, recorded_at, updated_at, content_hash)
SELECT 'tenant-' || n, e.id, version, memory_type, kind, content, body, tags, metadata, language,
    status, created_at, recorded_at, updated_at, content_hash
FROM zerda.entries e, generate_series(1, 2000) AS n WHERE e.tenant_id = 'acme';
INSERT INTO zerda.entry_state
SELECT 'tenant-' || n, s.entry_id, importance, original_importance, decay_factor, access_count,
    last_access
FROM zerda.entry_state s, generate_series(1, 2000) AS n WHERE s.tenant_id = 'acme';
INSERT INTO zerda.embeddings
SELECT 'tenant-' || n, entry_id, model_id, embedding, truncated, memory_type, kind, status,
    session_id, user_id, agent_id, valid_from, valid_to, expires_at
FROM zerda.embeddings v, generate_series(1, 2000) AS n WHERE v.tenant_id = 'acme';
ANALYZE zerda.entries, zerda.entry_state, zerda.embeddings;
"""


def planned(database: str, statement: str, parameters: Any) -> tuple[float, int]:
    """Milliseconds of planning, the least of five, and relations locked."""
    with psycopg.connect(plain(database)) as connection:
        times = []
        for _ in range(5):
            cursor = connection.execute(
                f"EXPLAIN (SUMMARY, FORMAT JSON) {statement}".encode(), parameters
            )
            (row,) = cursor.fetchall()
            found = row[0] if isinstance(row[0], list) else json.loads(row[0])
            times.append(float(found[0]["Planning Time"]))
        locks = connection.execute(
            "SELECT count(DISTINCT l.relation) FROM pg_locks l JOIN pg_class c "
            "ON c.oid = l.relation WHERE l.pid = pg_backend_pid() "
            "AND c.relnamespace = 'zerda'::regnamespace"
        ).fetchone()
    assert locks is not None
    return min(times), int(locks[0])


def test_two_thousand_tenants_plan_as_one(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        memory.add_many({"content": f"deploy note {n}", "id": f"e{n}"} for n in range(5))
        seen: list[tuple[str, Any]] = []

        def note(connection: Any, statement: str, parameters: Any) -> list[Any]:
            seen.append((statement, parameters))
            return fetch(connection, statement, parameters)

        monkeypatch.setattr(recall, "fetch", note)
        memory.search("deploy note 3", record_access=False)
        ((statement, parameters),) = seen
        before = planned(database, statement, parameters)
        with psycopg.connect(plain(database), autocommit=True) as connection:
            for part in COPIES.split(";\n"):
                if part.strip():
                    connection.execute(part.encode())
        after = planned(database, statement, parameters)
        assert len(memory.search("deploy note 3", k=5)) == 5
        assert len(store.tenant("tenant-1999").search("deploy note 3", k=5)) == 5
        assert len(store.tenants()) == 2001
    assert after[1] == before[1]
    # a plan with other statistics may be sought for longer, but not by the number of tenants
    assert after[0] < 4 * before[0] + 5
