"""The change feed: every committed change, in order, across processes, reconnects and restarts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import psycopg
import pytest
from conftest import plain

from zerda_pg import (
    AsyncMemoryStore,
    Change,
    ConfigError,
    ForgettingConfig,
    Memory,
    MemoryStore,
    ZerdaError,
)
from zerda_pg.testing import temporary_database


def drained(memory: Memory, since: str | None = None) -> list[Change]:
    """What there is by now, once what goes on in the background is over."""
    memory._driver.flush()
    return list(memory.watch(since=since, timeout=0.2, poll_interval=0.02))


def operations(memory: Memory, since: str | None = None) -> list[tuple[str, str]]:
    return [(change.operation, change.entry_id) for change in drained(memory, since)]


def record(connection: psycopg.Connection, entry_id: str, tenant: str = "acme") -> None:
    """A change in a transaction that the test commits when it likes."""
    connection.execute("SELECT zerda.begin_write(%s, NULL)", [tenant])
    connection.execute("SELECT zerda.record_changes(%s, ARRAY[%s], 'updated')", [tenant, entry_id])


def test_off_unless_switched_on(memory: Memory) -> None:
    memory.add("before")
    with pytest.raises(ConfigError, match="enable_changes"):
        drained(memory)
    assert memory.enable_changes(False) is None
    memory.enable_changes()
    assert drained(memory) == []
    memory.add("after", id="a")
    assert operations(memory) == [("created", "a")]
    memory.enable_changes(False)
    memory.add("off again")
    with pytest.raises(ConfigError, match="enable_changes"):
        drained(memory)
    memory.enable_changes()
    assert drained(memory) == []


def test_every_write_is_recorded(memory: Memory) -> None:
    position = memory.enable_changes()
    assert position is not None
    start = datetime.now(UTC)
    memory.add("one", id="a")
    memory.add("two", id="a")
    memory.add("two", id="a", if_exists="keep")
    memory.add("TWO", id="z", dedupe=True)
    memory.update("a", importance=0.9)
    memory.add("three", id="b", supersedes="a")
    memory.add_many([{"content": "four", "id": "c"}, {"content": "five", "id": "d"}])
    memory.invalidate("c", by="d")
    memory.invalidate("c")
    memory.discard("d")
    memory.discard("d")
    memory.restore("d")
    memory.restore("d")
    memory.relate("b", "d")
    memory.unrelate("b", "d")
    memory.unrelate("b", "d")
    memory.delete("b")
    memory.delete("b")
    memory.purge(ids=["a"])
    memory.forget(ForgettingConfig(deletion_threshold=1.0), dry_run=True)
    memory.search("five")
    expected = [
        ("created", "a"), ("replaced", "a"), ("updated", "a"), ("created", "b"),
        ("superseded", "a"), ("created", "c"), ("created", "d"), ("superseded", "c"),
        ("discarded", "d"), ("restored", "d"), ("related", "b"), ("unrelated", "b"),
        ("deleted", "b"), ("deleted", "a"),
    ]  # fmt: skip
    assert operations(memory) == operations(memory, position) == expected
    found = drained(memory)
    assert all(start <= change.changed_at <= datetime.now(UTC) for change in found)
    assert len({change.position for change in found}) == len(found)
    memory.forget(ForgettingConfig(deletion_threshold=1.0))
    assert operations(memory, found[-1].position) == [("discarded", "d")]
    memory.clear()
    assert operations(memory, found[-1].position)[1:] == [("deleted", "c"), ("deleted", "d")]


def test_what_is_not_committed_is_not_recorded(memory: Memory) -> None:
    memory.enable_changes()
    memory.add("one", id="a")
    with pytest.raises(Exception, match="exists"):
        memory.add_many(
            [{"content": "x", "id": "b"}, {"content": "y", "id": "a"}], if_exists="error"
        )
    assert operations(memory) == [("created", "a")]


def test_from_any_position_the_rest_follows(memory: Memory) -> None:
    memory.enable_changes()
    memory.add_many([{"content": f"entry {n}", "id": f"e{n:04}"} for n in range(1203)])
    every = drained(memory)
    assert [change.entry_id for change in every] == [f"e{n:04}" for n in range(1203)]
    for n in (0, 1, 498, 499, 500, 999, 1001, 1201, 1202):
        assert drained(memory, every[n].position) == every[n + 1 :]


def test_tenants_have_their_own(store: MemoryStore) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    position = acme.enable_changes()
    other.enable_changes()
    other.add("not acme's")
    assert drained(acme) == []
    with pytest.raises(ConfigError, match="another change feed"):
        drained(other, position)


def test_overlapping_writes_are_not_lost(database: str) -> None:
    """The second of two writers commits first: a bare sequence would pass the first one over."""
    with (
        MemoryStore.open(database, embedder="hashing") as store,
        psycopg.connect(plain(database)) as slow,
        psycopg.connect(plain(database)) as fast,
    ):
        memory = store.tenant("acme")
        position = memory.enable_changes()
        record(slow, "first to write")
        record(fast, "first to commit")
        fast.commit()
        early = drained(memory, position)
        assert early == []  # not before it is known that nothing comes before it
        slow.commit()
        found = drained(memory, position)
        assert [c.entry_id for c in found] == ["first to write", "first to commit"]
        assert drained(memory, found[0].position) == found[1:]


def test_many_at_once_come_in_their_order(database: str, admin: psycopg.Connection) -> None:
    names = [f"e{n * 7919 % 1000}" for n in range(1000)]
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        position = memory.enable_changes()
        admin.execute("SELECT zerda.record_changes('acme', %s, 'updated')", [names])
        assert [change.entry_id for change in drained(memory, position)] == names


def test_a_number_that_is_taken_fails_the_write(database: str, admin: psycopg.Connection) -> None:
    """As after a sequence was set back: better no write than one that followers never see."""
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        memory.enable_changes()
        memory.add("first", id="a")
        admin.execute("ALTER TABLE zerda.changes ALTER COLUMN seq RESTART")
        with pytest.raises(ZerdaError, match="23505"):
            memory.add("second", id="b")
        assert memory.get("b") is None
        assert operations(memory) == [("created", "a")]


def test_another_database_does_not_hold_it_back(database: str) -> None:
    """Transactions have their ids from one counter for the whole server."""
    with (
        temporary_database() as url,
        psycopg.connect(plain(url)) as elsewhere,
        MemoryStore.open(database, embedder="hashing") as store,
    ):
        elsewhere.execute("SELECT pg_current_xact_id()")
        memory = store.tenant("acme")
        memory.enable_changes()
        memory.add("entry", id="a")
        found = drained(memory)
        assert [change.entry_id for change in found] == ["a"]
        elsewhere.commit()
        memory.add("entry", id="b")
        assert operations(memory, found[0].position) == [("created", "b")]


def test_changes_of_one_entry_come_in_the_order_they_were_made(database: str) -> None:
    """Even if the transaction that changed it last has the lower id."""
    with (
        MemoryStore.open(database, embedder="hashing") as store,
        psycopg.connect(plain(database)) as older,
        psycopg.connect(plain(database)) as younger,
    ):
        memory = store.tenant("acme")
        memory.enable_changes()
        older.execute("SELECT pg_current_xact_id()")
        record(younger, "shared")
        younger.commit()
        record(older, "shared")
        older.commit()
        rows = older.execute("SELECT xid::text::bigint FROM zerda.changes ORDER BY seq").fetchall()
        assert rows[0] > rows[1]
        times = [change.changed_at for change in drained(memory)]
        assert times == sorted(times)
        assert len(times) == 2


WRITER = """
import sys
from zerda_pg import MemoryStore
url, name = sys.argv[1:]
with MemoryStore.open(url, embedder="hashing") as store:
    memory = store.tenant("acme")
    for n in range(60):
        memory.add(f"{name} {n}", id=f"{name}-{n}")
        memory.update(f"{name}-{n}", importance=0.1)
