"""The tables, and the functions that write them, which stand in `functions/v1_0001`.

Revision ID: v1_0001
Revises:
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from zerda_pg.db.migrations import extension_schema, require_extensions

revision = "v1_0001"
down_revision = None
branch_labels = None
depends_on = None

RECORDED = """
    version integer NOT NULL,
    memory_type text NOT NULL,
    kind text,
    content json NOT NULL,
    body text NOT NULL,
    session_id text COLLATE "C",
    user_id text COLLATE "C",
    agent_id text COLLATE "C",
    tags text[] NOT NULL,
    metadata jsonb NOT NULL,
    language text NOT NULL,
    status text NOT NULL,
    created_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    valid_from timestamptz,
    valid_to timestamptz,
    invalidated_at timestamptz,
    expires_at timestamptz,
    discarded_at timestamptz,
    content_hash bytea NOT NULL,
    search tsvector GENERATED ALWAYS AS (zerda.search_vector(language, body)) STORED"""

TABLES = f"""
CREATE TABLE zerda.entries (
    tenant_id text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,{RECORDED},
    CONSTRAINT pk_entries PRIMARY KEY (tenant_id, id),
    CONSTRAINT ck_entries_tenant_id CHECK (tenant_id <> ''),
    CONSTRAINT ck_entries_lengths
        CHECK (octet_length(tenant_id) <= 256 AND octet_length(id) <= 256),
    CONSTRAINT ck_entries_memory_type CHECK (memory_type IN
        ('short_term', 'long_term', 'working', 'episodic', 'semantic', 'procedural')),
    CONSTRAINT ck_entries_status CHECK (status IN ('active', 'superseded', 'discarded'))
);
ALTER TABLE zerda.entries ALTER COLUMN search SET STATISTICS 1000;
CREATE INDEX ix_entries_newest ON zerda.entries (tenant_id, created_at, id);
CREATE INDEX ix_entries_content_hash ON zerda.entries (tenant_id, content_hash);
CREATE INDEX ix_entries_session ON zerda.entries (tenant_id, session_id, created_at)
    WHERE session_id IS NOT NULL;
CREATE INDEX ix_entries_expires ON zerda.entries (tenant_id, expires_at)
    WHERE expires_at IS NOT NULL;
CREATE INDEX ix_entries_search ON zerda.entries USING gin (tenant_id, search)
    WITH (fastupdate = off);

