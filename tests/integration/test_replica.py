"""A store on a database that only reads, as a replica does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from conftest import plain
from drivers import opened
from standby import caught_up, primary_and_standby

from zerda_pg import AccessDeniedError, ConfigError, Memory, MemoryStore
from zerda_pg.db import embedded


@pytest.fixture
def replica(kind: str, database: str) -> Iterator[MemoryStore]:
    """A filled database that was then set to read only; what is open stays as it was."""
    with opened("sync", database) as primary:
        memory = primary.tenant("acme")
        memory.enable_changes()
        memory.add("The office is in Porto", id="office-1", session_id="s")
        memory.add("The office is in Lisbon", id="office-2", supersedes="office-1")
        primary.tenant("other").add("Tea is served at five", id="tea")
    with psycopg.connect(plain(database), autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    with opened(kind, database) as store:
        yield store


READS: dict[str, Callable[[Memory, Path], object]] = {
    "search": lambda m, _: m.search("Where is the office?")[0].entry.id == "office-2",
    "search_many": lambda m, _: len(m.search_many(["office", "Lisbon"])) == 2,
    "build_context": lambda m, _: "Lisbon" in m.build_context("the office").text,
    "explain": lambda m, _: m.explain("the office", id="office-2"),
    "get": lambda m, _: m.get("office-1"),
    "get_many": lambda m, _: m.get_many(["office-1", "office-2"]),
    "entries": lambda m, _: m.entries(),
    "count": lambda m, _: m.count() == 1,
    "neighbours": lambda m, _: m.neighbours("office-1"),
    "stats": lambda m, _: m.stats()["entries"] == 2,
    "watch": lambda m, _: m.watch(timeout=0),
    "export": lambda m, folder: m.export(folder / "export.jsonl"),
    "forget": lambda m, _: m.forget(dry_run=True),
}


def test_what_reads_works(replica: MemoryStore, tmp_path: Path) -> None:
    for name, call in READS.items():
        assert call(replica.tenant("acme"), tmp_path), name
    assert list(replica.tenants()) == ["acme", "other"]
    assert replica.stats()["entries"] == 3


def test_accesses_are_not_counted_and_the_report_says_so(replica: MemoryStore) -> None:
    memory = replica.tenant("acme", session_id="s")
    for _ in range(2):
        hits = memory.search("Where is the office?")
        assert hits.report["access_recorded"] is False
    replica.flush()
    entry = memory.get("office-2")
    assert entry is not None
    assert entry.access_count == 0


WRITES: dict[str, Callable[[Memory], object]] = {
    "add": lambda m: m.add("Coffee"),
    "add_many": lambda m: m.add_many([{"content": "Coffee"}]),
    "update": lambda m: m.update("office-2", importance=0.9),
    "delete": lambda m: m.delete("office-2"),
    "relate": lambda m: m.relate("office-1", "office-2"),
    "discard": lambda m: m.discard("office-2"),
    "forget": lambda m: m.forget(),
    "purge": lambda m: m.purge(ids=["office-2"]),
}


def test_the_feed_asks_whether_it_is_on_a_replica(shared_url: Callable[[], str]) -> None:
    """Also where there are no servers of our own for the next case."""
    with psycopg.connect(shared_url()) as connection:
        source = connection.execute(
            "SELECT prosrc FROM pg_proc WHERE proname = 'changes_horizon'"
        ).fetchone()
    assert source is not None
    assert "IF pg_is_in_recovery() THEN" in source[0]


def test_changes_are_followed_on_the_primary(tmp_path: Path) -> None:
    """A replica would pass over what a transaction under way commits later."""
    if not embedded.available():
        pytest.skip("needs the extra `embedded`, for two servers of its own")
    with (
        primary_and_standby(tmp_path) as (primary, standby),
        MemoryStore.open(primary, embedder="hashing") as store,
        psycopg.connect(primary) as slow,
    ):
        position = store.tenant("acme").enable_changes()
        slow.execute("SELECT zerda.begin_write('acme', NULL)")
        slow.execute("SELECT zerda.record_changes('acme', '{slow}', 'updated')")
        store.tenant("acme").add("The office is in Porto", id="office")
        caught_up(primary, standby)
        with MemoryStore.open(standby, embedder="hashing") as replica:
            memory = replica.tenant("acme")
            assert memory.get("office") is not None
            for since in (None, position):
                with pytest.raises(ConfigError, match="follow the changes on the primary"):
                    list(memory.watch(since=since, timeout=0))
            with pytest.raises(ConfigError, match="follow the changes on the primary"):
                memory.enable_changes()  # which gives the position as of now
        slow.commit()
        found = store.tenant("acme").watch(since=position, timeout=0)
        assert [change.entry_id for change in found] == ["slow", "office"]


def test_what_writes_is_refused(replica: MemoryStore) -> None:
    for name, call in WRITES.items():
        with pytest.raises(AccessDeniedError, match="write to the primary"):
            call(replica.tenant("acme"))
        assert replica.tenant("acme").count() == 1, name
    with pytest.raises(AccessDeniedError, match="write to the primary"):
        replica.maintain()
