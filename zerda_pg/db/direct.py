"""Statements by their text, sent past SQLAlchemy on a connection that it lends.

What it makes of each result, and what psycopg does at each call to a long statement with named
parameters, take together as long as Postgres takes to find a memory among hundreds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection
from sqlalchemy.engine.interfaces import AdaptedConnection
from sqlalchemy.exc import DBAPIError

from zerda_pg.db.guarded import (
    PREPARED_AT_ONCE,
    AsyncPositionalCursor,
    GuardedAsyncConnection,
    GuardedConnection,
    PositionalCursor,
)

__all__ = ["fetch"]

_NAMED = re.compile(r"%(?:\((\w+)\)s|%)")


def fetch(connection: Connection, sql: str, parameters: Mapping[str, Any]) -> list[Any]:
    """All rows, as named tuples.

    Args:
        connection: In its transaction, if one is begun.
        sql: With parameters as `%(name)s`, and `%%` for a percent sign.
        parameters: Those that the statement does not have are passed over.

    Raises:
        DBAPIError: As SQLAlchemy raises it; a connection that broke is invalidated.
    """
    pooled: Any = connection.connection
    raw = pooled.driver_connection
    if not isinstance(raw, GuardedConnection | GuardedAsyncConnection):
        # whose engine it is may be listening to it
        return list(connection.exec_driver_sql(sql, parameters))
    # of several searches there are as many texts as there are numbers of searches
    once = len(sql) > PREPARED_AT_ONCE
    statement, names = _positional(sql) if once else _kept_positional(sql)
    values = [parameters[name] for name in names]
    try:
        if isinstance(raw, GuardedAsyncConnection):
            adapted: AdaptedConnection = pooled.dbapi_connection
            return adapted.run_async(lambda raw: _afetch(raw, statement, values))
        with PositionalCursor(raw, row_factory=namedtuple_row) as cursor:
            return cursor.execute(statement, values).fetchall()
    except psycopg.Error as error:
        if raw.closed:
            connection.invalidate(error)
        raise DBAPIError.instance(
            sql, None, error, psycopg.Error, hide_parameters=True,
            connection_invalidated=raw.closed, dialect=connection.dialect,
        ) from error  # fmt: skip


async def _afetch(raw: Any, statement: bytes, values: list[Any]) -> list[Any]:
    async with AsyncPositionalCursor(raw, row_factory=namedtuple_row) as cursor:
        await cursor.execute(statement, values)
        return await cursor.fetchall()


def _positional(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """The text as the server takes it, and what `$1`, `$2`, … stand for."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1]
        return f"${names.setdefault(name, len(names) + 1)}" if name else "%"

    return _NAMED.sub(number, sql).encode(), tuple(names)


_kept_positional = lru_cache(maxsize=500)(_positional)
