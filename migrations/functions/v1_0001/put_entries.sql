-- Writes entries with state, vector and edges in one call, all or none. Locks are taken in one
-- global order (content locks, then rows by id), so that concurrent batches never deadlock.
-- SQLSTATE ZD001: the id exists and may not be replaced; ZD002: an entry to supersede is missing;
-- ZD006: it has itself replaced the one that is to supersede it; ZD007: it is not the user's own.
CREATE FUNCTION zerda.put_entries(
    p_tenant text, p_user text, p_model integer, p_rows json, p_vectors {vector}.halfvec[],
    p_if_exists text, p_dedupe boolean, p_direct boolean)
RETURNS TABLE (n integer, id text, status text, version integer, recorded_at timestamptz,
    access_count bigint, last_access timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    r record;
    v_old record;
    v_written integer[] := '{}';
    v_new text[] := '{}';
    v_found text[] := '{}';  -- for a duplicate the entry that stands for it
    v_ids text[];  -- of the rows, by n
    v_several boolean := json_array_length(p_rows) > 1;
    v_supersedes boolean;
    v_recorded boolean := zerda.begin_write(p_tenant, p_model);
BEGIN
    SELECT array_agg(t.id ORDER BY t.n), bool_or(json_array_length(t.supersedes) > 0)
    INTO v_ids, v_supersedes
    FROM json_to_recordset(p_rows) AS t (n integer, id text, supersedes json);
    IF p_dedupe THEN
        PERFORM pg_advisory_xact_lock(keys.key)
        FROM (
            SELECT DISTINCT hashtextextended(p_tenant || t.content_hash, 0) AS key
            FROM json_to_recordset(p_rows) AS t (content_hash text)
            ORDER BY 1
        ) AS keys;
    END IF;
    IF v_supersedes THEN
        PERFORM 1
        FROM zerda.entries e
        WHERE e.tenant_id = p_tenant AND e.id = ANY (v_ids || ARRAY(
            SELECT json_array_elements_text(t.supersedes)
            FROM json_to_recordset(p_rows) AS t (supersedes json)))
        ORDER BY e.id
        FOR NO KEY UPDATE;
    ELSIF v_several THEN  -- a row alone needs no order
        PERFORM 1
        FROM zerda.entries e
        WHERE e.tenant_id = p_tenant AND e.id = ANY (v_ids)
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
            SELECT min(t.place - 1)::integer FROM unnest(v_ids) WITH ORDINALITY AS t (id, place)
            WHERE t.id = ANY (v_new) GROUP BY t.id);
        RETURN QUERY
            SELECT t.n, v_ids[t.n + 1], 'created'::text, 1, v_now, NULL::bigint,
                NULL::timestamptz
            FROM unnest(v_written) AS t (n);
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
        -- where all are written, nothing is read
        WHERE cardinality(v_written) < cardinality(v_ids) AND NOT t.n = ANY (v_written)
        ORDER BY repeated, t.id COLLATE "C", t.n
    LOOP
        n := r.n;
        id := r.id;
        recorded_at := v_now;
        access_count := NULL;  -- told of what a replaced entry keeps
        last_access := NULL;
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
              -- Another time of being true is another statement. What has begun and not ended
              -- is true now, whenever it began and will end; what lies ahead or is over is only
              -- like that of the same time.
              AND (e.valid_from IS NOT DISTINCT FROM r.valid_from
                   OR (coalesce(e.valid_from, v_now) <= v_now
                       AND coalesce(r.valid_from, v_now) <= v_now))
              AND (e.valid_to IS NOT DISTINCT FROM r.valid_to
                   OR (coalesce(e.valid_to, 'infinity') > v_now
                       AND coalesce(r.valid_to, 'infinity') > v_now))
              AND e.id <> r.id
              AND e.id <> ALL (r.supersedes)
            ORDER BY e.created_at, e.id
            LIMIT 1
            FOR KEY SHARE;  -- a layer that is leaving it may be about to delete it
            IF FOUND THEN
                id := v_old.id;
                v_found[r.n + 1] := id;
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
            -- more, stays superseded. With another content, or in place of what had replaced
            -- it, it says something new.
            IF v_old.was_superseded AND v_old.same
                    AND NOT zerda.replaced_by(p_tenant, r.id, r.supersedes) THEN
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
            WHERE s.tenant_id = p_tenant AND s.entry_id = r.id
            RETURNING s.access_count, s.last_access INTO access_count, last_access;
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
    -- Afterwards, since an entry may supersede another one of its batch; also where the write
    -- found its entry there. What is valid at once ends the other one at once.
    FOR r IN
        SELECT coalesce(v_found[t.n + 1], t.id) AS id, old.id AS superseded,
            coalesce(t.valid_from, least(t.created_at, v_now)) AS since
        FROM json_to_recordset(p_rows) AS t (
            n integer, id text, valid_from timestamptz, created_at timestamptz, supersedes text[])
        CROSS JOIN LATERAL unnest(t.supersedes) AS old (id)
        ORDER BY old.id COLLATE "C", t.n
    LOOP
        SELECT e.user_id INTO v_old FROM zerda.entries e
        WHERE e.tenant_id = p_tenant AND e.id = r.superseded
          AND (p_user IS NULL OR e.user_id IS NULL OR e.user_id = p_user);
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'ZD002',
                MESSAGE = format('supersedes: there is no entry %L', r.superseded);
        END IF;
        IF p_user IS NOT NULL AND v_old.user_id IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'ZD007', MESSAGE = format(
                'supersedes: entry %L belongs to all users of the tenant', r.superseded);
        END IF;
        IF zerda.replaced_by(p_tenant, r.id, ARRAY[r.superseded]) THEN
            RAISE EXCEPTION USING ERRCODE = 'ZD006', MESSAGE = format(
                'supersedes: entry %L has itself replaced %L', r.superseded, r.id);
        END IF;
        IF zerda.supersede(p_tenant, r.superseded, r.since, v_now) AND v_recorded THEN
            PERFORM zerda.record_changes(p_tenant, ARRAY[r.superseded], 'superseded');
        END IF;
        INSERT INTO zerda.edges
            (tenant_id, source_id, relation, target_id, weight, metadata, created_at)
        VALUES (p_tenant, r.superseded, 'invalidated_by', r.id, 1.0, '{}', v_now)
        ON CONFLICT (tenant_id, source_id, relation, target_id) DO NOTHING;
    END LOOP;
END
$$;