CREATE TABLE zerda.entry_versions (
    tenant_id text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,{RECORDED},
    recorded_to timestamptz NOT NULL,
    CONSTRAINT pk_entry_versions PRIMARY KEY (tenant_id, id, version),
    CONSTRAINT fk_entry_versions_tenant_id_id FOREIGN KEY (tenant_id, id)
        REFERENCES zerda.entries (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX ix_entry_versions_search ON zerda.entry_versions USING gin (tenant_id, search)
    WITH (fastupdate = off);

CREATE TABLE zerda.entry_state (
    tenant_id text COLLATE "C" NOT NULL,
    entry_id text COLLATE "C" NOT NULL,
    importance double precision NOT NULL,
    original_importance double precision NOT NULL,
    decay_factor double precision NOT NULL,
    access_count bigint NOT NULL,
    last_access timestamptz NOT NULL,
    CONSTRAINT pk_entry_state PRIMARY KEY (tenant_id, entry_id),
    CONSTRAINT fk_entry_state_tenant_id_entry_id FOREIGN KEY (tenant_id, entry_id)
        REFERENCES zerda.entries (tenant_id, id) ON DELETE CASCADE
) WITH (fillfactor = 70);

CREATE TABLE zerda.edges (
    tenant_id text COLLATE "C" NOT NULL,
    source_id text COLLATE "C" NOT NULL,
    relation text COLLATE "C" NOT NULL,
    target_id text COLLATE "C" NOT NULL,
    weight double precision NOT NULL,
    metadata jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_edges PRIMARY KEY (tenant_id, source_id, relation, target_id),
    CONSTRAINT fk_edges_tenant_id_source_id FOREIGN KEY (tenant_id, source_id)
        REFERENCES zerda.entries (tenant_id, id) ON DELETE CASCADE,
    CONSTRAINT fk_edges_tenant_id_target_id FOREIGN KEY (tenant_id, target_id)
        REFERENCES zerda.entries (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX ix_edges_target ON zerda.edges (tenant_id, target_id, relation, source_id);

CREATE TABLE zerda.embedding_models (
    id integer GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    fingerprint text NOT NULL,
    dimensions integer NOT NULL,
    state text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_embedding_models PRIMARY KEY (id),
    CONSTRAINT uq_embedding_models_fingerprint_dimensions UNIQUE (fingerprint, dimensions),
    CONSTRAINT ck_embedding_models_state CHECK (state IN ('building', 'active', 'retired')),
    CONSTRAINT ck_embedding_models_dimensions CHECK (dimensions BETWEEN 1 AND 16000)
);
CREATE UNIQUE INDEX uq_embedding_models_active ON zerda.embedding_models (state)
    WHERE state = 'active';

CREATE TABLE zerda.embeddings (
    tenant_id text COLLATE "C" NOT NULL,
    entry_id text COLLATE "C" NOT NULL,
    model_id integer NOT NULL,
    embedding {{vector}}.halfvec NOT NULL,
    truncated boolean NOT NULL,
    memory_type text NOT NULL,
    kind text,
    status text NOT NULL,
    session_id text COLLATE "C",
    user_id text COLLATE "C",
    agent_id text COLLATE "C",
    valid_from timestamptz,
    valid_to timestamptz,
    expires_at timestamptz,
    CONSTRAINT pk_embeddings PRIMARY KEY (tenant_id, entry_id, model_id),
    CONSTRAINT fk_embeddings_tenant_id_entry_id FOREIGN KEY (tenant_id, entry_id)
        REFERENCES zerda.entries (tenant_id, id) ON DELETE CASCADE
);
ALTER TABLE zerda.embeddings ALTER COLUMN embedding SET STORAGE PLAIN;

CREATE TABLE zerda.layer_entries (
    tenant_id text COLLATE "C" NOT NULL,
    layer text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    entry_id text COLLATE "C" NOT NULL,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    CONSTRAINT pk_layer_entries PRIMARY KEY (tenant_id, layer, session_id, entry_id),
    CONSTRAINT fk_layer_entries_tenant_id_entry_id FOREIGN KEY (tenant_id, entry_id)
        REFERENCES zerda.entries (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX ix_layer_entries_seq ON zerda.layer_entries (tenant_id, layer, session_id, seq);
CREATE INDEX ix_layer_entries_entry ON zerda.layer_entries (tenant_id, entry_id);

CREATE TABLE zerda.session_touches (
    tenant_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    entry_id text COLLATE "C" NOT NULL,
    touched_at timestamptz NOT NULL,
    CONSTRAINT pk_session_touches PRIMARY KEY (tenant_id, session_id, entry_id)
);

CREATE TABLE zerda.changes (
    tenant_id text COLLATE "C" NOT NULL,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    entry_id text COLLATE "C" NOT NULL,
    operation text NOT NULL,
    changed_at timestamptz NOT NULL,
    CONSTRAINT pk_changes PRIMARY KEY (tenant_id, seq)
);
CREATE INDEX ix_changes_xid ON zerda.changes (tenant_id, xid, seq);

CREATE TABLE zerda.tenants (
    tenant_id text COLLATE "C" NOT NULL,
    changes_enabled boolean NOT NULL DEFAULT false,
    changes_epoch text,
    changes_since xid8 NOT NULL DEFAULT '0',
    changes_swept bigint NOT NULL DEFAULT 0,
    entries_counted bigint NOT NULL DEFAULT 0,
    counted_at timestamptz,
    ann_model_id integer,
    CONSTRAINT pk_tenants PRIMARY KEY (tenant_id)
);
COMMENT ON TABLE zerda.tenants IS
    'Settings and statistics of a tenant; one without a row has the defaults.';

CREATE TABLE zerda.lexemes (
    tenant_id text COLLATE "C" NOT NULL,
    lexeme text COLLATE "C" NOT NULL,
    entries integer NOT NULL,
    CONSTRAINT pk_lexemes PRIMARY KEY (tenant_id, lexeme)
);
COMMENT ON TABLE zerda.lexemes IS
    'In how many entries of a tenant a lexeme occurs, as of tenants.counted_at.';
"""

TENANT_ROWS = 1000
"""What the planner takes for the rows of any tenant in a table.

Plans are kept, and the same for every tenant. Where tenants have a row or two on average, or the
table was empty when the plan was made, any index that begins with the tenant would seem as good
as the key: each lookup then reads the whole tenant, once there is a large one.
"""

INDEXED = (
    "entries entry_versions entry_state edges embeddings layer_entries session_touches changes "
    "lexemes"
).split()

WRITTEN = (
    "tenant_id, id, version, memory_type, kind, content, body, session_id, user_id, agent_id, "
    "tags, metadata, language, status, created_at, recorded_at, updated_at, content_hash"
)

FIGURES = f"""
SAVEPOINT figures;
INSERT INTO zerda.entries ({WRITTEN})
SELECT 'none ' || n, n, 1, 'semantic', 'kind ' || n % 5, to_json(n),
    'word' || n % 500 || ' word' || n, n % 50, n % 10, n % 5, ARRAY['tag ' || n % 20], '{{}}',
    'english', 'active', now() - n * interval '1 hour', now(), now(), decode(md5(n::text), 'hex')
FROM generate_series(1, {TENANT_ROWS}) AS n;
INSERT INTO zerda.entry_versions ({WRITTEN}, recorded_to) SELECT {WRITTEN}, now()
FROM zerda.entries;
INSERT INTO zerda.entry_state SELECT tenant_id, id, 0.5, 0.5, 1, 0, now() FROM zerda.entries;
INSERT INTO zerda.edges SELECT tenant_id, id, 'related', id, 1, '{{}}', now() FROM zerda.entries;
INSERT INTO zerda.embeddings (tenant_id, entry_id, model_id, embedding, truncated, memory_type,
    kind, status, session_id, user_id, agent_id)
SELECT tenant_id, id, 1, array_fill(1::float8, ARRAY[384])::[vector].halfvec, false, memory_type,
    kind, status, session_id, user_id, agent_id
FROM zerda.entries;
INSERT INTO zerda.layer_entries (tenant_id, layer, session_id, entry_id)
SELECT tenant_id, 'short_term', session_id, id FROM zerda.entries;
INSERT INTO zerda.session_touches SELECT tenant_id, session_id, id, now() FROM zerda.entries;
INSERT INTO zerda.changes (tenant_id, entry_id, operation, changed_at)
SELECT tenant_id, id, 'created', now() FROM zerda.entries;
INSERT INTO zerda.lexemes SELECT tenant_id, 'word' || id, 1 FROM zerda.entries;
ANALYZE {", ".join(f"zerda.{table}" for table in INDEXED)};
TRUNCATE {", ".join(f"zerda.{table}" for table in INDEXED)} RESTART IDENTITY;
RELEASE SAVEPOINT figures;
"""
"""Rows for the planner to see, which are gone at once: of an empty table it learns nothing.

Each of a tenant of its own: one that has many it would know, and think that no other has any.
Within a savepoint, or TRUNCATE would leave it their number too: of a table whose rows nobody has
counted it thinks that it has ten pages.
"""

FUNCTIONS = (
    "use_tenant begin_write hold_writes record_changes cluster_identity changes_horizon set_changes "
    "activate_model supersede replaced_by keep_version hold_entry put_entries nearest postings"
).split()


def function(name: str, vector: str) -> str:
    """What creates one of them, with the schema in which pgvector lives."""
    folder = Path(__file__).parent.parent / "functions" / revision
    return (folder / f"{name}.sql").read_text(encoding="utf-8").replace("{vector}", vector)


def upgrade() -> None:
    require_extensions(op.get_context())
    vector = extension_schema(op.get_context(), "vector")
    op.execute(function("search_vector", vector))
    op.execute(TABLES.format(vector=vector))
    # Loads pgvector's library, whose settings `nearest` has: until it is loaded they are unknown,
    # and only a superuser may set what is unknown.
    op.execute(f"SELECT '[1]'::{vector}.vector")
    for table in INDEXED:
        share = f"n_distinct = -{1 / TENANT_ROWS}"
        op.execute(f"ALTER TABLE zerda.{table} ALTER COLUMN tenant_id SET ({share})")
    op.execute(FIGURES.replace("[vector]", vector))
    for name in FUNCTIONS:
        op.execute(function(name, vector))


def downgrade() -> None:
    for name in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION zerda.{name}")
    for table in (
        "lexemes tenants changes session_touches layer_entries embeddings embedding_models edges "
        "entry_state entry_versions entries"
    ).split():
        op.execute(f"DROP TABLE zerda.{table}")
    op.execute("DROP FUNCTION zerda.search_vector")
