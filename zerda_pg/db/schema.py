"""The tables, as SQLAlchemy metadata.

Every key, unique constraint and foreign key leads with `tenant_id`: that one rule gives
isolation by row-level security, locality, and distribution by tenant. `embedding_models` alone
is shared by all tenants.
"""

from __future__ import annotations

from typing import Any

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, TSVECTOR
from sqlalchemy.types import UserDefinedType

__all__ = [
    "HEAD",
    "LANGUAGES",
    "SCHEMA",
    "changes",
    "edges",
    "embedding_models",
    "embeddings",
    "entries",
    "entry_state",
    "entry_versions",
    "layer_entries",
    "lexemes",
    "metadata",
    "session_touches",
    "tenants",
]

SCHEMA = "zerda"

HEAD = "v1_0001"
"""The newest revision that this package knows; before the underscore its major version."""

LANGUAGES = (
    "simple arabic armenian basque catalan danish dutch english finnish french german greek "
    "hindi hungarian indonesian irish italian lithuanian nepali norwegian portuguese romanian "
    "russian serbian spanish swedish tamil turkish yiddish"
).split()
"""Text-search configurations that PostgreSQL 16 brings along."""

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    },
)


class Xid8(UserDefinedType[int]):
    """A 64-bit transaction id."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The type's name in DDL."""
        return "xid8"


def _key(name: str, *, nullable: bool = False) -> Column[str]:
    """A column that identifies something: byte order, so that ties sort as in Python."""
    return Column(name, Text(collation="C"), nullable=nullable)


def _time(name: str, *, nullable: bool = True) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def _recorded_columns() -> list[Column[Any]]:
    """What a memory says, in `entries` and again in `entry_versions`."""
    return [
        Column("version", Integer, nullable=False),
        Column("memory_type", Text, nullable=False),
        Column("kind", Text),
        Column("content", JSON, nullable=False),
        Column("body", Text, nullable=False),
        _key("session_id", nullable=True),
        _key("user_id", nullable=True),
        _key("agent_id", nullable=True),
        Column("tags", ARRAY(Text), nullable=False),
        Column("metadata", JSONB, nullable=False),
        Column("language", Text, nullable=False),
        Column("status", Text, nullable=False),
        _time("created_at", nullable=False),
        _time("recorded_at", nullable=False),
        _time("updated_at", nullable=False),
        _time("valid_from"),
        _time("valid_to"),
        _time("invalidated_at"),
        _time("expires_at"),
        _time("discarded_at"),
        Column("content_hash", LargeBinary, nullable=False),
        Column(
            "search", TSVECTOR, Computed(f"{SCHEMA}.search_vector(language, body)", persisted=True)
        ),
    ]


def _entry_reference(column: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant_id", column],
        [f"{SCHEMA}.entries.tenant_id", f"{SCHEMA}.entries.id"],
        ondelete="CASCADE",
    )


