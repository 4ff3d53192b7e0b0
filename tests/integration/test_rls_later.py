"""Row-level security that is set up while stores are at work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from conftest import plain
from drivers import KINDS, opened
from isolated import AGENT, let_in, login
from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncConnection

import zerda_pg
from zerda_pg import AccessDeniedError
from zerda_pg.db.isolation import LOOK_SECONDS, SETTLING_SECONDS, prepare_isolation, roles_script
from zerda_pg.db.transactions import TransactionStart


@pytest.fixture
def agent(database: str) -> Iterator[str]:
    """An agent's URL of a database that its policies do not guard yet."""
    with psycopg.connect(plain(database), autocommit=True) as connection:
        script = roles_script(owner=str(make_url(database).username), agent=AGENT)
        connection.execute(script.encode())
        let_in(connection, AGENT)
    yield login(database, AGENT)


def test_stores_have_looked_before_it_is_enforced() -> None:
    assert SETTLING_SECONDS >= 2 * LOOK_SECONDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_open_notices(kind: str, database: str, agent: str) -> None:
    """It never takes a memory for missing, nor a write for refused."""
    with opened(kind, agent) as store, opened(kind, agent) as idle, ThreadPoolExecutor(1) as pool:
        memory = store.tenant("acme")
        memory.add("deploy on friday", id="e", tags=["plan"])
        assert idle.tenant("acme").count() == 1
        setting_up = pool.submit(zerda_pg.migrate, database, rls=True)
        rounds = 0
        deadline = time.monotonic() + 60
        while not (done := setting_up.done()) or rounds < 5:
            assert memory.get("e") is not None
            assert [h.entry.id for h in memory.search("friday", mode="lexical")] == ["e"]
            memory.update("e", metadata={"round": rounds})
            rounds += 1
            assert time.monotonic() < deadline, done
        setting_up.result()
        assert idle.tenant("acme").count() == 1
        assert idle.tenant("acme").get("e").metadata == {"round": rounds - 1}  # type: ignore[union-attr]
        for one in (store, idle):
            with pytest.raises(AccessDeniedError, match="row-level security"):
                one.tenants()
    with psycopg.connect(agent) as connection:
        assert connection.execute("SELECT count(*) FROM zerda.entries").fetchone() == (0,)


def test_a_set_up_that_was_interrupted_is_finished(database: str, agent: str) -> None:
    engine = create_engine(make_url(database).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        assert prepare_isolation(connection)
    engine.dispose()
    with opened("sync", agent) as store:
        store.tenant("acme").add("deploy on friday", id="e")
        zerda_pg.migrate(database, rls=True)
        assert store.tenant("acme").count() == 1
    with psycopg.connect(agent) as connection:
        assert connection.execute("SELECT count(*) FROM zerda.entries").fetchone() == (0,)
    started = time.monotonic()
    zerda_pg.migrate(database, rls=True)  # nothing is left to do, nor to wait for
    assert time.monotonic() - started < SETTLING_SECONDS


@pytest.mark.parametrize("kind", KINDS)
def test_between_two_looks_a_call_asks_nothing(
    kind: str, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it take a way of its own to find out that it need not."""
    looks: list[bool] = []
    look = TransactionStart.noticed

    def noticed(self: TransactionStart, connection: Connection) -> bool:
        looks.append(self.look_due)
        return look(self, connection)

    ways: list[object] = []
    run_sync = AsyncConnection.run_sync

    def counted(self: AsyncConnection, *args: Any, **kwargs: Any) -> Any:
        ways.append(args[0])
        return run_sync(self, *args, **kwargs)

    monkeypatch.setattr(TransactionStart, "noticed", noticed)
    monkeypatch.setattr(AsyncConnection, "run_sync", counted)
    with opened(kind, agent) as store:
        memory = store.tenant("acme")
        memory.add("deploy on friday", id="e")
        store.flush()
        looks.clear()
        ways.clear()
        assert memory.get("e") is not None
        assert not any(looks)
        assert len(ways) == (1 if kind == "async" else 0)
        time.sleep(LOOK_SECONDS)
        assert memory.get("e") is not None
        assert looks.count(True) == 1
