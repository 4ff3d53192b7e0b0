"""Correcting, hiding, erasing and linking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from zerda_pg.clock import aware, parse_time, to_epoch
from zerda_pg.core import Core
from zerda_pg.db import erasure, links, reads, writes
from zerda_pg.db.rows import stored_fraction
from zerda_pg.db.schema import entries
from zerda_pg.entry import MemoryEntry, Status
from zerda_pg.ids import check_id
from zerda_pg.operations.prepare import check_entry, check_ids, check_interval, expiry
from zerda_pg.results import Neighbour
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, embed, read, write
from zerda_pg.text import body_of, check_text, content_hash

__all__ = [
    "clear",
    "delete",
    "discard",
    "invalidate",
    "neighbours",
    "purge",
    "relate",
    "restore",
    "unrelate",
    "update",
]

CHANGEABLE = frozenset(
    "content kind memory_type importance tags metadata session_id user_id agent_id timestamp "
    "valid_from valid_to expires_at language".split()
)
"""What `update` may change; a status is changed by `discard`, `restore` and `invalidate`."""

PURGE_ROWS = 1000
"""Entries erased in one transaction."""

MAX_NEIGHBOURS = 1000
MAX_DEPTH = 10


def update(
    core: Core, scope: Scope, entry_id: str, if_version: int | None, changes: Mapping[str, Any]
) -> Steps[MemoryEntry]:
    """Correct an entry; the version before is kept."""
    check_id(entry_id, "id")
    if unknown := sorted(changes.keys() - CHANGEABLE):
        raise ValueError(
            f"update cannot change {unknown[0]!r}; it changes {', '.join(sorted(CHANGEABLE))}"
        )
    if not changes:
        raise ValueError("update needs something to change")
    if if_version is not None and (isinstance(if_version, bool) or not isinstance(if_version, int)):
        raise ValueError(f"if_version must be a whole number, got {if_version!r}")
    columns, state = _checked_changes(core, scope, changes)
    vector = None
    if "body" in columns:
        model = yield from core.model_for_writing()
        made = yield from embed(core.embedder, [columns["body"]])
        vector = (model.id, made.vectors[0], made.truncated[0])

    def work(connection: Connection) -> MemoryEntry:
        entry = writes.correct(
            connection, core.facts, scope, entry_id,
            if_version=if_version, columns=columns, state=state, vector=vector,
        )  # fmt: skip
        check_interval(entry)  # again, with the end that was not changed
        return entry

    with core.model_in_use():
        return (yield from write(work))


def _checked_changes(
    core: Core, scope: Scope, changes: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, float]]:
    """New columns of `entries` and of `entry_state`, by the same checks as `add`'s."""
    values = dict(changes)
    for name in ("valid_from", "valid_to"):
        if values.get(name) is not None:
            values[name] = parse_time(values[name], name)
    values["expires_at"] = expiry(values.get("expires_at"))
    if values.get("timestamp") is not None:
        values["timestamp"] = to_epoch(parse_time(values["timestamp"], "timestamp"), "timestamp")
    if scope.user_id is not None and values.get("user_id", scope.user_id) != scope.user_id:
        raise ValueError("user_id names another user than the scope's")
    for name in ("content", "memory_type", "importance", "tags", "metadata", "timestamp"):
        if name in values and values[name] is None:
            raise ValueError(f"{name} must not be None")
    given = {k: v for k, v in values.items() if k in changes or v is not None}
    probe = replace(MemoryEntry(given.get("content", "unchanged")), **given)
    check_entry(probe)
    columns: dict[str, Any] = {
        name: getattr(probe, name)
        for name in given
        if name not in {"content", "importance", "timestamp", "memory_type", "language"}
    }
    if "memory_type" in given:
        columns["memory_type"] = probe.memory_type.value
    if "timestamp" in given:
        columns["created_at"] = probe.created_at
    if "language" in given:
        columns["language"] = probe.language or core.language
    if "content" in given:
        body = body_of(probe.content)
        columns |= {
            "content": probe.content,
            "body": body,
            "content_hash": bytes.fromhex(content_hash(body)),
        }
    state = {}
    if "importance" in given:
        state = {
            "importance": stored_fraction(probe.importance),
            "original_importance": probe.importance,
        }
    return columns, state


def delete(scope: Scope, entry_id: str) -> Steps[bool]:
    """Remove an entry and all that hangs on it."""
    check_id(entry_id, "id")
    count = yield from write(lambda c: erasure.delete_entries(c, scope, [entry_id]))
    return count > 0


def discard(scope: Scope, entry_id: str) -> Steps[bool]:
    """Hide an entry."""
    check_id(entry_id, "id")
    return (yield from write(lambda c: writes.discard(c, scope, entry_id)))


def restore(scope: Scope, entry_id: str) -> Steps[bool]:
    """Bring a discarded entry back."""
    check_id(entry_id, "id")
    return (yield from write(lambda c: writes.restore(c, scope, entry_id)))


