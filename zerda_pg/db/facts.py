"""What must be known of a database before it is used, asked once."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from zerda_pg.db.migrations import OLDEST_PGVECTOR, OLDEST_SERVER, check_revision
from zerda_pg.errors import ConfigError, SchemaOutdatedError

__all__ = [
    "DatabaseFacts",
    "Model",
    "active_model",
    "check_dimensions",
    "read_facts",
    "register_model",
]


@dataclass(frozen=True, kw_only=True)
class DatabaseFacts:
    """Versions, and where the vector type lives."""

    server: int
    """Major version of PostgreSQL."""
    revision: str | None
    """Of the schema."""
    pgvector: str
    vector_schema: str
    """Quoted."""
    halfvec_oid: int
    read_only: bool
    """A replica, or a database set to read only."""
    isolated: bool
    """Whether row-level security applies to the role, which then sees one tenant at a time."""
    exempt: bool
    """Whether no policy ever binds the role."""
    records_access: bool
    """Whether searches count accesses: not on a replica, and not by a role that only reads."""
    plain_forms: bool
    """Whether sessions write times in UTC and in ISO 8601: a time at the edge of the calendar
    leaves it in another zone, and nobody reads 03/04/2024."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """An embedding model as the database records it."""

    id: int
    name: str
    fingerprint: str
    dimensions: int


MOST_DIMENSIONS = 4000
"""Of a half-precision vector that fits a page, and an HNSW index."""

_FACTS = text(
    """
    SELECT current_setting('server_version_num')::int / 10000 AS server,
           x.extversion AS pgvector,
           quote_ident(n.nspname) AS vector_schema,
           t.oid AS halfvec_oid,
           to_regclass('zerda.alembic_version') IS NOT NULL AS migrated,
           current_setting('transaction_read_only') = 'on' AS read_only,
           current_setting('TimeZone') IN ('UTC', 'Etc/UTC', 'GMT')
               AND current_setting('DateStyle') LIKE 'ISO%'
               AND current_setting('extra_float_digits')::integer > 0 AS plain_forms
    FROM (SELECT 1) AS always
    LEFT JOIN pg_extension x ON x.extname = 'vector'
    LEFT JOIN pg_namespace n ON n.oid = x.extnamespace
    LEFT JOIN pg_type t ON t.typnamespace = x.extnamespace AND t.typname = 'halfvec'
    """
)


_RIGHTS = text(
    """
    SELECT row_security_active('zerda.entries') AS isolated,
           r.rolsuper OR r.rolbypassrls AS exempt,
           has_table_privilege('zerda.entry_state', 'UPDATE')
               AND has_table_privilege('zerda.session_touches', 'INSERT') AS writes
    FROM pg_roles r WHERE r.rolname = current_user
    """
)


def read_facts(connection: Connection) -> DatabaseFacts:
    """Ask, and refuse what zerda_pg cannot work with.

    Raises:
        ConfigError: If PostgreSQL or pgvector is too old.
        SchemaOutdatedError: If the schema is missing or older than this package.
        SchemaTooNewError: If it is of a later major version.
    """
    row = connection.execute(_FACTS).one()
    if row.server < OLDEST_SERVER:
        raise ConfigError(
            f"PostgreSQL {OLDEST_SERVER} or newer is needed, the server is {row.server}"
        )
    if not row.migrated or row.pgvector is None:
        raise SchemaOutdatedError("the database has no zerda schema yet: run `zerda-pg migrate`")
    if tuple(int(part) for part in row.pgvector.split(".")[:2]) < OLDEST_PGVECTOR:
        raise ConfigError(f"pgvector 0.8 or newer is needed, the database has {row.pgvector}")
    revision = connection.scalar(text("SELECT version_num FROM zerda.alembic_version"))
    check_revision(revision)
    rights = connection.execute(_RIGHTS).one()
    return DatabaseFacts(
        server=row.server,
        revision=revision,
        pgvector=row.pgvector,
        vector_schema=row.vector_schema,
        halfvec_oid=row.halfvec_oid,
        read_only=row.read_only,
        isolated=rights.isolated,
        exempt=rights.exempt,
        plain_forms=row.plain_forms,
        records_access=rights.writes and not row.read_only,
    )


_ACTIVE = text(
    "SELECT id, name, fingerprint, dimensions FROM zerda.embedding_models WHERE state = 'active'"
)


def active_model(connection: Connection) -> Model | None:
    """The model whose vectors searches compare with, or None in an empty store."""
    row = connection.execute(_ACTIVE).one_or_none()
    return None if row is None else Model(**row._mapping)


def check_dimensions(dimensions: int) -> None:
    """Refuse vectors that neither a page of a table nor an index can hold.

    Raises:
        ConfigError: Beyond 4,000 dimensions.
    """
    if dimensions > MOST_DIMENSIONS:
        raise ConfigError(
            f"the embedder's vectors have {dimensions} dimensions, at most {MOST_DIMENSIONS} are "
            "supported: choose a model with fewer, or cut its vectors"
        )


def register_model(connection: Connection, name: str, fingerprint: str, dimensions: int) -> Model:
    """Record the model as the active one, unless another process was first; return the active."""
    check_dimensions(dimensions)
    connection.execute(
        text(
            "INSERT INTO zerda.embedding_models (name, fingerprint, dimensions, state, created_at)"
            " VALUES (:name, :fingerprint, :dimensions, 'active', now()) ON CONFLICT DO NOTHING"
        ),
        {"name": name, "fingerprint": fingerprint, "dimensions": dimensions},
    )
    model = active_model(connection)
    if model is None:
        raise ConfigError("the database records no active embedding model: finish the re-embedding")
    return model
