"""Row-level security: the database itself keeps tenants apart, and everything works under it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
from drivers import KINDS, opened
from isolated import AGENT, Isolated, isolated_database, login

import zerda_pg
from zerda_pg import AccessDeniedError, Memory, MemoryStore
from zerda_pg.testing import temporary_database


@pytest.fixture(scope="module")
def roles(server: None) -> Iterator[Isolated]:
    with isolated_database() as found:
        yield found


@pytest.fixture(params=KINDS)
def agents(request: pytest.FixtureRequest, roles: Isolated) -> Iterator[MemoryStore]:
    with opened(request.param, roles.agent) as store:
        yield store


@pytest.fixture
def name() -> str:
    return f"tenant-{uuid.uuid4().hex}"


def tenant_tables(connection: psycopg.Connection) -> list[str]:
    found = connection.execute(
        "SELECT table_name FROM information_schema.columns "
        "WHERE table_schema = 'zerda' AND column_name = 'tenant_id' ORDER BY 1"
    ).fetchall()
    return [str(table) for (table,) in found]


def test_every_table_with_a_tenant_has_the_policy(roles: Isolated) -> None:
    with psycopg.connect(roles.admin) as connection:
        tables = tenant_tables(connection)
        found = connection.execute(
            "SELECT c.relname, c.relrowsecurity, c.relforcerowsecurity, p.polcmd::text, "
            "p.polpermissive, pg_get_expr(p.polqual, c.oid) = pg_get_expr(p.polwithcheck, c.oid) "
            "FROM pg_class c JOIN pg_policy p ON p.polrelid = c.oid "
            "WHERE c.relnamespace = 'zerda'::regnamespace ORDER BY 1"
        ).fetchall()
        subqueries = connection.execute(
            "SELECT policyname FROM pg_policies WHERE concat(qual, with_check) ~* '\\mselect\\M'"
        ).fetchall()
    assert subqueries == []
    assert len(tables) >= 10
    assert found == [(table, True, False, "*", True, True) for table in tables]


def test_a_query_that_forgets_the_tenant_sees_nothing(
    roles: Isolated, agents: MemoryStore, name: str
) -> None:
    memory = agents.tenant(name)
    memory.add("deploy on friday", id="e", session_id="s")
    with psycopg.connect(roles.agent, autocommit=True) as connection:
        for table in tenant_tables(connection):
            assert connection.execute(f"SELECT * FROM zerda.{table}".encode()).fetchall() == []
        with connection.transaction():
            connection.execute("SELECT zerda.use_tenant(%s)", [name])
            assert connection.execute("SELECT id FROM zerda.entries").fetchall() == [("e",)]
        # what was set is gone with its transaction
        assert connection.execute("SELECT count(*) FROM zerda.entries").fetchone() == (0,)
        for table in tenant_tables(connection):
            found = connection.execute(f"UPDATE zerda.{table} SET tenant_id = tenant_id".encode())
            assert found.rowcount == 0
            found = connection.execute(f"DELETE FROM zerda.{table}".encode())
            assert found.rowcount == 0
        with connection.transaction():
            connection.execute("SELECT zerda.use_tenant('another')")
            assert connection.execute("SELECT count(*) FROM zerda.entries").fetchone() == (0,)
            named = "SELECT count(*) FROM zerda.entries WHERE tenant_id = %s"
            assert connection.execute(named, [name]).fetchone() == (0,)
    assert memory.count() == 1


def test_a_write_to_another_tenant_fails(roles: Isolated, name: str) -> None:
    with psycopg.connect(roles.agent, autocommit=True) as connection:
        for tenant in ("mine", None):
            with (
                pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"),
                connection.transaction(),
            ):
                if tenant is not None:
                    connection.execute("SELECT zerda.use_tenant(%s)", [tenant])
                connection.execute(
                    "INSERT INTO zerda.session_touches VALUES (%s, 's', 'e', now())", [name]
                )
    with psycopg.connect(roles.admin) as connection:
        found = connection.execute(
            "SELECT count(*) FROM zerda.session_touches WHERE tenant_id = %s", [name]
        )
        assert found.fetchone() == (0,)


def test_a_scope_never_reads_or_writes_beside_its_tenant(
    roles: Isolated, agents: MemoryStore, name: str
) -> None:
    """Though both have the same ids and words."""
    one, two = agents.tenant(name), agents.tenant(f"{name}b")
    one.add("deploy on friday", id="e")
    two.add("deploy on monday", id="e")
    assert [h.entry.content for h in one.search("deploy")] == ["deploy on friday"]
    assert [h.entry.content for h in two.search("deploy", mode="lexical")] == ["deploy on monday"]
    assert one.delete("e")
    assert two.get("e") is not None


def lexical(memory: Memory, **filter_: object) -> set[str]:
    hits = memory.search("deploy", mode="lexical", k=100, filter=filter_ or None)
    return {hit.entry.id for hit in hits}


FILTERS: list[dict[str, object]] = [
    {},
    {"memory_types": ["episodic"]},
    {"kinds": ["fact", "plan"]},
    {"tags_any": ["a", "'"]},
    {"tags_all": ["a", "b"]},
    {"session_id": "s'1"},
    {"agent_id": "bot"},
    {"user_id": "ann"},
    {"created_from": datetime(2026, 1, 2, tzinfo=UTC)},
    {"created_to": datetime(2026, 1, 2, tzinfo=UTC)},
    {"min_importance": 0.6},
    {"status": ["superseded"]},
    {"metadata": {"n": {"$gte": 10}}},
    {"metadata": {"n": {"$lt": 10}}},
    {"metadata": {"n": {"$gt": "9"}}},
    {"metadata": {"n": {"$lte": 10}}},
    {"metadata": {"it's": "x'; --"}},
    {"metadata": {"n": {"$ne": 2}}},
    {"metadata": {"n": {"$in": [2, "10"]}}},
    {"metadata": {"n": {"$nin": [2, "10"]}}},
    {"metadata": {"n": {"$exists": True}}},
    {"metadata": {"n": {"$exists": False}}},
    {"metadata": {"n": None}},
]


@pytest.fixture(scope="module")
def filled(roles: Isolated) -> Iterator[tuple[Memory, Memory]]:
    """The same tenant by the role that policies bind, and by the tables' owner."""
    with opened("sync", roles.agent) as bound, opened("sync", roles.owner) as owner:
        memory = bound.tenant("filled")
        memory.add_many(
            [
                {"content": "deploy one", "id": "1", "kind": "fact", "tags": ["a", "b"],
                 "metadata": {"n": 2, "it's": "x'; --"}, "timestamp": "2026-01-01T00:00:00Z"},
                {"content": "deploy two", "id": "2", "memory_type": "episodic", "tags": ["a"],
                 "metadata": {"n": 10}, "importance": 0.9, "timestamp": "2026-01-03T00:00:00Z"},
                {"content": "deploy three", "id": "3", "kind": "plan", "session_id": "s'1",
                 "metadata": {"n": "10"}, "agent_id": "bot", "user_id": "ann", "tags": ["'"]},
                {"content": "deploy four", "id": "4", "metadata": {"n": None}},
                {"content": "deploy five", "id": "5", "supersedes": ["4"], "user_id": "bob"},
                {"content": "deploy six", "id": "6"},
                {"content": "deploy seven", "id": "7", "supersedes": ["6"],
                 "valid_from": "2999-01-01T00:00:00Z"},
            ]
        )  # fmt: skip
        yield memory, owner.tenant("filled")


