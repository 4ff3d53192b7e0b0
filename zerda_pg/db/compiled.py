"""Statements built and compiled once for each shape, then run by their text.

Building and compiling a statement at every call costs 3 to 4 ms, as long as Postgres takes to
run most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from sqlalchemy import Connection, Select
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from zerda_pg.db.direct import fetch

__all__ = ["compiled", "run"]

_DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]

_texts: dict[Hashable, tuple[str, dict[str, Any]]] = {}


def compiled(key: Hashable, build: Callable[[], Select[Any]]) -> tuple[str, dict[str, Any]]:
    """The text of what `build` returns, with named parameters, and the values of its constants.

    Args:
        key: Whatever the text depends on.
        build: Called where the key is new.
    """
    found = _texts.get(key)
    if found is None:
        statement = build().compile(dialect=_DIALECT)
        constants = {name: value for name, value in statement.params.items() if value is not None}
        found = _texts[key] = (str(statement), constants)
    return found


def run(
    connection: Connection,
    key: Hashable,
    build: Callable[[], Select[Any]],
    parameters: Mapping[str, Any],
) -> list[Any]:
    """Its rows, as named tuples; parameters that the statement does not have are passed over."""
    text, constants = compiled(key, build)
    return fetch(connection, text, constants | dict(parameters))
