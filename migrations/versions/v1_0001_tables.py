"""The tables, and the functions that write them.

Revision ID: v1_0001
Revises:
"""

from __future__ import annotations

from alembic import op

from zerda_pg.db.migrations import extension_schema, require_extensions

revision = "v1_0001"
down_revision = None
branch_labels = None
depends_on = None

LANGUAGES = (
    "arabic armenian basque catalan danish dutch english finnish french german greek hindi "
    "hungarian indonesian irish italian lithuanian nepali norwegian portuguese romanian russian "
    "serbian spanish swedish tamil turkish yiddish"
).split()

SEARCH = (
    "CASE language "
    + " ".join(
        f"WHEN '{name}' THEN to_tsvector('pg_catalog.{name}', left(body, 100000))"
        for name in LANGUAGES
    )
    + " ELSE to_tsvector('pg_catalog.simple', left(body, 100000)) END"
)

RECORDED = f"""
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
    search tsvector GENERATED ALWAYS AS ({SEARCH}) STORED"""

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

# The tenant of a transaction, for row-level security. `set_config` would not reach the workers
# of a distributed database; SET LOCAL does.
USE_TENANT = """
CREATE FUNCTION zerda.use_tenant(p_tenant text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('SET LOCAL zerda.tenant_id = %L', p_tenant);
END
$$;
"""

# Every write passes here first, once a transaction, before it locks a row. It holds a lock in
# shared mode which a switch of the embedding model, or of the change feed, takes alone: neither
# then misses a write that goes on beside it. Returns whether the tenant's changes are recorded.
# SQLSTATE ZD003: the vectors to be written are of a model that is not the active one.
BEGIN_WRITE = """
CREATE FUNCTION zerda.begin_write(p_tenant text, p_model integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({gate});
    IF p_model IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM zerda.embedding_models m WHERE m.id = p_model AND m.state = 'active') THEN
        RAISE EXCEPTION USING ERRCODE = 'ZD003',
            MESSAGE = 'the active embedding model is another one by now';
    END IF;
    RETURN EXISTS (
        SELECT 1 FROM zerda.tenants t WHERE t.tenant_id = p_tenant AND t.changes_enabled);
END
$$;
"""

# Waits for the writes under way and keeps others waiting until the transaction ends; not for
# long, since they queue behind it.
HOLD_WRITES = """
CREATE FUNCTION zerda.hold_writes() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog SET lock_timeout = '10s' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock({gate});
END
$$;
"""

GATE = 0x7A65726467617465  # "zerdgate"

# The transaction's id is taken before the row's number, so that a reader which knows all
# transactions below some id to be over has all their rows.
RECORD_CHANGES = """
CREATE FUNCTION zerda.record_changes(p_tenant text, p_ids text[], p_operation text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_xid xid8 := pg_current_xact_id();
    v_now timestamptz := clock_timestamp();
BEGIN
    INSERT INTO zerda.changes (tenant_id, xid, entry_id, operation, changed_at)
    SELECT p_tenant, v_xid, i.id, p_operation, v_now
    FROM unnest(p_ids) WITH ORDINALITY AS i (id, n)
    ORDER BY i.n;
END
$$;
"""

# Where transaction ids mean the same: this database of this cluster, not what was restored from
# its dump.
CLUSTER_IDENTITY = """
CREATE FUNCTION zerda.cluster_identity() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN format('%s-%s', (SELECT c.system_identifier FROM pg_control_system() AS c),
        (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()));
END
$$;
"""

# The transaction below which all are over that could have changed the tenant. The oldest one that
# is not over would do, but it may belong to another database, whose long work would hold this
# feed back: such a one is passed over where its session is known. STABLE, so that it looks at
# the snapshot of the statement that reads the rows.
CHANGES_HORIZON = """
CREATE FUNCTION zerda.changes_horizon(p_tenant text) RETURNS xid8
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
DECLARE
    v_snapshot pg_snapshot := pg_current_snapshot();
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM zerda.changes c
        WHERE c.tenant_id = p_tenant AND c.xid >= pg_snapshot_xmin(v_snapshot)) THEN
        RETURN pg_snapshot_xmin(v_snapshot);
    END IF;
    RETURN (
        SELECT coalesce(min(running.xid), pg_snapshot_xmax(v_snapshot))
        FROM pg_snapshot_xip(v_snapshot) AS running (xid)
        WHERE NOT EXISTS (
            SELECT 1
            FROM pg_locks l
            JOIN pg_stat_activity a ON a.pid = l.pid
            JOIN pg_database d ON d.datname = current_database()
            WHERE l.locktype = 'transactionid' AND l.transactionid = running.xid::xid
              AND l.mode = 'ExclusiveLock' AND l.granted AND a.datid <> d.oid));
END
$$;
"""