@pytest.mark.parametrize("number", range(len(FILTERS)), ids=lambda n: str(FILTERS[n]))
def test_the_function_filters_as_the_statement_does(
    filled: tuple[Memory, Memory], number: int
) -> None:
    bound, owner = filled
    found = lexical(bound, **FILTERS[number])
    assert found == lexical(owner, **FILTERS[number])
    if number:
        assert found != lexical(bound)


def test_the_function_finds_by_clocks_and_users_as_the_statement_does(
    filled: tuple[Memory, Memory], roles: Isolated
) -> None:
    with opened("sync", roles.agent) as bound, opened("sync", roles.owner) as owner:
        for user in (None, "ann", "bob"):
            one, two = bound.tenant("filled", user_id=user), owner.tenant("filled", user_id=user)
            assert lexical(one) == lexical(two)
        seen = {user: lexical(bound.tenant("filled", user_id=user)) for user in ("ann", "bob")}
    assert seen["ann"] ^ seen["bob"] == {"3", "5"}
    for memory in filled:
        now = datetime.now(UTC)
        # 4 has been superseded, 6 is to be, and 7 is not true yet
        assert lexical(memory) == {"1", "2", "3", "5", "6"}
        later = memory.search("deploy", mode="lexical", k=100, now=datetime(3000, 1, 1, tzinfo=UTC))
        assert {h.entry.id for h in later} == {"1", "2", "3", "5", "7"}
        then = memory.search("deploy", mode="lexical", k=10, valid_at=now, now=now)
        assert {h.entry.id for h in then} >= {"1", "2"}
        known = memory.search("deploy", mode="lexical", k=10, known_at=now)
        assert {h.entry.id for h in known} >= {"1", "2"}


