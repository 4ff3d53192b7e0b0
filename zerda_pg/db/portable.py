"""A tenant's rows as JSON and back, to the letter.

The server writes and reads the JSON: contents keep their form, numbers their digits, times their
microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from zerda_pg.db.facts import DatabaseFacts
from zerda_pg.db.rows import dump_rows
from zerda_pg.scope import Scope

__all__ = ["SECTIONS", "Section", "existing", "export_page", "insert_entries", "insert_rows"]

PAGE_ROWS = 200
PAGE_BYTES = 1_000_000
"""Of one page: bounds memory, and how long an event loop waits for its compression."""

_RECORDED = {
    "version": "integer", "memory_type": "text", "kind": "text", "content": "json",
    "body": "text", "session_id": "text", "user_id": "text", "agent_id": "text",
    "tags": "text[]", "metadata": "jsonb", "language": "text", "status": "text",
    "created_at": "timestamptz", "recorded_at": "timestamptz", "updated_at": "timestamptz",
    "valid_from": "timestamptz", "valid_to": "timestamptz", "invalidated_at": "timestamptz",
    "expires_at": "timestamptz", "discarded_at": "timestamptz", "content_hash": "bytea",
}  # fmt: skip

_STATE = {
    "importance": "float8", "original_importance": "float8", "decay_factor": "float8",
    "access_count": "bigint", "last_access": "timestamptz",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Section:
    """The rows of one table in a file."""

    word: str
    """What a line of it is called."""
    table: str
    columns: Mapping[str, str]
    """With their types, in the file's order."""
    key: Mapping[str, str]
    """What pages go by, with types; the first rows come after the least values."""
    names: tuple[str, ...]
    """Columns that name an entry."""
    size: str = "100"
    """SQL: about how many bytes a row takes."""


SECTIONS: Mapping[str, Section] = {
    section.word: section
    for section in (
        Section(
            word="entry", table="entries", columns={"id": "text"} | _RECORDED,
            key={"id": "text"}, names=("id",), size="2 * octet_length(t.body)",
        ),
        Section(
            word="version", table="entry_versions",
            columns={"id": "text"} | _RECORDED | {"recorded_to": "timestamptz"},
            key={"id": "text", "version": "integer"}, names=("id",),
            size="2 * octet_length(t.body)",
        ),
        Section(
            word="edge", table="edges",
            columns={
                "source_id": "text", "relation": "text", "target_id": "text",
                "weight": "float8", "metadata": "jsonb", "created_at": "timestamptz",
            },
            key={"source_id": "text", "relation": "text", "target_id": "text"},
            names=("source_id", "target_id"),
        ),
        Section(
            word="member", table="layer_entries",
            columns={"layer": "text", "session_id": "text", "entry_id": "text"},
            # in the order of joining, which is the order in which they are numbered again
            key={"layer": "text", "session_id": "text", "seq": "bigint"}, names=("entry_id",),
        ),
        Section(
            word="touch", table="session_touches",
            columns={"session_id": "text", "entry_id": "text", "touched_at": "timestamptz"},
            key={"session_id": "text", "entry_id": "text"}, names=("entry_id",),
        ),
    )
}  # fmt: skip
"""In the order of the file: what others refer to comes first."""


def export_page(
    connection: Connection,
    facts: DatabaseFacts,
    scope: Scope,
    section: Section,
    *,
    after: Sequence[Any] | None,
    model_id: int | None,
) -> tuple[list[str], Sequence[Any] | None]:
    """The rows of a page as JSON texts, and after which key the next one starts.

    Args:
        connection: In a transaction of one snapshot.
        facts: The database's.
        scope: Whose rows; a user's scope exports what it sees.
        section: Which.
        after: The last key of the page before.
        model_id: Whose vectors come along; None: none.
    """
    if after is None:
        after = ["" if kind == "text" else -1 for kind in section.key.values()]
    key = ", ".join(f"t.{name}" for name in section.key)
    binds = ", ".join(f"CAST(:k{n} AS {kind})" for n, kind in enumerate(section.key.values()))
    same = " AND ".join(f"t.{name} = p.{name}" for name in section.key)
    columns = ", ".join(f"t.{name}" for name in section.columns)
    join = ""
    if section.word == "entry":
        columns += "".join(f", s.{name}" for name in _STATE)
        join = "JOIN zerda.entry_state s ON s.tenant_id = :tenant AND s.entry_id = t.id "
        if model_id is not None:
            # base64 of big-endian half floats, without pgvector's header and line breaks
            sent = f"substring({facts.vector_schema}.halfvec_send(v.embedding) FROM 5)"
            columns += f", translate(encode({sent}, 'base64'), E'\\n', '') AS vector, v.truncated"
            join += (
                "LEFT JOIN zerda.embeddings v ON v.tenant_id = :tenant AND v.entry_id = t.id "
                "AND v.model_id = :model "
            )
    rows = connection.execute(
        text(
            f"SELECT {key}, row_to_json(x)::text AS line FROM ("
            f"SELECT t.*, sum(t.size) OVER (ORDER BY {key}) - t.size AS before FROM ("
            f"SELECT {key}, {section.size} AS size FROM zerda.{section.table} t "
            f"WHERE t.tenant_id = :tenant AND ({key}) > ({binds}){_seen(scope, section)} "
            f"ORDER BY {key} LIMIT :limit) AS t) AS p "
            f"JOIN zerda.{section.table} t ON t.tenant_id = :tenant AND {same} {join}"
            f"CROSS JOIN LATERAL (SELECT {columns}) AS x "
            f"WHERE p.before < :bytes ORDER BY {key}"
        ),
        {
            "tenant": scope.tenant_id, "limit": PAGE_ROWS, "bytes": PAGE_BYTES,
            **({} if scope.user_id is None else {"user": scope.user_id}),
            **({"model": model_id} if ":model" in join else {}),
            **{f"k{n}": value for n, value in enumerate(after)},
        },
    ).all()  # fmt: skip
    # a content may have been written with line breaks, which JSON has between its parts only
    lines = [row.line.replace("\n", " ") for row in rows]
    return lines, list(rows[-1][:-1]) if rows else None


