"""URLs, and the engines that are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from sqlalchemy import URL, Connection, create_engine, event, make_url
from sqlalchemy.engine import Engine
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from zerda_pg.config import LONGEST_SECONDS
from zerda_pg.db.guarded import (
    GRACE_SECONDS,
    GuardedAsyncConnection,
    GuardedConnection,
    is_stale,
    read_binary,
)
from zerda_pg.errors import ConfigError
from zerda_pg.text import dump_json

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = [
    "PLAIN_FORMS",
    "admin_engine",
    "async_engine",
    "check_maintenance_timeout",
    "check_transactions",
    "local_settings",
    "parse_url",
    "shown_url",
    "single_and_whole",
    "sync_engine",
]

EngineT = TypeVar("EngineT", Engine, "AsyncEngine")

DRIVER = "postgresql+psycopg"

PLAIN_FORMS = (
    "SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'; SET LOCAL extra_float_digits = 1"
)
"""For sessions that write times or numbers in another way, see `DatabaseFacts.plain_forms`."""

MOST_PREPARED = 40
"""Statements that a connection keeps prepared: of a search with another filter each, a megabyte."""

PLAN_ONCE = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
        SET plan_cache_mode = force_generic_plan;
    END IF;
END $$
"""
"""Prepared statements are planned once, for every tenant alike.

Else a plan for its tenant alone is made at every call, as long as a small one lets it seem cheaper,
which takes as long as to run it. Citus cannot route what is planned for all.
"""