def test_the_lexical_arm_uses_its_index(roles: Isolated, name: str) -> None:
    """As a condition of the policies alone would keep it from."""
    with opened("sync", roles.agent) as store:
        memory = store.tenant(name)
        memory.add_many(
            {"content": f"note {n} about topic{n % 400} and things"} for n in range(3000)
        )
        memory.search("topic7", mode="lexical")
    with psycopg.connect(roles.admin, autocommit=True) as connection:
        connection.execute("ANALYZE zerda.entries")

    def scans() -> int:
        with psycopg.connect(roles.admin, autocommit=True) as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
            row = connection.execute(
                "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'ix_entries_search'"
            ).fetchone()
        assert row is not None
        return int(row[0])

    before = scans()
    with opened("sync", roles.agent) as store:
        hits = store.tenant(name).search("topic7", mode="lexical", record_access=False)
        assert len(hits) > 0
    assert scans() > before


def test_the_function_that_policies_do_not_bind_goes_by_the_setting(
    roles: Isolated, agents: MemoryStore, name: str
) -> None:
    agents.tenant(name).add("deploy", id="e")
    call = "SELECT id FROM zerda.postings(ARRAY['deploy'], ARRAY['deploy'::tsquery], 10, %s)"
    with psycopg.connect(roles.agent, autocommit=True) as connection:
        assert connection.execute(call, ["{}"]).fetchall() == []
        with connection.transaction():
            connection.execute("SELECT zerda.use_tenant(%s)", [name])
            assert connection.execute(call, ["{}"]).fetchall() == [("e",)]
            tricky = '{"kind": ["x\'); DROP TABLE zerda.entries; --"], "user_id": "\' OR true --"}'
            assert connection.execute(call, [tricky]).fetchall() == []
        with connection.transaction():
            connection.execute("SELECT zerda.use_tenant('another')")
            assert connection.execute(call, ["{}"]).fetchall() == []


def test_what_looks_at_all_tenants_is_for_the_owner(
    roles: Isolated, agents: MemoryStore, name: str
) -> None:
    agents.tenant(name).add("deploy")
    for call in (agents.tenants, agents.stats, agents.maintain):
        with pytest.raises(AccessDeniedError, match="owns the tables"):
            call()
    with opened("sync", roles.owner) as store:
        assert name in store.tenants()
        assert store.stats()["entries"] > 0
        assert store.maintain()["tenants"] > 0


