"""Every statement that the library emits, against the rules of a database distributed by tenant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import Mock

import psycopg
import pytest
from conftest import sent_statements
from distributed import Catalog, executed, faults, nested_statements
from every_call import calls, searches, use
from isolated import isolated_database

import zerda_pg
from zerda_pg import Memory, MemoryStore
from zerda_pg.db import ann, maintenance
from zerda_pg.db.isolation import tenant_tables
from zerda_pg.embedding import HashingEmbedder
from zerda_pg.operations import maintaining
from zerda_pg.testing import temporary_database


@dataclass(frozen=True, kw_only=True)
class Exempt:
    """A fault that is meant, and why."""

    fault: str
    """How it begins."""
    marks: str
    """What stands in the statement."""
    reason: str


EVERY_TENANT = "by the tables' owner, over all tenants: it goes to every node"
WITHOUT_CITUS = "sent only where Citus is not installed, since it refuses it"
ONE_NODE = "upkeep of the node itself: where tables are distributed, each node is looked at"
BY_TEXT = "from a function's text, which goes to the tenant's node by itself"
NESTED = "runs on the shard's node only with citus.allow_nested_distributed_execution"

EXEMPT = [
    Exempt(fault="no tenant in its block: ", marks="WITH RECURSIVE t AS", reason=WITHOUT_CITUS),
    Exempt(
        fault="no tenant in its block: ", marks="SELECT DISTINCT tenant_id", reason=EVERY_TENANT
    ),
    Exempt(
        fault="no tenant in its block: entries", marks="SELECT count(*) FROM zerda.entries",
        reason=EVERY_TENANT,
    ),
    Exempt(
        fault="no tenant in its block: e", marks="SELECT DISTINCT e.tenant_id", reason=EVERY_TENANT
    ),
    Exempt(
        fault="no tenant in its block: embeddings", marks="GROUP BY tenant_id HAVING",
        reason=EVERY_TENANT,
    ),
    Exempt(
        fault="no tenant in its block: tenants", marks="WHERE ann_model_id = ", reason=EVERY_TENANT
    ),
    Exempt(
        fault="no tenant in its block: embeddings", marks="v.model_id = $1", reason=EVERY_TENANT
    ),
    Exempt(
        fault="no tenant in its block: e", marks="AND v.model_id = p_model", reason=EVERY_TENANT
    ),
    Exempt(fault="knows only the coordinator: ", marks="pg_total_relation_size", reason=ONE_NODE),
    Exempt(fault="knows only the coordinator: ", marks="pg_has_role", reason=ONE_NODE),
    Exempt(fault="knows only the coordinator: ", marks="n_mod_since_analyze", reason=ONE_NODE),
    Exempt(fault="reads a table by a text", marks="WHERE tenant_id = %L AND", reason=BY_TEXT),
    Exempt(fault="SET of a session: statement_timeout", marks="SET", reason=ONE_NODE),
    Exempt(
        fault="function that reads tables, in a statement that does: nearest", marks="nearest",
        reason=NESTED,
    ),
    Exempt(
        fault="function that reads tables, in a statement that does: postings", marks="postings",
        reason=NESTED,
    ),
]  # fmt: skip


@contextmanager
def citus_named(url: str) -> Iterator[None]:
    """Whoever asks whether Citus is installed is told so."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET allow_system_table_mods = on")
        connection.execute(
            "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, "
            "extversion) SELECT 1, 'citus', extowner, extnamespace, false, '14.0' "
            "FROM pg_extension WHERE extname = 'plpgsql'"
        )
        yield
        connection.execute("DELETE FROM pg_extension WHERE extname = 'citus'")


