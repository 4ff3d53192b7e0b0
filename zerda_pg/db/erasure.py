"""Erasing: entries with all that hangs on them, and what else names a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, select, text, update

from zerda_pg.db.changes import begin_write, record_changes
from zerda_pg.db.schema import (
    edges,
    embeddings,
    entries,
    entry_state,
    entry_versions,
    layer_entries,
    lexemes,
    session_touches,
    tenants,
)
from zerda_pg.scope import Scope

__all__ = ["delete_entries", "forget_session", "purge"]


def delete_entries(connection: Connection, scope: Scope, ids: Sequence[str]) -> int:
    """Remove entries and all that hangs on them; how many there were."""
    return purge(connection, scope, [entries.c.id == func.any(list(ids))]).get("entries", 0)


_HANGING = (
    (entry_versions, ("id",)),
    (entry_state, ("entry_id",)),
    (embeddings, ("entry_id",)),
    (edges, ("source_id", "target_id")),
    (layer_entries, ("entry_id",)),
    (session_touches, ("entry_id",)),
)
"""Every table that names an entry, and its columns that do. The change
feed is not among them: it has ids only, and who follows it has to hear of the erasure."""


def purge(
    connection: Connection, scope: Scope, conditions: Sequence[Any], limit: int | None = None
) -> dict[str, int]:
    """Erase entries from every table; the counts of erased rows by table.

    A user's scope erases that user's entries only, not those that all users see.
    """
    recorded = begin_write(connection, scope.tenant_id)
    chosen = (
        select(entries.c.id)
        .where(entries.c.tenant_id == scope.tenant_id, *conditions)
        .order_by(entries.c.id)
        .limit(limit)
        .with_for_update()
    )
    if scope.user_id is not None:
        chosen = chosen.where(entries.c.user_id == scope.user_id)
    ids = list(connection.scalars(chosen))
    counts: dict[str, int] = {}
    if not ids:
        return counts
    _forget_words(connection, scope.tenant_id, ids)
    for table, columns in _HANGING:
        counts[table.name] = sum(
            connection.execute(
                delete(table).where(
                    table.c.tenant_id == scope.tenant_id, table.c[column] == func.any(ids)
                )
            ).rowcount
            for column in columns
        )
    counts["entries"] = connection.execute(
        delete(entries).where(entries.c.tenant_id == scope.tenant_id, entries.c.id == func.any(ids))
    ).rowcount
    if recorded:
        record_changes(connection, scope.tenant_id, ids, "deleted")
    _forget_emptied(connection, scope.tenant_id)
    return counts


def forget_session(connection: Connection, scope: Scope, session_id: str) -> int:
    """Erase what a session touched; how many rows."""
    return connection.execute(
        delete(session_touches).where(
            session_touches.c.tenant_id == scope.tenant_id,
            session_touches.c.session_id == session_id,
        )
    ).rowcount


def _forget_words(connection: Connection, tenant_id: str, ids: Sequence[str]) -> None:
    """Take the words of entries (and of what they said before) out of the tenant's statistics.

    A word that then counts for less than two entries goes: what stays is said by others. A
    count that goes on is waited for, since it may have seen what is erased here.
    """
    connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended('zerda lexemes ' || :tenant, 0))"),
        {"tenant": tenant_id},
    )
    parameters = {"tenant": tenant_id, "ids": list(ids)}
    words = connection.execute(
        text(
            "SELECT said.word, count(*) AS entries FROM ("
            "SELECT e.id, unnest(tsvector_to_array(e.search)) AS word FROM zerda.entries e "
            "WHERE e.tenant_id = :tenant AND e.id = ANY(:ids) "
            "UNION "
            "SELECT o.id, unnest(tsvector_to_array(o.search)) FROM zerda.entry_versions o "
            "WHERE o.tenant_id = :tenant AND o.id = ANY(:ids)) AS said GROUP BY said.word"
        ),
        parameters,
    ).all()
    counted = {
        "tenant": tenant_id,
        "words": [row.word for row in words],
        "entries": [row.entries for row in words],
    }
    connection.execute(
        text(
            "UPDATE zerda.lexemes l SET entries = l.entries - said.entries "
            "FROM unnest(CAST(:words AS text[]), CAST(:entries AS int[])) AS said (word, entries) "
            "WHERE l.tenant_id = :tenant AND l.lexeme = said.word"
        ),
        counted,
    )
    connection.execute(
        text(
            "DELETE FROM zerda.lexemes l "
            "WHERE l.tenant_id = :tenant AND l.lexeme = ANY(:words) AND l.entries < 2"
        ),
        counted,
    )


def _forget_emptied(connection: Connection, tenant_id: str) -> None:
    """Of a tenant without entries nothing stays but a change feed that is on."""
    left = connection.scalar(select(entries.c.id).where(entries.c.tenant_id == tenant_id).limit(1))
    if left is not None:
        return
    connection.execute(delete(lexemes).where(lexemes.c.tenant_id == tenant_id))
    connection.execute(
        update(tenants)
        .where(tenants.c.tenant_id == tenant_id)
        .values(entries_counted=0, counted_at=None)
    )
    connection.execute(
        delete(tenants).where(
            tenants.c.tenant_id == tenant_id,
            ~tenants.c.changes_enabled,
            tenants.c.ann_model_id.is_(None),
        )
    )
