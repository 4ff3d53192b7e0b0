"""Operations that read: (connection, …) → values. They never open a connection."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    DateTime,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    func,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.sql.selectable import FromClause

from zerda_pg.db.compiled import run
from zerda_pg.db.criteria import Criteria, active_now, conditions, visible
from zerda_pg.db.rows import entry_from_row, whole
from zerda_pg.db.schema import edges, entries, entry_state, entry_versions
from zerda_pg.entry import Edge, MemoryEntry
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
    "successors",
    "walk",
    "whole_entries",
]


def whole_entries(scope: Scope) -> Select[Any]:
    """Entries with their state, of any status: those the scope sees and that have not expired."""
    return whole(entries).where(
        entries.c.tenant_id == scope.tenant_id,
        or_(entries.c.expires_at.is_(None), entries.c.expires_at > func.now()),
        *([] if scope.user_id is None else [_own_or_shared(scope.user_id)]),
    )


def _own_or_shared(user_id: str) -> ColumnElement[bool]:
    return or_(entries.c.user_id.is_(None), entries.c.user_id == user_id)


def fetch_entries(
    connection: Connection, scope: Scope, ids: Sequence[str], *, now: datetime | None = None
) -> dict[str, MemoryEntry]:
    """Entries by id, of any status; those expired by `now` or another user's are absent."""
    criteria = Criteria(scope=scope, now=now)
    found = run(
        connection,
        ("fetch", scope.user_id is None, now is None),
        lambda: whole(entries).where(
            entries.c.tenant_id == bindparam("tenant"),
            entries.c.id == func.any(cast(bindparam("ids"), ARRAY(Text))),
            active_now(criteria, entries),
            *visible(criteria, entries),
        ),
        criteria.params() | {"ids": list(ids)},
    )
    return {row.id: entry_from_row(row) for row in found}


def fetch_entry(
    connection: Connection, scope: Scope, entry_id: str, *, now: datetime | None = None
) -> MemoryEntry | None:
    """One entry, of any status."""
    return fetch_entries(connection, scope, [entry_id], now=now).get(entry_id)


