"""One server a run, one cloned database a test; sync and async stores by the same cases."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from drivers import KINDS, opened
from isolated import administrator, isolated_database
from sqlalchemy import event
from sqlalchemy.engine import Engine

from zerda_pg import Memory, MemoryStore
from zerda_pg.db import direct
from zerda_pg.testing import database_server, temporary_database, temporary_store

CountRows = Callable[[], dict[str, int]]
"""Rows of every table of a database, by the table's name; tables without rows are left out."""


@contextmanager
def sent_statements() -> Iterator[list[str]]:
    """What every engine sends meanwhile, in order."""
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        statements.append(statement)

    def positional(sql: str) -> tuple[bytes, tuple[str, ...]]:
        statements.append(sql)
        return as_positional(sql)

    as_positional = direct._positional
    event.listen(Engine, "before_cursor_execute", note)
    with patch.multiple(direct, _positional=positional, _kept_positional=positional):
        try:
            yield statements
        finally:
            event.remove(Engine, "before_cursor_execute", note)


def dump(url: str, tenant: str) -> dict[str, list[Any]]:
    """Every row of a tenant but its numbering of memberships, whose order stands for it."""
    found: dict[str, list[Any]] = {}
    with psycopg.connect(plain(url), autocommit=True) as connection:
        for table in (
            "entries entry_versions entry_state edges embeddings layer_entries session_touches"
        ).split():
            order = "t.layer, t.session_id, t.seq" if table == "layer_entries" else "1"
            rows = connection.execute(
                f"SELECT (to_jsonb(t) - 'tenant_id' - 'seq' - 'model_id')::text, "
                f"{'t.content::text' if table in ('entries', 'entry_versions') else 'NULL'} "
                f"FROM zerda.{table} t WHERE tenant_id = %s ORDER BY {order}",
                [tenant],
            ).fetchall()
            found[table] = rows
    return found


@pytest.fixture(scope="session")
def server() -> Iterator[None]:
    """Keeps the test server running between tests."""
    with database_server():
        yield


ISOLATED_MODULES = {
    "test_store_adding", "test_store_clocks", "test_store_edges", "test_store_erasing",
    "test_store_filters", "test_store_forgetting", "test_store_messages", "test_store_odd_texts",
    "test_store_reading", "test_store_search", "test_store_succession", "test_store_updating",
}  # fmt: skip
"""Whose cases run a third time, by a role to which row-level security applies."""

OWNERS = {"test_stats_and_tenants_of_a_store"}
"""Cases among them that only the tables' owner can do."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The kinds of store that a case runs on."""
    # a test may have a parameter of that name for something else
    own = any("kind" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "kind" in metafunc.fixturenames and not own:
        kinds = list(KINDS)
        if (
            metafunc.module.__name__ in ISOLATED_MODULES
            and metafunc.function.__name__ not in OWNERS
        ):
            kinds.append("isolated")
        metafunc.parametrize("kind", kinds, indirect=True)


@contextmanager
def made_database(kind: str = "") -> Iterator[str]:
    """The URL of a migrated database; of an isolated one as its agents have it."""
    if kind == "isolated":
        with isolated_database() as roles:
            yield roles.agent
    else:
        with temporary_database() as url:
            yield url


@pytest.fixture
def database(server: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a migrated database."""
    kind = request.getfixturevalue("kind") if "kind" in request.fixturenames else ""
    with made_database(kind) as url:
        yield url


@pytest.fixture
def empty_database(server: None) -> Iterator[str]:
    """The URL of a database without the schema."""
    with temporary_database(migrated=False) as url:
        yield url


@pytest.fixture
def store(server: None) -> Iterator[MemoryStore]:
    """A store with the hashing embedder."""
    with temporary_store() as made:
        yield made


@pytest.fixture
def memory(store: MemoryStore) -> Memory:
    """One tenant of a throw-away store."""
    return store.tenant("acme")


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Which kind of store a case runs on, see `pytest_generate_tests`."""
    return str(request.param)


@pytest.fixture
def anystore(kind: str, database: str) -> Iterator[MemoryStore]:
    """The sync store, and in a second run the async one, used synchronously."""
    with opened(kind, database) as store:
        yield store


@pytest.fixture
def anymemory(anystore: MemoryStore) -> Memory:
    """One tenant of `anystore`."""
    return anystore.tenant("acme")


@pytest.fixture(scope="session")
def shared_stores(server: None) -> Iterator[Callable[[str], MemoryStore]]:
    """A store of each kind for the whole run, opened when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def store_of(kind: str) -> MemoryStore:
            return stack.enter_context(opened(kind, stack.enter_context(made_database(kind))))

        yield store_of


@pytest.fixture(scope="session")
def shared_url(server: None) -> Iterator[Callable[[], str]]:
    """The URL of a migrated database for the whole run, made when it is first asked for."""
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(temporary_database()))


@pytest.fixture
def anytenant(kind: str, shared_stores: Callable[[str], MemoryStore]) -> Memory:
    """A tenant of its own in a database that tests share: for cases that look at no other."""
    return shared_stores(kind).tenant(f"tenant-{uuid.uuid4().hex}")


@pytest.fixture
def admin(database: str) -> Iterator[psycopg.Connection]:
    """A connection of its own to `database`, to look behind the store."""
    with psycopg.connect(administrator(plain(database)), autocommit=True) as connection:
        yield connection


@pytest.fixture
def rows(admin: psycopg.Connection) -> CountRows:
    """Counts what is in the tables."""

    def count() -> dict[str, int]:
        tables = admin.execute(
            "SELECT table_name FROM information_schema.tables "
            "WHERE table_schema = 'zerda' AND table_name <> 'alembic_version'"
        ).fetchall()
        counts: dict[str, int] = {}
        for (name,) in tables:
            row = admin.execute(f"SELECT count(*) FROM zerda.{name}").fetchone()
            assert row is not None
            counts[str(name)] = int(row[0])
        return {name: number for name, number in counts.items() if number}

    return count


def plain(url: str) -> str:
    """The URL in the form that psycopg itself reads."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)
