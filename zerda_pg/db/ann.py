"""HNSW indexes: one for each tenant that has grown beyond exact search, and for one model.

An insert into HNSW costs 10 to 20 times the rest of a write, so a tenant that exact search serves
in a few milliseconds has none; and planning suffers from thousands of partial indexes, so only
the largest have one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection, text

from zerda_pg.db.facts import DatabaseFacts, Model
from zerda_pg.db.guarded import patient

__all__ = [
    "ANN_FROM",
    "MOST_DIMENSIONS",
    "IndexChange",
    "apply_index_change",
    "index_changes",
]

ANN_FROM = 20_000
"""Vectors from which a tenant has an index: there the exact arm takes as long as the index's."""

MOST_DIMENSIONS = 4000
"""Of a halfvec that pgvector can index."""

MOST_INDEXES = 200
"""Planning a statement looks at every index of the table."""


@dataclass(frozen=True, kw_only=True)
class IndexChange:
    """An index to build or to drop."""

    tenant_id: str
    build: bool
    vectors: int


def index_changes(connection: Connection, model: Model) -> list[IndexChange]:
    """What must change so that the tenants above the threshold, and only they, have an index.

    A tenant keeps its index until it has shrunk to half the threshold.
    """
    counts: dict[str, int] = {
        row.tenant_id: row.vectors
        for row in connection.execute(
            text(
                "SELECT tenant_id, count(*) AS vectors FROM zerda.embeddings "
                "WHERE model_id = :model GROUP BY tenant_id HAVING count(*) >= :least"
            ),
            {"model": model.id, "least": ANN_FROM // 2},
        )
    }
    have = set(
        connection.scalars(
            text("SELECT tenant_id FROM zerda.tenants WHERE ann_model_id = :model"),
            {"model": model.id},
        )
    )
    largest = sorted((t for t in counts if counts[t] >= ANN_FROM), key=lambda t: -counts[t])
    wanted = set(largest[:MOST_INDEXES])
    builds = [
        IndexChange(tenant_id=t, build=True, vectors=counts[t])
        for t in largest
        if t in wanted - have
    ]
    drops = [
        IndexChange(tenant_id=t, build=False, vectors=counts.get(t, 0))
        for t in sorted(have - counts.keys())
    ]
    return builds + drops


def apply_index_change(
    connection: Connection,
    facts: DatabaseFacts,
    model: Model,
    change: IndexChange,
    *,
    timeout: float,
) -> None:
    """Build an index beside readers and writers, or drop it; on a connection in autocommit.

    Searches use it from the moment that `tenants` says so. A statement may take `timeout` seconds.
    """
    with patient(connection, timeout):
        _apply(connection, facts, model, change)


def _apply(connection: Connection, facts: DatabaseFacts, model: Model, change: IndexChange) -> None:
    name = _index_name(change.tenant_id, model)
    parameters = {"tenant": change.tenant_id, "model": model.id}
    if not change.build:
        connection.execute(
            text(
                "UPDATE zerda.tenants SET ann_model_id = NULL "
                "WHERE tenant_id = :tenant AND ann_model_id = :model"
            ),
            parameters,
        )
        connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS zerda.{name}")
        return
    # what an interrupted build left is invalid, and IF NOT EXISTS would accept it
    connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS zerda.{name}")
    tenant = connection.scalar(text("SELECT quote_literal(CAST(:tenant AS text))"), parameters)
    vector = f"{facts.vector_schema}.halfvec"
    connection.exec_driver_sql(
        f"CREATE INDEX CONCURRENTLY {name} ON zerda.embeddings USING hnsw "
        f"((embedding::{vector}({model.dimensions})) {facts.vector_schema}.halfvec_cosine_ops) "
        f"WHERE tenant_id = {tenant.replace('%', '%%')} AND model_id = {model.id}"
    )
    connection.execute(
        text(
            "INSERT INTO zerda.tenants (tenant_id, ann_model_id) VALUES (:tenant, :model) "
            "ON CONFLICT (tenant_id) DO UPDATE SET ann_model_id = excluded.ann_model_id"
        ),
        parameters,
    )


def _index_name(tenant_id: str, model: Model) -> str:
    """A name that is valid whatever the tenant is called."""
    digest = hashlib.sha256(tenant_id.encode()).hexdigest()[:24]
    return f"hnsw_{digest}_{model.id}"