# Switches a tenant's change feed. Off erases what it recorded; on again starts another feed, to
# which the positions of the earlier one do not belong.
SET_CHANGES = """
CREATE FUNCTION zerda.set_changes(p_tenant text, p_enabled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_epoch text := zerda.cluster_identity() || '-' || gen_random_uuid();
    v_since xid8;
BEGIN
    PERFORM zerda.hold_writes();
    IF p_enabled AND EXISTS (
        SELECT 1 FROM zerda.tenants t
        WHERE t.tenant_id = p_tenant AND t.changes_enabled
          AND starts_with(t.changes_epoch, zerda.cluster_identity() || '-')) THEN
        RETURN;
    END IF;
    DELETE FROM zerda.changes c WHERE c.tenant_id = p_tenant;
    -- what is written from now on is by a transaction at or above this one
    v_since := pg_snapshot_xmin(pg_current_snapshot());
    IF p_enabled THEN
        INSERT INTO zerda.tenants AS t (tenant_id, changes_enabled, changes_epoch, changes_since)
        VALUES (p_tenant, true, v_epoch, v_since)
        ON CONFLICT (tenant_id) DO UPDATE
        SET changes_enabled = true, changes_epoch = excluded.changes_epoch,
            changes_since = excluded.changes_since, changes_swept = 0;
    ELSE
        UPDATE zerda.tenants t
        SET changes_enabled = false, changes_epoch = NULL, changes_since = '0', changes_swept = 0
        WHERE t.tenant_id = p_tenant;
        -- a row that says nothing beyond the defaults is one trace less
        DELETE FROM zerda.tenants t
        WHERE t.tenant_id = p_tenant AND t.counted_at IS NULL AND t.ann_model_id IS NULL;
    END IF;
END
$$;
"""

# Makes another embedding model the one that searches compare with. Writes wait meanwhile, so
# that none is missed by the check. SQLSTATE ZD004: there is no such model; ZD005: entries lack
# its vector.
ACTIVATE_MODEL = """
CREATE FUNCTION zerda.activate_model(p_model integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM zerda.hold_writes();
    PERFORM 1 FROM zerda.embedding_models m WHERE m.id = p_model FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'ZD004',
            MESSAGE = format('there is no embedding model %s', p_model);
    END IF;
    IF EXISTS (
        SELECT 1 FROM zerda.entries e
        WHERE NOT EXISTS (
            SELECT 1 FROM zerda.embeddings v
            WHERE v.tenant_id = e.tenant_id AND v.entry_id = e.id AND v.model_id = p_model)) THEN
        RAISE EXCEPTION USING ERRCODE = 'ZD005',
            MESSAGE = format('entries lack a vector of embedding model %s', p_model);
    END IF;
    UPDATE zerda.embedding_models m SET state = 'retired'
    WHERE m.state = 'active' AND m.id <> p_model;
    UPDATE zerda.embedding_models m SET state = 'active' WHERE m.id = p_model;
END
$$;
"""

# Marks one entry superseded, in both tables that repeat its status. A second time changes
# nothing: what ended first stays ended then. What is discarded stays so, and is superseded when
# it is restored.
SUPERSEDE = """
CREATE FUNCTION zerda.supersede(p_tenant text, p_id text, p_from timestamptz, p_now timestamptz)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
#variable_conflict use_column
DECLARE
    v_valid_to timestamptz;
BEGIN
    UPDATE zerda.entries e
    SET status = CASE WHEN e.status = 'active' THEN 'superseded' ELSE e.status END,
        valid_to = greatest(least(e.valid_to, p_from), e.valid_from),
        invalidated_at = p_now,
        updated_at = p_now
    WHERE e.tenant_id = p_tenant AND e.id = p_id AND e.invalidated_at IS NULL
    RETURNING e.valid_to INTO v_valid_to;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE zerda.embeddings v
    SET status = CASE WHEN v.status = 'active' THEN 'superseded' ELSE v.status END,
        valid_to = v_valid_to
    WHERE v.tenant_id = p_tenant AND v.entry_id = p_id;
    RETURN true;
END
$$;
"""

