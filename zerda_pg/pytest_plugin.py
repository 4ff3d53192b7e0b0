"""Fixtures for other projects' tests: `pytest_plugins = ["zerda_pg.pytest_plugin"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zerda_pg.store import MemoryStore
from zerda_pg.testing import temporary_store

__all__ = ["memory_store"]


@pytest.fixture
def memory_store() -> Iterator[MemoryStore]:
    """A throw-away store with the hashing embedder."""
    with temporary_store() as store:
        yield store
