"""One server a run, one cloned database a test; sync and async stores by the same cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zerda_pg import Memory, MemoryStore
from zerda_pg.testing import database_server, temporary_database, temporary_store


@pytest.fixture(scope="session")
def server() -> Iterator[None]:
    """Keeps the test server running between tests."""
    with database_server():
        yield


@pytest.fixture
def database(server: None) -> Iterator[str]:
    """The URL of a migrated database."""
    with temporary_database() as url:
        yield url


@pytest.fixture
def empty_database(server: None) -> Iterator[str]:
    """The URL of a database without the schema."""
    with temporary_database(migrated=False) as url:
        yield url


@pytest.fixture
def store(server: None) -> Iterator[MemoryStore]:
    """A store with the hashing embedder."""
    with temporary_store() as opened:
        yield opened


@pytest.fixture
def memory(store: MemoryStore) -> Memory:
    """One tenant of a throw-away store."""
    return store.tenant("acme")
