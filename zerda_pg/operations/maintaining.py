"""Upkeep, to be run from time to time: each part in small transactions, beside everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection

from zerda_pg.core import Core
from zerda_pg.db import ann, changes, erasure, maintenance, reads
from zerda_pg.db.facts import Model
from zerda_pg.db.guarded import patient
from zerda_pg.db.schema import entries
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, outside, read, write

__all__ = ["CHANGES_KEPT_DAYS", "TOUCHES_KEPT_DAYS", "maintain"]

T = TypeVar("T")

CHANGES_KEPT_DAYS = 7.0
"""For how long a follower of the change feed may be away."""

TOUCHES_KEPT_DAYS = 7.0
"""For how long what a session touched ranks higher in it."""

EXPIRED_ROWS = 500
"""Entries that one transaction erases."""

SWEPT_ROWS = 5000
"""Rows that one transaction erases of what nothing hangs on."""


def maintain(core: Core, *, cluster: bool) -> Steps[dict[str, Any]]:
    """Erase what has expired or is no longer kept; then indexes, statistics and locality."""
    tenants = yield from _read_all(core, maintenance.every_tenant)
    report: dict[str, Any] = {
        "tenants": len(tenants), "expired": 0, "session_touches": 0, "changes": 0, "counted": 0
    }  # fmt: skip
    for tenant_id in tenants:
        report["expired"] += yield from _expire(tenant_id)
        report["session_touches"] += yield from _sweep_touches(tenant_id)
        report["changes"] += yield from _sweep_changes(tenant_id)
        report["counted"] += yield from _count(core, tenant_id)
    report |= yield from _index(core)
    report["analyzed"] = yield from _analyze(core)
    if cluster:
        report["clustered"] = yield from _cluster(core)
    return report


def _read_all(core: Core, look: Callable[[Connection], T]) -> Steps[T]:
    """Read what may be the rows of all tenants."""

    def work(connection: Connection) -> T:
        with patient(connection, core.maintenance_timeout):
            return look(connection)

    return read(work)


def _expire(tenant_id: str) -> Steps[int]:
    scope = Scope(tenant_id=tenant_id)
    where = [entries.c.expires_at <= reads.clock()]
    return _in_portions(
        lambda c: erasure.purge(c, scope, where, EXPIRED_ROWS).get("entries", 0), EXPIRED_ROWS
    )


def _sweep_touches(tenant_id: str) -> Steps[int]:
    return _in_portions(
        lambda c: maintenance.sweep_touches(c, tenant_id, TOUCHES_KEPT_DAYS, SWEPT_ROWS),
        SWEPT_ROWS,
    )


def _sweep_changes(tenant_id: str) -> Steps[int]:
    return _in_portions(
        lambda c: changes.sweep_changes(c, tenant_id, CHANGES_KEPT_DAYS, SWEPT_ROWS), SWEPT_ROWS
    )


def _in_portions(erase: Callable[[Connection], int], rows: int) -> Steps[int]:
    """Erase `rows` a transaction until fewer were left; how many that were."""
    total = 0
    while True:
        gone = yield from write(erase)
        total += gone
        if gone < rows:
            return total


def _count(core: Core, tenant_id: str) -> Steps[int]:
    """Count the lexemes of a tenant that has grown; 1 if they were counted."""
    return int(
        (
            yield from write(
                lambda c: maintenance.count_lexemes_if_grown(
                    c, tenant_id, maintenance.COUNT_FROM, timeout=core.maintenance_timeout
                )
            )
        )
    )


def _index(core: Core) -> Steps[dict[str, Any]]:
    """Give tenants beyond exact search an HNSW index, and take it from those that have shrunk."""
    model = yield from core.model_for_listing()
    if model is None or model.dimensions > ann.MOST_DIMENSIONS:
        return {"indexed": 0, "unindexed": 0}
    changed = yield from _read_all(core, lambda c: ann.index_changes(c, model))
    for change in changed:
        yield from _apply(core, model, change)
    built = sum(change.build for change in changed)
    return {"indexed": built, "unindexed": len(changed) - built}


def _apply(core: Core, model: Model, change: ann.IndexChange) -> Steps[None]:
    yield from outside(
        lambda c: ann.apply_index_change(
            c, core.facts, model, change, timeout=core.maintenance_timeout
        )
    )


def _analyze(core: Core) -> Steps[list[str]]:
    """Bring the planner's statistics up to date, as far as the role may."""
    tables = yield from read(maintenance.analyzable_tables)
    for table in tables:
        yield from write(
            lambda c, t=table: maintenance.analyze(c, t, timeout=core.maintenance_timeout)  # type: ignore[misc]
        )
    return tables


def _cluster(core: Core) -> Steps[list[str]]:
    """Put each tenant's rows side by side, a table at a time."""
    tables = yield from read(maintenance.scattered_tables)
    for table in tables:
        yield from write(
            lambda c, t=table: maintenance.cluster(c, t, timeout=core.maintenance_timeout)  # type: ignore[misc]
        )
    return tables
