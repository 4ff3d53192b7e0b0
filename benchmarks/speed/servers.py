"""Servers and databases for measurements, and where a measurement was made."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg

from zerda_pg import migrate
from zerda_pg.db import embedded


def about() -> dict[str, Any]:
    """Machine and time of a measurement."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "python": platform.python_version(),
    }


@contextmanager
def server(buffers: str) -> Iterator[tuple[str, Path]]:
    """An embedded server with so many shared buffers, and its data directory."""
    clients: Any = import_module("zerda_pg.db.embedded_clients")
    usual = clients.server_settings
    clients.server_settings = lambda **given: usual(**given) | {"shared_buffers": buffers}
    try:
        with tempfile.TemporaryDirectory() as home, embedded.acquire(Path(home)) as own:
            yield own.url, own.info.data_directory
    finally:
        clients.server_settings = usual


@contextmanager
def database(url: str, name: str) -> Iterator[str]:
    """A migrated database on such a server."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        own = url.replace("/zerda?", f"/{name}?")
        migrate(own)
        yield own
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def put_out(directory: Path) -> None:
    """Take the files of the tables out of the system's cache."""
    for file in (directory / "base").rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
