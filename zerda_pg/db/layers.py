"""Layers: memberships of entries in short-term, long-term, semantic and working memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, and_, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert

from zerda_pg.db.erasure import delete_entries
from zerda_pg.db.facts import DatabaseFacts
from zerda_pg.db.reads import whole_entries
from zerda_pg.db.rows import entry_from_row
from zerda_pg.db.schema import entries, entry_state, layer_entries
from zerda_pg.db.vectors import HalfvecParam
from zerda_pg.db.writes import Written
from zerda_pg.entry import ACCESS_BOOST, MemoryEntry
from zerda_pg.scope import Scope

__all__ = [
    "Layer",
    "access",
    "fade_linearly",
    "join",
    "leave",
    "members",
    "nearest",
    "size",
    "trim",
]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of one session."""

    name: Literal["short_term", "long_term", "semantic", "working", "direct"]
    session_id: str = ""


DIRECT = Layer(name="direct")
"""The membership that holds an entry which was also written by itself."""


def _of(scope: Scope, layer: Layer) -> Any:
    m = layer_entries.c
    return and_(
        m.tenant_id == scope.tenant_id, m.layer == layer.name, m.session_id == layer.session_id
    )


def _own(scope: Scope, layer: Layer) -> Any:
    """The memberships that the scope may end: a user's layer ends those of his own entries."""
    ours = _of(scope, layer)
    if scope.user_id is None:
        return ours
    own = select(entries.c.id).where(
        entries.c.tenant_id == scope.tenant_id,
        entries.c.user_id == scope.user_id,
        entries.c.id == layer_entries.c.entry_id,
    )
    return and_(ours, own.exists())


def join(connection: Connection, scope: Scope, layer: Layer, written: Sequence[Written]) -> None:
    """Make what was written members, in order; a member again becomes the newest.

    What was in the store before and in no layer was written by itself: it is held.
    """
    new = {w.id for w in written if w.status == "created"}
    before = [w.id for w in written if w.id not in new]
    if before:
        # In two statements: a distributed database refuses an INSERT that asks its own table.
        # Nothing comes between them, since writing the entries has locked them.
        alone = sorted(set(before) - _held(connection, scope, before))
        _insert(connection, scope, DIRECT, alone)
        connection.execute(
            delete(layer_entries).where(
                _of(scope, layer), layer_entries.c.entry_id == func.any(before)
            )
        )
    _insert(connection, scope, layer, [w.id for w in written])


def _insert(connection: Connection, scope: Scope, layer: Layer, ids: Sequence[str]) -> None:
    if ids:
        connection.execute(
            insert(layer_entries).on_conflict_do_nothing(),
            [
                {
                    "tenant_id": scope.tenant_id,
                    "layer": layer.name,
                    "session_id": layer.session_id,
                    "entry_id": entry_id,
                }
                for entry_id in ids
            ],
        )


def _held(connection: Connection, scope: Scope, ids: Sequence[str]) -> set[str]:
    """Those of the entries that are in any layer, or held by themselves."""
    return set(
        connection.scalars(
            select(layer_entries.c.entry_id).where(
                layer_entries.c.tenant_id == scope.tenant_id,
                layer_entries.c.entry_id == func.any(list(ids)),
            )
        )
    )


def leave(
    connection: Connection, scope: Scope, layer: Layer, ids: Sequence[str] | None = None
) -> list[str]:
    """End memberships (without `ids` all of them); an entry goes with its last one."""
    ours = _own(scope, layer)
    if ids is not None:
        ours = and_(ours, layer_entries.c.entry_id == func.any(list(ids)))
    leaving = list(
        connection.scalars(
            select(layer_entries.c.entry_id).where(ours).order_by(layer_entries.c.entry_id)
        )
    )
    if not leaving:
        return []
    # locked first: of two layers left at once, the second sees that it was the last
    connection.execute(
        select(entries.c.id)
        .where(entries.c.tenant_id == scope.tenant_id, entries.c.id == func.any(leaving))
        .order_by(entries.c.id)
        .with_for_update()
    )
    left = sorted(
        connection.scalars(
            delete(layer_entries)
            .where(_of(scope, layer), layer_entries.c.entry_id == func.any(leaving))
            .returning(layer_entries.c.entry_id)
        )
    )
    _drop_unheld(connection, scope, left)
    return left


def trim(connection: Connection, scope: Scope, layer: Layer, newest: int) -> list[str]:
    """End the memberships beyond the newest ones; one process at a time, so none is too many."""
    connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))"),
        {"key": f"zerda layer {scope.tenant_id} {layer.name} {layer.session_id}"},
    )
    beyond = connection.scalars(
        select(layer_entries.c.entry_id)
        .where(_own(scope, layer))
        .order_by(layer_entries.c.seq.desc())
        .offset(newest)
    )
    old = list(beyond)
    return leave(connection, scope, layer, old) if old else []


def _drop_unheld(connection: Connection, scope: Scope, ids: Sequence[str]) -> None:
    if not ids:
        return
    held = _held(connection, scope, ids)
    unheld = [entry_id for entry_id in ids if entry_id not in held]
    if unheld:
        delete_entries(connection, Scope(tenant_id=scope.tenant_id), unheld)