def fetch_versions(
    connection: Connection, scope: Scope, versions: Sequence[tuple[str, int]]
) -> dict[str, MemoryEntry]:
    """Entries by id as they were at a version, current or kept."""
    found: dict[str, MemoryEntry] = {}
    for table in (entries, entry_versions):
        statement = whole(table).where(
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

    def build() -> Select[Any]:
        key = tuple_(entries.c.created_at, entries.c.id)
        statement = whole(entries).where(*_all_conditions(criteria)).limit(bindparam("limit"))
        if after is not None:
            seen = tuple_(
                cast(bindparam("after_time"), DateTime(timezone=True)), bindparam("after_id")
            )
            statement = statement.where(key < seen if newest_first else key > seen)
        order = [entries.c.created_at, entries.c.id]
        return statement.order_by(*[c.desc() if newest_first else c.asc() for c in order])

    position = {} if after is None else {"after_time": after[0], "after_id": after[1]}
    found = run(
        connection,
        ("page", criteria.shape, newest_first, after is None),
        build,
        criteria.params() | position | {"limit": limit},
    )
    return [entry_from_row(row) for row in found]


def _all_conditions(criteria: Criteria) -> list[Any]:
    found: list[Any] = list(conditions(criteria, entries))
    if criteria.filter.min_importance is not None:
        effective = entry_state.c.importance * entry_state.c.decay_factor
        found.append(effective >= bindparam("min_importance"))
    return found


def admits(connection: Connection, criteria: Criteria, entry_id: str) -> bool:
    """Whether the criteria admit this entry."""
    return _count(connection, criteria, entry_id) > 0


def count_entries(connection: Connection, criteria: Criteria) -> int:
    """How many entries the criteria admit."""
    return _count(connection, criteria, None)


def _count(connection: Connection, criteria: Criteria, entry_id: str | None) -> int:
    def build() -> Select[Any]:
        source: FromClause = entries
        if criteria.filter.min_importance is not None:
            source = entries.join(
                entry_state,
                and_(
                    entry_state.c.tenant_id == entries.c.tenant_id,
                    entry_state.c.entry_id == entries.c.id,
                ),
            )
        statement = select(func.count()).select_from(source).where(*_all_conditions(criteria))
        return statement if entry_id is None else statement.where(entries.c.id == bindparam("id"))

    key = ("count", criteria.shape, entry_id is None)
    ((counted,),) = run(connection, key, build, criteria.params() | {"id": entry_id})
    return int(counted)


def clock() -> ColumnElement[datetime]:
    """The server's."""
    return func.now()


def list_tenants(connection: Connection, table: str = "entries") -> list[str]:
    """Every tenant with a row in the table, in order.

    By a loose index scan, one probe a tenant: 21 ms for 2,000 tenants of 500 entries, where
    DISTINCT, which reads the index from end to end, takes 275 ms on two cores and grows with the
    entries. Citus refuses a recursive query over all tenants, and takes DISTINCT.
    """
    distributed = connection.scalar(
        text("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus')")
    )
    if distributed:
        statement = f"SELECT DISTINCT tenant_id FROM zerda.{table} ORDER BY tenant_id"
    else:
        statement = (
            "WITH RECURSIVE t AS ("
            f"(SELECT tenant_id FROM zerda.{table} ORDER BY tenant_id LIMIT 1) "
            f"UNION ALL SELECT (SELECT e.tenant_id FROM zerda.{table} e "
            "WHERE e.tenant_id > t.tenant_id ORDER BY e.tenant_id LIMIT 1) "
            "FROM t WHERE t.tenant_id IS NOT NULL) "
            "SELECT tenant_id FROM t WHERE tenant_id IS NOT NULL"
        )
    return list(connection.scalars(text(statement)))


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
) -> dict[str, tuple[int, list[Edge]]]:
    """Ids reached over edges, either way, with their distance and the edges that end there."""
    reached: dict[str, tuple[int, list[Edge]]] = {entry_id: (0, [])}
    frontier = [entry_id]
    for distance in range(1, depth + 1):
        statement = (
            select(edges.c.source_id, edges.c.relation, edges.c.target_id, edges.c.weight)
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
        found = connection.execute(statement).all()
        ends = {end for row in found for end in (row.source_id, row.target_id)} - reached.keys()
        if scope.user_id is not None:
            ends = _seen(connection, scope, ends)
        frontier = []
        for row in found:
            edge = Edge(
                source_id=row.source_id, target_id=row.target_id, relation=row.relation,
                weight=row.weight,
            )  # fmt: skip
            for other in (row.source_id, row.target_id):
                if other not in ends:
                    continue
                if other in reached:
                    reached[other][1].append(edge)
                elif len(reached) <= limit:
                    reached[other] = (distance, [edge])
                    frontier.append(other)
        if not frontier:
            break
    del reached[entry_id]
    return reached


def successors(connection: Connection, scope: Scope, entry_id: str) -> list[str]:
    """Ids of what replaced an entry, as far as the scope sees them."""
    statement = (
        select(edges.c.target_id)
        .where(
            edges.c.tenant_id == scope.tenant_id,
            edges.c.source_id == entry_id,
            edges.c.relation == "invalidated_by",
        )
        .order_by(edges.c.target_id)
    )
    found = list(connection.scalars(statement))
    seen = set(found) if scope.user_id is None else _seen(connection, scope, set(found))
    return [name for name in found if name in seen]


def _seen(connection: Connection, scope: Scope, ids: set[str]) -> set[str]:
    """Those of these ids that a user's scope sees: a walk leads through no other user's entry."""
    assert scope.user_id is not None
    statement = select(entries.c.id).where(
        entries.c.tenant_id == scope.tenant_id,
        entries.c.id == func.any(sorted(ids)),
        _own_or_shared(scope.user_id),
    )
    return set(connection.scalars(statement))
