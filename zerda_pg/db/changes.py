"""The change feed: rows written beside the changes, read once their transactions are over.

A reader takes windows. A window holds the changes of all transactions from one id up to another
below which every transaction is over, so that nothing can be added to it any more; a sequence
alone would show the second of two overlapping writes before the first, and lose the first. Within
a window the rows come by number: transactions that changed the same entry are in the order in
which they did, whatever their ids.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from zerda_pg.errors import ConfigError

__all__ = [
    "Position",
    "Recorded",
    "begin_write",
    "newest_position",
    "read_changes",
    "record_changes",
    "set_changes",
    "sweep_changes",
]


def begin_write(connection: Connection, tenant_id: str, model_id: int | None = None) -> bool:
    """Pass the gate that every write passes first; whether the tenant's changes are recorded.

    Raises:
        EmbeddingMismatchError: If `model_id` is not the active model.
    """
    return bool(
        connection.scalar(
            text("SELECT zerda.begin_write(:tenant, :model)"),
            {"tenant": tenant_id, "model": model_id},
        )
    )


def record_changes(
    connection: Connection, tenant_id: str, ids: Sequence[str], operation: str
) -> None:
    """Record a change of each entry, in order."""
    if ids:
        connection.execute(
            text("SELECT zerda.record_changes(:tenant, :ids, :operation)"),
            {"tenant": tenant_id, "ids": list(ids), "operation": operation},
        )


def set_changes(connection: Connection, tenant_id: str, enabled: bool) -> None:
    """Switch a tenant's feed; off erases what it recorded."""
    connection.execute(
        text("SELECT zerda.set_changes(:tenant, :enabled)"),
        {"tenant": tenant_id, "enabled": enabled},
    )


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in a feed: in the window of transactions [low, high), after row `seq`.

    Where low equals high, the window below is read to its end.
    """

    epoch: str
    """Of the feed: cluster, database and a random part."""
    low: int
    high: int
    seq: int

    def encode(self) -> str:
        """As the opaque text that callers store."""
        parts = json.dumps([self.epoch, self.low, self.high, self.seq], separators=(",", ":"))
        return base64.urlsafe_b64encode(parts.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, position: object) -> Position:
        """The position that `encode` described.

        Raises:
            ValueError: If it is not one of a change feed.
        """
        try:
            if not isinstance(position, str):
                raise TypeError
            padded = position + "=" * (-len(position) % 4)
            epoch, low, high, seq = json.loads(base64.b64decode(padded, "-_", validate=True))
            numbers = [low, high, seq]
            if not isinstance(epoch, str) or any(type(n) is not int for n in numbers):
                raise TypeError
            if not 0 <= low <= high < 2**64 or not 0 <= seq < 2**63:
                raise ValueError
        except (TypeError, ValueError, binascii.Error, UnicodeError) as error:
            raise ValueError("since is not a position of a change feed") from error
        return cls(epoch=epoch, low=low, high=high, seq=seq)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One row of the feed, with the position after it."""

    position: Position
    entry_id: str
    operation: str
    changed_at: datetime


# Asked by itself, before the rows are read: where the tables are distributed, it is the
# coordinator's transactions that count.
_HORIZON = text(
    "SELECT zerda.changes_horizon(:tenant)::text AS horizon, "
    "pg_snapshot_xmax(pg_current_snapshot())::text AS newest, zerda.cluster_identity() AS cluster"
)

# A new window is found by its transactions, a begun one goes on by its rows' numbers: neither
# passes over what was read before.
_PAGE = """
    WITH page AS {materialized} (
        SELECT c.seq, c.entry_id, c.operation, c.changed_at
        FROM zerda.changes c
        WHERE c.tenant_id = :tenant AND c.xid >= CAST(:low AS xid8)
          AND c.xid < CAST(:high AS xid8) AND c.seq > :seq
    )
    SELECT t.changes_enabled AS enabled, t.changes_epoch AS epoch,
           t.changes_since::text AS since, t.changes_swept AS swept,
           page.seq, page.entry_id, page.operation, page.changed_at
    FROM zerda.tenants t
    LEFT JOIN (SELECT * FROM page ORDER BY seq LIMIT :limit) AS page ON true
    WHERE t.tenant_id = :tenant
    ORDER BY page.seq
"""

_NEW_WINDOW = text(_PAGE.format(materialized="MATERIALIZED"))
_BEGUN_WINDOW = text(_PAGE.format(materialized="NOT MATERIALIZED"))


