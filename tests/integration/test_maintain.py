"""Upkeep: what has expired or is too old goes, statistics follow, and nothing else changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
from conftest import CountRows, plain
from drivers import opened

from zerda_pg import MemoryStore
from zerda_pg.db import maintenance
from zerda_pg.db.engine import parse_url, sync_engine
from zerda_pg.db.maintenance import COUNT_FROM


def test_an_empty_store(anystore: MemoryStore) -> None:
    report = anystore.maintain()
    assert report.pop("analyzed") == []
    assert set(report.values()) == {0}


def test_what_has_expired_is_erased(
    anystore: MemoryStore, admin: psycopg.Connection, rows: CountRows
) -> None:
    for tenant in ("acme", "other"):
        memory = anystore.tenant(tenant)
        memory.add("stays", id="stays", expires_at=timedelta(days=1))
        memory.add_many(
            [
                {"content": f"goes {n}", "id": f"goes {n}", "expires_at": timedelta(days=1)}
                for n in range(600)
            ]
        )
        memory.relate("stays", "goes 1")
        memory.update("goes 2", content="goes, corrected")
    admin.execute(
        "UPDATE zerda.entries SET expires_at = now() - interval '1 second' WHERE id <> 'stays'"
    )
    assert anystore.maintain()["expired"] == 1200
    left = rows()
    assert left.pop("embedding_models") == 1
    left.pop("tenants", None)
    assert left == {"entries": 2, "entry_state": 2, "embeddings": 2}
    assert anystore.maintain()["expired"] == 0


def test_followers_hear_of_what_expired(store: MemoryStore) -> None:
    memory = store.tenant("acme")
    memory.enable_changes()
    gone = memory.add("goes", expires_at=datetime(2020, 1, 1, tzinfo=UTC)).id
    store.maintain()
    found = list(memory.watch(timeout=0.3, poll_interval=0.02))
    assert [(c.operation, c.entry_id) for c in found] == [("created", gone), ("deleted", gone)]


def test_old_touches_are_swept(anystore: MemoryStore, admin: psycopg.Connection) -> None:
    memory = anystore.tenant("acme")
    memory.add_many([{"content": f"the pump {n}", "id": f"p{n}"} for n in range(4)])
    memory.search("pump", current_session="s1")
    anystore.flush()
    admin.execute(
        "UPDATE zerda.session_touches SET touched_at = now() - CASE WHEN entry_id < 'p2' "
        "THEN interval '7 days 1 minute' ELSE interval '6 days 23 hours' END"
    )
    assert anystore.maintain()["session_touches"] == 2
    left = admin.execute("SELECT entry_id FROM zerda.session_touches ORDER BY 1").fetchall()
    assert left == [("p2",), ("p3",)]


def test_a_sweep_takes_so_many_touches_and_waits_for_none(
    database: str, admin: psycopg.Connection
) -> None:
    admin.execute(
        "INSERT INTO zerda.session_touches SELECT t, s, e, now() - interval '8 days' "
        "FROM unnest('{acme,other}'::text[]) t, unnest('{s1,s2}'::text[]) s, "
        "unnest('{a,b,c}'::text[]) e"
    )
    left = "SELECT session_id || entry_id FROM zerda.session_touches WHERE tenant_id = 'acme'"
    engine = sync_engine(
        parse_url(database), pool_size=1, pool_timeout=5, connect_timeout=5, statement_timeout=5,
        prepare=True,
    )  # fmt: skip
    with psycopg.connect(admin.info.dsn) as other:
        other.execute(f"{left} AND entry_id = 'b' FOR UPDATE".encode())
        for swept in (3, 1, 0):  # all but two, which another transaction holds
            with engine.begin() as connection:
                assert maintenance.sweep_touches(connection, "acme", 7.0, 3) == swept
    engine.dispose()
    assert admin.execute(f"{left} ORDER BY 1".encode()).fetchall() == [("s1b",), ("s2b",)]
    others = admin.execute("SELECT count(*) FROM zerda.session_touches WHERE tenant_id = 'other'")
    assert others.fetchone() == (6,)


def test_words_are_counted_where_a_tenant_has_grown(
    anystore: MemoryStore, admin: psycopg.Connection
) -> None:
    store = anystore
    memory = store.tenant("acme")
    # written in small batches, after none of which words are counted
    for start in range(0, COUNT_FROM, 50):
        memory.add_many([{"content": f"the pump {n} hums"} for n in range(start, start + 50)])
    store.flush()
    assert admin.execute("SELECT count(*) FROM zerda.lexemes").fetchone() == (0,)
    assert store.maintain()["counted"] == 1
    counted = admin.execute("SELECT entries FROM zerda.lexemes WHERE lexeme = 'pump'").fetchone()
    assert counted == (COUNT_FROM,)
    assert store.maintain()["counted"] == 0


def test_the_planner_learns(store: MemoryStore, database: str) -> None:
    with (
        opened("sync", database) as own,
        psycopg.connect(plain(database), autocommit=True) as admin,
    ):
        own.tenant("acme").add_many([{"content": f"entry {n}"} for n in range(6000)])
        analyzed = own.maintain()["analyzed"]
        # what is small has better no figures: they would be wrong when it has grown
        assert {"entries", "embeddings", "entry_state"} == set(analyzed)
        known = admin.execute(
            "SELECT reltuples FROM pg_class WHERE oid = 'zerda.entries'::regclass"
        ).fetchone()
        assert known == (6000.0,)


def test_a_role_that_is_not_the_owner_leaves_the_statistics(
    database: str, admin: psycopg.Connection
) -> None:
    with opened("sync", database) as store:
        store.tenant("acme").add("entry", expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    role = "zerda_test_keeper"
    admin.execute(f"DROP ROLE IF EXISTS {role}")
    admin.execute(f"CREATE ROLE {role} LOGIN")
    try:
        admin.execute(f"GRANT USAGE ON SCHEMA zerda TO {role}")
        admin.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA zerda TO {role}"
        )
        from sqlalchemy import make_url

        url = make_url(database).set(username=role).render_as_string(hide_password=False)
        with opened("sync", url) as store:
            report = store.maintain()
        assert report["expired"] == 1
        assert report["analyzed"] == []
    finally:
        admin.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")


def test_two_at_once(database: str) -> None:
    import threading

    with opened("sync", database) as store:
        memory = store.tenant("acme")
        memory.add_many(
            [
                {"content": f"goes {n}", "expires_at": datetime(2020, 1, 1, tzinfo=UTC)}
                for n in range(1500)
            ]
        )
        reports: list[int] = []
        keepers = [
            threading.Thread(target=lambda: reports.append(store.maintain()["expired"]))
            for _ in range(3)
        ]
        for keeper in keepers:
            keeper.start()
        for keeper in keepers:
            keeper.join(60)
        assert sum(reports) == 1500


def test_upkeep_of_a_small_store_does_not_slow_down_a_larger_one(store: MemoryStore) -> None:
    memory = store.tenant("grown")
    memory.add("one")
    assert store.maintain()["analyzed"] == []
    memory.add_many({"content": f"entry {n} about topic {n % 97}"} for n in range(3000))
    for mode in ("lexical", "hybrid"):
        hits = memory.search("entry about topic 5", mode=mode, record_access=False)
        assert hits.report["milliseconds"]["gather"] < 2000
    store.flush()
    assert "entries" in store.maintain()["analyzed"]
