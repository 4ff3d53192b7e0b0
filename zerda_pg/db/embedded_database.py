"""What an embedded server lacks after its first start: a database, extensions, a checked CPU."""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from typing import TypeAlias

import psycopg

from zerda_pg.db.embedded_binaries import Binaries, Known
from zerda_pg.db.embedded_files import DATABASE, Cluster
from zerda_pg.errors import ConfigError, DatabaseUnavailableError

__all__ = ["prepare_database"]

# Key of the advisory lock: CREATE EXTENSION IF NOT EXISTS fails when two sessions run it at once.
_EXTENSION_LOCK = 0x7A65726461
_OLDEST_PGVECTOR = (0, 8)
_EXTENSIONS = ("vector", "btree_gin")

_Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]


def prepare_database(cluster: Cluster, binaries: Binaries, known: Known) -> None:
    """Create the database and its extensions where they are missing, and check the processor.

    Raises:
        ConfigError: the binaries have no pgvector, or one that is too old.
        DatabaseUnavailableError: pgvector was compiled for another processor.
    """
    with _connect(cluster) as connection:
        try:
            missing = _missing_extensions(connection, binaries)
            if missing:
                _create_extensions(connection, missing, binaries)
            if not known.is_checked(binaries):
                connection.execute("SELECT '[1,2]'::vector <-> '[2,1]'::vector")
                known.remember_check(binaries)
        except psycopg.OperationalError as error:
            if not connection.broken or known.is_checked(binaries):
                raise
            raise DatabaseUnavailableError(
                f"pgvector of {binaries.bindir} crashes on this processor ({platform.machine()}): "
                "it was compiled for a newer one (x86_64 needs AVX2, aarch64 needs SVE). Set "
                "ZERDA_PG_BINDIR to the bin directory of a local PostgreSQL with pgvector, or "
                "ZERDA_PG_URL to the address of a server"
            ) from error


def _connect(cluster: Cluster) -> _Connection:
    try:
        return psycopg.connect(**cluster.connection(), autocommit=True)
    except psycopg.OperationalError:
        # The cluster is new, or its creation was interrupted here. If this was not the reason,
        # then the same error comes again.
        with (
            psycopg.connect(**cluster.connection("postgres"), autocommit=True) as connection,
            suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation),
        ):
            # the second where a killed client's statement goes on beside this one
            connection.execute(f"CREATE DATABASE {DATABASE}")
        return psycopg.connect(**cluster.connection(), autocommit=True)


def _missing_extensions(connection: _Connection, binaries: Binaries) -> list[str]:
    versions = _versions(connection)
    if "vector" in versions and not _is_recent(versions["vector"]):
        # The database is older than its server may be by now.
        connection.execute("ALTER EXTENSION vector UPDATE")
        versions = _versions(connection)
        if not _is_recent(versions["vector"]):
            raise ConfigError(
                f"the PostgreSQL of {binaries.bindir} has pgvector {versions['vector']}, but 0.8 "
                "or newer is needed: install that for it, or unset ZERDA_PG_BINDIR"
            )
    return [name for name in _EXTENSIONS if name not in versions]


def _versions(connection: _Connection) -> dict[str, str]:
    rows = connection.execute("SELECT extname, extversion FROM pg_extension").fetchall()
    return {str(name): str(version) for name, version in rows}


def _is_recent(pgvector: str) -> bool:
    return tuple(map(int, re.findall(r"\d+", pgvector)[:2])) >= _OLDEST_PGVECTOR


def _create_extensions(connection: _Connection, names: list[str], binaries: Binaries) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_EXTENSION_LOCK])
        for name in names:
            try:
                connection.execute(f"CREATE EXTENSION IF NOT EXISTS {name} SCHEMA public")
            except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile) as error:
                raise ConfigError(
                    f"the PostgreSQL of {binaries.bindir} has no extension {name}: install "
                    f"{'pgvector 0.8 or newer' if name == 'vector' else 'its contrib modules'} "
                    "for it, or unset ZERDA_PG_BINDIR"
                ) from error
    _missing_extensions(connection, binaries)
