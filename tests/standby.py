"""A streaming replica of an embedded server."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from zerda_pg import migrate
from zerda_pg.db import embedded

__all__ = ["caught_up", "primary_and_standby"]

PATIENCE = 30.0
"""Seconds until a replica that does not catch up fails its test."""


@contextmanager
def primary_and_standby(folder: Path) -> Iterator[tuple[str, str]]:
    """The URLs of a migrated database and of its replica, made by copying a stopped server."""
    first, second = folder / "primary", folder / "standby"
    with embedded.acquire(first) as server:
        migrate(server.url)
    subprocess.run(["cp", "-a", str(first), str(second)], check=True)  # keeps the owner, too
    copied = second / server.info.data_directory.relative_to(first)
    with ExitStack() as held:
        primary = held.enter_context(embedded.acquire(first))
        with psycopg.connect(primary.url) as connection:
            info = connection.info
            source = f"host={info.host} port={info.port} user={info.user}"
        with (copied / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{source}'\n")
        signal = copied / "standby.signal"
        # of a copied file, for the sake of its owner
        subprocess.run(["cp", "-a", str(copied / "PG_VERSION"), str(signal)], check=True)
        standby = held.enter_context(embedded.acquire(second))
        yield primary.url, standby.url


def caught_up(primary: str, standby: str) -> None:
    """Wait until the replica has replayed what the primary has written."""
    with psycopg.connect(primary, autocommit=True) as connection:
        (written,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
    end = time.monotonic() + PATIENCE
    with psycopg.connect(standby, autocommit=True) as connection:
        while connection.execute(
            "SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", [written]
        ).fetchone() != (False,):
            assert time.monotonic() < end, "the replica does not catch up"
            time.sleep(0.05)