# Keeps the row as it is now, before a correction or a replacing write.
KEEP_VERSION = """
CREATE FUNCTION zerda.keep_version(p_tenant text, p_id text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO zerda.entry_versions (
        tenant_id, id, version, memory_type, kind, content, body, session_id, user_id, agent_id,
        tags, metadata, language, status, created_at, recorded_at, updated_at, valid_from,
        valid_to, invalidated_at, expires_at, discarded_at, content_hash, recorded_to)
    SELECT e.tenant_id, e.id, e.version, e.memory_type, e.kind, e.content, e.body, e.session_id,
        e.user_id, e.agent_id, e.tags, e.metadata, e.language, e.status, e.created_at,
        e.recorded_at, e.updated_at, e.valid_from, e.valid_to, e.invalidated_at, e.expires_at,
        e.discarded_at, e.content_hash, p_now
    FROM zerda.entries e
    WHERE e.tenant_id = p_tenant AND e.id = p_id
    ON CONFLICT (tenant_id, id, version) DO NOTHING;
END
$$;
"""

# An entry that a layer wrote goes with its last membership. One that was also written by itself
# stays: it is held by a membership of its own.
HOLD_ENTRY = """
CREATE FUNCTION zerda.hold_entry(p_tenant text, p_id text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM zerda.layer_entries m
    WHERE m.tenant_id = p_tenant AND m.entry_id = p_id
    LIMIT 1;
    IF FOUND THEN
        INSERT INTO zerda.layer_entries (tenant_id, layer, session_id, entry_id)
        VALUES (p_tenant, 'direct', '', p_id)
        ON CONFLICT (tenant_id, layer, session_id, entry_id) DO NOTHING;
    END IF;
END
$$;
"""

