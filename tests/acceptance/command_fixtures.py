"""A data home for a run, whose server is held so that commands join it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import CommandLine

from zerda_pg.db import embedded


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data home with a running server."""
    place = tmp_path_factory.mktemp("cli") / "home"
    with embedded.acquire(place):
        yield place


@pytest.fixture
def run(home: Path) -> CommandLine:
    """The command in a tenant of its own, with the hashing embedder."""
    return CommandLine(home=home, tenant=f"t-{uuid.uuid4().hex[:8]}")