KEEPALIVE = {
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
"""Seconds, and tries: a peer that vanished is noticed within a minute."""


def parse_url(url: str | URL) -> URL:
    """A URL for the psycopg driver from `postgresql://`, `postgres://` or SQLAlchemy's form.

    Raises:
        ConfigError: If it is no Postgres URL; the message shows no password.
    """
    try:
        parsed = make_url(
            url.replace("postgres://", "postgresql://", 1)
            if isinstance(url, str) and url.startswith("postgres://")
            else url
        )
    except (ArgumentError, ValueError):
        raise ConfigError(
            "the database URL cannot be read; it should look like "
            "postgresql://user:password@host:5432/database"
        ) from None
    if parsed.get_backend_name() != "postgresql":
        raise ConfigError(f"zerda_pg needs PostgreSQL, the database URL says {parsed.drivername!r}")
    return parsed.set(drivername=DRIVER)


def shown_url(url: URL) -> str:
    """The URL as it may be printed: without its password, and without the driver's name."""
    hidden = url.set(drivername="postgresql")
    secret = {key for key in hidden.query if "password" in key.lower()}
    return hidden.difference_update_query(secret).render_as_string(hide_password=True)


def _options(
    url: URL,
    *,
    pool_size: int,
    pool_timeout: float,
    connect_timeout: float,
    statement_timeout: float,
    prepare: bool,
) -> dict[str, Any]:
    _check_settings(pool_size, pool_timeout, connect_timeout, statement_timeout)
    connect: dict[str, Any] = {
        "connect_timeout": max(1, round(connect_timeout)),
        "application_name": "zerda_pg",
        **KEEPALIVE,
    }
    if prepare:
        milliseconds = round(statement_timeout * 1000)
        ours = f"-c statement_timeout={milliseconds} -c timezone=UTC -c datestyle=ISO"
        ours += " -c extra_float_digits=1"
        connect["options"] = " ".join([*_texts(url.query.get("options", ())), ours])
    else:
        # A transaction-mode pooler knows neither prepared statements nor start-up options: what
        # these would set is set in every transaction, see `local_settings`.
        connect["prepare_threshold"] = None
    return {
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": pool_timeout,
        "pool_use_lifo": True,
        # a statement's parameters are what memories say: they belong in no traceback and no log
        "hide_parameters": True,
        "json_serializer": dump_json,
        "connect_args": connect,
    }


def _texts(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def local_settings(statement_timeout: float, *, prepare: bool) -> str:
    """What each transaction begins with; none where the connection was started with it."""
    if prepare:
        return ""
    milliseconds = round(statement_timeout * 1000)
    return f"SET LOCAL statement_timeout = {milliseconds}; {PLAIN_FORMS}"


def _check_settings(
    pool_size: int, pool_timeout: float, connect_timeout: float, statement_timeout: float
) -> None:
    if isinstance(pool_size, bool) or not isinstance(pool_size, int) or pool_size < 1:
        raise ValueError(f"pool_size must be a whole number of at least 1, got {pool_size!r}")
    for name, seconds in (
        ("pool_timeout", pool_timeout),
        ("connect_timeout", connect_timeout),
        ("statement_timeout", statement_timeout),
    ):
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 <= seconds <= LONGEST_SECONDS:
            raise ValueError(f"{name} must be seconds from 0 to {LONGEST_SECONDS}, got {seconds!r}")


_SINGLE: dict[str, Any] = {
    "isolation_level": "AUTOCOMMIT",
    "skip_autocommit_rollback": True,
    "execution_options": {"zerda_pg_single": True},
}
"""Of a store's engine: nothing is switched on a connection that is taken for one statement."""


def single_and_whole(engine: EngineT) -> tuple[EngineT, EngineT]:
    """One on which each statement commits by itself, and one for transactions."""
    if engine.get_execution_options().get("zerda_pg_single"):
        return engine, engine.execution_options(isolation_level="READ COMMITTED")
    return engine.execution_options(isolation_level="AUTOCOMMIT"), engine


def sync_engine(
    url: URL, *, slow: float | None = None, alembic: bool = False, **settings: Any
) -> Engine:
    """An engine whose pool never grows beyond `pool_size`.

    Args:
        url: The database.
        slow: Seconds from which a statement is logged; None: never.
        alembic: Whether it is Alembic's, which begins transactions by itself and cannot read
            results in binary form.
        settings: As in `MemoryStore.open`.
    """
    single = {} if alembic else _SINGLE
    engine = create_engine(url, **_options(url, **settings), **single)
    _watch(engine, settings, slow, binary=not alembic)

    @event.listens_for(engine, "do_connect")
    def connect(
        dialect: Any, record: Any, args: Sequence[Any], parameters: dict[str, Any]
    ) -> psycopg.Connection[Any]:
        return GuardedConnection.connect(*args, **parameters)

    return engine


def check_maintenance_timeout(seconds: float) -> float:
    """Return it if a statement of an administrator's may be given so long.

    Raises:
        ValueError: If it is no number of seconds, or without end.
    """
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 1 <= seconds <= LONGEST_SECONDS:
        raise ValueError(
            f"maintenance_timeout must be seconds from 1 to {LONGEST_SECONDS}, got {seconds!r}"
        )
    return float(seconds)


def admin_engine(url: URL, maintenance_timeout: float) -> Engine:
    """For an administrator's work, through a pooler too; its waits end as well.

    Args:
        url: The database.
        maintenance_timeout: Seconds that a statement may run: a migration, or a check over all
            vectors.

    Raises:
        ConfigError: If `connect_timeout` in the URL is no number of seconds.
    """
    given = url.query.get("connect_timeout", "10")
    try:
        return sync_engine(
            url,
            pool_size=2,
            pool_timeout=30,
            connect_timeout=float(str(given)),
            statement_timeout=maintenance_timeout,
            prepare=False,
            alembic=True,
        )
    except ValueError as error:
        raise ConfigError(
            f"connect_timeout in the database URL must be seconds, got {given!r}"
        ) from error


def async_engine(url: URL, *, slow: float | None = None, **settings: Any) -> AsyncEngine:
    """The same for asyncio; psycopg serves both."""
    # 0.1 s with the object mapper that it brings along, which a synchronous store need not wait for
    from sqlalchemy.ext.asyncio import create_async_engine

    options = _options(url, **settings) | _SINGLE
    options["connect_args"]["async_creator_fn"] = GuardedAsyncConnection.connect
    engine = create_async_engine(url, **options)
    _watch(engine.sync_engine, settings, slow, binary=True)
    return engine


def check_transactions(connection: Connection) -> None:
    """Refuse an engine of the caller's whose `begin` begins nothing.

    Writes of several statements would be done by halves, and settings of a transaction (the
    tenant, the zone, the time-out) would be gone before the statement that needs them.

    Args:
        connection: As `begin` gives it.

    Raises:
        ConfigError: If it commits each statement by itself.
    """
    if getattr(connection.connection.driver_connection, "autocommit", False):
        raise ConfigError(
            "engine is in AUTOCOMMIT, where no transaction begins: make it without "
            "isolation_level='AUTOCOMMIT' (or autocommit=True in connect_args); for what needs "
            "that elsewhere take engine.execution_options(isolation_level='AUTOCOMMIT')"
        )


def _watch(
    engine: Engine, settings: Mapping[str, Any], slow: float | None, *, binary: bool
) -> None:
    """No wait without end, no dead connection handed out, slow statements logged."""
    bound = settings["statement_timeout"]
    patience = bound + GRACE_SECONDS if bound else None

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: ConnectionPoolEntry) -> None:
        raw: Any = record.driver_connection
        raw.patience, raw.slow_seconds = patience, slow
        if binary:
            read_binary(raw)
        if settings["prepare"]:
            raw.prepared_max = MOST_PREPARED
            with closing(connection.cursor()) as cursor:
                cursor.execute(PLAN_ONCE)
            connection.commit()

    @event.listens_for(engine, "checkout")
    def checked_out(connection: Any, record: ConnectionPoolEntry, proxy: Any) -> None:
        # in place of SQLAlchemy's ping, which costs a round trip each time
        if is_stale(record.driver_connection):
            raise DisconnectionError("the server has ended the connection")