def members(
    connection: Connection,
    scope: Scope,
    layer: Layer,
    *,
    order: Literal["arrival", "newest", "importance"] = "arrival",
    limit: int | None = None,
    min_importance: float = 0.0,
    ids: Sequence[str] | None = None,
) -> list[MemoryEntry]:
    """A layer's active entries."""
    effective = entry_state.c.importance * entry_state.c.decay_factor
    orders: dict[str, list[Any]] = {
        "arrival": [layer_entries.c.seq],
        "newest": [entries.c.created_at.desc(), layer_entries.c.seq.desc()],
        "importance": [effective.desc(), layer_entries.c.seq],
    }
    statement = (
        whole_entries(scope)
        .join(
            layer_entries,
            and_(
                layer_entries.c.tenant_id == entries.c.tenant_id,
                layer_entries.c.entry_id == entries.c.id,
            ),
        )
        .where(_of(scope, layer), entries.c.status == "active")
        .order_by(*orders[order])
        .limit(limit)
    )
    if min_importance > 0.0:
        statement = statement.where(effective >= min_importance)
    if ids is not None:
        statement = statement.where(entries.c.id == func.any(list(ids)))
    return [entry_from_row(row) for row in connection.execute(statement)]


def size(connection: Connection, scope: Scope, layer: Layer) -> int:
    """How many active entries of a layer the scope sees."""
    statement = (
        select(func.count())
        .select_from(layer_entries)
        .join(
            entries,
            and_(
                entries.c.tenant_id == layer_entries.c.tenant_id,
                entries.c.id == layer_entries.c.entry_id,
            ),
        )
        .where(
            _of(scope, layer),
            entries.c.status == "active",
            entries.c.expires_at.is_(None) | (entries.c.expires_at > func.now()),
        )
    )
    if scope.user_id is not None:
        statement = statement.where(
            entries.c.user_id.is_(None) | (entries.c.user_id == scope.user_id)
        )
    return int(connection.scalar(statement) or 0)


def nearest(
    connection: Connection,
    facts: DatabaseFacts,
    scope: Scope,
    layer: Layer,
    model_id: int,
    vector: NDArray[np.float32],
    k: int,
) -> list[tuple[str, float]]:
    """The k members nearest by cosine, exactly, with their cosines.

    Ordered by a value derived from the distance, since an approximate index on the distance
    would find fewer than there are.
    """
    distance = f"v.embedding OPERATOR({facts.vector_schema}.<=>) "
    query = f"CAST(%(vector)s AS {facts.vector_schema}.halfvec)"
    rows = connection.exec_driver_sql(
        f"SELECT v.entry_id AS id, 1.0 - ({distance}{query}) AS similarity "
        "FROM zerda.layer_entries m "
        "JOIN zerda.embeddings v ON v.tenant_id = %(tenant)s AND v.entry_id = m.entry_id "
        "AND v.model_id = %(model)s "
        "WHERE m.tenant_id = %(tenant)s AND m.layer = %(layer)s AND m.session_id = %(session)s "
        "AND v.status = 'active' AND (v.expires_at IS NULL OR v.expires_at > now()) "
        "AND (%(user)s::text IS NULL OR v.user_id IS NULL OR v.user_id = %(user)s::text) "
        "ORDER BY similarity DESC, v.entry_id LIMIT %(k)s",
        {
            "tenant": scope.tenant_id, "layer": layer.name, "session": layer.session_id,
            "user": scope.user_id, "model": model_id, "vector": HalfvecParam(vector), "k": k,
        },
    )  # fmt: skip
    return [(row.id, float(row.similarity)) for row in rows]


def access(connection: Connection, scope: Scope, ids: Sequence[str]) -> None:
    """Record an access as the seeds' classes do: importance rises with it."""
    connection.execute(
        text(
            "UPDATE zerda.entry_state s SET access_count = s.access_count + 1, "
            "last_access = :clock, "
            "importance = least(1.0, s.importance + :boost * (1.0 - s.importance)) "
            "FROM (SELECT entry_id FROM zerda.entry_state "
            "WHERE tenant_id = :tenant AND entry_id = ANY(:ids) "
            "ORDER BY entry_id FOR NO KEY UPDATE) AS locked "
            "WHERE s.tenant_id = :tenant AND s.entry_id = locked.entry_id"
        ),
        {
            "tenant": scope.tenant_id,
            "ids": sorted(set(ids)),
            "boost": ACCESS_BOOST,
            "clock": connection.scalar(select(func.clock_timestamp())),
        },
    )


def fade_linearly(
    connection: Connection, scope: Scope, layer: Layer, rate: float, floor: float
) -> None:
    """Set the members' decay factor to 1 − rate · days since the last access, at least `floor`."""
    connection.execute(
        text(
            "UPDATE zerda.entry_state s SET decay_factor = greatest(:floor, least(1.0, 1.0 - "
            ":rate * extract(epoch FROM CAST(:clock AS timestamptz) - s.last_access)::float8 "
            "/ 86400.0)) "
            "FROM (SELECT m.entry_id FROM zerda.layer_entries m "
            "JOIN zerda.entry_state t ON t.tenant_id = :tenant AND t.entry_id = m.entry_id "
            "WHERE m.tenant_id = :tenant AND m.layer = :layer AND m.session_id = :session "
            "ORDER BY m.entry_id FOR NO KEY UPDATE OF t) AS locked "
            "WHERE s.tenant_id = :tenant AND s.entry_id = locked.entry_id"
        ),
        {
            "tenant": scope.tenant_id, "layer": layer.name, "session": layer.session_id,
            "rate": rate, "floor": floor,
            "clock": connection.scalar(select(func.clock_timestamp())),
        },
    )  # fmt: skip
