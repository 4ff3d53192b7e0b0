"""Embedding models side by side: back-filling the vectors of one, and switching to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, text

from zerda_pg.db.facts import DatabaseFacts, Model, check_dimensions
from zerda_pg.db.vectors import HalfvecArrayParam
from zerda_pg.errors import EmbeddingMismatchError

__all__ = [
    "PAGE_BYTES",
    "Unembedded",
    "activate",
    "add_vectors",
    "count_entries",
    "drop_indexes",
    "drop_model",
    "drop_vectors",
    "hold_writes",
    "lacking",
    "prepare_model",
    "require_active",
    "retired_models",
    "tenants_lacking",
]

PAGE_BYTES = 4_000_000
"""Texts of one batch: bounds memory whatever their lengths."""


@dataclass(frozen=True, kw_only=True)
class Unembedded:
    """A text without a vector of the model."""

    tenant_id: str
    id: str
    recorded_at: datetime | None
    """Tells texts of one id apart, as versions do not where it was deleted and written again.
    None: written in this transaction."""
    body: str


def require_active(connection: Connection, model_id: int) -> None:
    """Return if the model is the one whose vectors every entry has.

    Raises:
        EmbeddingMismatchError: If it is not, any more.
    """
    state = connection.scalar(
        text("SELECT state FROM zerda.embedding_models WHERE id = :id"), {"id": model_id}
    )
    if state != "active":
        raise EmbeddingMismatchError(
            "the active embedding model is another one by now: open the store again"
        )


def prepare_model(
    connection: Connection, name: str, fingerprint: str, dimensions: int
) -> tuple[Model, str]:
    """The model and its state, recorded as `building` if the database does not know it yet.

    In a database without an active model, and so without vectors, it is active at once.
    """
    check_dimensions(dimensions)
    identity = {"name": name, "fingerprint": fingerprint, "dimensions": dimensions}
    connection.execute(
        text(
            "INSERT INTO zerda.embedding_models (name, fingerprint, dimensions, state, created_at)"
            " SELECT :name, :fingerprint, :dimensions, CASE WHEN EXISTS (SELECT 1 FROM "
            "zerda.embedding_models WHERE state = 'active') THEN 'building' ELSE 'active' END, "
            "now() ON CONFLICT DO NOTHING"
        ),
        identity,
    )
    row = connection.execute(
        text(
            "SELECT id, name, fingerprint, dimensions, state FROM zerda.embedding_models "
            "WHERE fingerprint = :fingerprint AND dimensions = :dimensions"
        ),
        identity,
    ).one()
    model = Model(id=row.id, name=row.name, fingerprint=row.fingerprint, dimensions=row.dimensions)
    return model, row.state


def count_entries(connection: Connection) -> int:
    """Of all tenants, of any status."""
    return int(connection.scalar(text("SELECT count(*) FROM zerda.entries")) or 0)


def tenants_lacking(connection: Connection, model_id: int) -> list[str]:
    """Tenants with an entry that has no vector of the model."""
    return list(
        connection.scalars(
            text(
                "SELECT DISTINCT e.tenant_id FROM zerda.entries e WHERE NOT EXISTS ("
                "SELECT 1 FROM zerda.embeddings v WHERE v.tenant_id = e.tenant_id "
                "AND v.entry_id = e.id AND v.model_id = :model) ORDER BY e.tenant_id"
            ),
            {"model": model_id},
        )
    )


def lacking(
    connection: Connection, tenant_id: str, model_id: int, *, after: str, limit: int
) -> list[Unembedded]:
    """The next entries by id without a vector of the model, bounded in rows and bytes."""
    found = connection.execute(
        text(
            "SELECT p.id, e.recorded_at, e.body FROM ("
            "SELECT e.id, "
            "sum(octet_length(e.body)) OVER w - octet_length(e.body) AS before "
            "FROM (SELECT e.id, e.body FROM zerda.entries e "
            "WHERE e.tenant_id = :tenant AND e.id > :after AND NOT EXISTS ("
            "SELECT 1 FROM zerda.embeddings v WHERE v.tenant_id = :tenant "
            "AND v.entry_id = e.id AND v.model_id = :model) ORDER BY e.id LIMIT :limit) AS e "
            "WINDOW w AS (ORDER BY e.id)) AS p "
            "JOIN zerda.entries e ON e.tenant_id = :tenant AND e.id = p.id "
            "WHERE p.before < :bytes ORDER BY p.id"
        ),
        {
            "tenant": tenant_id, "model": model_id, "after": after, "limit": limit,
            "bytes": PAGE_BYTES,
        },
    )  # fmt: skip
    return [
        Unembedded(tenant_id=tenant_id, id=row.id, recorded_at=row.recorded_at, body=row.body)
        for row in found
    ]


def add_vectors(
    connection: Connection,
    facts: DatabaseFacts,
    model_id: int,
    texts: Sequence[Unembedded],
    vectors: NDArray[np.float32],
    truncated: Sequence[bool],
) -> int:
    """Write the vectors of one tenant's texts; how many.

    What has changed since its text was read is passed over: the next pass meets it again. The
    rows are held meanwhile, so that a change and this vector do not overtake each other.
    """
    tenant_id = texts[0].tenant_id
    parameters = {
        "tenant": tenant_id,
        "ids": [t.id for t in texts],
        "recorded": [t.recorded_at for t in texts],
        "truncated": list(truncated),
        "model": model_id,
        "vectors": HalfvecArrayParam(vectors, facts.halfvec_oid),
    }
    connection.execute(
        text(
            "SELECT e.id FROM zerda.entries e WHERE e.tenant_id = :tenant AND e.id = ANY(:ids) "
            "ORDER BY e.id FOR SHARE"
        ),
        {"tenant": tenant_id, "ids": parameters["ids"]},
    )
    return connection.exec_driver_sql(
        "INSERT INTO zerda.embeddings (tenant_id, entry_id, model_id, embedding, truncated, "
        "memory_type, kind, status, session_id, user_id, agent_id, valid_from, valid_to, "
        "expires_at) SELECT e.tenant_id, e.id, %(model)s, t.vector, t.truncated, e.memory_type, "
        "e.kind, e.status, e.session_id, e.user_id, e.agent_id, e.valid_from, e.valid_to, "
        "e.expires_at FROM unnest(%(ids)s::text[], %(recorded)s::timestamptz[], "
        f"%(truncated)s::bool[], CAST(%(vectors)s AS {facts.vector_schema}.halfvec[])) "
        "AS t (id, recorded_at, truncated, vector) "
        "JOIN zerda.entries e ON e.id = t.id AND e.recorded_at = coalesce(t.recorded_at, "
        "e.recorded_at) WHERE e.tenant_id = %(tenant)s "
        "ON CONFLICT (tenant_id, entry_id, model_id) DO NOTHING",
        parameters,
    ).rowcount


def hold_writes(connection: Connection) -> None:
    """Wait for the writes under way, and keep others waiting until the transaction ends."""
    connection.execute(text("SELECT zerda.hold_writes()"))


def activate(connection: Connection, model_id: int) -> None:
    """Switch to the model.

    Raises:
        ConflictError: If an entry lacks a vector of it.
        ConfigError: If there is no such model.
    """
    connection.execute(text("SELECT zerda.activate_model(:model)"), {"model": model_id})


def retired_models(connection: Connection) -> list[Model]:
    """Models that were active once."""
    found = connection.execute(
        text(
            "SELECT id, name, fingerprint, dimensions FROM zerda.embedding_models "
            "WHERE state = 'retired' ORDER BY id"
        )
    )
    return [Model(**row._mapping) for row in found]


def drop_vectors(
    connection: Connection, model_id: int, tenant_id: str, *, after: str, limit: int
) -> tuple[int, str | None]:
    """Erase a batch of a retired model's vectors in a tenant.

    Returns:
        How many went, and after which id the next batch starts: None, there is none.
    """
    retired = connection.scalar(
        text("SELECT 1 FROM zerda.embedding_models WHERE id = :id AND state = 'retired' FOR SHARE"),
        {"id": model_id},
    )
    if not retired:  # in use again meanwhile
        return 0, None
    gone = connection.scalars(
        text(
            "DELETE FROM zerda.embeddings v WHERE v.tenant_id = :tenant AND v.model_id = :id "
            "AND v.entry_id IN (SELECT o.entry_id FROM zerda.embeddings o "
            "WHERE o.tenant_id = :tenant AND o.model_id = :id AND o.entry_id > :after "
            "ORDER BY o.entry_id LIMIT :limit) RETURNING v.entry_id"
        ),
        {"tenant": tenant_id, "id": model_id, "after": after, "limit": limit},
    ).all()
    return len(gone), max(gone) if len(gone) == limit else None


def drop_indexes(connection: Connection, model_id: int) -> None:
    """Drop the indexes over a retired model's vectors; on a connection in autocommit."""
    connection.execute(
        text("UPDATE zerda.tenants SET ann_model_id = NULL WHERE ann_model_id = :id"),
        {"id": model_id},
    )
    names = connection.scalars(
        text(
            "SELECT quote_ident(c.relname) FROM pg_index i "
            "JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam "
            "WHERE i.indrelid = to_regclass('zerda.embeddings') AND a.amname = 'hnsw' "
            "AND c.relname LIKE :pattern"
        ),
        {"pattern": f"%\\_{model_id}"},
    ).all()
    for name in names:
        connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS zerda.{name}")


def drop_model(connection: Connection, model_id: int) -> bool:
    """Forget a retired model without vectors; False if it has some, or is in use again."""
    return bool(
        connection.execute(
            text(
                "DELETE FROM zerda.embedding_models m WHERE m.id = :id AND m.state = 'retired' "
                "AND NOT EXISTS (SELECT 1 FROM zerda.embeddings v WHERE v.model_id = :id)"
            ),
            {"id": model_id},
        ).rowcount
    )
