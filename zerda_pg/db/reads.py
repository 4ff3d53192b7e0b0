"""Operations that read: (connection, …) → values. They never open a connection."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Select,
    and_,
    func,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.sql.selectable import FromClause

from zerda_pg.db.criteria import Criteria, conditions
from zerda_pg.db.rows import entry_from_row
from zerda_pg.db.schema import edges, entries, entry_state, entry_versions
from zerda_pg.entry import MemoryEntry
from zerda_pg.scope import Scope

__all__ = [
    "admits",
    "clock",
    "count_entries",
    "fetch_entries",
    "fetch_entry",
    "fetch_versions",
    "last_before",
    "list_entries",
    "list_tenants",
    "walk",
    "whole_entries",
]

_STATE = ("importance", "original_importance", "decay_factor", "access_count", "last_access")

_RECORDED = (
    "id", "version", "memory_type", "kind", "content", "session_id", "user_id", "agent_id",
    "tags", "metadata", "language", "status", "created_at", "recorded_at", "updated_at",
    "valid_from", "valid_to", "invalidated_at", "expires_at",
)  # fmt: skip


def _whole(table: FromClause) -> Select[Any]:
    """Entries (or versions) with their state."""
    return select(*[table.c[name] for name in _RECORDED], *[entry_state.c[n] for n in _STATE]).join(
        entry_state,
        and_(entry_state.c.tenant_id == table.c.tenant_id, entry_state.c.entry_id == table.c.id),
    )


def _bound(criteria: Criteria, statement: Select[Any]) -> Select[Any]:
    """The criteria's values for its binds, as far as the statement has them."""
    names = {element.key for element in _binds(statement)}
    return statement.params({k: v for k, v in criteria.params().items() if k in names})


def _binds(statement: Select[Any]) -> list[BindParameter[Any]]:
    from sqlalchemy.sql import visitors

    return [e for e in visitors.iterate(statement) if isinstance(e, BindParameter)]


def whole_entries(scope: Scope) -> Select[Any]:
    """Entries with their state, of any status: those the scope sees and that have not expired."""
    return _whole(entries).where(
        entries.c.tenant_id == scope.tenant_id,
        or_(entries.c.expires_at.is_(None), entries.c.expires_at > func.now()),
        *([] if scope.user_id is None else [_own_or_shared(scope.user_id)]),
    )


def _own_or_shared(user_id: str) -> ColumnElement[bool]:
    return or_(entries.c.user_id.is_(None), entries.c.user_id == user_id)


def fetch_entries(
    connection: Connection, scope: Scope, ids: Sequence[str]
) -> dict[str, MemoryEntry]:
    """Entries by id, of any status; those that expired or are another user's are absent."""
    found = connection.execute(whole_entries(scope).where(entries.c.id == func.any(list(ids))))
    return {row.id: entry_from_row(row) for row in found}


def fetch_entry(connection: Connection, scope: Scope, entry_id: str) -> MemoryEntry | None:
    """One entry, of any status."""
    return fetch_entries(connection, scope, [entry_id]).get(entry_id)


def fetch_versions(
    connection: Connection, scope: Scope, versions: Sequence[tuple[str, int]]
) -> dict[str, MemoryEntry]:
    """Entries by id as they were at a version, current or kept."""
    found: dict[str, MemoryEntry] = {}
    for table in (entries, entry_versions):
        statement = _whole(table).where(
            table.c.tenant_id == scope.tenant_id,
            tuple_(table.c.id, table.c.version).in_(list(versions)),
        )
        for row in connection.execute(statement):
            found[row.id] = entry_from_row(row)
    return found


def list_entries(
    connection: Connection,
    criteria: Criteria,
    *,
    newest_first: bool,
    limit: int,
    after: tuple[datetime, str] | None,
) -> list[MemoryEntry]:
    """A page by (time, id), which do not change while others write."""
    key = tuple_(entries.c.created_at, entries.c.id)
    statement = _whole(entries).where(*_all_conditions(criteria)).limit(limit)
    if after is not None:
        statement = statement.where(key < after if newest_first else key > after)
    order = [entries.c.created_at, entries.c.id]
    statement = statement.order_by(*[c.desc() if newest_first else c.asc() for c in order])
    return [entry_from_row(row) for row in connection.execute(_bound(criteria, statement))]


