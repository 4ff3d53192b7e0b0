"""What an administrator or a deployment calls."""

from __future__ import annotations

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from zerda_pg.db.engine import parse_url, translated
from zerda_pg.db.facts import read_facts
from zerda_pg.db.migrations import upgrade

__all__ = ["check_schema", "migrate"]


def migrate(url: str) -> None:
    """Bring a database's schema to this package's version; safe from many processes at once.

    Raises:
        AccessDeniedError: If the role may not create the schema or an extension; the message
            has the statement that an administrator runs.
        ConfigError: If PostgreSQL is older than 16 or has no pgvector.
        DatabaseUnavailableError: If the server cannot be reached.
    """
    upgrade(url)


def check_schema(url: str) -> None:
    """Return if the schema fits this package.

    Raises:
        SchemaOutdatedError: If it is missing or older; the message names the command.
        SchemaTooNewError: If it is of a later major version.
        ConfigError: If PostgreSQL or pgvector is too old.
        DatabaseUnavailableError: If the server cannot be reached.
    """
    engine = create_engine(parse_url(url), poolclass=NullPool)
    try:
        with translated(), engine.connect() as connection:
            read_facts(connection)
    finally:
        engine.dispose()
