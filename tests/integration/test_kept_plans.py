"""Plans that a connection keeps stay right as a store grows, and beside tenants of any size.

What is counted is the rows that Postgres reads: by the keys some thousands a search, and by an
index that merely begins with the tenant half a million.
"""

from __future__ import annotations

import psycopg
from conftest import plain
from drivers import opened

from zerda_pg import MemoryStore
from zerda_pg.core import Core
from zerda_pg.db.engine import MOST_PREPARED
from zerda_pg.db.guarded import PREPARED_AT_ONCE
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, read

GROWN = 3000
ROUNDS = 20
ROWS_A_ROUND = 20_000
"""More than a search and an add of a tenant of 3,000 read."""

READ = """
    SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))
    FROM pg_stat_user_tables WHERE schemaname = 'zerda'
"""

OTHERS = """
INSERT INTO zerda.entries (tenant_id, id, version, memory_type, kind, content, body, tags, metadata,
    language, status, created_at, recorded_at, updated_at, content_hash)
SELECT 'tenant-' || n, e.id, version, memory_type, kind, content, body, tags, metadata, language,
    status, created_at, recorded_at, updated_at, content_hash
FROM zerda.entries e, generate_series(1, 10000) AS n WHERE e.tenant_id = 'acme' AND e.id = 'e0';
INSERT INTO zerda.entry_state
SELECT tenant_id, id, 0.5, 0.5, 1, 0, now() FROM zerda.entries WHERE tenant_id <> 'acme';
ANALYZE zerda.entries, zerda.entry_state, zerda.embeddings
"""


def rows_read(database: str) -> int:
    """By all sessions that have ended."""
    with psycopg.connect(plain(database)) as connection:
        row = connection.execute(READ).fetchone()
    assert row is not None
    return int(row[0])


def entries(count: int) -> list[dict[str, str]]:
    return [
        {"content": f"deploy note {n} of part {n % 50}", "id": f"e{n}", "session_id": f"s{n // 20}"}
        for n in range(count)
    ]


def used(store: MemoryStore, rounds: int) -> None:
    memory = store.tenant("acme")
    for n in range(rounds):
        memory.add(f"another note {rounds} {n}")
        assert memory.search(f"deploy note {n * 7}", record_access=False)


def test_a_store_that_grows_under_its_plans(database: str, admin: psycopg.Connection) -> None:
    for table in ("entries", "entry_state", "embeddings", "edges", "lexemes", "tenants"):
        admin.execute(f"ALTER TABLE zerda.{table} SET (autovacuum_enabled = off)".encode())
    with MemoryStore.open(database, embedder="hashing", pool_size=1) as store:
        used(store, 8)  # by then the plans are kept
        store.tenant("acme").add_many(entries(GROWN))
        used(store, ROUNDS)
    assert rows_read(database) < ROUNDS * ROWS_A_ROUND


def test_one_large_tenant_beside_thousands_of_one_memory(
    database: str, admin: psycopg.Connection
) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        store.tenant("acme").add_many(entries(GROWN))
    for part in OTHERS.split(";\n"):
        admin.execute(part.encode())
    before = rows_read(database)
    with MemoryStore.open(database, embedder="hashing", pool_size=1) as store:
        used(store, ROUNDS)
    assert rows_read(database) - before < ROUNDS * ROWS_A_ROUND


def plan_cache_mode(core: Core, scope: Scope) -> Steps[str]:
    """Of a connection of the store's."""
    return read(lambda c: str(c.exec_driver_sql("SHOW plan_cache_mode").scalar_one()))


def prepared(core: Core, scope: Scope) -> Steps[list[int]]:
    """Lengths of the statements that a connection keeps prepared."""
    lengths = "SELECT length(statement) FROM pg_prepared_statements"
    return read(lambda c: list(c.exec_driver_sql(lengths).scalars()))


def test_what_a_connection_keeps_is_bounded(kind: str, database: str) -> None:
    with opened(kind, database, pool_size=1) as store:
        memory = store.tenant("acme")
        memory.add("deploy on friday", kind="plan", tags=["a"])
        for count in (2, 3, 50):
            assert len(memory.search_many(["deploy"] * count, record_access=False)) == count
        assert max(memory.perform(prepared)) <= PREPARED_AT_ONCE
        conditions = {
            "kinds": ["a"], "tags_any": ["a"], "tags_all": ["a"], "session_id": "a",
            "user_id": "a", "agent_id": "a",
        }  # fmt: skip
        for number in range(2 ** len(conditions)):  # each with a statement of its own
            given = {name: value for n, (name, value) in enumerate(conditions.items())
                     if number >> n & 1}  # fmt: skip
            memory.search("deploy", filter=given, record_access=False)
        assert len(memory.perform(prepared)) <= MOST_PREPARED


def test_a_schema_that_is_changed_under_a_store(
    kind: str, database: str, admin: psycopg.Connection
) -> None:
    """What a connection has prepared may fit no more: it is prepared anew, unseen."""
    with opened(kind, database, pool_size=1) as store:
        memory = store.tenant("acme")
        memory.add("deploy on friday", id="e")
        for wide in ("bigint", "integer"):
            assert memory.get("e") is not None
            assert len(memory.entries()) == 1
            admin.execute(f"ALTER TABLE zerda.entries ALTER COLUMN version TYPE {wide}".encode())
            entry = memory.get("e")
            assert entry is not None
            assert entry.content == "deploy on friday"
            assert len(memory.entries()) == 1
            assert memory.update("e", importance=0.9).importance == 0.9
            assert len(memory.search("deploy")) == 1


def test_plans_are_kept_unless_citus_is_there(
    kind: str, database: str, admin: psycopg.Connection
) -> None:
    with opened(kind, database) as store:
        memory = store.tenant("acme")
        assert memory.perform(plan_cache_mode) == "force_generic_plan"
    admin.execute(
        "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, "
        "extversion) SELECT 1000000, 'citus', extowner, extnamespace, false, '14' "
        "FROM pg_extension WHERE extname = 'vector'"
    )
    with opened(kind, database) as store:
        memory = store.tenant("acme")
        assert memory.perform(plan_cache_mode) == "auto"
        memory.add("deploy on friday")
        assert len(memory.search("deploy")) == 1