@pytest.fixture(scope="module")
def emitted(server: None, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What the public interface sends, as the tables' owner and as an agent of theirs."""
    path = str(tmp_path_factory.mktemp("export") / "memories.jsonl")
    patched = pytest.MonkeyPatch()
    patched.setattr(ann, "ANN_FROM", 100)
    patched.setattr(maintenance, "COUNT_FROM", 100)
    patched.setattr(maintaining, "CHANGES_KEPT_DAYS", 0.0)
    with sent_statements() as statements, patched.context():
        with temporary_database() as url:
            with MemoryStore.open(url, embedder=HashingEmbedder(64)) as store:
                use(store, path, "plain")
                store.tenant("indexed").add_many({"content": f"text {n}"} for n in range(150))
                store.maintain()
                store.tenants()
                store.stats()
                for _ in range(2):
                    searches(store.tenant("indexed"))
                store.tenant("indexed").clear()
                store.tenant("plain").enable_changes(False)
                store.maintain()
                with citus_named(url):
                    store.tenants()
                    store.maintain()
            zerda_pg.reembed(url, HashingEmbedder(32))
            zerda_pg.drop_retired_models(url)
        with isolated_database() as roles:
            agent = MemoryStore.open(roles.agent, embedder=HashingEmbedder(64), prepare=False)
            with agent:
                use(agent, path, "isolated")
    patched.undo()
    return set(map(executed, statements))


@pytest.fixture(scope="module")
def catalog(shared_url: Callable[[], str]) -> Catalog:
    with psycopg.connect(shared_url()) as connection:
        found = connection.execute(
            "SELECT proname, max(CASE provolatile WHEN 'v' THEN 2 WHEN 's' THEN 1 ELSE 0 END) "
            "FROM pg_proc GROUP BY proname"
        ).fetchall()
        bodies = connection.execute(
            "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'zerda'::regnamespace"
        ).fetchall()
    tables = tenant_tables()
    return Catalog(
        tables=frozenset(tables),
        volatility={name: "isv"[rank] for name, rank in found},
        reading=frozenset(n for n, body in bodies if any(f"zerda.{t}" in body for t in tables)),
    )


def exempt(statement: str, fault: str) -> bool:
    return any(fault.startswith(e.fault) and e.marks in statement for e in EXEMPT)


def test_tenants_are_listed_alike_with_citus_and_without(database: str) -> None:
    with MemoryStore.open(database, embedder=HashingEmbedder(64)) as store:
        for name in ("b", "a", "ä", "B", "a b"):
            store.tenant(name).add_many({"content": f"text {n}"} for n in range(3))
        found = list(store.tenants())
        assert found == ["B", "a", "a b", "b", "ä"]
        with citus_named(database), sent_statements() as statements:
            assert list(store.tenants()) == found
        assert not any("RECURSIVE" in statement for statement in statements)


def test_every_method_is_used() -> None:
    public = {name for name, _ in inspect.getmembers(Memory, callable) if name[0] != "_"}
    assert set(calls(Mock(), Mock(), "")) == public


def test_every_statement_keeps_the_rules(emitted: set[str], catalog: Catalog) -> None:
    assert len(emitted) > 150
    found = [
        f"{fault}: {statement}"
        for statement in sorted(emitted)
        for fault in faults(statement, catalog)
        if not exempt(statement, fault)
    ]
    assert found == []


def functions(connection: psycopg.Connection) -> dict[str, str]:
    return dict(
        connection.execute(
            "SELECT proname, pg_get_functiondef(oid) FROM pg_proc "
            "WHERE pronamespace = 'zerda'::regnamespace"
        ).fetchall()
    )


def test_every_statement_of_a_function_keeps_them(
    shared_url: Callable[[], str], catalog: Catalog
) -> None:
    with psycopg.connect(shared_url()) as connection:
        bodies = functions(connection)
        languages = connection.execute(
            "SELECT DISTINCT l.lanname FROM pg_proc f JOIN pg_language l ON l.oid = f.prolang "
            "WHERE f.pronamespace = 'zerda'::regnamespace"
        ).fetchall()
    assert languages == [("plpgsql",)]
    assert len(bodies) > 10
    found, texts = [], set()
    for name, body in bodies.items():
        for statement, is_text in nested_statements(body):
            if is_text:
                texts.add(name)
            found += [
                f"{name}: {fault}: {statement}"
                for fault in faults(statement, catalog)
                if not exempt(statement, fault)
            ]
    assert found == []
    # statements that are put together: read by a person, who saw the tenant in each
    assert texts == {"use_tenant", "nearest", "postings"}
    for name in ("nearest", "postings"):
        assert ".tenant_id = %L" in bodies[name]


def test_every_exemption_is_needed(
    emitted: set[str], catalog: Catalog, shared_url: Callable[[], str]
) -> None:
    with psycopg.connect(shared_url()) as connection:
        inside = [s for body in functions(connection).values() for s, _ in nested_statements(body)]
    faulty = [(s, f) for s in [*emitted, *inside] for f in faults(s, catalog)]
    for one in EXEMPT:
        assert any(f.startswith(one.fault) and one.marks in s for s, f in faulty), one


BROKEN = {
    "no tenant in its block: edges": "SELECT 1 FROM zerda.entries e JOIN LATERAL (SELECT 1 FROM "
    "zerda.edges g WHERE g.tenant_id = e.tenant_id) x ON true WHERE e.tenant_id = $1",
    "no tenant in its block: entries": "SELECT 1 FROM zerda.entries WHERE tenant_id = $1 "
    "UNION SELECT 1 FROM zerda.entries",
    "no tenant is inserted: edges": "INSERT INTO zerda.edges (source_id) VALUES ($1)",
    "ON CONFLICT SET: now": "INSERT INTO zerda.entries (tenant_id, id) VALUES ($1, $2) "
    "ON CONFLICT (tenant_id, id) DO UPDATE SET updated_at = now()",
    "RETURNING: now": "UPDATE zerda.entries SET version = 2 WHERE tenant_id = $1 RETURNING now()",
    "volatile in UpdateStmt: clock_timestamp": "UPDATE zerda.entries "
    "SET updated_at = clock_timestamp() WHERE tenant_id = $1",
    "stable in CoalesceExpr: now": "UPDATE zerda.entries SET valid_to = coalesce(valid_to, now()) "
    "WHERE tenant_id = $1",
    "stable over a column: date_trunc": "DELETE FROM zerda.entries WHERE tenant_id = $1 "
    "AND date_trunc('day', created_at) < $2",
    "a time of a column plus or minus an interval": "DELETE FROM zerda.entries "
    "WHERE tenant_id = $1 AND created_at + interval '1 day' < $2",
    "WITH that writes, before INSERT": "WITH x AS (INSERT INTO zerda.entries (tenant_id) "
    "VALUES ($1) RETURNING tenant_id) INSERT INTO zerda.edges (tenant_id) SELECT tenant_id FROM x",
    "COPY, which row-level security refuses: edges": "INSERT INTO zerda.edges (tenant_id) "
    "SELECT $1 FROM unnest($2::text[])",
    "INSERT of what a subquery decides: edges": "INSERT INTO zerda.edges (tenant_id) "
    "SELECT tenant_id FROM zerda.entries e WHERE e.tenant_id = $1 AND NOT EXISTS ("
    "SELECT 1 FROM zerda.edges g WHERE g.tenant_id = $1 AND g.source_id = e.id)",
    "rows IN a subquery: edges": "DELETE FROM zerda.edges WHERE tenant_id = $1 AND (a, b) IN ("
    "SELECT a, b FROM zerda.edges WHERE tenant_id = $1)",
    "MERGE": "MERGE INTO zerda.entries e USING x ON e.tenant_id = $1 WHEN MATCHED THEN DELETE",
    "set_config": "SELECT set_config('a', $1, true)",
    "knows only the coordinator: reltuples": "SELECT c.reltuples FROM pg_class c",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_breaks_a_rule_is_found(fault: str, catalog: Catalog) -> None:
    assert fault in faults(BROKEN[fault], catalog)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 FROM zerda.entries e JOIN zerda.edges g ON g.tenant_id = e.tenant_id "
        "WHERE e.tenant_id = $1",
        "UPDATE zerda.entries SET valid_to = least(valid_to, now()) WHERE tenant_id = $1",
        "SET LOCAL statement_timeout = 1",
    ],
)
def test_what_keeps_them_is_not(statement: str, catalog: Catalog) -> None:
    assert faults(statement, catalog) == []