# Writes entries with state, vector and edges in one call, all or none. Locks are taken in one
# global order (content locks, then rows by id), so that concurrent batches never deadlock.
# SQLSTATE ZD001: the id exists and may not be replaced; ZD002: an entry to supersede is missing.
PUT_ENTRIES = """
CREATE FUNCTION zerda.put_entries(
    p_tenant text, p_user text, p_model integer, p_rows json, p_vectors {vector}.halfvec[],
    p_if_exists text, p_dedupe boolean, p_direct boolean)
RETURNS TABLE (n integer, id text, status text, version integer, recorded_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    r record;
    v_old record;
    v_written integer[] := '{{}}';
    v_new text[] := '{{}}';
    v_several boolean := json_array_length(p_rows) > 1;
    v_supersedes boolean := v_several OR json_array_length(p_rows -> 0 -> 'supersedes') > 0;
    v_recorded boolean := zerda.begin_write(p_tenant, p_model);
BEGIN
    IF p_dedupe THEN
        PERFORM pg_advisory_xact_lock(keys.key)
        FROM (
            SELECT DISTINCT hashtextextended(p_tenant || t.content_hash, 0) AS key
            FROM json_to_recordset(p_rows) AS t (content_hash text)
            ORDER BY 1
        ) AS keys;
    END IF;
    IF v_supersedes THEN  -- a row alone needs no order
        PERFORM 1
        FROM zerda.entries e
        WHERE e.tenant_id = p_tenant AND e.id = ANY (ARRAY(
            SELECT t.id FROM json_to_recordset(p_rows) AS t (id text)
            UNION
            SELECT json_array_elements_text(t.supersedes)
            FROM json_to_recordset(p_rows) AS t (supersedes json)))
        ORDER BY e.id
        FOR NO KEY UPDATE;
    END IF;
    -- read once the locks are held: what was written while waiting for them came before
    v_now := clock_timestamp();

    -- What is new goes in by one statement a table. What then is left was there before, or
    -- stands twice in the batch: it is taken row by row.
    IF v_several AND NOT p_dedupe THEN
        FOR r IN
            INSERT INTO zerda.entries (
                tenant_id, id, version, memory_type, kind, content, body, session_id, user_id,
                agent_id, tags, metadata, language, status, created_at, recorded_at, updated_at,
                valid_from, valid_to, expires_at, discarded_at, invalidated_at, content_hash)
            SELECT p_tenant, t.id, 1, t.memory_type, t.kind, t.content, t.body, t.session_id,
                t.user_id, t.agent_id, t.tags, t.metadata, t.language, t.status, t.created_at,
                v_now, v_now, t.valid_from, t.valid_to, t.expires_at,
                CASE WHEN t.status = 'discarded' THEN v_now END,
                CASE WHEN t.status = 'superseded' THEN v_now END,
                decode(t.content_hash, 'hex')
            FROM json_to_recordset(p_rows) AS t (
                n integer, id text, memory_type text, kind text, content json, body text,
                session_id text, user_id text, agent_id text, tags text[], metadata jsonb,
                language text, status text, created_at timestamptz, valid_from timestamptz,
                valid_to timestamptz, expires_at timestamptz, content_hash text)
            ORDER BY t.id COLLATE "C", t.n
            ON CONFLICT (tenant_id, id) DO NOTHING
            RETURNING zerda.entries.id
        LOOP
            v_new := v_new || r.id;
        END LOOP;
        INSERT INTO zerda.entry_state (tenant_id, entry_id, importance, original_importance,
            decay_factor, access_count, last_access)
        SELECT p_tenant, t.id, t.importance, t.original_importance, t.decay_factor,
            t.access_count, t.last_access
        FROM json_to_recordset(p_rows) AS t (
            n integer, id text, importance float8, original_importance float8,
            decay_factor float8, access_count bigint, last_access timestamptz)
        WHERE t.id = ANY (v_new)
        ORDER BY t.id COLLATE "C", t.n
        ON CONFLICT (tenant_id, entry_id) DO NOTHING;
        INSERT INTO zerda.embeddings (tenant_id, entry_id, model_id, embedding, truncated,
            memory_type, kind, status, session_id, user_id, agent_id, valid_from, valid_to,
            expires_at)
        SELECT p_tenant, t.id, p_model, given.vector, t.truncated, t.memory_type, t.kind,
            t.status, t.session_id, t.user_id, t.agent_id, t.valid_from, t.valid_to, t.expires_at
        FROM json_to_recordset(p_rows) AS t (
            n integer, id text, memory_type text, kind text, session_id text, user_id text,
            agent_id text, status text, valid_from timestamptz, valid_to timestamptz,
            expires_at timestamptz, truncated boolean)
        JOIN unnest(p_vectors) WITH ORDINALITY AS given (vector, place) ON given.place = t.n + 1
        WHERE t.id = ANY (v_new)
        ORDER BY t.id COLLATE "C", t.n
        ON CONFLICT (tenant_id, entry_id, model_id) DO NOTHING;
        v_written := ARRAY(
            SELECT min(t.n) FROM json_to_recordset(p_rows) AS t (n integer, id text)
            WHERE t.id = ANY (v_new) GROUP BY t.id);
        RETURN QUERY
            SELECT t.n, t.id, 'created'::text, 1, v_now
            FROM json_to_recordset(p_rows) AS t (n integer, id text)
            WHERE t.n = ANY (v_written);
        IF v_recorded THEN
            PERFORM zerda.record_changes(p_tenant, v_new, 'created');
        END IF;
    END IF;

    FOR r IN
        SELECT t.*, CASE WHEN p_dedupe THEN row_number() OVER (PARTITION BY
                t.content_hash, t.user_id, t.agent_id, t.session_id, t.memory_type, t.kind
                ORDER BY t.n) > 1 ELSE false END AS repeated
        FROM json_to_recordset(p_rows) AS t (
            n integer, id text, memory_type text, kind text, content json, body text,
            session_id text, user_id text, agent_id text, tags text[], metadata jsonb,
            language text, status text, created_at timestamptz, valid_from timestamptz,
            valid_to timestamptz, expires_at timestamptz, content_hash text, importance float8,
            original_importance float8, decay_factor float8, access_count bigint,
            last_access timestamptz, truncated boolean, supersedes text[])
        WHERE NOT t.n = ANY (v_written)
        ORDER BY repeated, t.id COLLATE "C", t.n
    LOOP
        n := r.n;
        id := r.id;
        recorded_at := v_now;
        IF p_dedupe THEN
            SELECT e.id, e.version, e.recorded_at INTO v_old
            FROM zerda.entries e
            WHERE e.tenant_id = p_tenant
              AND e.content_hash = decode(r.content_hash, 'hex')
              AND e.status = 'active'
              AND e.memory_type = r.memory_type
              AND e.kind IS NOT DISTINCT FROM r.kind
              AND e.user_id IS NOT DISTINCT FROM r.user_id
              AND e.agent_id IS NOT DISTINCT FROM r.agent_id
              AND e.session_id IS NOT DISTINCT FROM r.session_id
              AND (e.expires_at IS NULL OR e.expires_at > v_now)
              AND e.id <> r.id
            ORDER BY e.created_at, e.id
            LIMIT 1
            FOR KEY SHARE;  -- a layer that is leaving it may be about to delete it
            IF FOUND THEN
                id := v_old.id;
                status := 'duplicate';
                version := v_old.version;
                recorded_at := v_old.recorded_at;
                IF p_direct THEN
                    PERFORM zerda.hold_entry(p_tenant, id);
                END IF;
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;

        LOOP
            INSERT INTO zerda.entries (
                tenant_id, id, version, memory_type, kind, content, body, session_id, user_id,
                agent_id, tags, metadata, language, status, created_at, recorded_at, updated_at,
                valid_from, valid_to, expires_at, discarded_at, invalidated_at, content_hash)
            VALUES (
                p_tenant, r.id, 1, r.memory_type, r.kind, r.content, r.body, r.session_id,
                r.user_id, r.agent_id, r.tags, r.metadata, r.language, r.status, r.created_at,
                v_now, v_now, r.valid_from, r.valid_to, r.expires_at,
                CASE WHEN r.status = 'discarded' THEN v_now END,
                CASE WHEN r.status = 'superseded' THEN v_now END,
                decode(r.content_hash, 'hex'))
            ON CONFLICT (tenant_id, id) DO NOTHING;
            IF FOUND THEN
                status := 'created';
                version := 1;
                INSERT INTO zerda.entry_state (tenant_id, entry_id, importance,
                    original_importance, decay_factor, access_count, last_access)
                VALUES (p_tenant, r.id, r.importance, r.original_importance, r.decay_factor,
                    r.access_count, r.last_access);
                INSERT INTO zerda.embeddings (tenant_id, entry_id, model_id, embedding,
                    truncated, memory_type, kind, status, session_id, user_id, agent_id,
                    valid_from, valid_to, expires_at)
                VALUES (p_tenant, r.id, p_model, p_vectors[r.n + 1], r.truncated, r.memory_type,
                    r.kind, r.status, r.session_id, r.user_id, r.agent_id, r.valid_from,
                    r.valid_to, r.expires_at);
                EXIT;
            END IF;
            SELECT e.version, e.user_id, e.recorded_at,
                coalesce(e.expires_at <= v_now, false) AS expired,
                e.status = 'superseded' AND r.status = 'active' AS was_superseded,
                e.content_hash = decode(r.content_hash, 'hex') AS same INTO v_old
            FROM zerda.entries e
            WHERE e.tenant_id = p_tenant AND e.id = r.id
            FOR NO KEY UPDATE;
            CONTINUE WHEN NOT FOUND;  -- deleted since: insert again
            IF p_user IS NOT NULL AND v_old.user_id IS DISTINCT FROM p_user THEN
                RAISE EXCEPTION USING ERRCODE = 'ZD001',
                    MESSAGE = format('id %L belongs to a memory outside this user''s scope', r.id);
            END IF;
            -- an expired entry is hidden, so it neither blocks a new one nor stands for it
            IF p_if_exists = 'error' AND NOT v_old.expired THEN
                RAISE EXCEPTION USING ERRCODE = 'ZD001',
                    MESSAGE = format('an entry with id %L exists', r.id);
            END IF;
            version := v_old.version;
            IF p_if_exists = 'keep' AND NOT v_old.expired THEN
                status := 'kept';
                recorded_at := v_old.recorded_at;
                EXIT;
            END IF;
            -- What was superseded and is written again as it was, by a program that runs once
            -- more, stays superseded. With another content it says something new.
            IF v_old.was_superseded AND v_old.same THEN
                status := 'kept';
                recorded_at := v_old.recorded_at;
                EXIT;
            END IF;
            IF v_old.was_superseded THEN
                DELETE FROM zerda.edges g
                WHERE g.tenant_id = p_tenant AND g.source_id = r.id
                  AND g.relation = 'invalidated_by';
            END IF;
            status := 'replaced';
            version := v_old.version + 1;
            -- the row may have been inserted by another process after the locks were taken
            v_now := greatest(v_now, clock_timestamp());
            recorded_at := v_now;
            PERFORM zerda.keep_version(p_tenant, r.id, v_now);
            UPDATE zerda.entries e
            SET version = v_old.version + 1, memory_type = r.memory_type, kind = r.kind,
                content = r.content, body = r.body, session_id = r.session_id,
                user_id = r.user_id, agent_id = r.agent_id, tags = r.tags,
                metadata = r.metadata, language = r.language, status = r.status,
                created_at = r.created_at, recorded_at = v_now, updated_at = v_now,
                valid_from = r.valid_from, valid_to = r.valid_to, expires_at = r.expires_at,
                discarded_at = CASE WHEN r.status = 'discarded' THEN v_now END,
                invalidated_at = CASE WHEN r.status = 'superseded' THEN v_now END,
                content_hash = decode(r.content_hash, 'hex')
            WHERE e.tenant_id = p_tenant AND e.id = r.id;
            UPDATE zerda.entry_state s
            SET importance = r.importance, original_importance = r.original_importance,
                decay_factor = r.decay_factor
            WHERE s.tenant_id = p_tenant AND s.entry_id = r.id;
            -- a vector of another model is of the old text: it goes, to be made again
            DELETE FROM zerda.embeddings v
            WHERE v.tenant_id = p_tenant AND v.entry_id = r.id;
            INSERT INTO zerda.embeddings (tenant_id, entry_id, model_id, embedding, truncated,
                memory_type, kind, status, session_id, user_id, agent_id, valid_from, valid_to,
                expires_at)
            VALUES (p_tenant, r.id, p_model, p_vectors[r.n + 1], r.truncated, r.memory_type,
                r.kind, r.status, r.session_id, r.user_id, r.agent_id, r.valid_from, r.valid_to,
                r.expires_at);
            EXIT;
        END LOOP;

        IF p_direct AND status <> 'created' THEN
            PERFORM zerda.hold_entry(p_tenant, r.id);
        END IF;
        IF status <> 'kept' THEN
            v_written := v_written || r.n;
            IF v_recorded THEN
                PERFORM zerda.record_changes(p_tenant, ARRAY[r.id], status);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;

    IF NOT v_supersedes THEN
        RETURN;
    END IF;
    -- afterwards, since an entry may supersede another one of its batch
    FOR r IN
        SELECT t.id, old.id AS superseded, coalesce(t.valid_from, t.created_at) AS since
        FROM json_to_recordset(p_rows) AS t (
            n integer, id text, valid_from timestamptz, created_at timestamptz, supersedes text[])
        CROSS JOIN LATERAL unnest(t.supersedes) AS old (id)
        WHERE t.n = ANY (v_written)
        ORDER BY old.id COLLATE "C", t.n
    LOOP
        PERFORM 1 FROM zerda.entries e
        WHERE e.tenant_id = p_tenant AND e.id = r.superseded
          AND (p_user IS NULL OR e.user_id IS NULL OR e.user_id = p_user);
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'ZD002',
                MESSAGE = format('supersedes: there is no entry %L', r.superseded);
        END IF;
        IF zerda.supersede(p_tenant, r.superseded, r.since, v_now) AND v_recorded THEN
            PERFORM zerda.record_changes(p_tenant, ARRAY[r.superseded], 'superseded');
        END IF;
        INSERT INTO zerda.edges
            (tenant_id, source_id, relation, target_id, weight, metadata, created_at)
        VALUES (p_tenant, r.superseded, 'invalidated_by', r.id, 1.0, '{{}}', v_now)
        ON CONFLICT (tenant_id, source_id, relation, target_id) DO NOTHING;
    END LOOP;
END
$$;
"""


