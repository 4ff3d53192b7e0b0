"""Operations that write: (connection, …) → values. They never open a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, func, select, text, update

from zerda_pg.db.changes import begin_write, record_changes
from zerda_pg.db.direct import fetch
from zerda_pg.db.facts import DatabaseFacts
from zerda_pg.db.links import insert_edge
from zerda_pg.db.reach import lock, visible
from zerda_pg.db.reads import fetch_entry
from zerda_pg.db.rows import dump_rows
from zerda_pg.db.schema import embeddings, entries, entry_state
from zerda_pg.db.vectors import HalfvecArrayParam, HalfvecParam
from zerda_pg.entry import MemoryEntry
from zerda_pg.errors import ConflictError, NotFoundError
from zerda_pg.scope import Scope

__all__ = [
    "Written",
    "correct",
    "discard",
    "discard_many",
    "invalidate",
    "put_entries",
    "record_access",
    "restore",
]


@dataclass(frozen=True, kw_only=True)
class Written:
    """What `zerda.put_entries` says of one row."""

    n: int
    """Its number in the batch."""
    id: str
    status: str
    version: int
    recorded_at: datetime
    access_count: int | None
    """What an entry that was replaced keeps; else None."""
    last_access: datetime | None


def put_entries(
    connection: Connection,
    facts: DatabaseFacts,
    scope: Scope,
    model_id: int,
    rows: Sequence[Mapping[str, Any]],
    vectors: NDArray[np.float32],
    *,
    if_exists: str,
    dedupe: bool,
    direct: bool = True,
) -> list[Written]:
    """Write a batch, all or nothing, in one round trip; the results in the batch's order.

    `direct` is False for what a layer writes, which goes with its last membership.
    """
    statement = (
        "SELECT n, id, status, version, recorded_at, access_count, last_access "
        "FROM zerda.put_entries("
        "%(tenant)s, %(user)s, %(model)s, %(rows)s::json, "
        f"CAST(%(vectors)s AS {facts.vector_schema}.halfvec[]), "
        "%(if_exists)s, %(dedupe)s, %(direct)s)"
    )
    found = fetch(
        connection,
        statement,
        {
            "tenant": scope.tenant_id,
            "user": scope.user_id,
            "model": model_id,
            "rows": dump_rows(rows),
            "vectors": HalfvecArrayParam(vectors, facts.halfvec_oid),
            "if_exists": if_exists,
            "dedupe": dedupe,
            "direct": direct,
        },
    )
    return sorted((Written(**row._asdict()) for row in found), key=lambda written: written.n)


def correct(
    connection: Connection,
    facts: DatabaseFacts,
    scope: Scope,
    entry_id: str,
    *,
    if_version: int | None,
    columns: Mapping[str, Any],
    state: Mapping[str, float],
    vector: tuple[int, NDArray[np.float32], bool] | None,
) -> MemoryEntry:
    """Change an entry and keep the version before.

    Args:
        columns: New values of columns of `entries`.
        state: New values of columns of `entry_state`.
        vector: Model id, vector and whether the text was cut, where the text changed.

    Raises:
        NotFoundError: If the scope has no such entry.
        AccessDeniedError: If it is everyone's and the scope is a user's.
        ConflictError: If it is not at `if_version`.
    """
    tenant = scope.tenant_id
    recorded = begin_write(connection, tenant, None if vector is None else vector[0])
    where = (entries.c.tenant_id == tenant, entries.c.id == entry_id)
    found = connection.execute(
        select(entries.c.version, entries.c.user_id)
        .where(*where, visible(scope))
        .with_for_update(key_share=True)
    ).one_or_none()
    if found is None:
        raise scope.missing(entry_id)
    if not scope.owns(found.user_id):
        raise scope.refused(entry_id)
    if if_version is not None and found.version != if_version:
        raise ConflictError(
            f"entry {entry_id!r} is at version {found.version}, not {if_version}: read it again"
        )
    clock = connection.scalar(select(func.clock_timestamp()))
    connection.execute(
        text("SELECT zerda.keep_version(:tenant, :id, :clock)"),
        {"tenant": tenant, "id": entry_id, "clock": clock},
    )
    connection.execute(
        update(entries)
        .where(*where)
        .values(version=found.version + 1, recorded_at=clock, updated_at=clock, **columns)
    )
    if state:
        connection.execute(
            update(entry_state)
            .where(entry_state.c.tenant_id == tenant, entry_state.c.entry_id == entry_id)
            .values(**state)
        )
    _repeat(connection, scope, [entry_id])
    if vector is not None:
        _replace_vector(connection, facts, scope, entry_id, *vector)
    if recorded:
        record_changes(connection, tenant, [entry_id], "updated")
    entry = fetch_entry(connection, scope, entry_id)
    if entry is None:
        raise NotFoundError(f"entry {entry_id!r} expired as it was changed")
    return entry


_REPEATED = (
    "memory_type", "kind", "status", "session_id", "user_id", "agent_id", "valid_from",
    "valid_to", "expires_at",
)  # fmt: skip


def _repeat(connection: Connection, scope: Scope, ids: Sequence[str]) -> None:
    """Bring the columns that `embeddings` repeats in line with `entries`."""
    connection.execute(
        update(embeddings)
        .where(
            embeddings.c.tenant_id == scope.tenant_id,
            embeddings.c.entry_id == func.any(list(ids)),
            entries.c.tenant_id == scope.tenant_id,
            entries.c.id == embeddings.c.entry_id,
        )
        .values({name: entries.c[name] for name in _REPEATED})
    )


def _replace_vector(
    connection: Connection,
    facts: DatabaseFacts,
    scope: Scope,
    entry_id: str,
    model_id: int,
    vector: NDArray[np.float32],
    truncated: bool,
) -> None:
    """Set this model's vector; those of other models are of the old text, and go."""
    parameters = {
        "tenant": scope.tenant_id,
        "id": entry_id,
        "model": model_id,
        "vector": HalfvecParam(vector),
        "truncated": truncated,
    }
    connection.execute(
        delete(embeddings).where(
            embeddings.c.tenant_id == scope.tenant_id,
            embeddings.c.entry_id == entry_id,
        )
    )
    repeated = ", ".join(_REPEATED)
    connection.exec_driver_sql(
        f"INSERT INTO zerda.embeddings (tenant_id, entry_id, model_id, embedding, truncated, "
        f"{repeated}) SELECT e.tenant_id, e.id, %(model)s, "
        f"CAST(%(vector)s AS {facts.vector_schema}.halfvec), %(truncated)s, {repeated} "
        "FROM zerda.entries e WHERE e.tenant_id = %(tenant)s AND e.id = %(id)s",
        parameters,
    )