def clear(scope: Scope) -> Steps[bool]:
    """Erase everything in the scope."""
    counts = yield from _purge_in_batches(scope, [])
    return counts.get("entries", 0) > 0


def purge(
    scope: Scope,
    *,
    ids: Sequence[str] | str | None,
    user_id: str | None,
    session_id: str | None,
    status: str | None,
    expired: bool,
    before: datetime | None,
) -> Steps[dict[str, int]]:
    """Erase what meets every criterion given."""
    where: list[Any] = []
    if ids is not None:
        where.append(entries.c.id.in_(check_ids(ids, "ids")))
    if user_id is not None:
        where.append(entries.c.user_id == check_id(user_id, "user_id"))
    if session_id is not None:
        where.append(entries.c.session_id == check_id(session_id, "session_id"))
    if status is not None:
        try:
            where.append(entries.c.status == Status(status).value)
        except ValueError:
            known = ", ".join(Status)
            raise ValueError(f"status must be one of {known}; got {status!r}") from None
    if expired:
        where.append(entries.c.expires_at <= reads.clock())
    if before is not None:
        where.append(entries.c.created_at < aware(before, "before"))
    if not where:
        raise ValueError(
            "purge needs a criterion: ids, user_id, session_id, status, expired or before "
            "(clear() erases all)"
        )
    counts = yield from _purge_in_batches(scope, where)
    if session_id is not None:
        touched = yield from write(lambda c: erasure.forget_session(c, scope, session_id))
        counts["session_touches"] = counts.get("session_touches", 0) + touched
    return counts


def _purge_in_batches(scope: Scope, where: list[Any]) -> Steps[dict[str, int]]:
    total: dict[str, int] = {}
    while True:
        counts = yield from write(lambda c: erasure.purge(c, scope, where, PURGE_ROWS))
        for table, count in counts.items():
            total[table] = total.get(table, 0) + count
        if counts.get("entries", 0) < PURGE_ROWS:
            return total


def invalidate(
    scope: Scope, entry_id: str, by: str | None, at: datetime | None
) -> Steps[MemoryEntry]:
    """Mark an entry superseded."""
    check_id(entry_id, "id")
    if by is not None and check_id(by, "by") == entry_id:
        raise ValueError("by must be another entry than the one it invalidates")
    since = None if at is None else aware(at, "at")
    if since is not None and since > datetime.now(UTC):
        raise ValueError("at must not lie in the future: it ends when it ends")
    return (yield from write(lambda c: writes.invalidate(c, scope, entry_id, by, since)))


def relate(
    scope: Scope, source_id: str, target_id: str, relation: str, weight: float
) -> Steps[None]:
    """Link two entries."""
    _check_edge(source_id, target_id, relation)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < 1e9:
        raise ValueError(f"weight must be a number from 0, got {weight!r}")
    work = (scope, source_id, target_id, relation, float(weight))
    yield from write(lambda c: links.relate(c, *work))


def unrelate(scope: Scope, source_id: str, target_id: str, relation: str) -> Steps[bool]:
    """Remove a link."""
    _check_edge(source_id, target_id, relation)
    return (yield from write(lambda c: links.unrelate(c, scope, source_id, target_id, relation)))


def _check_edge(source_id: str, target_id: str, relation: str) -> None:
    check_id(source_id, "source_id")
    check_id(target_id, "target_id")
    check_id(relation, "relation")
    if source_id == target_id:
        raise ValueError("target_id must be another entry than source_id")


def neighbours(
    scope: Scope, entry_id: str, depth: int, relations: Sequence[str] | None
) -> Steps[list[Neighbour]]:
    """Entries reached over edges, nearest first."""
    check_id(entry_id, "id")
    if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= MAX_DEPTH:
        raise ValueError(f"depth must be a whole number from 1 to {MAX_DEPTH}, got {depth!r}")
    if relations is not None:
        named = [relations] if isinstance(relations, str) else list(relations)
        relations = [check_text(name, "relations") for name in named]

    def work(connection: Connection) -> list[Neighbour]:
        if reads.fetch_entry(connection, scope, entry_id) is None:
            raise scope.missing(entry_id)
        reached = reads.walk(
            connection, scope, entry_id, depth=depth, relations=relations, limit=MAX_NEIGHBOURS
        )
        found = reads.fetch_entries(connection, scope, list(reached))
        near = [
            Neighbour(
                entry=found[other],
                distance=distance,
                relation=ends[0].relation,
                direction="out" if ends[0].target_id == other else "in",
                edges=tuple(ends),
            )
            for other, (distance, ends) in reached.items()
            if other in found and found[other].status is not Status.DISCARDED
        ]
        return sorted(near, key=lambda n: (n.distance, n.entry.id))

    return (yield from read(work))
