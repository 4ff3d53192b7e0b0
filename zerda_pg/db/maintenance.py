"""Statistics, forgetting and expiry: what keeps a tenant in shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import OperationalError

from zerda_pg.db import reads
from zerda_pg.db.changes import begin_write
from zerda_pg.db.guarded import patient
from zerda_pg.db.reach import lock
from zerda_pg.db.rows import LEAST_FRACTION
from zerda_pg.db.writes import discard_many
from zerda_pg.errors import ConflictError
from zerda_pg.scope import Scope
from zerda_pg.scoring.forgetting import (
    COMPAT_LEAST_DECAY,
    LEAST_RATE,
    PINNED_TAG,
    ForgettingConfig,
)

__all__ = [
    "COUNT_FROM",
    "Faded",
    "after_bulk",
    "analyzable_tables",
    "analyze",
    "cluster",
    "count_lexemes",
    "count_lexemes_if_grown",
    "every_tenant",
    "fade",
    "scattered_tables",
    "store_stats",
    "sweep_touches",
    "tenant_stats",
]

COUNT_FROM = 1000
"""Entries from which a tenant's lexemes are counted: below, a search looks every word up."""

ANALYZE_FROM_BYTES = 512 * 1024
"""Size from which a table's statistics are worth having: some thousand entries."""

GROWTH = 1.25
"""A tenant's lexemes are counted again when it has grown by this factor since."""


def count_lexemes_if_grown(
    connection: Connection, tenant_id: str, added: int, *, timeout: float
) -> bool:
    """Count a tenant's lexemes again, if a bulk write has made the last count stale.

    Counting them may take `timeout` seconds a statement.
    """
    if added < COUNT_FROM // 10:
        return False
    counted, present = connection.execute(
        text(
            "SELECT coalesce((SELECT entries_counted FROM zerda.tenants "
            "WHERE tenant_id = :tenant), 0), "
            "(SELECT count(*) FROM zerda.entries WHERE tenant_id = :tenant)"
        ),
        {"tenant": tenant_id},
    ).one()
    if present < COUNT_FROM or present <= counted * GROWTH:
        return False
    with patient(connection, timeout):
        count_lexemes(connection, tenant_id)
    return True


def count_lexemes(connection: Connection, tenant_id: str) -> None:
    """Record in how many of a tenant's entries each lexeme occurs.

    One process at a time counts a tenant; a second one leaves it to the first.
    """
    locked = connection.scalar(
        text("SELECT pg_try_advisory_xact_lock(hashtextextended('zerda lexemes ' || :tenant, 0))"),
        {"tenant": tenant_id},
    )
    if not locked:
        return
    parameters = {"tenant": tenant_id}
    connection.execute(text("DELETE FROM zerda.lexemes WHERE tenant_id = :tenant"), parameters)
    connection.execute(
        text(
            "INSERT INTO zerda.lexemes (tenant_id, lexeme, entries) "
            "SELECT :tenant, word, ndoc FROM ts_stat(format("
            "'SELECT search FROM zerda.entries WHERE tenant_id = %L AND status = ''active''', "
            "CAST(:tenant AS text))) WHERE ndoc > 1 AND octet_length(word) <= 256 "
            "ON CONFLICT (tenant_id, lexeme) DO UPDATE SET entries = excluded.entries"
        ),
        parameters,
    )
    connection.execute(
        text(
            "INSERT INTO zerda.tenants (tenant_id, entries_counted, counted_at) "
            "SELECT :tenant, count(*), now() FROM zerda.entries WHERE tenant_id = :tenant "
            "ON CONFLICT (tenant_id) DO UPDATE SET entries_counted = excluded.entries_counted, "
            "counted_at = excluded.counted_at"
        ),
        parameters,
    )