def test_a_reader_searches_and_counts_no_access(
    roles: Isolated, agents: MemoryStore, name: str
) -> None:
    agents.tenant(name).add("deploy on friday", id="e", session_id="s")
    with opened("sync", roles.reader) as store:
        memory = store.tenant(name)
        hits = memory.search("deploy", current_session="s")
        assert [hit.entry.id for hit in hits] == ["e"]
        assert hits.report["access_recorded"] is False
        context = memory.build_context("deploy")
        assert "friday" in context.text
        assert context.report["access_recorded"] is False
        assert memory.count() == 1
        assert memory.stats()["entries"] == 1
        with pytest.raises(AccessDeniedError, match="grant"):
            memory.add("more")
        with pytest.raises(AccessDeniedError):
            memory.delete("e")
        store.flush()
    entry = agents.tenant(name).get("e")
    assert entry is not None
    assert entry.access_count == 0
    hits = agents.tenant(name).search("deploy")
    assert hits.report["access_recorded"] is True
    agents.flush()
    entry = agents.tenant(name).get("e")
    assert entry is not None
    assert entry.access_count == 1


def test_the_change_feed_of_a_tenant(roles: Isolated, name: str) -> None:
    with opened("sync", roles.agent) as store:
        one, two = store.tenant(name), store.tenant(f"{name}b")
        for memory in (one, two):
            memory.enable_changes()
        one.add("deploy", id="a")
        two.add("deploy", id="b")
        for memory, entry_id in ((one, "a"), (two, "b")):
            seen = [c.entry_id for c in memory.watch(timeout=0.5, poll_interval=0.1)]
            assert seen == [entry_id]


def test_agents_may_not_change_the_schema_or_the_model(roles: Isolated) -> None:
    for role in (roles.agent, roles.reader):
        with psycopg.connect(role, autocommit=True) as connection:
            for statement in (
                "ALTER TABLE zerda.entries DISABLE ROW LEVEL SECURITY",
                "DROP POLICY tenant_isolation ON zerda.entries",
                "CREATE TABLE zerda.mine (i int)",
                "TRUNCATE zerda.entries",
                "UPDATE zerda.embedding_models SET state = 'retired'",
                "UPDATE zerda.alembic_version SET version_num = 'v9_0001'",
                "SET row_security = off; SELECT * FROM zerda.entries",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.encode())
    with temporary_database() as url, pytest.raises(AccessDeniedError, match="zerda"):
        zerda_pg.migrate(login(url, AGENT), rls=True)


def test_setting_it_up_again_changes_nothing(roles: Isolated) -> None:
    zerda_pg.migrate(roles.owner, rls=True)
    zerda_pg.migrate(roles.owner)
    zerda_pg.check_schema(roles.agent)
    with psycopg.connect(roles.admin) as connection:
        found = connection.execute("SELECT count(*) FROM pg_policies WHERE schemaname = 'zerda'")
        assert found.fetchone() == (len(tenant_tables(connection)),)


def test_a_hnsw_index_serves_under_the_policies(roles: Isolated, name: str) -> None:
    with opened("sync", roles.agent) as store:
        memory = store.tenant(name)
        memory.add_many({"content": f"note {n} about topic{n % 40}"} for n in range(300))
    with psycopg.connect(roles.admin, autocommit=True) as connection:
        row = connection.execute(
            "SELECT id, dimensions FROM zerda.embedding_models WHERE state = 'active'"
        ).fetchone()
        assert row is not None
        connection.execute(
            "CREATE INDEX hnsw_rls ON zerda.embeddings USING hnsw "
            f"((embedding::halfvec({row[1]})) halfvec_cosine_ops) "
            f"WHERE tenant_id = '{name}' AND model_id = {row[0]}".encode()
        )
        connection.execute(
            "INSERT INTO zerda.tenants (tenant_id, ann_model_id) VALUES (%s, %s) "
            "ON CONFLICT (tenant_id) DO UPDATE SET ann_model_id = excluded.ann_model_id",
            [name, row[0]],
        )
    with opened("sync", roles.agent) as store, opened("sync", roles.owner) as owner:
        for opened_store in (store, owner):
            memory = opened_store.tenant(name)
            memory.search("topic7", mode="dense")  # learns of the index
            hits = memory.search("topic7", mode="dense", k=5)
            assert hits.report["path"] == "hnsw"
            assert len(hits) == 5
    with psycopg.connect(roles.admin, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        scans = connection.execute(
            "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'hnsw_rls'"
        ).fetchone()
        assert scans is not None
        assert scans[0] > 0
        connection.execute("DROP INDEX zerda.hnsw_rls")
