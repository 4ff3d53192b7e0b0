"""Statistics, forgetting and expiry: what keeps a tenant in shape."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

__all__ = ["COUNT_FROM", "count_lexemes", "count_lexemes_if_grown", "tenant_stats"]

COUNT_FROM = 1000
"""Entries from which a tenant's lexemes are counted: below, a search looks every word up."""

GROWTH = 1.25
"""A tenant's lexemes are counted again when it has grown by this factor since."""


def count_lexemes_if_grown(connection: Connection, tenant_id: str, added: int) -> None:
    """Count a tenant's lexemes again, if a bulk write has made the last count stale."""
    if added < COUNT_FROM // 10:
        return
    counted, present = connection.execute(
        text(
            "SELECT coalesce((SELECT entries_counted FROM zerda.tenants "
            "WHERE tenant_id = :tenant), 0), "
            "(SELECT count(*) FROM zerda.entries WHERE tenant_id = :tenant)"
        ),
        {"tenant": tenant_id},
    ).one()
    if present >= COUNT_FROM and present > counted * GROWTH:
        count_lexemes(connection, tenant_id)


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
            "CAST(:tenant AS text))) WHERE ndoc > 1 AND octet_length(word) <= 256"
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


def tenant_stats(connection: Connection, tenant_id: str) -> dict[str, Any]:
    """Counts by type, kind and status, and bytes."""
    parameters = {"tenant": tenant_id}
    groups = connection.execute(
        text(
            "SELECT memory_type, coalesce(kind, '') AS kind, status, count(*) AS entries, "
            "sum(pg_column_size(e.*)) AS bytes "
            "FROM zerda.entries e WHERE tenant_id = :tenant GROUP BY 1, 2, 3"
        ),
        parameters,
    ).all()
    vectors = connection.execute(
        text(
            "SELECT count(*) AS vectors, coalesce(sum(pg_column_size(embedding)), 0) AS bytes, "
            "count(*) FILTER (WHERE truncated) AS truncated "
            "FROM zerda.embeddings WHERE tenant_id = :tenant"
        ),
        parameters,
    ).one()
    edges = connection.scalar(
        text("SELECT count(*) FROM zerda.edges WHERE tenant_id = :tenant"), parameters
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
    }