"""


def test_two_processes_write_and_connections_are_lost(
    database: str, admin: psycopg.Connection
) -> None:
    """Each process's changes all come, in its order, though the follower is cut off at times."""
    with MemoryStore.open(database, embedder="hashing", pool_size=2) as store:
        memory = store.tenant("acme")
        position = memory.enable_changes()
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, database, name])
            for name in ("one", "two")
        ]
        mine = "pid = ANY(%s)"
        seen: list[Change] = []
        done = threading.Event()

        def cut() -> None:
            while not done.wait(0.3):
                pids = [
                    row[0]
                    for row in admin.execute(
                        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                        "AND pid <> pg_backend_pid() AND query LIKE '%cluster_identity%'"
                    ).fetchall()
                ]
                admin.execute(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}",
                    [pids],
                )

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            for change in memory.watch(since=position, timeout=20, poll_interval=0.02):
                seen.append(change)
                if len(seen) >= 240:
                    break
        finally:
            done.set()
            cutter.join()
            assert [writer.wait(30) for writer in writers] == [0, 0]
    for name in ("one", "two"):
        ours = [(c.operation, c.entry_id) for c in seen if c.entry_id.startswith(name)]
        assert ours == [
            (operation, f"{name}-{n}") for n in range(60) for operation in ("created", "updated")
        ]