def tenant_stats(connection: Connection, scope: Scope) -> dict[str, Any]:
    """Counts by type, kind and status, and bytes, of what the scope sees."""
    parameters = {"tenant": scope.tenant_id, "user": scope.user_id}
    seen = "(CAST(:user AS text) IS NULL OR {0}.user_id IS NULL OR {0}.user_id = :user)"
    groups = connection.execute(
        text(
            "SELECT memory_type, coalesce(kind, '') AS kind, status, count(*) AS entries, "
            "sum(pg_column_size(e.*)) AS bytes FROM zerda.entries e "
            f"WHERE tenant_id = :tenant AND {seen.format('e')} GROUP BY 1, 2, 3"
        ),
        parameters,
    ).all()
    vectors = connection.execute(
        text(
            "SELECT count(*) AS vectors, coalesce(sum(pg_column_size(embedding)), 0) AS bytes, "
            "count(*) FILTER (WHERE truncated) AS truncated FROM zerda.embeddings v "
            f"WHERE tenant_id = :tenant AND {seen.format('v')}"
        ),
        parameters,
    ).one()
    indexed = connection.scalar(
        text("SELECT ann_model_id FROM zerda.tenants WHERE tenant_id = :tenant"), parameters
    )
    edges = connection.scalar(
        text(
            "SELECT count(*) FROM zerda.edges g "
            "JOIN zerda.entries a ON a.tenant_id = :tenant AND a.id = g.source_id "
            "JOIN zerda.entries b ON b.tenant_id = :tenant AND b.id = g.target_id "
            f"WHERE g.tenant_id = :tenant AND {seen.format('a')} AND {seen.format('b')}"
        ),
        parameters,
    )

    def by(name: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row in groups:
            counts[getattr(row, name)] = counts.get(getattr(row, name), 0) + row.entries
        return dict(sorted(counts.items()))

    return {
        "entries": sum(row.entries for row in groups),
        "by_type": by("memory_type"),
        "by_kind": by("kind"),
        "by_status": by("status"),
        "edges": edges,
        "vectors": vectors.vectors,
        "truncated": vectors.truncated,
        "bytes": int(sum(row.bytes for row in groups) + vectors.bytes),
        "index": "hnsw" if indexed else "exact",
    }


def every_tenant(connection: Connection) -> list[str]:
    """Every tenant with an entry, or with anything that is swept."""
    found: set[str] = set()
    for table in ("entries", "session_touches", "changes", "tenants"):
        found.update(reads.list_tenants(connection, table))
    return sorted(found)


def sweep_touches(connection: Connection, tenant_id: str, keep_days: float, limit: int) -> int:
    """Erase what sessions touched long ago; how many of at most `limit`."""
    return connection.execute(
        text(
            "WITH old AS (SELECT o.session_id, o.entry_id FROM zerda.session_touches o "
            "WHERE o.tenant_id = :tenant "
            "AND o.touched_at < CAST(:now AS timestamptz) - make_interval(secs => :keep) "
            "ORDER BY o.session_id, o.entry_id LIMIT :limit FOR UPDATE SKIP LOCKED) "
            "DELETE FROM zerda.session_touches s USING old WHERE s.tenant_id = :tenant "
            "AND s.session_id = old.session_id AND s.entry_id = old.entry_id"
        ),
        {
            "tenant": tenant_id, "keep": keep_days * 86400.0, "limit": limit,
            "now": connection.scalar(text("SELECT now()")),
        },
    ).rowcount  # fmt: skip


def analyzable_tables(connection: Connection) -> list[str]:
    """The tables that the role owns, so whose statistics it may renew, and that are worth it.

    A small table has better none: with the figures of a time when it had one row the planner goes
    on to join it by reading it whole, long after it has grown.
    """
    return list(
        connection.scalars(
            text(
                "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname = 'zerda' AND c.relkind IN ('r', 'p') "
                "AND c.relname <> 'alembic_version' AND pg_has_role(c.relowner, 'USAGE') "
                "AND pg_relation_size(c.oid) >= :least ORDER BY c.relname"
            ),
            {"least": ANALYZE_FROM_BYTES},
        )
    )


def after_bulk(connection: Connection, tenant_id: str, added: int, *, timeout: float) -> None:
    """Bring up to date what a bulk write has made stale: word counts, the planner's figures."""
    count_lexemes_if_grown(connection, tenant_id, added, timeout=timeout)
    if added < COUNT_FROM // 10:
        return
    outgrown = set(
        connection.scalars(
            text(
                "SELECT relname FROM pg_stat_user_tables WHERE schemaname = 'zerda' "
                "AND coalesce(last_analyze, last_autoanalyze) IS NOT NULL "
                "AND n_mod_since_analyze * 2 > n_live_tup"
            )
        )
    )
    for table in analyzable_tables(connection):
        if table in outgrown:
            analyze(connection, table, timeout=timeout)


def analyze(connection: Connection, table: str, *, timeout: float) -> None:
    """Renew the planner's statistics of one of our tables, within `timeout` seconds."""
    with patient(connection, timeout):
        connection.exec_driver_sql(f"ANALYZE zerda.{table}")


_CLUSTERED = ("embeddings", "entries", "entry_state")
"""What a search reads row by row of one tenant."""

SCATTERED = 0.95
"""Correlation of the tenants' order with the rows' below which a table is put in order."""

LOCK_WAIT = "3s"
"""For a table's lock: all who come after wait behind who waits."""


def scattered_tables(connection: Connection) -> list[str]:
    """The role's own tables in which, by the planner's statistics, tenants' rows lie scattered."""
    found = connection.scalars(
        text(
            "SELECT s.tablename FROM pg_stats s JOIN pg_class c "
            "ON c.oid = format('%I.%I', s.schemaname, s.tablename)::regclass "
            "WHERE s.schemaname = 'zerda' AND s.attname = 'tenant_id' "
            "AND s.tablename = ANY (:tables) AND abs(s.correlation) < :least "
            "AND pg_has_role(c.relowner, 'USAGE') AND pg_relation_size(c.oid) >= :size "
            "ORDER BY s.tablename"
        ),
        {"tables": list(_CLUSTERED), "least": SCATTERED, "size": ANALYZE_FROM_BYTES},
    )
    return list(found)


def cluster(connection: Connection, table: str, *, timeout: float) -> None:
    """Rewrite a table by its primary key; nobody reads or writes it meanwhile.

    Raises:
        ConflictError: If others hold it. It is not tried again: who waits holds up all others.
    """
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
    with patient(connection, timeout):
        try:
            connection.exec_driver_sql(f"CLUSTER zerda.{table} USING pk_{table}")
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != "55P03":
                raise
            raise ConflictError(
                f"table {table} was in use for {LOCK_WAIT} and is left as it was: cluster in a "
                "quiet hour, or end the transaction that holds it"
            ) from error
        connection.exec_driver_sql(f"ANALYZE zerda.{table}")


@dataclass(frozen=True, kw_only=True)
class Faded:
    """What one batch of forgetting did, or would do."""

    last_id: str | None
    """Where the next batch starts after; None: none was left."""
    considered: int
    forgotten: list[str]


MAX_HALF_LIVES = 300.0
"""After which an entry fades no further: 2^-300 times the least importance is still a normal
number, and no sum of scores can tell it from what more would leave."""

_FADED = """
    SELECT s.entry_id, s.tenant_id,
           CASE WHEN NOT :compat THEN s.importance
                WHEN greatest(:floor, s.importance * m.left) < :least THEN 0.0
                ELSE greatest(:floor, s.importance * m.left) END AS importance,
           CASE WHEN :compat THEN greatest(:compat_floor, s.decay_factor * m.left)
                ELSE greatest(:floor, m.left) END AS decay_factor,
           (NOT :compat AND s.importance >= 1.0) OR :pinned = ANY (e.tags) AS pinned
    FROM zerda.entries e
    JOIN zerda.entry_state s ON s.tenant_id = :tenant AND s.entry_id = e.id
    CROSS JOIN LATERAL (
        SELECT power(0.5::float8, least(:max_half_lives, greatest(0.0,
            extract(epoch FROM CAST(:clock AS timestamptz) - s.last_access)::float8 / 3600.0
            / (24.0 / greatest(:least_rate, :rate / least(:max_boost,
                1.0 + :boost * s.access_count)))))) AS left
    ) AS m
    WHERE e.tenant_id = :tenant AND e.id > :after AND e.status = 'active'
      AND (CAST(:last AS text) IS NULL OR e.id <= :last)
      AND (CAST(:user AS text) IS NULL OR e.user_id = :user)
    ORDER BY e.id
    LIMIT :batch
"""

FADE_ROWS = 2000
"""Entries that one transaction of forgetting holds locks on."""


def fade(
    connection: Connection,
    scope: Scope,
    config: ForgettingConfig,
    *,
    after: str,
    clock: datetime,
    dry_run: bool,
) -> Faded:
    """Fade one batch of a tenant's active entries by id, and discard what has faded away."""
    parameters = {
        "tenant": scope.tenant_id, "user": scope.user_id, "after": after, "last": None,
        "batch": FADE_ROWS,
        "clock": clock, "compat": config.compat, "floor": config.min_importance,
        "compat_floor": COMPAT_LEAST_DECAY, "pinned": PINNED_TAG,
        "max_half_lives": MAX_HALF_LIVES, "least_rate": LEAST_RATE, "least": LEAST_FRACTION,
        "rate": config.base_decay_rate, "max_boost": config.max_recency_boost,
        "boost": config.recency_boost_per_access,
    }  # fmt: skip
    if not dry_run:
        begin_write(connection, scope.tenant_id)  # before any row is locked
    rows = connection.execute(text(_FADED), parameters).all()
    last_id = rows[-1].entry_id if rows else None
    full = len(rows) == FADE_ROWS  # else what writers add behind the last one is the next run's
    forgotten = _forgotten(rows, config)
    if rows and not dry_run:
        # An entry is locked before its state, as every write does it. What comes to be forgotten
        # meanwhile waits for the next run.
        locked = lock(connection, scope, forgotten)
        rows = connection.execute(
            text(
                f"WITH faded AS ({_FADED} FOR NO KEY UPDATE OF s) "
                "UPDATE zerda.entry_state s "
                "SET importance = faded.importance, decay_factor = faded.decay_factor "
                "FROM faded WHERE s.tenant_id = :tenant AND s.entry_id = faded.entry_id "
                "RETURNING s.entry_id, s.importance, s.decay_factor, faded.pinned"
            ),
            parameters | {"last": last_id},
        ).all()
        forgotten = [name for name in _forgotten(rows, config) if name in locked]
        if forgotten:
            discard_many(connection, scope, forgotten)
    return Faded(last_id=last_id if full else None, considered=len(rows), forgotten=forgotten)


def _forgotten(rows: Sequence[Row[Any]], config: ForgettingConfig) -> list[str]:
    """Ids of what has faded away."""
    return sorted(
        row.entry_id
        for row in rows
        if not row.pinned and row.importance * row.decay_factor <= config.deletion_threshold
    )


def store_stats(connection: Connection) -> dict[str, Any]:
    """Rows and bytes by table, and how many tenants there are."""
    tables = connection.execute(
        text(
            "SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = 'zerda' AND c.relkind IN ('r', 'p') ORDER BY c.relname"
        )
    ).all()
    return {
        "entries": connection.scalar(text("SELECT count(*) FROM zerda.entries")),
        "bytes": sum(row.bytes for row in tables),
        "bytes_by_table": {row.name: row.bytes for row in tables},
    }
