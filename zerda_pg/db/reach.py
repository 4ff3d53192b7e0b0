"""Which entries a scope sees and which of them it may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, select, text

from zerda_pg.db.schema import entries
from zerda_pg.scope import Scope

__all__ = ["lock", "visible"]


def visible(scope: Scope) -> Any:
    """A user's scope reaches that user's entries and those without a user."""
    if scope.user_id is None:
        return text("true")
    return (entries.c.user_id.is_(None)) | (entries.c.user_id == scope.user_id)


def lock(connection: Connection, scope: Scope, ids: Sequence[str]) -> dict[str, bool]:
    """Lock the visible ones of these entries, in the order of their ids.

    Returns:
        Whether the scope may change it, by id.
    """
    found = connection.execute(
        select(entries.c.id, entries.c.user_id)
        .where(
            entries.c.tenant_id == scope.tenant_id,
            entries.c.id == func.any(list(ids)),
            visible(scope),
        )
        .order_by(entries.c.id)
        .with_for_update(key_share=True)
    )
    return {row.id: scope.owns(row.user_id) for row in found}
