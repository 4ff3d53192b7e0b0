"""Killed clients, lost answers, storms, collisions: what was acknowledged is there."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from conftest import CountRows, plain
from drivers import opened
from faults import wire
from sqlalchemy import Connection

from zerda_pg import ConflictError, DatabaseUnavailableError, MemoryStore
from zerda_pg.db.transactions import ATTEMPTS
from zerda_pg.steps import read, write

# ── clients ───────────────────────────────────────────────────────────────────────────────────

WRITER = """
import sys
from zerda_pg import MemoryStore
with MemoryStore.open(sys.argv[1], embedder="hashing") as store:
    memory = store.tenant("acme")
    for batch in range(10_000):
        memory.add_many(
            {"content": f"fact {n} of {sys.argv[2]}-{batch}", "id": f"{sys.argv[2]}-{batch}-{n}"}
            for n in range(20)
        )
        print(batch, flush=True)
"""


def test_a_client_killed_in_the_middle_of_a_write(database: str, rows: CountRows) -> None:
    """Every batch whole or not at all, and all that were acknowledged."""
    for client in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, database, str(client)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(3 + client):
                acknowledged = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
        with MemoryStore.open(database) as store:
            ids = {e.id for e in store.tenant("acme").entries(limit=1000)}
        mine = [i for i in ids if i.startswith(f"{client}-")]
        batches = {int(i.split("-")[1]) for i in mine}
        assert set(range(acknowledged + 1)) <= batches
        assert len(mine) == 20 * len(batches)
    found = rows()
    assert found["entries"] == found["entry_state"] == found["embeddings"]


def test_connections_that_are_terminated_under_load(kind: str, database: str) -> None:
    """Reads go on; a write is done once, whether or not its connection ended in the middle."""
    with opened(kind, database, pool_size=4) as store:
        memory = store.tenant("acme")
        memory.add("deploy", id="e")
        stop = threading.Event()

        def work(number: int) -> int:
            added = 0
            while not stop.is_set():
                memory.add(f"note {number} {added}")
                added += 1
                assert memory.get("e") is not None
                assert memory.search("deploy", mode="lexical")[0].entry.id == "e"
            return added

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(work, n) for n in range(4)]
            with psycopg.connect(plain(database), autocommit=True) as connection:
                for _ in range(5):
                    time.sleep(0.3)
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
            stop.set()
            added = sum(task.result() for task in running)
        assert added > 0
        assert memory.count() == added + 1


def test_the_answer_to_a_write_is_lost(kind: str, database: str) -> None:
    """With an id of its own it is found out; with a given one the error says what to do."""
    with wire(database) as between, opened(kind, between.url) as store:
        memory = store.tenant("acme")
        memory.add("first", id="first")
        between.lose_answer_to("deploy on friday")
        result = memory.add("deploy on friday")
        assert between.cuts == 1
        assert (result.status, result.version) == ("created", 1)
        entry = memory.get(result.id)
        assert entry is not None
        assert (entry.content, entry.version) == ("deploy on friday", 1)
        between.lose_answer_to("note 4")
        batch = memory.add_many([{"content": f"note {n}"} for n in range(5)])
        assert between.cuts == 2
        assert {(r.status, r.version) for r in batch} == {("created", 1)}
        assert memory.count() == 7
        between.lose_answer_to("deploy on monday")
        with pytest.raises(DatabaseUnavailableError, match="repeat it with the same id"):
            memory.add("deploy on monday", id="given")
        assert memory.add("deploy on monday", id="given", if_exists="keep").status == "kept"
        between.lose_answer_to("COMMIT\0")
        with pytest.raises(DatabaseUnavailableError, match="not known"):
            memory.update("given", content="deploy on tuesday")
        assert memory.count() == 8


def test_the_answer_to_a_read_is_lost(kind: str, database: str) -> None:
    with wire(database) as between, opened(kind, between.url) as store:
        memory = store.tenant("acme")
        memory.add("deploy", id="e")
        between.lose_answer_to("zerda.entries")
        assert memory.count() == 1
        between.lose_answer_to("embeddings")
        assert memory.search("deploy", record_access=False)[0].entry.id == "e"
        assert between.cuts == 2


def test_a_connection_that_ends_before_the_commit(kind: str, database: str) -> None:
    """Nothing was written then, so the write is done once more."""
    with wire(database) as between, opened(kind, between.url) as store:
        memory = store.tenant("acme")
        memory.add("deploy", id="e")
        between.lose_answer_to("keep_version")
        assert memory.update("e", content="deploy on friday").version == 2
        assert between.cuts == 1


# ── storms and collisions ─────────────────────────────────────────────────────────────────────


def test_a_storm_of_calls_is_bounded_by_the_pool(kind: str, database: str) -> None:
    with opened(kind, database, pool_size=2, pool_timeout=0.4) as store:
        memory = store.tenant("acme")
        memory.add("deploy", id="e")
        store.flush()

        def count(_: int) -> str:
            try:
                return str(memory.count())
            except DatabaseUnavailableError as error:
                return str(error)

        with ThreadPoolExecutor(12) as pool:
            with psycopg.connect(plain(database)) as connection:
                connection.execute("LOCK TABLE zerda.entries IN ACCESS EXCLUSIVE MODE")
                running = [pool.submit(count, n) for n in range(12)]
                time.sleep(1.2)
                row = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'zerda_pg' "
                    "AND datname = current_database()"
                ).fetchone()
                assert row is not None
                assert row[0] <= 2
            found = [task.result() for task in running]
        assert found.count("1") == 2
        assert all("pool_size" in text for text in found if text != "1")
        assert memory.count() == 1


@pytest.mark.parametrize("step", [read, write])
@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_collisions_are_retried_so_many_times(state: str, step: Any, store: MemoryStore) -> None:
    tries = 0

    def collide(successes_after: int) -> Callable[[Connection], str]:
        def work(connection: Connection) -> str:
            nonlocal tries
            tries += 1
            if tries <= successes_after:
                connection.exec_driver_sql(
                    f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$"
                )
            return "done"

        return work

    memory = store.tenant("acme")
    assert memory.perform(lambda core, scope: step(collide(3))) == "done"
    assert tries == 4
    tries = 0
    since = time.monotonic()
    with pytest.raises(ConflictError, match="try again"):
        memory.perform(lambda core, scope: step(collide(100)))
    assert tries == ATTEMPTS
    assert time.monotonic() - since < 5