def discard(connection: Connection, scope: Scope, entry_id: str) -> bool:
    """Hide an entry; False if it is not there."""
    return discard_many(connection, scope, [entry_id]) > 0


def discard_many(connection: Connection, scope: Scope, ids: Sequence[str]) -> int:
    """Hide entries; how many of them are there, and are the scope's own."""
    recorded = begin_write(connection, scope.tenant_id)
    found = [name for name, own in lock(connection, scope, ids).items() if own]
    if found:
        hidden = connection.scalars(
            update(entries)
            .where(
                entries.c.tenant_id == scope.tenant_id,
                entries.c.id == func.any(found),
                entries.c.status != "discarded",
            )
            .values(status="discarded", discarded_at=func.now(), updated_at=func.now())
            .returning(entries.c.id)
        ).all()
        _repeat(connection, scope, found)
        if recorded:
            record_changes(connection, scope.tenant_id, sorted(hidden), "discarded")
    return len(found)


def restore(connection: Connection, scope: Scope, entry_id: str) -> bool:
    """Bring a discarded entry back to what it was; False if it is not there."""
    recorded = begin_write(connection, scope.tenant_id)
    if not lock(connection, scope, [entry_id]).get(entry_id):
        return False
    brought_back = connection.execute(
        text(
            "UPDATE zerda.entries SET discarded_at = NULL, updated_at = now(), "
            "status = CASE WHEN invalidated_at IS NULL THEN 'active' ELSE 'superseded' END "
            "WHERE tenant_id = :tenant AND id = :id AND status = 'discarded'"
        ),
        {"tenant": scope.tenant_id, "id": entry_id},
    )
    _repeat(connection, scope, [entry_id])
    if recorded and brought_back.rowcount:
        record_changes(connection, scope.tenant_id, [entry_id], "restored")
    return True


