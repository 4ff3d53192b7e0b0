"""Alembic behind one door: find the scripts; upgrade, downgrade, check, print.

Alembic itself is imported only by the functions that run it.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from zerda_pg.config import MAINTENANCE_SECONDS, Settings
from zerda_pg.db.engine import admin_engine, parse_url
from zerda_pg.db.failures import translated
from zerda_pg.db.isolation import SETTLING_SECONDS, enforce_isolation, prepare_isolation
from zerda_pg.db.schema import HEAD, SCHEMA, metadata
from zerda_pg.errors import (
    AccessDeniedError,
    ConfigError,
    DatabaseUnavailableError,
    SchemaOutdatedError,
    SchemaTooNewError,
)

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext

__all__ = [
    "check_revision",
    "current_revision",
    "downgrade",
    "extension_schema",
    "isolate",
    "offline_script",
    "require_extensions",
    "revision_of",
    "run_env",
    "script_location",
    "upgrade",
]

log = logging.getLogger("zerda_pg.migrations")

EXTENSIONS = ("vector", "btree_gin")

LOCK_KEY = 0x7A657264615F7067  # "zerda_pg": one migration at a time in a database

LOCK_WAIT_SECONDS = 600.0
"""How long a process waits for another one's migration before it gives up."""

VERSION_TABLE = f"{SCHEMA}.alembic_version"

OLDEST_SERVER = 16
OLDEST_PGVECTOR = (0, 8)


