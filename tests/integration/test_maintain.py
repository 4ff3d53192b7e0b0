"""Upkeep: what has expired or is too old goes, statistics follow, and nothing else changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from conftest import CountRows, plain
from drivers import opened

from zerda_pg import (
    ConfigError,
    DatabaseUnavailableError,
    MemoryStore,
    check_schema,
    drop_retired_models,
    migrate,
    reembed,
)
from zerda_pg.db import ann, maintenance
from zerda_pg.db.engine import parse_url, sync_engine
from zerda_pg.db.maintenance import COUNT_FROM
from zerda_pg.embedding import HashingEmbedder


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
    database: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened("sync", database) as store:
        store.tenant("acme").add("entry", expires_at=datetime(2020, 1, 1, tzinfo=UTC))
        for n in range(300):
            store.tenant(f"t{n % 7}").add(f"entry {n}")
    monkeypatch.setattr(maintenance, "ANALYZE_FROM_BYTES", 0)
    admin.execute("ANALYZE zerda.entries, zerda.entry_state, zerda.embeddings")
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
            report = store.maintain(cluster=True)
        assert report["expired"] == 1
        assert report["analyzed"] == report["clustered"] == []
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


@contextmanager
def locked(url: str, seconds: float) -> Iterator[None]:
    """The table of entries is another's, for so long."""
    with ThreadPoolExecutor(1) as pool, psycopg.connect(plain(url)) as connection:
        connection.execute("LOCK TABLE zerda.entries IN ACCESS EXCLUSIVE MODE")

        def leave() -> None:
            time.sleep(seconds)
            connection.rollback()

        leaving = pool.submit(leave)
        yield
        leaving.result()


def test_upkeep_has_a_time_of_its_own(
    kind: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is over then, and which other statements do not have."""
    monkeypatch.setattr(ann, "ANN_FROM", 100)
    options: dict[str, Any] = {"pool_size": 1, "statement_timeout": 0.5}
    with opened(kind, database, **options, maintenance_timeout=20) as store:
        memory = store.tenant("acme")
        memory.add_many([{"content": f"the pump {n} hums"} for n in range(COUNT_FROM)])
        store.flush()
        with locked(database, 1.5):
            report = store.maintain()
        assert report["indexed"] == 1
        with locked(database, 1.5), pytest.raises(DatabaseUnavailableError, match="cancelled"):
            memory.count()
    with opened(kind, database, **options, maintenance_timeout=1) as store, locked(database, 3):
        since = time.monotonic()
        with pytest.raises(DatabaseUnavailableError, match="maintenance_timeout"):
            store.maintain()
        assert 0.9 < time.monotonic() - since < 2.5


def test_it_is_read_from_the_environment(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZERDA_PG_MAINTENANCE_TIMEOUT", "1")
    with (
        opened("sync", database) as store,
        locked(database, 3),
        pytest.raises(DatabaseUnavailableError, match="maintenance_timeout"),
    ):
        store.maintain()
    monkeypatch.setenv("ZERDA_PG_MAINTENANCE_TIMEOUT", "0")
    for call in (MemoryStore.open, migrate, check_schema):
        with pytest.raises(ConfigError, match="ZERDA_PG_MAINTENANCE_TIMEOUT"):
            call(database)


def test_an_administrators_statement_ends_when_it_was_told(database: str) -> None:
    with psycopg.connect(plain(database)) as connection:
        connection.execute("LOCK TABLE zerda.embedding_models IN ACCESS EXCLUSIVE MODE")
        since = time.monotonic()
        with pytest.raises(DatabaseUnavailableError, match="maintenance_timeout"):
            reembed(database, HashingEmbedder(64), maintenance_timeout=1)
        connection.execute("LOCK TABLE zerda.alembic_version IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(DatabaseUnavailableError, match="did not answer within 6 s"):
            migrate(database, maintenance_timeout=1)
        assert time.monotonic() - since < 12


@pytest.mark.parametrize("seconds", [0, -1, True, "1h", float("nan"), float("inf"), 3_000_000])
def test_no_time_is_without_end(database: str, seconds: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: MemoryStore.open(database, maintenance_timeout=seconds),
        lambda: migrate(database, maintenance_timeout=seconds),
        lambda: reembed(database, "hashing", maintenance_timeout=seconds),
        lambda: drop_retired_models(database, maintenance_timeout=seconds),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"^maintenance_timeout must be seconds"):
            call()
