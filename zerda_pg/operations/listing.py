"""Reading without a query: by id, page by page, counts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from zerda_pg.clock import aware
from zerda_pg.core import Core
from zerda_pg.db import maintenance, reads
from zerda_pg.db.criteria import Criteria
from zerda_pg.db.facts import Model
from zerda_pg.entry import MemoryEntry
from zerda_pg.filters import Filter
from zerda_pg.ids import check_id
from zerda_pg.operations.prepare import check_ids
from zerda_pg.results import Page
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, read

__all__ = ["count", "entries", "get", "get_many", "stats", "store_stats"]

MAX_LIMIT = 1000
"""Most entries of one page."""


def get(scope: Scope, entry_id: str) -> Steps[MemoryEntry | None]:
    """One entry, of any status."""
    check_id(entry_id, "id")
    return (yield from read(lambda c: reads.fetch_entry(c, scope, entry_id)))


def get_many(scope: Scope, ids: Sequence[str]) -> Steps[list[MemoryEntry | None]]:
    """Entries in the order asked; None where there is none."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise ValueError(f"ids must be a list of ids, got one {type(ids).__name__}")
    wanted = list(ids)
    distinct = check_ids(wanted, "ids")
    found = yield from read(lambda c: reads.fetch_entries(c, scope, distinct))
    return [found.get(entry_id) for entry_id in wanted]


def entries(
    scope: Scope,
    wanted: Filter | Mapping[str, Any] | None,
    order: str,
    limit: int,
    cursor: str | None,
) -> Steps[Page]:
    """One page; the cursor names the last entry seen, so that new ones shift nothing."""
    if not isinstance(order, str) or order not in {"newest", "oldest"}:
        raise ValueError(f"order must be 'newest' or 'oldest', got {order!r}")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be a whole number from 1 to {MAX_LIMIT}, got {limit!r}")
    after = None if cursor is None else _read_cursor(cursor, order)
    criteria = Criteria(scope=scope, filter=Filter.of(wanted))
    found = yield from read(
        lambda c: reads.list_entries(
            c, criteria, newest_first=order == "newest", limit=limit + 1, after=after
        )
    )
    items = found[:limit]
    more = len(found) > limit
    return Page(items=items, next_cursor=_cursor(items[-1], order) if more else None)


def _cursor(entry: MemoryEntry, order: str) -> str:
    position = json.dumps([order, entry.created_at.isoformat(), entry.id], ensure_ascii=False)
    return base64.urlsafe_b64encode(position.encode()).decode()


def _read_cursor(cursor: str, order: str) -> tuple[datetime, str]:
    try:
        made_for, moment, entry_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        position = aware(datetime.fromisoformat(moment), "cursor"), check_id(entry_id, "cursor")
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError("cursor is not one that entries() gave") from error
    if made_for != order:
        raise ValueError(f"cursor belongs to order={made_for!r}, not to {order!r}")
    return position


def count(scope: Scope, wanted: Filter | Mapping[str, Any] | None) -> Steps[int]:
    """How many entries the filter admits."""
    criteria = Criteria(scope=scope, filter=Filter.of(wanted))
    return (yield from read(lambda c: reads.count_entries(c, criteria)))


def stats(core: Core, scope: Scope) -> Steps[dict[str, Any]]:
    """What a tenant holds, and what runs."""
    model = yield from core.model_for_listing()
    found = yield from read(lambda c: maintenance.tenant_stats(c, scope))
    return found | {
        "tenant_id": scope.tenant_id,
        **_identity(model),
    }


def store_stats(core: Core) -> Steps[dict[str, Any]]:
    """What the database holds, over all tenants."""
    model = yield from core.model_for_listing()
    found = yield from read(maintenance.store_stats)
    tenants = yield from read(reads.list_tenants)
    return found | {
        "tenants": len(tenants),
        "server": core.facts.server,
        "pgvector": core.facts.pgvector,
        "schema": core.facts.revision,
        **_identity(model),
    }


def _identity(model: Model | None) -> dict[str, Any]:
    return {
        "model": None if model is None else model.name,
        "fingerprint": None if model is None else model.fingerprint,
        "dimensions": None if model is None else model.dimensions,
    }