def _seen(scope: Scope, section: Section) -> str:
    """A condition: every entry that a row names is one that the scope sees."""
    if scope.user_id is None:
        return ""
    own = ""
    if section.word == "version":  # which may have been another user's at its time
        own = " AND (t.user_id IS NULL OR t.user_id = :user)"
    return own + "".join(
        " AND EXISTS (SELECT 1 FROM zerda.entries e WHERE e.tenant_id = :tenant "
        f"AND e.id = t.{name} AND (e.user_id IS NULL OR e.user_id = :user))"
        for name in section.names
    )


def existing(connection: Connection, tenant_id: str, ids: Sequence[str]) -> set[str]:
    """Those of the ids that the tenant has, hidden or not."""
    found = connection.scalars(
        text("SELECT id FROM zerda.entries WHERE tenant_id = :tenant AND id = ANY(:ids)"),
        {"tenant": tenant_id, "ids": list(ids)},
    )
    return set(found)


def insert_entries(
    connection: Connection, tenant_id: str, rows: Sequence[Mapping[str, Any]]
) -> set[str]:
    """Write entries with their state as they were exported; the ids that were not there yet."""
    section = SECTIONS["entry"]
    names = ", ".join(section.columns)
    parameters = {"tenant": tenant_id, "rows": dump_rows(rows)}
    written = connection.scalars(
        text(
            f"INSERT INTO zerda.entries (tenant_id, {names}) SELECT :tenant, {names} "
            f"FROM json_to_recordset(CAST(:rows AS json)) AS t ({_typed(section.columns)}) "
            "ORDER BY id ON CONFLICT (tenant_id, id) DO NOTHING RETURNING id"
        ),
        parameters,
    ).all()
    names = ", ".join(_STATE)
    connection.execute(
        text(
            f"INSERT INTO zerda.entry_state (tenant_id, entry_id, {names}) "
            f"SELECT :tenant, id, {names} FROM json_to_recordset(CAST(:rows AS json)) "
            f"AS t ({_typed({'id': 'text'} | _STATE)}) WHERE id = ANY(:ids) ORDER BY id "
            "ON CONFLICT (tenant_id, entry_id) DO NOTHING"
        ),
        parameters | {"ids": list(written)},
    )
    return set(written)


def insert_rows(
    connection: Connection, tenant_id: str, section: Section, rows: Sequence[Mapping[str, Any]]
) -> int:
    """Write rows of another section; how many were not there yet.

    Rows that name an entry which is not there are passed over, and so are versions that would be
    later than the entry itself.
    """
    columns = ", ".join(section.columns)
    values = ", ".join(f"t.{name}" for name in section.columns)
    there = " AND ".join(
        "EXISTS (SELECT 1 FROM zerda.entries e WHERE e.tenant_id = :tenant "
        f"AND e.id = t.{name}{' AND e.version > t.version' if section.word == 'version' else ''})"
        for name in section.names
    )
    numbered = [{**row, "n": n} for n, row in enumerate(rows)]
    return connection.execute(
        text(
            f"INSERT INTO zerda.{section.table} (tenant_id, {columns}) "
            f"SELECT :tenant, {values} FROM json_to_recordset(CAST(:rows AS json)) "
            f"AS t ({_typed(section.columns)}, n integer) WHERE {there} "
            "ORDER BY t.n ON CONFLICT DO NOTHING"
        ),
        {"tenant": tenant_id, "rows": dump_rows(numbered)},
    ).rowcount


def _typed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