def _all_conditions(criteria: Criteria) -> list[Any]:
    found: list[Any] = list(conditions(criteria, entries))
    if (least := criteria.filter.min_importance) is not None:
        found.append(entry_state.c.importance * entry_state.c.decay_factor >= least)
    return found


def admits(connection: Connection, criteria: Criteria, entry_id: str) -> bool:
    """Whether the criteria admit this entry."""
    return _count(connection, criteria, [entries.c.id == entry_id]) > 0


def count_entries(connection: Connection, criteria: Criteria) -> int:
    """How many entries the criteria admit."""
    return _count(connection, criteria, [])


def _count(connection: Connection, criteria: Criteria, more: list[Any]) -> int:
    source: FromClause = entries
    if criteria.filter.min_importance is not None:
        source = entries.join(
            entry_state,
            and_(
                entry_state.c.tenant_id == entries.c.tenant_id,
                entry_state.c.entry_id == entries.c.id,
            ),
        )
    statement = select(func.count()).select_from(source).where(*_all_conditions(criteria), *more)
    return int(connection.scalar(_bound(criteria, statement)) or 0)


def clock() -> ColumnElement[datetime]:
    """The server's."""
    return func.now()


def list_tenants(connection: Connection) -> list[str]:
    """Every tenant with an entry, by a loose index scan: one probe a tenant."""
    found = connection.scalars(
        text(
            "WITH RECURSIVE t AS ("
            "(SELECT tenant_id FROM zerda.entries ORDER BY tenant_id LIMIT 1) "
            "UNION ALL SELECT (SELECT e.tenant_id FROM zerda.entries e "
            "WHERE e.tenant_id > t.tenant_id ORDER BY e.tenant_id LIMIT 1) "
            "FROM t WHERE t.tenant_id IS NOT NULL) "
            "SELECT tenant_id FROM t WHERE tenant_id IS NOT NULL"
        )
    )
    return list(found)


def last_before(
    connection: Connection, scope: Scope, session_id: str, entry: MemoryEntry
) -> str | None:
    """The last entry of a session that happened before `entry` and is not it.

    An entry that is stored happened when the store says: a message without a time of its own has
    another one each time it is given.
    """
    itself = entries.alias()
    stored = select(itself.c.created_at).where(
        itself.c.tenant_id == scope.tenant_id, itself.c.id == entry.id
    )
    happened = func.coalesce(stored.scalar_subquery(), entry.created_at)
    statement = (
        select(entries.c.id)
        .where(
            entries.c.tenant_id == scope.tenant_id,
            entries.c.session_id == session_id,
            entries.c.created_at < happened,
            entries.c.id != entry.id,
        )
        .order_by(entries.c.created_at.desc(), entries.c.id.desc())
        .limit(1)
    )
    return connection.scalar(statement)


def walk(
    connection: Connection,
    scope: Scope,
    entry_id: str,
    *,
    depth: int,
    relations: Sequence[str] | None,
    limit: int,
) -> dict[str, tuple[int, str]]:
    """Ids reached over edges, either way, with their distance and the last edge's relation."""
    reached: dict[str, tuple[int, str]] = {entry_id: (0, "")}
    frontier = [entry_id]
    for distance in range(1, depth + 1):
        statement = (
            select(edges.c.source_id, edges.c.relation, edges.c.target_id)
            .where(
                edges.c.tenant_id == scope.tenant_id,
                or_(
                    edges.c.source_id == func.any(frontier), edges.c.target_id == func.any(frontier)
                ),
            )
            .order_by(edges.c.source_id, edges.c.relation, edges.c.target_id)
            .limit(limit)
        )
        if relations is not None:
            statement = statement.where(edges.c.relation == func.any(list(relations)))
        frontier = []
        for source, relation, target in connection.execute(statement):
            for other in (source, target):
                if other not in reached and len(reached) <= limit:
                    reached[other] = (distance, relation)
                    frontier.append(other)
        if not frontier:
            break
    del reached[entry_id]
    return reached
