"""The floor: the same tables and statements, written by hand for psycopg."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector

from benchmarks.speed.data import Data
from zerda_pg.db.criteria import Criteria
from zerda_pg.db.gather import Arms, GatherShape, gather_sql
from zerda_pg.db.vectors import HalfvecParam
from zerda_pg.scope import Scope

COLUMNS = (
    "tenant_id, id, version, memory_type, kind, content, body, session_id, user_id, agent_id, "
    "tags, metadata, language, status, created_at, recorded_at, updated_at, content_hash"
)
FETCH = """
    SELECT e.id, e.version, e.memory_type, e.kind, e.content, e.session_id, e.user_id, e.agent_id,
           e.tags, e.metadata, e.language, e.status, e.created_at, e.recorded_at, e.updated_at,
           e.valid_from, e.valid_to, e.invalidated_at, e.expires_at, s.importance,
           s.original_importance, s.decay_factor, s.access_count, s.last_access
    FROM zerda.entries e
    JOIN zerda.entry_state s ON s.tenant_id = e.tenant_id AND s.entry_id = e.id
    WHERE e.tenant_id = %(tenant)s AND e.id = ANY(%(ids)s)
"""
DENSE = """
    SELECT v.entry_id FROM zerda.embeddings v
    WHERE v.tenant_id = %(tenant)s AND v.model_id = %(model)s AND v.status = 'active'
      AND (v.expires_at IS NULL OR v.expires_at > now())
      AND (v.valid_to IS NULL OR v.valid_to > now())
    ORDER BY v.embedding <=> %(vector)s::halfvec LIMIT %(k)s
"""

HYBRID = GatherShape(best=64, arms=Arms(pool=0))
"""As a search for ten asks, whose query is after no value."""


class ByHand:
    """One connection, prepared statements, binary vectors."""

    def __init__(self, url: str, model_id: int) -> None:
        self.connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        register_vector(self.connection)
        self.model_id = model_id

    def bulk(self, data: Data) -> None:
        """Binary COPY into the same tables with the same indexes, a transaction a tenant."""
        for rows in data.rows_of().values():
            self.copy(rows, data)

    def copy(self, rows: Iterable[int], data: Data) -> None:
        """Rows in the order given, in one transaction."""
        now = datetime.now(UTC)
        tables: list[tuple[str, list[str], Any]] = [
            (
                f"COPY zerda.entries ({COLUMNS}) FROM STDIN (FORMAT BINARY)",
                ["text", "text", "int4", "text", "text", "json", "text", "text", "text", "text",
                 "text[]", "jsonb", "text", "text", "timestamptz", "timestamptz", "timestamptz",
                 "bytea"],
                lambda row: (
                    data.tenants[row], str(row), 1, "semantic", None,
                    psycopg.types.json.Json(data.texts[row]), data.texts[row], None, None, None,
                    [], psycopg.types.json.Jsonb({}), "english", "active", now, now, now,
                    row.to_bytes(16, "big"),
                ),
            ),
            (
                "COPY zerda.entry_state (tenant_id, entry_id, importance, original_importance, "
                "decay_factor, access_count, last_access) FROM STDIN (FORMAT BINARY)",
                ["text", "text", "float8", "float8", "float8", "int8", "timestamptz"],
                lambda row: (data.tenants[row], str(row), 0.5, 0.5, 1.0, 0, now),
            ),
            (
                "COPY zerda.embeddings (tenant_id, entry_id, model_id, embedding, truncated, "
                "memory_type, status) FROM STDIN (FORMAT BINARY)",
                ["text", "text", "int4", "halfvec", "bool", "text", "text"],
                lambda row: (
                    data.tenants[row], str(row), self.model_id, HalfVector(data.vectors[row]),
                    False, "semantic", "active",
                ),
            ),
        ]  # fmt: skip
        with self.connection.transaction(), self.connection.cursor() as cursor:
            for statement, types, values in tables:
                with cursor.copy(statement) as copy:
                    copy.set_types(types)
                    for row in rows:
                        copy.write_row(values(row))

    def write(self, tenant: str, row: int, text: str, vector: Any) -> None:
        """The same rows by INSERTs in one transaction."""
        now = datetime.now(UTC)
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO zerda.entries ({COLUMNS}) VALUES "
                "(%s, %s, 1, 'semantic', NULL, %s, %s, NULL, NULL, NULL, '{}', '{}', 'english', "
                "'active', %s, %s, %s, %s)",
                [tenant, str(row), psycopg.types.json.Json(text), text, now, now, now,
                 row.to_bytes(16, "big")],
            )  # fmt: skip
            cursor.execute(
                "INSERT INTO zerda.entry_state VALUES (%s, %s, 0.5, 0.5, 1.0, 0, %s)",
                [tenant, str(row), now],
            )
            cursor.execute(
                "INSERT INTO zerda.embeddings (tenant_id, entry_id, model_id, embedding, "
                "truncated, memory_type, status) "
                "VALUES (%s, %s, %s, %s, false, 'semantic', 'active')",
                [tenant, str(row), self.model_id, HalfVector(vector)],
            )

    def dense(self, tenant: str, vector: Any, k: int) -> list[int]:
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(
                DENSE,
                {"tenant": tenant, "model": self.model_id, "vector": HalfVector(vector), "k": k},
            )
            ids = [row[0] for row in cursor.fetchall()]
        self.fetch(tenant, ids)
        return [int(entry_id) for entry_id in ids]

    def fetch(self, tenant: str, ids: list[str]) -> list[int]:
        """The entries' columns."""
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(FETCH, {"tenant": tenant, "ids": ids})
            return [int(row[0]) for row in cursor.fetchall()]

    def candidates(self, tenant: str, text: str, vector: Any, k: int) -> list[int]:
        """The store's own statement, without any ranking."""
        statement = gather_sql(Criteria(scope=Scope(tenant_id="any")), HYBRID, "public")
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(
                statement,
                {
                    "tenant": tenant, "query_text": text, "language": "pg_catalog.english",
                    "model": self.model_id, "query_vector": HalfvecParam(vector),
                },
            )  # fmt: skip
            return [int(row[0]) for row in cursor.fetchall()][:k]

    def close(self) -> None:
        self.connection.close()
