"""No content and no password in errors, tracebacks and logs, whatever fails."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from conftest import plain
from drivers import opened
from sqlalchemy import Connection, create_engine, make_url

import zerda_pg
from zerda_pg import DatabaseUnavailableError, MemoryEntry, MemoryStore, ZerdaError
from zerda_pg.admin import check_schema
from zerda_pg.steps import write

SECRET = "xylophone-4711"
PASSWORD = "hunter2-secret"


def told(error: BaseException) -> str:
    """All that is printed of an error and of those below it."""
    return "".join(traceback.format_exception(error)) + repr(error)


def said_nothing(error: BaseException, log: pytest.LogCaptureFixture) -> None:
    for secret in (SECRET, PASSWORD):
        # without the lines of source that a traceback quotes: they are this file's
        lines = [line for line in told(error).splitlines() if "SECRET" not in line]
        assert secret not in "\n".join(lines)
        assert secret not in log.text


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """As an application logs that wants to know all: our loggers, psycopg's, and SQLAlchemy's
    statements; at DEBUG that one shows rows, which is asked for by name only."""
    with caplog.at_level(logging.DEBUG):
        for name in ("zerda_pg", "psycopg", "sqlalchemy.pool"):
            caplog.set_level(logging.DEBUG, name)
        caplog.set_level(logging.INFO, "sqlalchemy.engine")
        yield


TRIGGER = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'no: ' || NEW.body,
        DETAIL = 'Failing row contains ' || NEW.body, HINT = NEW.body;
END $$;
CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON zerda.entries
    FOR EACH ROW EXECUTE FUNCTION public.refuse();
"""


