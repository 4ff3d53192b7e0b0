"""Erasing: entries with all that hangs on them, and what else names a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, text, update

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

    A user's scope erases that user's entries only, not those that all users see. The tenant's
    word statistics hold words of what is erased, so they go too, to be counted again.
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
    forget_lexemes(connection, scope.tenant_id)
    return counts


def forget_session(connection: Connection, scope: Scope, session_id: str) -> int:
    """Erase what a session touched; how many rows."""
    return connection.execute(
        delete(session_touches).where(
            session_touches.c.tenant_id == scope.tenant_id,
            session_touches.c.session_id == session_id,
        )
    ).rowcount


def forget_lexemes(connection: Connection, tenant_id: str) -> None:
    """Drop a tenant's word statistics; the next search of a large tenant has them counted.

    A count that goes on has seen what is erased here: it is waited for, not outrun.
    """
    connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended('zerda lexemes ' || :tenant, 0))"),
        {"tenant": tenant_id},
    )
    connection.execute(delete(lexemes).where(lexemes.c.tenant_id == tenant_id))
    connection.execute(
        update(tenants)
        .where(tenants.c.tenant_id == bindparam("tenant"))
        .values(entries_counted=0, counted_at=None),
        {"tenant": tenant_id},
    )
    # a row that says nothing beyond the defaults is one trace less
    connection.execute(
        delete(tenants).where(
            tenants.c.tenant_id == tenant_id,
            ~tenants.c.changes_enabled,
            tenants.c.ann_model_id.is_(None),
        )
    )