# The nearest vectors of a tenant that has an HNSW index of its own. Tenant and model stand in the
# statement as literals: only so does the planner see that the partial index applies. The settings
# hold for the call. A filter may leave fewer rows than asked for: then the answer is exact.
NEAREST = """
CREATE FUNCTION zerda.nearest(
    p_tenant text, p_model integer, p_dimensions integer, p_query {vector}.halfvec,
    p_limit integer, p_now timestamptz, p_valid_at timestamptz, p_statuses text[],
    p_scope_user text, p_types text[], p_kinds text[], p_session text, p_user text, p_agent text)
RETURNS TABLE (id text, distance double precision, exact boolean)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog
SET hnsw.ef_search = 200
SET hnsw.iterative_scan = relaxed_order AS $$
#variable_conflict use_column
DECLARE
    v_where text := format('v.tenant_id = %L AND v.model_id = %s', p_tenant, p_model)
        || ' AND (v.expires_at IS NULL OR v.expires_at > $2)';
    v_ids text[];
    v_distances double precision[];
    v_exact boolean := false;
BEGIN
    IF p_statuses IS NOT NULL THEN
        v_where := v_where || ' AND v.status = ANY ($4)';
    ELSIF p_valid_at IS NULL THEN
        v_where := v_where || $w$ AND v.status = 'active'$w$;
    ELSE
        v_where := v_where || $w$ AND v.status IN ('active', 'superseded')$w$;
    END IF;
    IF p_valid_at IS NOT NULL THEN
        v_where := v_where || ' AND (v.valid_from IS NULL OR v.valid_from <= $3)'
            || ' AND (v.valid_to IS NULL OR v.valid_to > $3)';
    ELSIF p_statuses IS NULL THEN
        v_where := v_where || ' AND (v.valid_to IS NULL OR v.valid_to > $2)';
    END IF;
    IF p_scope_user IS NOT NULL THEN
        v_where := v_where || ' AND (v.user_id IS NULL OR v.user_id = $5)';
    END IF;
    IF p_types IS NOT NULL THEN v_where := v_where || ' AND v.memory_type = ANY ($6)'; END IF;
    IF p_kinds IS NOT NULL THEN v_where := v_where || ' AND v.kind = ANY ($7)'; END IF;
    IF p_session IS NOT NULL THEN v_where := v_where || ' AND v.session_id = $8'; END IF;
    IF p_user IS NOT NULL THEN v_where := v_where || ' AND v.user_id = $9'; END IF;
    IF p_agent IS NOT NULL THEN v_where := v_where || ' AND v.agent_id = $10'; END IF;
    LOOP
        EXECUTE format(
            'SELECT array_agg(near.entry_id), array_agg(near.distance) FROM ('
            'SELECT v.entry_id, %1$s OPERATOR({vector}.<=>) $1 AS distance '
            'FROM zerda.embeddings v WHERE %2$s ORDER BY 2 LIMIT %3$s) AS near',
            CASE WHEN v_exact THEN 'v.embedding'
                 ELSE format('v.embedding::{vector}.halfvec(%s)', p_dimensions) END,
            v_where, p_limit)
        INTO v_ids, v_distances
        USING p_query, p_now, p_valid_at, p_statuses, p_scope_user, p_types, p_kinds, p_session,
            p_user, p_agent;
        EXIT WHEN v_exact OR coalesce(cardinality(v_ids), 0) >= p_limit;
        v_exact := true;
    END LOOP;
    RETURN QUERY
        SELECT n.id, n.distance, v_exact FROM unnest(v_ids, v_distances) AS n (id, distance);
END
$$;
"""


