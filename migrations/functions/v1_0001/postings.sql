-- The entries with each of some terms, for roles to which row-level security applies: under a
-- policy `@@` is no index condition, since it is not leakproof (10,000 entries then take 49 ms in
-- place of 5). It runs as the tables' owner, whom no policy binds: so the tenant comes from the
-- setting by which the policies go, never from an argument, and the filter goes in as data.
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
    END IF;
    IF p ? 'valid_at' THEN
        v_where := v_where || format(' AND (e.valid_from IS NULL OR e.valid_from <= %1$L)'
            ' AND (e.valid_to IS NULL OR e.valid_to > %1$L)', p->>'valid_at');
    ELSIF NOT p ? 'statuses' THEN
        v_where := v_where || format(' AND (e.valid_from IS NULL OR e.valid_from <= %1$L)'
            || $w$ AND (e.status = 'active' AND (e.valid_to IS NULL OR e.valid_to > %1$L)$w$
            || $w$ OR e.status = 'superseded' AND e.valid_to > greatest(%1$L, now()))$w$, v_now);
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
