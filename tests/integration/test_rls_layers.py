"""The layers' own cases once more, by a role to which row-level security applies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from drivers import opened
from isolated import isolated_database
from test_layers_manager import *  # noqa: F403
from test_layers_membership import *  # noqa: F403

from zerda_pg import MemoryStore


@pytest.fixture
def database(server: None) -> Iterator[str]:
    with isolated_database() as roles:
        yield roles.agent


@pytest.fixture
def store(database: str) -> Iterator[MemoryStore]:
    with opened("sync", database) as made:
        yield made