# The entries with each of some terms, for roles to which row-level security applies: under a
# policy `@@` is no index condition, since it is not leakproof (10,000 entries then take 49 ms in
# place of 5). It runs as the tables' owner, whom no policy binds: so the tenant comes from the
# setting by which the policies go, never from an argument, and the filter goes in as data.
POSTINGS = """
CREATE FUNCTION zerda.postings(p_lexemes text[], p_terms tsquery[], p_limit integer, p jsonb)
RETURNS TABLE (lexeme text, id text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_tenant text := nullif(current_setting('zerda.tenant_id', true), '');
    v_now text := coalesce(p->>'now', now()::text);
    v_where text;
    v_text text;
    r record;
BEGIN
    IF v_tenant IS NULL THEN
        RETURN;
    END IF;
    v_where := format('e.tenant_id = %L AND (e.expires_at IS NULL OR e.expires_at > %L)',
        v_tenant, v_now);
    IF p ? 'statuses' THEN
        v_where := v_where || format(' AND e.status = ANY (ARRAY(SELECT '
            'jsonb_array_elements_text(%L::jsonb)))', p->'statuses');
    ELSIF p ? 'valid_at' THEN
        v_where := v_where || $w$ AND e.status IN ('active', 'superseded')$w$;
    ELSE
        v_where := v_where || $w$ AND e.status = 'active'$w$;
    END IF;
    IF p ? 'valid_at' THEN
        v_where := v_where || format(' AND (e.valid_from IS NULL OR e.valid_from <= %1$L)'
            ' AND (e.valid_to IS NULL OR e.valid_to > %1$L)', p->>'valid_at');
    ELSIF NOT p ? 'statuses' THEN
        v_where := v_where || format(' AND (e.valid_to IS NULL OR e.valid_to > %L)', v_now);
    END IF;
    IF p ? 'scope_user' THEN
        v_where := v_where || format(' AND (e.user_id IS NULL OR e.user_id = %L)',
            p->>'scope_user');
    END IF;
    FOR r IN
        SELECT f.key, f.value FROM jsonb_each(p) AS f WHERE f.key IN ('memory_type', 'kind')
    LOOP
        v_where := v_where || format(' AND e.%I = ANY (ARRAY(SELECT '
            'jsonb_array_elements_text(%L::jsonb)))', r.key, r.value);
    END LOOP;
    FOR r IN
        SELECT f.key, f.value FROM jsonb_each_text(p) AS f
        WHERE f.key IN ('session_id', 'user_id', 'agent_id')
    LOOP
        v_where := v_where || format(' AND e.%I = %L', r.key, r.value);
    END LOOP;
    IF p ? 'tags_any' THEN
        v_where := v_where || format(' AND e.tags && ARRAY(SELECT '
            'jsonb_array_elements_text(%L::jsonb))', p->'tags_any');
    END IF;
    IF p ? 'tags_all' THEN
        v_where := v_where || format(' AND e.tags @> ARRAY(SELECT '
            'jsonb_array_elements_text(%L::jsonb))', p->'tags_all');
    END IF;
    IF p ? 'created_from' THEN
        v_where := v_where || format(' AND e.created_at >= %L', p->>'created_from');
    END IF;
    IF p ? 'created_to' THEN
        v_where := v_where || format(' AND e.created_at < %L', p->>'created_to');
    END IF;
    IF p ? 'min_importance' THEN
        v_where := v_where || format(' AND EXISTS (SELECT 1 FROM zerda.entry_state s '
            'WHERE s.tenant_id = %L AND s.entry_id = e.id '
            'AND s.importance * s.decay_factor >= %L::float8)', v_tenant, p->>'min_importance');
    END IF;
    FOR r IN
        SELECT m.value->>0 AS name, m.value->>1 AS word, m.value->2 AS operand
        FROM jsonb_array_elements(p->'metadata') AS m
    LOOP
        v_text := format('(e.metadata -> %L)', r.name);
        v_where := v_where || ' AND ' || CASE r.word
            WHEN '$exists' THEN format('(%s IS NOT NULL) = %L::boolean', v_text, r.operand)
            WHEN '$eq' THEN format('%s = %L::jsonb', v_text, r.operand)
            WHEN '$ne' THEN format('%s IS DISTINCT FROM %L::jsonb', v_text, r.operand)
            WHEN '$in' THEN format('coalesce(%s = ANY (ARRAY(SELECT jsonb_array_elements('
                '%L::jsonb))), false)', v_text, r.operand)
            WHEN '$nin' THEN format('NOT coalesce(%s = ANY (ARRAY(SELECT jsonb_array_elements('
                '%L::jsonb))), false)', v_text, r.operand)
            ELSE format('(jsonb_typeof(%1$s) = %2$L AND %1$s %3$s %4$L::jsonb)', v_text,
                jsonb_typeof(r.operand), CASE r.word WHEN '$gt' THEN '>' WHEN '$gte' THEN '>='
                WHEN '$lt' THEN '<' WHEN '$lte' THEN '<=' END, r.operand) END;
    END LOOP;
    RETURN QUERY EXECUTE format(
        'SELECT t.lexeme, m.id FROM unnest($1, $2) AS t (lexeme, term) CROSS JOIN LATERAL ('
        'SELECT e.id FROM zerda.entries e WHERE %s AND e.search @@ t.term LIMIT %s) AS m',
        v_where, p_limit)
    USING p_lexemes, p_terms;
END
$$;
REVOKE EXECUTE ON FUNCTION zerda.postings(text[], tsquery[], integer, jsonb) FROM PUBLIC;
"""


