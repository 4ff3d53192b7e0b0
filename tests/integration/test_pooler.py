"""Through PgBouncer in transaction mode: no prepared statements, no state of a session."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from conftest import plain
from drivers import opened
from isolated import isolated_database
from poolers import pooler

import zerda_pg
from zerda_pg import AIMemoryManager, DatabaseUnavailableError, Memory, MemoryStore


def every_operation(memory: Memory, path: Path) -> None:
    """Each of them once, with what it must give."""
    assert memory.add("deploy on friday", id="a", kind="plan").status == "created"
    assert memory.add("deploy on friday", kind="plan", dedupe=True).status == "duplicate"
    memory.add_many([{"content": f"note {n}", "id": f"n{n}"} for n in range(8)])
    talk = [{"speaker": "Ann", "text": f"turn {n}", "timestamp": 1.7e9 + n} for n in range(3)]
    assert len(memory.add_messages(talk, session_id="s")) == 3
    assert memory.update("a", content="deploy on monday", if_version=1).version == 2
    memory.relate("a", "n1")
    assert [n.entry.id for n in memory.neighbours("a")] == ["n1"]
    assert memory.unrelate("a", "n1")
    memory.invalidate("n2", by="n3")
    assert memory.discard("n4")
    assert memory.restore("n4")
    assert memory.search("deploy")[0].entry.id == "a"
    assert [h[0].entry.id for h in memory.search_many(["deploy monday", "deploy"])] == ["a", "a"]
    assert "monday" in memory.build_context("deploy").text
    assert memory.explain("deploy", id="a")
    assert memory.get_many(["a", "n1"])[1] is not None
    assert memory.count() == len(list(memory.entries(limit=100))) == 11
    memory.enable_changes()
    memory.add("watched", id="w")
    assert memory.export(path)["entries"] == 13
    assert memory.import_file(path) is not None
    memory.forget(dry_run=True)
    assert memory.delete("w")
    assert memory.purge(session_id="s")["entries"] == 3
    assert memory.stats()["entries"] == 9
    memory.clear()
    assert memory.count() == 0


def test_every_operation_by_many_clients_over_one_connection(
    kind: str, database: str, tmp_path: Path
) -> None:
    """Four stores with more connections than the pooler has, each used by threads."""
    with pooler(database, tmp_path, size=1) as front, ExitStack() as stack:
        stores = [
            stack.enter_context(opened(kind, front.url(database), prepare=False, pool_size=2))
            for _ in range(2)
        ]

        def work(number: int) -> None:
            memory = stores[number % 2].tenant(f"tenant-{number}")
            every_operation(memory, tmp_path / f"{number}.jsonl")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        for store in stores:
            store.flush()


def test_layers(database: str, tmp_path: Path) -> None:
    with (
        pooler(database, tmp_path, size=1) as front,
        opened("sync", front.url(database), prepare=False) as store,
    ):
        manager = AIMemoryManager(store=store)
        for n in range(8):
            manager.save_interaction("ann", "acme", f"turn {n}", "ok")
        assert manager.stats("acme")["semantic"] == 8
        assert "turn 7" in manager.build_prompt("ann", "acme", "turn")
        manager.clear_tenant("acme")
        assert store.tenant("acme").count() == 0


def test_tenants_stay_apart_by_row_level_security(tmp_path: Path, server: None) -> None:
    """Two server connections, on which transactions of tenants alternate."""
    with (
        isolated_database() as roles,
        pooler(roles.admin, tmp_path, size=2) as front,
        opened("sync", front.url(roles.agent), prepare=False, pool_size=8) as store,
    ):

        def work(number: int) -> None:
            memory = store.tenant(f"tenant-{number}")
            for n in range(6):
                memory.add(f"deploy {number} {n}", id=f"e{n}")
                hits = memory.search("deploy", k=20)
                assert {str(h.entry.content).split()[1] for h in hits} == {str(number)}
                assert memory.count() == n + 1

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        with psycopg.connect(front.url(roles.agent), prepare_threshold=None) as connection:
            row = connection.execute("SELECT count(*) FROM zerda.entries").fetchone()
        assert row == (0,)


def test_processes_migrate_through_it_at_once(empty_database: str, tmp_path: Path) -> None:
    with pooler(empty_database, tmp_path, size=4) as front:
        url = front.url(empty_database)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: zerda_pg.migrate(url), range(3)))
        zerda_pg.check_schema(url)
        zerda_pg.migrate(url, rls=True)
        with opened("sync", url, prepare=False) as store:
            store.tenant("acme").add("deploy")
        assert zerda_pg.reembed(url, "hashing")["embedded"] == 0


def test_statement_timeout_holds_and_stays_with_its_transaction(
    database: str, tmp_path: Path
) -> None:
    with (
        pooler(database, tmp_path, size=1) as front,
        opened("sync", front.url(database), prepare=False, statement_timeout=0.5) as store,
    ):
        memory = store.tenant("acme")
        memory.add("deploy", id="e")
        store.flush()
        with psycopg.connect(plain(database)) as other:
            other.execute("LOCK TABLE zerda.entries IN ACCESS EXCLUSIVE MODE")
            for call in (memory.count, lambda: memory.add("more")):
                since = time.monotonic()
                with pytest.raises(DatabaseUnavailableError, match="statement_timeout"):
                    call()
                assert time.monotonic() - since < 4
        assert memory.count() == 1
        with psycopg.connect(front.url(database), prepare_threshold=None) as connection:
            row = connection.execute(
                "SELECT current_setting('statement_timeout'), "
                "current_setting('zerda.tenant_id', true)"
            ).fetchone()
        assert row is not None
        assert row[0] == "0"
        assert row[1] in (None, "")


def test_the_store_survives_a_restart_of_the_pooler(database: str, tmp_path: Path) -> None:
    with (
        pooler(database, tmp_path, size=2) as front,
        opened("sync", front.url(database), prepare=False) as store,
    ):
        memory = store.tenant("acme")
        memory.add("deploy", id="e")
        front.stop()
        with pytest.raises(DatabaseUnavailableError):
            memory.count()
        front.start()
        assert memory.count() == 1
        assert memory.add("deploy again", id="f").status == "created"


def test_with_prepared_statements_it_says_what_to_do(database: str, tmp_path: Path) -> None:
    with (
        pooler(database, tmp_path, size=1) as front,
        pytest.raises(DatabaseUnavailableError, match="prepare=False"),
    ):
        MemoryStore.open(front.url(database), embedder="hashing")