entries = Table(
    "entries",
    metadata,
    _key("tenant_id"),
    _key("id"),
    *_recorded_columns(),
    PrimaryKeyConstraint("tenant_id", "id"),
    # After a commit the tenant setting reads '', so a forgetful query sees the tenant ''.
    CheckConstraint("tenant_id <> ''", name="tenant_id"),
    CheckConstraint("octet_length(tenant_id) <= 256 AND octet_length(id) <= 256", name="lengths"),
    CheckConstraint(
        "memory_type IN "
        "('short_term', 'long_term', 'working', 'episodic', 'semantic', 'procedural')",
        name="memory_type",
    ),
    CheckConstraint("status IN ('active', 'superseded', 'discarded')", name="status"),
    Index("ix_entries_newest", "tenant_id", "created_at", "id"),
    Index("ix_entries_content_hash", "tenant_id", "content_hash"),
    Index(
        "ix_entries_session",
        "tenant_id",
        "session_id",
        "created_at",
        postgresql_where=text("session_id IS NOT NULL"),
    ),
    Index(
        "ix_entries_expires",
        "tenant_id",
        "expires_at",
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
    Index(
        "ix_entries_search",
        "tenant_id",
        "search",
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
    ),
)

entry_versions = Table(
    "entry_versions",
    metadata,
    _key("tenant_id"),
    _key("id"),
    *_recorded_columns(),
    _time("recorded_to", nullable=False),
    PrimaryKeyConstraint("tenant_id", "id", "version"),
    _entry_reference("id"),
    Index(
        "ix_entry_versions_search",
        "tenant_id",
        "search",
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
    ),
)

entry_state = Table(
    "entry_state",
    metadata,
    _key("tenant_id"),
    _key("entry_id"),
    Column("importance", Double, nullable=False),
    Column("original_importance", Double, nullable=False),
    Column("decay_factor", Double, nullable=False),
    Column("access_count", BigInteger, nullable=False),
    _time("last_access", nullable=False),
    PrimaryKeyConstraint("tenant_id", "entry_id"),
    _entry_reference("entry_id"),
    # Room on the page makes recording an access a heap-only update, which touches no index.
    postgresql_with={"fillfactor": "70"},
)

edges = Table(
    "edges",
    metadata,
    _key("tenant_id"),
    _key("source_id"),
    _key("relation"),
    _key("target_id"),
    Column("weight", Double, nullable=False),
    Column("metadata", JSONB, nullable=False),
    _time("created_at", nullable=False),
    PrimaryKeyConstraint("tenant_id", "source_id", "relation", "target_id"),
    _entry_reference("source_id"),
    _entry_reference("target_id"),
    Index("ix_edges_target", "tenant_id", "target_id", "relation", "source_id"),
)

embedding_models = Table(
    "embedding_models",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("name", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("dimensions", Integer, nullable=False),
    Column("state", Text, nullable=False),
    _time("created_at", nullable=False),
    UniqueConstraint("fingerprint", "dimensions"),
    CheckConstraint("state IN ('building', 'active', 'retired')", name="state"),
    CheckConstraint("dimensions BETWEEN 1 AND 16000", name="dimensions"),
    Index(
        "uq_embedding_models_active",
        "state",
        unique=True,
        postgresql_where=text("state = 'active'"),
    ),
)

# The key ends with the model: a cascading delete finds an entry's vectors by it, and a scan of
# a tenant still reads its vectors in one range. No foreign key to the models: a reference
# table cannot be one's target where the schema is distributed.
embeddings = Table(
    "embeddings",
    metadata,
    _key("tenant_id"),
    _key("entry_id"),
    Column("model_id", Integer, nullable=False),
    Column("embedding", HALFVEC(), nullable=False),
    Column("truncated", Boolean, nullable=False),
    Column("memory_type", Text, nullable=False),
    Column("kind", Text),
    Column("status", Text, nullable=False),
    _key("session_id", nullable=True),
    _key("user_id", nullable=True),
    _key("agent_id", nullable=True),
    _time("valid_from"),
    _time("valid_to"),
    _time("expires_at"),
    PrimaryKeyConstraint("tenant_id", "entry_id", "model_id"),
    _entry_reference("entry_id"),
)

layer_entries = Table(
    "layer_entries",
    metadata,
    _key("tenant_id"),
    _key("layer"),
    _key("session_id"),
    _key("entry_id"),
    Column("seq", BigInteger, Identity(always=True), nullable=False),
    PrimaryKeyConstraint("tenant_id", "layer", "session_id", "entry_id"),
    _entry_reference("entry_id"),
    Index("ix_layer_entries_seq", "tenant_id", "layer", "session_id", "seq"),
    Index("ix_layer_entries_entry", "tenant_id", "entry_id"),
)

# No foreign key: it would cost 59 KB of WAL a recall against 3.
session_touches = Table(
    "session_touches",
    metadata,
    _key("tenant_id"),
    _key("session_id"),
    _key("entry_id"),
    _time("touched_at", nullable=False),
    PrimaryKeyConstraint("tenant_id", "session_id", "entry_id"),
)

changes = Table(
    "changes",
    metadata,
    _key("tenant_id"),
    Column("seq", BigInteger, Identity(always=True), nullable=False),
    Column("xid", Xid8, nullable=False, server_default=text("pg_current_xact_id()")),
    _key("entry_id"),
    Column("operation", Text, nullable=False),
    _time("changed_at", nullable=False),
    PrimaryKeyConstraint("tenant_id", "seq"),
    Index("ix_changes_xid", "tenant_id", "xid", "seq"),
)

tenants = Table(
    "tenants",
    metadata,
    _key("tenant_id"),
    Column("changes_enabled", Boolean, nullable=False, server_default=text("false")),
    # Which feed this is, and where: cluster, database and a random part.
    Column("changes_epoch", Text),
    # Changes of transactions below this one, and rows up to this number, may be swept.
    Column("changes_since", Xid8, nullable=False, server_default=text("'0'")),
    Column("changes_swept", BigInteger, nullable=False, server_default=text("0")),
    Column("entries_counted", BigInteger, nullable=False, server_default=text("0")),
    _time("counted_at"),
    Column("ann_model_id", Integer),
    PrimaryKeyConstraint("tenant_id"),
    comment="Settings and statistics of a tenant; one without a row has the defaults.",
)

lexemes = Table(
    "lexemes",
    metadata,
    _key("tenant_id"),
    _key("lexeme"),
    Column("entries", Integer, nullable=False),
    PrimaryKeyConstraint("tenant_id", "lexeme"),
    comment="In how many entries of a tenant a lexeme occurs, as of tenants.counted_at.",
)
