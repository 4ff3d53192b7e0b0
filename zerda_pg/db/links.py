"""Edges: (connection, …) → values. They never open a connection."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, text
from sqlalchemy.dialects.postgresql import insert

from zerda_pg.db.changes import begin_write, record_changes
from zerda_pg.db.reach import lock
from zerda_pg.db.schema import edges
from zerda_pg.scope import Scope

__all__ = ["insert_edge", "insert_sequence", "relate", "unrelate"]


def relate(
    connection: Connection, scope: Scope, source_id: str, target_id: str, relation: str,
    weight: float,
) -> None:  # fmt: skip
    """Link two entries; a second time sets the weight.

    Raises:
        NotFoundError: If either is not there.
        AccessDeniedError: If both are everyone's and the scope is a user's, or if the link would
            say of everyone's memory that it was replaced.
    """
    recorded = begin_write(connection, scope.tenant_id)
    found = lock(connection, scope, [source_id, target_id])
    for name in (source_id, target_id):
        if name not in found:
            raise scope.missing(name)
    if not any(found.values()) or (relation == "invalidated_by" and not found[source_id]):
        raise scope.refused(source_id)
    insert_edge(connection, scope, source_id, target_id, relation, weight)
    if recorded:
        record_changes(connection, scope.tenant_id, [source_id], "related")


def insert_edge(
    connection: Connection, scope: Scope, source_id: str, target_id: str, relation: str,
    weight: float,
) -> None:  # fmt: skip
    """Write a link between entries that are locked, or set its weight."""
    new = insert(edges).values(
        tenant_id=scope.tenant_id,
        source_id=source_id,
        relation=relation,
        target_id=target_id,
        weight=weight,
        metadata={},
        created_at=func.now(),
    )
    connection.execute(
        new.on_conflict_do_update(
            index_elements=["tenant_id", "source_id", "relation", "target_id"],
            set_={"weight": new.excluded.weight},
        )
    )


def insert_sequence(connection: Connection, scope: Scope, ids: Sequence[str]) -> None:
    """Link each entry to the next by `precedes`; links that exist stay."""
    if len(ids) < 2:
        return
    connection.execute(
        text(
            "INSERT INTO zerda.edges "
            "(tenant_id, source_id, relation, target_id, weight, metadata, created_at) "
            "SELECT :tenant, pair.source_id, 'precedes', pair.target_id, 1.0, '{}', now() "
            "FROM unnest(CAST(:sources AS text[]), CAST(:targets AS text[])) "
            "AS pair (source_id, target_id) ORDER BY 2, 4 "
            "ON CONFLICT (tenant_id, source_id, relation, target_id) DO NOTHING"
        ),
        {"tenant": scope.tenant_id, "sources": list(ids[:-1]), "targets": list(ids[1:])},
    )


def unrelate(
    connection: Connection, scope: Scope, source_id: str, target_id: str, relation: str
) -> bool:
    """Remove a link; False if it is not there."""
    recorded = begin_write(connection, scope.tenant_id)
    found = lock(connection, scope, [source_id, target_id])
    if len(found) < 2 or not any(found.values()):
        return False
    removed = connection.execute(
        delete(edges).where(
            edges.c.tenant_id == scope.tenant_id,
            edges.c.source_id == source_id,
            edges.c.relation == relation,
            edges.c.target_id == target_id,
        )
    )
    if recorded and removed.rowcount:
        record_changes(connection, scope.tenant_id, [source_id], "unrelated")
    return removed.rowcount > 0
