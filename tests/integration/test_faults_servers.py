"""Servers that hang, stop, end, or have no room."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from drivers import opened
from embedded_client import kill_postmaster, postmaster
from faults import wire
from sqlalchemy import event, make_url

import zerda_pg
from zerda_pg import ConfigError, DatabaseUnavailableError, Memory, MemoryStore
from zerda_pg.db import embedded

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk: needs root")


@dataclass(frozen=True)
class OwnServer:
    """A server that a test may kill."""

    home: Path
    url: str


@pytest.fixture(scope="module")
def own_server() -> Iterator[OwnServer]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with embedded.acquire(home) as server:
            zerda_pg.migrate(server.url)
            yield OwnServer(home, server.url)


@contextmanager
def restarted(server: OwnServer) -> Iterator[None]:
    """The server, running again."""
    with embedded.acquire(server.home):
        yield


def eventually(call: Callable[[], object], *, despite: type[BaseException]) -> None:
    """Call until it goes well; what is raised after 20 seconds is the failure."""
    deadline = time.monotonic() + 20
    while True:
        try:
            call()
        except despite:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def refused(calls: dict[str, Callable[[], object]]) -> None:
    """A backend that fails is an error, never an empty result."""
    for name, call in calls.items():
        with pytest.raises(DatabaseUnavailableError):
            found = call()
            print(f"{name} gave {found!r}")


def reads(memory: Memory) -> dict[str, Callable[[], object]]:
    return {
        "count": memory.count,
        "get": lambda: memory.get("e"),
        "search": lambda: memory.search("deploy"),
        "entries": memory.entries,
        "build_context": lambda: memory.build_context("deploy"),
    }


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerda_pg.db.engine.GRACE_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_stops_answering(kind: str, database: str) -> None:
    """Bounded by the client, since the server cannot keep its own time-out."""
    with (
        wire(database) as between,
        opened(kind, between.url, statement_timeout=0.5, connect_timeout=2) as store,
    ):
        memory = store.tenant("acme")
        memory.add("deploy", id="e")
        assert memory.count() == 1
        between.silent = True
        for call in (memory.count, lambda: memory.add("more"), lambda: memory.search("deploy")):
            since = time.monotonic()
            with pytest.raises(DatabaseUnavailableError, match=r"did not answer|timeout|timed out"):
                call()
            assert time.monotonic() - since < 6
        between.silent = False
        assert memory.count() >= 1


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_stopped(kind: str, own_server: OwnServer) -> None:
    """Over its Unix socket, which knows no time-out of its own."""
    with (
        restarted(own_server),
        opened(kind, own_server.url, statement_timeout=0.5, connect_timeout=2) as store,
    ):
        memory = store.tenant(f"stopped-{kind}")
        memory.add("deploy", id="e")
        store.flush()
        with psycopg.connect(own_server.url) as connection:
            pids = [
                pid
                for (pid,) in connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = 'zerda_pg' "
                    "AND pid <> pg_backend_pid()"
                )
            ]
        stopped = [*pids, postmaster(own_server.home)]
        assert pids
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            for call in (memory.count, lambda: memory.add("more"), memory.count):
                since = time.monotonic()
                with pytest.raises(DatabaseUnavailableError):
                    call()
                assert time.monotonic() - since < 6
        finally:
            for pid in reversed(stopped):
                os.kill(pid, signal.SIGCONT)
        assert memory.count() >= 1


@contextmanager
def ended(stop: threading.Event) -> Iterator[None]:
    """Set the event at the end, whatever happens."""
    try:
        yield
    finally:
        stop.set()


@pytest.mark.parametrize("how", ["killed", "restarted"])
def test_a_server_that_ends_under_load(how: str, own_server: OwnServer) -> None:
    """Every acknowledged write is there afterwards, once, and the same store goes on."""
    with restarted(own_server), opened("sync", own_server.url, pool_size=4) as store:
        memory = store.tenant(f"ended-{how}")
        memory.add("deploy", id="e")
        stop = threading.Event()
        errors: list[str] = []

        def work(number: int) -> list[str]:
            acknowledged: list[str] = []
            while not stop.is_set():
                try:
                    acknowledged.append(memory.add(f"note {number} {len(acknowledged)}").id)
                except DatabaseUnavailableError as error:
                    errors.append(str(error))
                    time.sleep(0.02)
            return acknowledged

        # the writers end whatever fails here: the pool waits for them
        with ThreadPoolExecutor(4) as pool, ended(stop):
            running = [pool.submit(work, n) for n in range(4)]
            time.sleep(0.5)
            if how == "killed":
                kill_postmaster(own_server.home)
            else:
                os.kill(postmaster(own_server.home), signal.SIGINT)
            # a backend that was busy may answer once more before it ends
            eventually(lambda: refused(reads(memory)), despite=pytest.fail.Exception)
            with embedded.acquire(own_server.home):
                # it may still be recovering
                eventually(memory.count, despite=DatabaseUnavailableError)
                time.sleep(0.3)
                stop.set()
                acknowledged = [i for task in running for i in task.result()]
                assert len(acknowledged) > 8
                assert errors
                ids: list[str] = []
                cursor = None
                while True:
                    page = memory.entries(limit=1000, cursor=cursor)
                    ids += [e.id for e in page.items]
                    cursor = page.next_cursor
                    if cursor is None:
                        break
                assert set(acknowledged) <= set(ids)
                assert len(ids) == len(set(ids))


@needs_root
def test_a_disk_that_is_full(own_server: OwnServer) -> None:
    """Nothing half-written, reads go on, and writes do once there is room again."""
    with restarted(own_server), tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small"
        small.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(small)], check=False
        )
        if mounted.returncode:
            pytest.skip("no disk can be mounted here")
        try:
            Path(folder).chmod(0o755)
            owner = (own_server.home / "pg18").stat()
            os.chown(small, owner.st_uid, owner.st_gid)
            _fill(own_server, small)
        finally:
            subprocess.run(["umount", "--lazy", str(small)], check=True)


def _fill(server: OwnServer, small: Path) -> None:
    tables = ("entries", "entry_state", "embeddings")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{small}'".encode())
        for table in tables:
            connection.execute(f"ALTER TABLE zerda.{table} SET TABLESPACE small".encode())
    try:
        with opened("sync", server.url) as store:
            memory = store.tenant("full")
            written = 0
            with pytest.raises(DatabaseUnavailableError, match="no room"):
                for batch in range(1000):
                    memory.add_many(
                        {"content": f"{n} {batch} " + os.urandom(900).hex()} for n in range(50)
                    )
                    written += 50
            assert memory.count() == written
            assert len(memory.search("1", mode="lexical", k=5)) == 5
            subprocess.run(["mount", "-o", "remount,size=200m", str(small)], check=True)
            assert memory.add("there is room again").status == "created"
            assert memory.count() == written + 1
            memory.clear()
    finally:
        with psycopg.connect(server.url, autocommit=True) as connection:
            for table in tables:
                connection.execute(f"ALTER TABLE zerda.{table} SET TABLESPACE pg_default".encode())
            connection.execute("DROP TABLESPACE small")


@pytest.mark.parametrize(
    "call", [zerda_pg.migrate, zerda_pg.check_schema, lambda url: zerda_pg.reembed(url, "hashing")]
)
def test_an_administrators_call_to_a_server_that_says_nothing(call: Any, database: str) -> None:
    with wire(database) as between:
        between.silent = True
        url = make_url(between.url).update_query_dict({"connect_timeout": "2"})
        since = time.monotonic()
        with pytest.raises(DatabaseUnavailableError):
            call(url.render_as_string(False))
        assert time.monotonic() - since < 10
        with pytest.raises(ConfigError, match="connect_timeout"):
            call(url.update_query_dict({"connect_timeout": "soon"}).render_as_string(False))


def test_a_server_that_ends_each_connection_as_it_is_made(
    database: str, admin: psycopg.Connection
) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        memory.add("The deploy failed", id="e")
        store.flush()
        engine = store._driver.engine
        engine.dispose()

        def end(raw: Any, record: Any) -> None:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [raw.info.backend_pid])

        event.listen(engine, "connect", end)
        for call in (lambda: memory.get("e"), lambda: memory.search("deploy"), memory.count):
            with pytest.raises(DatabaseUnavailableError, match="ends connections"):
                call()
        event.remove(engine, "connect", end)
        assert memory.count() == 1