def upgrade() -> None:
    require_extensions(op.get_context())
    vector = extension_schema(op.get_context(), "vector")
    op.execute(TABLES.format(vector=vector))
    op.execute(USE_TENANT)
    op.execute(BEGIN_WRITE.format(gate=GATE))
    op.execute(HOLD_WRITES.format(gate=GATE))
    op.execute(CHANGES_HORIZON)
    op.execute(SET_CHANGES)
    op.execute(ACTIVATE_MODEL)
    op.execute(RECORD_CHANGES)
    op.execute(CLUSTER_IDENTITY)
    op.execute(SUPERSEDE)
    op.execute(KEEP_VERSION)
    op.execute(HOLD_ENTRY)
    # Loads pgvector's library, whose settings NEAREST has: until it is loaded they are unknown,
    # and only a superuser may set what is unknown.
    op.execute(f"SELECT '[1]'::{vector}.vector")
    op.execute(NEAREST.format(vector=vector))
    op.execute(PUT_ENTRIES.format(vector=vector))
    op.execute(POSTINGS)


def downgrade() -> None:
    for name in (
        "postings put_entries nearest hold_entry keep_version supersede activate_model set_changes "
        "cluster_identity record_changes changes_horizon hold_writes begin_write use_tenant"
    ).split():
        op.execute(f"DROP FUNCTION zerda.{name}")
    for table in (
        "lexemes tenants changes session_touches layer_entries embeddings embedding_models edges "
        "entry_state entry_versions entries"
    ).split():
        op.execute(f"DROP TABLE zerda.{table}")
