"""Statements that are sent past SQLAlchemy: who listens, what interrupts them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from conftest import plain
from sqlalchemy import create_engine, event, make_url

from zerda_pg import MemoryStore
from zerda_pg.db.schema import LANGUAGES


@contextmanager
def interrupted_after(seconds: float, error: type[BaseException]) -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_who_listens_to_his_engine_hears_every_statement(database: str) -> None:
    engine = create_engine(make_url(database))
    heard: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        heard.append(statement)

    with MemoryStore.open(engine=engine, embedder="hashing") as store:
        memory = store.tenant("acme")
        memory.add("The deploy failed", id="e")
        heard.clear()
        memory.add("The deploy failed again", id="f")
        memory.search("deploy", record_access=False)
        memory.get("e")
        memory.count()
    engine.dispose()
    parts = ("zerda.put_entries(", "WITH terms", "= any(", "count(")
    for part, statement in zip(parts, heard, strict=True):
        assert part in statement


@pytest.mark.parametrize("prepare", [True, False])  # in autocommit, in a transaction
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("call", ["add", "search", "get"])
def test_an_interruption_leaves_no_connection_half_way(
    database: str,
    call: str,
    error: type[BaseException],
    prepare: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The pool has one connection: if it were lost, or in the middle of something, nobody could
    go on."""
    options: dict[str, Any] = {"pool_size": 1, "pool_timeout": 2, "prepare": prepare}
    with MemoryStore.open(database, embedder="hashing", **options) as store:
        memory = store.tenant("acme")
        memory.add("The deploy failed", id="e")
        store.flush()
        with psycopg.connect(plain(database)) as other:
            other.execute("LOCK TABLE zerda.entries IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(error), interrupted_after(0.3, error):
                getattr(memory, call)("e")
        assert memory.search("deploy")[0].entry.id == "e"
        store.flush()
        assert store._driver.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert not caplog.records


def test_each_language_is_indexed_by_its_own_rules(database: str) -> None:
    text = "The running foxes are jumping; los zorros corrían; die Füchse liefen; les renards"
    with psycopg.connect(plain(database)) as connection:
        for language in LANGUAGES:
            row = connection.execute(
                "SELECT zerda.search_vector(%s, %s) = to_tsvector(%s::regconfig, %s)",
                [language, text, f"pg_catalog.{language}", text],
            ).fetchone()
            assert row == (True,), language
        # of a newer Postgres, whose rows came by a dump
        row = connection.execute(
            "SELECT zerda.search_vector('klingon', %s) = to_tsvector('pg_catalog.simple', %s)",
            [text, text],
        ).fetchone()
        assert row == (True,)
