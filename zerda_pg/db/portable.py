"""A tenant's rows as JSON and back, to the letter.

The server writes and reads the JSON: contents keep their form, numbers their digits, times their
microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection, text

from zerda_pg.db.facts import DatabaseFacts
from zerda_pg.db.rows import dump_rows
from zerda_pg.scope import Scope
from zerda_pg.text import content_hash

__all__ = [
    "PAGE_BYTES",
    "PAGE_ROWS",
    "SECTIONS",
    "Key",
    "Section",
    "existing",
    "export_page",
    "insert_entries",
    "insert_rows",
    "line_names",
    "stored_hash",
    "unchanged",
]

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


Key: TypeAlias = tuple[Any, ...]


def line_names(section: Section, *, vectors: bool) -> list[str]:
    """What a line of the section has, in order."""
    names = list(section.columns)
    if section.word == "entry":
        names += [*_STATE, *(("vector", "truncated") if vectors else ())]
    return names


def stored_hash(body: str) -> str:
    """A text's `content_hash` as a line has it."""
    return f"\\x{content_hash(body)}"


def export_page(
    connection: Connection,
    facts: DatabaseFacts,
    scope: Scope,
    section: Section,
    *,
    after: Key | None,
    model_id: int | None,
    until: Key | None = None,
    without: Sequence[Key] = (),
) -> list[tuple[Key, str]]:
    """The rows of a page as JSON texts, each with its key; the next page starts after the last.

    Args:
        connection: In a transaction of one snapshot.
        facts: The database's.
        scope: Whose rows; a user's scope exports what it sees.
        section: Which.
        after: The last key of the page before.
        model_id: Whose vectors come along; None: none.
        until: The last key wanted; None: to the end.
        without: Keys of rows that are not wanted.
    """
    key = ", ".join(f"t.{name}" for name in section.key)
    same = " AND ".join(f"t.{name} = p.{name}" for name in section.key)
    columns = ", ".join(f"t.{name}" for name in section.columns)
    join = ""
    if section.word == "entry":
        columns += "".join(f", s.{name}" for name in _STATE)
        join = _STATE_JOIN
        if model_id is not None:
            # base64 of big-endian half floats, without pgvector's header and line breaks
            sent = f"substring({facts.vector_schema}.halfvec_send(v.embedding) FROM 5)"
            columns += f", translate(encode({sent}, 'base64'), E'\\n', '') AS vector, v.truncated"
            join += (
                "LEFT JOIN zerda.embeddings v ON v.tenant_id = :tenant AND v.entry_id = t.id "
                "AND v.model_id = :model "
            )
    wanted = _seen(scope, section)
    if until is not None:
        wanted += f" AND ({key}) <= ({_bound(section, 'u')})"
    if without:
        wanted += f" AND NOT EXISTS (SELECT 1 FROM {_listed(section)} WHERE {same})"
    rows = connection.execute(
        text(
            f"SELECT {key}, row_to_json(x)::text AS line FROM ("
            f"SELECT t.*, sum(t.size) OVER (ORDER BY {key}) - t.size AS before FROM ("
            f"SELECT {key}, {section.size} AS size FROM zerda.{section.table} t "
            f"WHERE t.tenant_id = :tenant AND ({key}) > ({_bound(section, 'k')}){wanted} "
            f"ORDER BY {key} LIMIT :limit) AS t) AS p "
            f"JOIN zerda.{section.table} t ON t.tenant_id = :tenant AND {same} {join}"
            f"CROSS JOIN LATERAL (SELECT {columns}) AS x "
            f"WHERE p.before < :bytes ORDER BY {key}"
        ),
        {
            "tenant": scope.tenant_id, "limit": PAGE_ROWS, "bytes": PAGE_BYTES,
            **({} if scope.user_id is None else {"user": scope.user_id}),
            **({"model": model_id} if ":model" in join else {}),
            **_bound_values("k", _least(section) if after is None else after),
            **({} if until is None else _bound_values("u", until)),
            **(_listed_values(section, without) if without else {}),
        },
    ).all()  # fmt: skip
    # a content may have been written with line breaks, which JSON has between its parts only
    return [(tuple(row[:-1]), row.line.replace("\n", " ")) for row in rows]


_TOLD_BY_HASH = {"content", "body"}
"""Columns that are large, and that `content_hash` stands for.

Version and times do not tell of another text: a tenant that was cleared and filled again from an
edited export has the same ones. The hash does, up to case, white space and Unicode form.
"""


def unchanged(
    connection: Connection, scope: Scope, section: Section, rows: Sequence[Mapping[str, Any]]
) -> set[Key]:
    """The keys of those rows, as they were exported, that the database still has like that.

    It reads no text and no vector: that a row's text is the one of its hash is the caller's to
    check, and a vector is taken for its text's.
    """
    names = [name for name in section.columns if name not in _TOLD_BY_HASH]
    columns = ", ".join(f"t.{name}" for name in names)
    join = ""
    if section.word == "entry":
        columns += "".join(f", s.{name}" for name in _STATE)
        join = _STATE_JOIN
        names += _STATE
    key = ", ".join(f"t.{name}" for name in section.key)
    same = " AND ".join(f"t.{name} = p.{name}" for name in section.key)
    before = {tuple(row.get(name) for name in section.key): row for row in rows}
    found = connection.execute(
        text(
            f"SELECT {key}, row_to_json(x) AS line FROM {_listed(section)} "
            f"JOIN zerda.{section.table} t ON t.tenant_id = :tenant AND {same} {join}"
            f"CROSS JOIN LATERAL (SELECT {columns}) AS x WHERE true{_seen(scope, section)}"
        ),
        {
            "tenant": scope.tenant_id,
            **({} if scope.user_id is None else {"user": scope.user_id}),
            **_listed_values(section, list(before)),
        },
    )
    same_now: set[Key] = set()
    for *place, now in found:
        row = before[tuple(place)]
        then = {name: row.get(name) for name in names}
        # as texts too: for Python, 1, 1.0 and true are the same
        if now == then and json.dumps(now) == json.dumps(then):
            same_now.add(tuple(place))
    return same_now


_STATE_JOIN = "JOIN zerda.entry_state s ON s.tenant_id = :tenant AND s.entry_id = t.id "


def _least(section: Section) -> Key:
    """What every key comes after."""
    return tuple("" if kind == "text" else -1 for kind in section.key.values())


def _bound(section: Section, name: str) -> str:
    """A key as parameters."""
    return ", ".join(f"CAST(:{name}{n} AS {kind})" for n, kind in enumerate(section.key.values()))


def _bound_values(name: str, key: Key) -> dict[str, Any]:
    return {f"{name}{n}": value for n, value in enumerate(key)}


def _listed(section: Section) -> str:
    """Keys as parameters, one array a column, to be joined as `p`."""
    arrays = ", ".join(f"CAST(:l{n} AS {kind}[])" for n, kind in enumerate(section.key.values()))
    return f"unnest({arrays}) AS p ({', '.join(section.key)})"


def _listed_values(section: Section, keys: Sequence[Key]) -> dict[str, Any]:
    return {f"l{n}": [key[n] for key in keys] for n in range(len(section.key))}


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
