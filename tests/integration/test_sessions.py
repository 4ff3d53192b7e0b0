"""Sessions as others set them up: their time zone, their date style, their options."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import plain
from drivers import KINDS, opened
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from zerda_pg import AccessDeniedError, AsyncMemoryStore, ConfigError, Memory, MemoryStore

FIRST, LAST = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))
"""In a zone west or east of Greenwich they are outside the calendar."""

OURS = "-c timezone=Asia/Kolkata -c datestyle=SQL,DMY"


def comes_back(memory: Memory, tmp_path: Path) -> None:
    """Written, read by every way, and taken out and in again."""
    memory.add("The deploy failed", id="e", valid_from=FIRST, expires_at=LAST)
    memory.update("e", kind="fact")
    for entry in (
        memory.get("e"),
        memory.entries()[0],
        memory.search("deploy")[0].entry,
        memory.build_context("deploy").entries[0],
    ):
        assert entry is not None
        assert (entry.valid_from, entry.expires_at) == (FIRST, LAST)
    assert memory.search("deploy", valid_at=LAST, known_at=LAST, now=FIRST)
    memory.export(tmp_path / "export.jsonl")
    memory.clear()
    assert memory.import_file(tmp_path / "export.jsonl")["created"] == 1
    entry = memory.get("e")
    assert entry is not None
    assert (entry.valid_from, entry.expires_at) == (FIRST, LAST)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_zone_and_a_style_in_the_environment(
    kind: str, database: str, zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", zone)
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    with opened(kind, database) as store:
        comes_back(store.tenant("acme"), tmp_path)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_a_zone_and_a_style_of_the_database(database: str, zone: str, tmp_path: Path) -> None:
    with psycopg.connect(plain(database), autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET timezone TO '{zone}'".encode())
        connection.execute(f"ALTER DATABASE {name} SET datestyle TO 'German'".encode())
    for prepare in (True, False):
        with MemoryStore.open(database, embedder="hashing", prepare=prepare) as store:
            comes_back(store.tenant(f"acme {prepare}"), tmp_path)


def test_numbers_with_few_digits(database: str) -> None:
    with psycopg.connect(plain(database), autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET extra_float_digits TO 0".encode())
    engine = create_engine(make_url(database))
    for own in ({}, {"prepare": False}, {"engine": engine}):
        given: dict[str, Any] = {"embedder": "hashing", **own}
        url = () if own.get("engine") is not None else (database,)
        with MemoryStore.open(*url, **given) as store:
            memory = store.tenant("acme")
            memory.add("a third", id="e", importance=1 / 3)
            (hit,) = memory.search("third", record_access=False)
            assert hit.entry.importance == 1 / 3
            assert hit.entry == memory.get("e")
    engine.dispose()


def test_an_engine_of_ones_own(database: str, tmp_path: Path) -> None:
    """It reads them, and its sessions stay as they are."""
    engine = create_engine(make_url(database), connect_args={"options": OURS}, pool_size=1)
    with MemoryStore.open(engine=engine, embedder="hashing") as store:
        comes_back(store.tenant("acme"), tmp_path)
        store.flush()
    with engine.connect() as connection:
        assert connection.scalar(text("SHOW timezone")) == "Asia/Kolkata"
        assert connection.scalar(text("SHOW datestyle")) == "SQL, DMY"
    engine.dispose()


def test_an_async_engine_of_ones_own(database: str) -> None:
    async def run() -> None:
        engine = create_async_engine(make_url(database), connect_args={"options": OURS})
        async with AsyncMemoryStore.open(engine=engine, embedder="hashing") as store:
            memory = store.tenant("acme")
            await memory.add("The deploy failed", id="e", valid_from=FIRST, expires_at=LAST)
            entry = (await memory.search("deploy"))[0].entry
            assert (entry.valid_from, entry.expires_at) == (FIRST, LAST)
        await engine.dispose()

    asyncio.run(run())


OF_THE_ENGINE: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
OF_THE_DRIVER: dict[str, Any] = {"connect_args": {"autocommit": True}}
OF_AN_OPTION: dict[str, Any] = {"execution_options": {"isolation_level": "AUTOCOMMIT"}}


@pytest.mark.parametrize("options", [OF_THE_ENGINE, OF_THE_DRIVER, OF_AN_OPTION])
def test_an_engine_in_autocommit_is_refused(database: str, options: dict[str, Any]) -> None:
    """Whatever its sessions' zone and style: nothing would be written as one."""
    engine = create_engine(make_url(database), **options)
    with pytest.raises(ConfigError, match="AUTOCOMMIT"):
        MemoryStore.open(engine=engine, embedder="hashing")
    with engine.connect() as connection:  # it is still its owner's
        assert connection.scalar(text("SELECT 1")) == 1
    engine.dispose()

    async def run() -> None:
        engine = create_async_engine(make_url(database), **options)
        with pytest.raises(ConfigError, match="AUTOCOMMIT"):
            await AsyncMemoryStore.open(engine=engine, embedder="hashing").__aenter__()
        await engine.dispose()

    asyncio.run(run())


def test_one_that_commits_by_itself_elsewhere_is_taken(database: str) -> None:
    engine = create_engine(make_url(database), pool_size=1, max_overflow=0)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("SELECT 1"))
    with MemoryStore.open(engine=engine, embedder="hashing") as store:
        assert store.tenant("acme").add("x").status == "created"
    engine.dispose()


@pytest.mark.parametrize("kind", KINDS)
def test_options_of_the_url_hold_beside_our_own(kind: str, database: str) -> None:
    with opened(kind, database) as store:
        store.tenant("acme").add("The deploy failed", id="e", expires_at=LAST)
    options = {"options": "-c default_transaction_read_only=on"}
    url = make_url(database).update_query_dict(options).render_as_string(False)
    with opened(kind, url) as store:
        assert store.tenant("acme").search("deploy")[0].entry.expires_at == LAST
        with pytest.raises(AccessDeniedError, match="read-only"):
            store.tenant("acme").add("x")


def test_an_engine_of_the_wrong_kind(database: str) -> None:
    sync, other = create_engine(make_url(database)), create_async_engine(make_url(database))
    with pytest.raises(ValueError, match=r"^engine must be made by create_engine"):
        MemoryStore.open(engine=other, embedder="hashing")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^engine must be for PostgreSQL by psycopg 3"):
        MemoryStore.open(engine=create_engine("sqlite://"), embedder="hashing")

    async def run() -> None:
        with pytest.raises(ValueError, match=r"^engine must be made by create_async_engine"):
            await AsyncMemoryStore.open(
                engine=sync,  # type: ignore[arg-type]
                embedder="hashing",
            ).__aenter__()

    asyncio.run(run())