@pytest.mark.parametrize("state", ["23514", "22P02", "P0001", "XX000", "22001"])
def test_what_the_database_says_of_a_row(
    state: str, kind: str, database: str, admin: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with opened(kind, database) as store:
        memory = store.tenant("acme")
        memory.add("harmless", id="e")
        admin.execute(TRIGGER.format(state=state).encode())
        with pytest.raises(ZerdaError) as raised:
            memory.add(f"the code is {SECRET}", tags=[SECRET], metadata={"k": SECRET})
        said_nothing(raised.value, caplog)
        with pytest.raises(ZerdaError) as raised:
            memory.update("e", content=f"the code is {SECRET}")
        said_nothing(raised.value, caplog)


def test_a_constraint_that_quotes_the_row(
    database: str, admin: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    admin.execute("ALTER TABLE zerda.entries ADD CHECK (length(body) < 10)")
    admin.execute("CREATE UNIQUE INDEX ON zerda.entries (tenant_id, body)")
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        with pytest.raises(ZerdaError) as raised:
            memory.add(f"the code is {SECRET}")
        said_nothing(raised.value, caplog)
        memory.add("short")
        with pytest.raises(ZerdaError) as raised:
            memory.add("short")
        assert "Key (" not in told(raised.value)


def test_the_parameters_of_a_statement(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    def work(connection: Connection) -> object:
        return connection.exec_driver_sql("SELECT %(text)s::integer", {"text": SECRET})

    memory = store.tenant("acme")
    with pytest.raises(ZerdaError) as raised:
        memory.perform(lambda core, scope: write(work))
    said_nothing(raised.value, caplog)


def test_an_engine_of_ones_own_that_would_show_parameters(
    database: str, admin: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sqlalchemy.engine")  # it logs them too, if it is let
    admin.execute(TRIGGER.format(state="23514").encode())
    engine = create_engine(make_url(database).set(drivername="postgresql+psycopg"))
    try:
        with MemoryStore.open(engine=engine, embedder="hashing") as store:
            with pytest.raises(ZerdaError) as raised:
                store.tenant("acme").add(f"the code is {SECRET}")
            said_nothing(raised.value, caplog)
    finally:
        engine.dispose()


def test_ordinary_use_and_what_it_refuses(
    kind: str, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(kind, database) as store:
        memory = store.tenant("acme", user_id="ann")
        entry = memory.add(f"the code is {SECRET}", id="e", metadata={"k": SECRET}).entry
        memory.add_many([{"content": f"{SECRET} {n}"} for n in range(3)])
        memory.search(SECRET)
        memory.search_many([SECRET, f"{SECRET} 1"])
        memory.build_context(SECRET)
        memory.update("e", content=f"now it is {SECRET}")
        calls: list[Callable[[], object]] = [
            lambda: memory.add(f"{SECRET}\0"),
            lambda: memory.add(f"{SECRET}\ud800"),
            lambda: memory.add(SECRET, metadata={"k": [SECRET, float("nan")]}),
            lambda: memory.add(SECRET, id="e", if_exists="error"),
            lambda: memory.add(SECRET, supersedes="missing"),
            lambda: memory.add(MemoryEntry(SECRET), kind="fact"),
            lambda: memory.search(f"{SECRET}\0"),
            lambda: memory.update("e", content=SECRET, if_version=99),
            lambda: memory.update("missing", content=SECRET),
        ]
        for call in calls:
            with pytest.raises((ZerdaError, ValueError)) as raised:
                call()
            said_nothing(raised.value, caplog)
        store.flush()
        for shown in (store, memory, store.stats(), memory.stats()):
            assert SECRET not in repr(shown)
        assert entry.content == f"the code is {SECRET}"
    assert SECRET not in caplog.text


def with_password(url: str, **parts: object) -> str:
    changed = make_url(plain(url)).set(password=PASSWORD, **parts)  # type: ignore[arg-type]
    return changed.render_as_string(hide_password=False)


def test_the_password_of_the_url(database: str, caplog: pytest.LogCaptureFixture) -> None:
    with MemoryStore.open(with_password(database), embedder="hashing") as store:
        store.tenant("acme").add("deploy")
        for shown in (repr(store), store.url, str(store.stats()), repr(store.tenant("acme"))):
            assert PASSWORD not in shown
        engine = store._driver.engine
        assert PASSWORD not in repr(engine)
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{PASSWORD}@127.0.0.1:1/nowhere",
        f"postgresql://ann:{PASSWORD}@no-such-host.invalid/nowhere",
        f"mysql://ann:{PASSWORD}@localhost/x",
        f"postgresql://ann:{PASSWORD}@localhost:port/x",
        f"postgresql://ann:{PASSWORD}@/x?host=/no/such/folder",
        f"postgresql://ann@127.0.0.1:1/x?password={PASSWORD}",
        f"postgresql://ann:{PASSWORD}@127.0.0.1:1/x?no_such_option={PASSWORD}",
        f"ann:{PASSWORD}@localhost",
    ],
)
def test_the_password_of_a_url_that_does_not_work(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: MemoryStore.open(url, embedder="hashing", connect_timeout=2),
        lambda: zerda_pg.migrate(url),
        lambda: check_schema(url),
    ]
    for call in calls:
        with pytest.raises(ZerdaError) as raised:
            call()
        said_nothing(raised.value, caplog)


def test_the_password_when_the_login_is_refused(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    for parts in ({"username": "nobody_such"}, {"database": "no_such_database"}):
        with pytest.raises(ZerdaError) as raised:
            MemoryStore.open(with_password(database, **parts), embedder="hashing")
        said_nothing(raised.value, caplog)


# ── slow statements ───────────────────────────────────────────────────────────────────────────


def slow(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "zerda_pg.slow"]


WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
    "AND wait_event_type = 'Lock'"
)


def test_slow_statements_have_a_logger_of_their_own(
    kind: str, database: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("ZERDA_PG_SLOW_SECONDS", "0.2")
    with opened(kind, database) as store:
        memory = store.tenant(SECRET)
        memory.add(f"the code is {SECRET}", id="e")
        store.flush()
        with ThreadPoolExecutor(1) as pool:
            with psycopg.connect(plain(database)) as other:
                other.execute("LOCK TABLE zerda.entries IN ACCESS EXCLUSIVE MODE")
                found = pool.submit(lambda: memory.search(SECRET, record_access=False))
                while not admin.execute(WAITING).fetchall():
                    time.sleep(0.02)
                time.sleep(0.3)
            assert len(found.result()) == 1
    (record, *_) = slow(caplog)
    assert record.levelno == logging.WARNING
    assert "WITH terms" in record.getMessage()
    assert SECRET not in caplog.text


def test_a_threshold_that_is_no_number(monkeypatch: pytest.MonkeyPatch, database: str) -> None:
    monkeypatch.setenv("ZERDA_PG_SLOW_SECONDS", "soon")
    with pytest.raises(zerda_pg.ConfigError, match="ZERDA_PG_SLOW_SECONDS"):
        MemoryStore.open(database, embedder="hashing")


def test_a_database_that_is_gone_says_no_content(
    kind: str, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(kind, database, statement_timeout=0.3) as store:
        memory = store.tenant("acme")
        memory.add("harmless", id="e")
        store.flush()
        with psycopg.connect(plain(database)) as other:
            other.execute("LOCK TABLE zerda.entries IN ACCESS EXCLUSIVE MODE")
            for call in (lambda: memory.add(SECRET), lambda: memory.search(SECRET)):
                with pytest.raises(DatabaseUnavailableError) as raised:
                    call()
                said_nothing(raised.value, caplog)