def script_location() -> Path:
    """The folder of the scripts: in the installed package, else at the top of the checkout.

    Raises:
        ConfigError: If it is in neither place.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigError("the migration scripts are missing: reinstall zerda-pg")


def upgrade(url: str, revision: str = "head", *, timeout: float = MAINTENANCE_SECONDS) -> None:
    """Bring the schema to `revision`; safe to call from many processes at once.

    Args:
        url: The database.
        revision: Up to which.
        timeout: Seconds that a statement may run; another process's migration is waited for no
            longer, and ten minutes at most.

    Raises:
        AccessDeniedError: If the role may not create the schema or an extension; the message
            has the statement that an administrator runs.
        ConfigError: If the server is too old or has no pgvector.
        DatabaseUnavailableError: If the server cannot be reached, or another migration does
            not end in time.
    """
    _run(url, "upgrade", revision, timeout)


def revision_of(url: str, *, timeout: float = MAINTENANCE_SECONDS) -> str | None:
    """The revision that a database records, or None before the first migration.

    A statement may take `timeout` seconds.

    Raises:
        DatabaseUnavailableError: If the server cannot be reached.
    """
    engine = _engine(url, timeout)
    try:
        with translated(), engine.connect() as connection:
            return current_revision(connection)
    finally:
        engine.dispose()


def isolate(url: str, *, timeout: float = MAINTENANCE_SECONDS) -> None:
    """Set row-level security up where it is missing, beside stores at work; after `upgrade`.

    A statement may take `timeout` seconds.

    Raises:
        AccessDeniedError: If the role does not own the tables.
        ConflictError: If a table was in use for too long: try again.
    """
    engine = _engine(url, timeout)
    try:
        with translated(), _migration_lock(engine, timeout), engine.connect() as connection:
            if prepare_isolation(connection):
                time.sleep(SETTLING_SECONDS)
                enforce_isolation(connection)
    finally:
        engine.dispose()


def downgrade(url: str, revision: str, *, timeout: float = MAINTENANCE_SECONDS) -> None:
    """Take the schema back to `revision`; `base` removes the tables and what they hold."""
    _run(url, "downgrade", revision, timeout)


def _run(url: str, command: str, revision: str, timeout: float) -> None:
    engine = _engine(url, timeout)
    try:
        with translated(), engine.connect() as connection:
            check_server(connection)
            if command == "upgrade" and revision == "head" and _is_current(connection):
                return  # without importing Alembic, which takes longer than all the rest
            connection.rollback()
            from alembic import command as alembic_command

            with _migration_lock(engine, timeout):
                config = _config()
                config.attributes["connection"] = connection
                getattr(alembic_command, command)(config, revision)
    finally:
        engine.dispose()


def _engine(url: str, timeout: float) -> Engine:
    return admin_engine(parse_url(url), timeout)


def _is_current(connection: Connection) -> bool:
    """Whether nothing is to be done; also for a later schema that this package can use."""
    try:
        check_revision(current_revision(connection))
    except SchemaOutdatedError:
        return False
    return True


@contextmanager
def _migration_lock(engine: Engine, timeout: float) -> Iterator[None]:
    """Hold the lock on a second connection.

    It is tried, never waited for: a waiting lock would block CREATE INDEX CONCURRENTLY. It is
    a transaction's lock, so that a transaction-mode pooler keeps it on one server connection.
    """
    patience = min(LOCK_WAIT_SECONDS, timeout)
    deadline = time.monotonic() + patience
    with engine.connect() as connection:
        while not connection.scalar(
            text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": LOCK_KEY}
        ):
            connection.rollback()
            if time.monotonic() > deadline:
                raise DatabaseUnavailableError(
                    f"another migration has held its lock for {patience:.0f} s"
                )
            time.sleep(0.1)
        yield
        connection.rollback()


def _config() -> Config:
    from alembic.config import Config

    config = Config(stdout=io.StringIO())
    # Alembic's options are interpolated: a literal percent sign is written twice
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def offline_script() -> str:
    """The SQL that brings an empty database to the newest schema, for an administrator."""
    from alembic import command as alembic_command

    config = _config()
    output = io.StringIO()
    config.output_buffer = output
    alembic_command.upgrade(config, "head", sql=True)
    return output.getvalue()


def run_env(context: Any) -> None:
    """The body of `migrations/env.py`.

    Run by our own functions it finds a connection in the configuration; run by Alembic's
    command it takes the URL from `-x url=…`, or from the settings, or the embedded server's.
    """
    options: dict[str, Any] = {
        "target_metadata": metadata,
        "version_table": "alembic_version",
        "version_table_schema": SCHEMA,
        "include_schemas": True,
        "transaction_per_migration": True,
    }
    if context.is_offline_mode():
        context.configure(
            dialect_name="postgresql",
            dialect_opts={"paramstyle": "named"},
            literal_binds=True,
            **options,
        )
        context.get_context().impl.static_output(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};")
        with context.begin_transaction():
            context.run_migrations()
        return
    connection = context.config.attributes.get("connection")
    if connection is not None:
        _run_online(context, connection, options)
        return
    with _outside_url(context) as url:
        timeout = Settings.from_env().maintenance_timeout
        engine = _engine(url, timeout)
        with translated(), engine.connect() as own:
            check_server(own)
            own.rollback()
            with _migration_lock(engine, timeout):
                _run_online(context, own, options)


def _run_online(context: Any, connection: Connection, options: dict[str, Any]) -> None:
    # The version table lives in the schema, which therefore must exist before it. Asked for
    # first: CREATE SCHEMA IF NOT EXISTS needs the privilege even where the schema is there.
    if not _has_schema(connection):
        try:
            with connection.begin_nested():
                connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        except DBAPIError as error:
            raise _denied(connection, error, f"schema {SCHEMA!r}") from error
    connection.commit()
    context.configure(connection=connection, **options)
    with context.begin_transaction():
        context.run_migrations()


@contextmanager
def _outside_url(context: Any) -> Iterator[str]:
    from zerda_pg.db.location import database_url

    given = context.get_x_argument(as_dictionary=True).get("url")
    with database_url(given) as url:
        yield url


def check_server(connection: Connection) -> None:
    """Raise `ConfigError` for a server older than 16 or a pgvector older than 0.8."""
    number = int(connection.scalar(text("SHOW server_version_num")) or 0)
    if number // 10000 < OLDEST_SERVER:
        raise ConfigError(
            f"PostgreSQL {OLDEST_SERVER} or newer is needed, the server is {number // 10000}"
        )
    version = connection.scalar(
        text("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    )
    if version and tuple(int(x) for x in version.split(".")[:2]) < OLDEST_PGVECTOR:
        raise ConfigError(
            f"pgvector 0.8 or newer is needed, the database has {version}: "
            "install it on the server and run ALTER EXTENSION vector UPDATE"
        )


def require_extensions(migration: MigrationContext) -> None:
    """Create the extensions that are missing.

    Raises:
        ConfigError: If the server does not have one of them.
        AccessDeniedError: If the role may not create it; the message has the statement.
    """
    connection = migration.connection
    if migration.as_sql or connection is None:
        for name in EXTENSIONS:
            migration.impl.static_output(f"{_CREATE_EXTENSION.format(name)};")
        return
    for name in EXTENSIONS:
        if extension_schema(migration, name, missing=""):
            continue
        known = connection.scalar(
            text("SELECT 1 FROM pg_available_extensions WHERE name = :name"), {"name": name}
        )
        if not known:
            package = "pgvector" if name == "vector" else "the contrib package"
            raise ConfigError(
                f"the server has no extension {name!r}: install {package} for its PostgreSQL"
            )
        try:
            with connection.begin_nested():
                connection.execute(text(_CREATE_EXTENSION.format(name)))
        except DBAPIError as error:
            raise _denied(connection, error, f"extension {name!r}") from error
    if migration.connection is not None:
        check_server(migration.connection)


_CREATE_EXTENSION = "CREATE EXTENSION IF NOT EXISTS {} SCHEMA public"


def _has_schema(connection: Connection) -> bool:
    found = text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
    return connection.scalar(found, {"name": SCHEMA}) is not None


def _denied(connection: Connection, error: DBAPIError, what: str) -> Exception:
    """For a missing privilege, an error with all that an administrator has to run."""
    if getattr(error.orig, "sqlstate", "") != "42501":
        return error
    present = set(connection.scalars(text("SELECT extname FROM pg_extension")))
    statements = [_CREATE_EXTENSION.format(name) for name in EXTENSIONS if name not in present]
    if not _has_schema(connection):
        role = connection.scalar(text("SELECT quote_ident(current_user)"))
        statements.insert(0, f"CREATE SCHEMA {SCHEMA} AUTHORIZATION {role}")
    return AccessDeniedError(
        f"the role may not create the {what}; as an administrator run, in this database: "
        + " ".join(f"{statement};" for statement in statements)
    )


def extension_schema(migration: MigrationContext, name: str, missing: str = "public") -> str:
    """The quoted schema in which the extension lives; offline `public`."""
    if migration.as_sql or migration.connection is None:
        return "public"
    found = migration.connection.scalar(
        text(
            "SELECT quote_ident(n.nspname) FROM pg_extension x "
            "JOIN pg_namespace n ON n.oid = x.extnamespace WHERE x.extname = :name"
        ),
        {"name": name},
    )
    return str(found or missing)


def current_revision(connection: Connection) -> str | None:
    """The revision that the database records, or None before the first migration."""
    if not connection.scalar(text("SELECT to_regclass(:name)"), {"name": VERSION_TABLE}):
        return None
    revision = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return None if revision is None else str(revision)


def check_revision(revision: str | None) -> None:
    """Compare a database's revision with this package's.

    A newer one within the same major version is accepted, so that a deployment can roll.

    Raises:
        SchemaOutdatedError: If it is older, or there is none.
        SchemaTooNewError: If its major version is later.
    """
    if revision == HEAD:
        return
    if revision is None:
        raise SchemaOutdatedError("the database has no zerda schema yet: run `zerda-pg migrate`")
    (major, number), (own_major, own_number) = _parts(revision), _parts(HEAD)
    if major > own_major:
        raise SchemaTooNewError(
            f"the schema is at {revision}, this package knows {HEAD}: upgrade zerda-pg"
        )
    if (major, number) < (own_major, own_number):
        raise SchemaOutdatedError(
            f"the schema is at {revision}, this package needs {HEAD}: run `zerda-pg migrate`"
        )


def _parts(revision: str) -> tuple[int, int]:
    major, _, number = revision.removeprefix("v").partition("_")
    try:
        return int(major), int(number)
    except ValueError:
        raise SchemaTooNewError(
            f"the schema is at {revision!r}, which is no revision that this package knows"
        ) from None