def test_a_follower_meets_what_comes_later(memory: Memory) -> None:
    memory.enable_changes()
    found: list[str] = []

    def follow() -> None:
        for change in memory.watch(poll_interval=0.05, timeout=10):
            found.append(change.entry_id)
            if len(found) == 3:
                return

    follower = threading.Thread(target=follow)
    follower.start()
    for n in range(3):
        time.sleep(0.1)
        memory.add(f"entry {n}", id=f"e{n}")
    follower.join(10)
    assert found == ["e0", "e1", "e2"]


def test_no_connection_is_kept(store: MemoryStore) -> None:
    """Between looks, after breaking out, after closing, and after an error."""
    memory = store.tenant("acme")
    memory.enable_changes()
    memory.add("entry")
    pool = store._driver.engine.pool
    feed = memory.watch(timeout=5)
    assert next(feed).operation == "created"
    assert pool.checkedout() == 0  # type: ignore[attr-defined]
    del feed
    for _ in memory.watch():
        break
    with pytest.raises(ConfigError):
        next(iter(store.tenant("off").watch()))
    assert pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_the_async_twin(database: str) -> None:
    async with AsyncMemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        position = await memory.enable_changes()

        async def write() -> None:
            for n in range(3):
                await asyncio.sleep(0.05)
                await memory.add(f"entry {n}", id=f"e{n}")

        writing = asyncio.create_task(write())
        found = []
        async for change in memory.watch(since=position, timeout=5, poll_interval=0.02):
            found.append(change.entry_id)
            last = change.position
            if len(found) == 3:
                break
        await writing
        assert found == ["e0", "e1", "e2"]
        feed = memory.watch(timeout=0)
        assert [change.entry_id async for change in feed] == found

        async def wait() -> Change:
            return await anext(memory.watch(since=last))

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert store._parts()[1].engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_position_older_than_what_is_kept(database: str, admin: psycopg.Connection) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        start = memory.enable_changes()
        memory.add("old", id="a")
        memory.add("older", id="b")
        first, second = drained(memory)
        admin.execute("UPDATE zerda.changes SET changed_at = now() - interval '8 days'")
        memory.add("new", id="c")
        assert store.maintain()["changes"] == 2
        # who had read them goes on; who had not is told
        assert operations(memory, second.position) == [("created", "c")]
        assert operations(memory) == [("created", "c")]
        for position in (start, first.position):
            with pytest.raises(ConfigError, match="since is older"):
                drained(memory, position)


def test_a_position_of_another_life(database: str, admin: psycopg.Connection) -> None:
    """Of the feed before it was off, of a database set back, of a copy of the database."""
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        position = memory.enable_changes()
        assert memory.enable_changes() is not None
        memory.add("entry", id="a")
        assert operations(memory, position) == [("created", "a")]
        memory.enable_changes(False)
        memory.enable_changes()
        with pytest.raises(ConfigError, match="another change feed"):
            drained(memory, position)
        admin.execute("UPDATE zerda.tenants SET changes_epoch = '1-2-' || gen_random_uuid()")
        with pytest.raises(ConfigError, match="copy"):
            drained(memory)
        memory.add("into the feed of a copy")
        memory.enable_changes()
        assert drained(memory) == []


def ahead(position: str) -> str:
    from dataclasses import replace

    from zerda_pg.db.changes import Position

    decoded = Position.decode(position)
    return replace(decoded, low=decoded.low + 10**6, high=decoded.high + 10**6).encode()


def test_a_position_from_before_a_restore_in_time(memory: Memory) -> None:
    position = memory.enable_changes()
    assert position is not None
    with pytest.raises(ConfigError, match="ahead of this database"):
        drained(memory, ahead(position))


def test_wrong_arguments(store: MemoryStore) -> None:
    memory = store.tenant("acme")
    memory.enable_changes()
    calls: dict[str, Callable[[], object]] = {
        "since": lambda: memory.watch(since="nonsense"),
        "timeout": lambda: memory.watch(timeout=-1),
        "poll_interval": lambda: memory.watch(poll_interval=float("nan")),
        "user_id": lambda: store.tenant("acme", user_id="ann").watch(),
    }
    for word, call in calls.items():
        with pytest.raises(ValueError, match=word):
            call()
    with pytest.raises(ValueError, match="since"):
        memory.watch(since=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="user_id"):
        store.tenant("acme", user_id="ann").enable_changes()


def test_switching_on_waits_for_writes_under_way(database: str, admin: psycopg.Connection) -> None:
    """A write that began before is over, or in the feed: nothing lies between."""
    with (
        MemoryStore.open(database, embedder="hashing") as store,
        psycopg.connect(plain(database)) as writer,
    ):
        writer.execute("SELECT zerda.begin_write('acme', NULL)")
        switched = threading.Thread(target=store.tenant("acme").enable_changes)
        switched.start()
        time.sleep(0.5)
        assert switched.is_alive()
        writer.commit()
        switched.join(10)
        assert not switched.is_alive()