def newest_position(connection: Connection, tenant_id: str) -> Position:
    """The position after everything that is over now, of a feed that is on."""
    now = connection.execute(_HORIZON, {"tenant": tenant_id}).one()
    epoch = connection.scalar(
        text("SELECT changes_epoch FROM zerda.tenants WHERE tenant_id = :tenant"),
        {"tenant": tenant_id},
    )
    return Position(epoch=str(epoch), low=int(now.horizon), high=int(now.horizon), seq=0)


def read_changes(
    connection: Connection, tenant_id: str, since: Position | None, limit: int
) -> tuple[list[Recorded], Position]:
    """The next changes after a position, and the position after them.

    Args:
        connection: In autocommit.
        tenant_id: Whose feed.
        since: None: from the oldest change that is kept.
        limit: Most changes.

    Raises:
        ConfigError: If the feed is off, or the position is older than what is kept, of another
            feed, or of another database.
    """
    start = since or Position(epoch="", low=0, high=0, seq=0)
    now = connection.execute(_HORIZON, {"tenant": tenant_id}).one()
    closed = start.low == start.high
    high = max(start.high, int(now.horizon)) if closed else start.high
    rows = connection.execute(
        _NEW_WINDOW if closed else _BEGUN_WINDOW,
        {
            "tenant": tenant_id, "low": str(start.low), "high": str(high), "seq": start.seq,
            "limit": limit + 1,
        },
    ).all()  # fmt: skip
    epoch = _checked_epoch(rows, now.cluster, tenant_id)
    if since is not None:
        _check_position(rows[0], since, int(now.newest))
    found = [row for row in rows if row.seq is not None]
    recorded = [
        Recorded(
            position=Position(epoch=epoch, low=start.low, high=high, seq=row.seq),
            entry_id=row.entry_id, operation=row.operation, changed_at=row.changed_at,
        )
        for row in found[:limit]
    ]  # fmt: skip
    if len(found) > limit:
        return recorded, recorded[-1].position
    after = Position(epoch=epoch, low=high, high=high, seq=0)
    if recorded:  # the window ends with it
        recorded[-1] = replace(recorded[-1], position=after)
    return recorded, after


def _checked_epoch(rows: Sequence[Any], cluster: str, tenant_id: str) -> str:
    if not rows or not rows[0].enabled:
        raise ConfigError(
            f"the change feed of tenant {tenant_id!r} is off: switch it on by enable_changes()"
        )
    epoch = str(rows[0].epoch)
    if not epoch.startswith(f"{cluster}-"):
        raise ConfigError(
            f"the change feed of tenant {tenant_id!r} was recorded in another database, of which "
            "this one is a copy: start it afresh by enable_changes()"
        )
    return epoch


def _check_position(head: Any, since: Position, newest: int) -> None:
    if since.epoch != head.epoch:
        raise ConfigError(
            "since is a position of another change feed: of another tenant or database, or from "
            "before the feed was switched off. Read the entries again, and follow from since=None"
        )
    if since.high > newest:
        raise ConfigError(
            "since lies ahead of this database, which was set back to an earlier state. Read the "
            "entries again, and follow from since=None"
        )
    begun = since.low < since.high
    read_what_is_swept = begun and int(head.swept) <= since.seq
    if since.low < int(head.since) and not read_what_is_swept:
        raise ConfigError(
            "since is older than the changes that are kept, so some are lost. Read the entries "
            "again, and follow from since=None"
        )


def sweep_changes(connection: Connection, tenant_id: str, keep_days: float, limit: int) -> int:
    """Erase the oldest changes beyond the retention; how many of at most `limit`."""
    swept = connection.execute(
        text(
            "DELETE FROM zerda.changes c WHERE c.tenant_id = :tenant AND c.seq IN ("
            "SELECT o.seq FROM zerda.changes o WHERE o.tenant_id = :tenant "
            "AND o.changed_at < CAST(:now AS timestamptz) - make_interval(secs => :keep) "
            "ORDER BY o.seq LIMIT :limit FOR UPDATE SKIP LOCKED) "
            "RETURNING c.seq, c.xid::text AS xid"
        ),
        {
            "tenant": tenant_id,
            "now": connection.scalar(text("SELECT now()")),
            "keep": keep_days * 86400.0,
            "limit": limit,
        },
    ).all()
    if swept:
        connection.execute(
            text(
                "UPDATE zerda.tenants SET "
                "changes_since = greatest(changes_since, CAST(:since AS xid8)), "
                "changes_swept = greatest(changes_swept, :swept) WHERE tenant_id = :tenant"
            ),
            {
                "tenant": tenant_id,
                "since": str(max(int(row.xid) for row in swept) + 1),
                "swept": max(row.seq for row in swept),
            },
        )
    return len(swept)