def invalidate(
    connection: Connection, scope: Scope, entry_id: str, by: str | None, at: datetime | None
) -> MemoryEntry:
    """Mark an entry superseded from `at` (default: now), with an edge to what replaced it.

    Raises:
        NotFoundError: If either is not there.
        AccessDeniedError: If the entry is everyone's and the scope is a user's.
        ConflictError: If the entry has itself replaced the other one.
    """
    recorded = begin_write(connection, scope.tenant_id)
    wanted = [entry_id] if by is None else [entry_id, by]
    found = lock(connection, scope, wanted)
    for name in wanted:
        if name not in found:
            raise scope.missing(name)
    if not found[entry_id]:
        raise scope.refused(entry_id)
    if by is not None and connection.scalar(
        text("SELECT zerda.replaced_by(:tenant, :by, ARRAY[:id])"),
        {"tenant": scope.tenant_id, "by": by, "id": entry_id},
    ):
        raise ConflictError(
            f"by: entry {entry_id!r} has itself replaced {by!r}: write {by!r} again with "
            f"supersedes={entry_id!r}, which brings it back"
        )
    clock = connection.scalar(select(func.clock_timestamp()))
    ended = connection.scalar(
        text("SELECT zerda.supersede(:tenant, :id, :since, :clock)"),
        {"tenant": scope.tenant_id, "id": entry_id, "since": at or clock, "clock": clock},
    )
    if recorded and ended:
        record_changes(connection, scope.tenant_id, [entry_id], "superseded")
    if by is not None:
        insert_edge(connection, scope, entry_id, by, "invalidated_by", 1.0)
    entry = fetch_entry(connection, scope, entry_id)
    if entry is None:
        raise NotFoundError(f"entry {entry_id!r} has expired")
    return entry


def record_access(
    connection: Connection, scope: Scope, ids: Sequence[str], session_id: str | None
) -> None:
    """Count an access of each entry, and what the session touched.

    Locks go by id, so that recalls of the same entries never deadlock. The commit does not
    wait for the disk: a crash may lose a count, never a memory.
    """
    parameters = {"tenant": scope.tenant_id, "ids": sorted(set(ids)), "session": session_id}
    connection.execute(text("SET LOCAL synchronous_commit = off"))
    connection.execute(
        text(
            "UPDATE zerda.entry_state s "
            "SET access_count = s.access_count + 1, last_access = :clock "
            "FROM (SELECT entry_id FROM zerda.entry_state "
            "WHERE tenant_id = :tenant AND entry_id = ANY(:ids) "
            "ORDER BY entry_id FOR NO KEY UPDATE) AS locked "
            "WHERE s.tenant_id = :tenant AND s.entry_id = locked.entry_id"
        ),
        parameters | {"clock": connection.scalar(select(func.clock_timestamp()))},
    )
    if session_id is not None:
        connection.execute(
            text(
                "INSERT INTO zerda.session_touches (tenant_id, session_id, entry_id, touched_at) "
                # not what was erased meanwhile: no foreign key would keep its id out
                "SELECT :tenant, :session, s.entry_id, now() FROM zerda.entry_state s "
                "WHERE s.tenant_id = :tenant AND s.entry_id = ANY(:ids) ORDER BY s.entry_id "
                "ON CONFLICT (tenant_id, session_id, entry_id) "
                "DO UPDATE SET touched_at = excluded.touched_at"
            ),
            parameters,
        )
