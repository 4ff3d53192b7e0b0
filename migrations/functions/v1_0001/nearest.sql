-- The nearest vectors of a tenant that has an HNSW index of its own. Tenant and model stand in the
-- statement as literals: only so does the planner see that the partial index applies. The settings
-- hold for the call: to sort is what the index saves, whatever the planner takes for the tenant's
-- rows. A filter may leave fewer rows than asked for: then the answer is exact.
CREATE FUNCTION zerda.nearest(
    p_tenant text, p_model integer, p_dimensions integer, p_query {vector}.halfvec,
    p_limit integer, p_now timestamptz, p_valid_at timestamptz, p_statuses text[],
    p_scope_user text, p_types text[], p_kinds text[], p_session text, p_user text, p_agent text)
RETURNS TABLE (id text, distance double precision, exact boolean)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog
SET enable_sort = off
SET hnsw.ef_search = 400
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
    ELSIF p_valid_at IS NOT NULL THEN
        v_where := v_where || $w$ AND v.status IN ('active', 'superseded')$w$;
    END IF;
    IF p_valid_at IS NOT NULL THEN
        v_where := v_where || ' AND (v.valid_from IS NULL OR v.valid_from <= $3)'
            || ' AND (v.valid_to IS NULL OR v.valid_to > $3)';
    ELSIF p_statuses IS NULL THEN
        v_where := v_where || ' AND (v.valid_from IS NULL OR v.valid_from <= $2)'
            || $w$ AND (v.status = 'active' AND (v.valid_to IS NULL OR v.valid_to > $2)$w$
            || $w$ OR v.status = 'superseded' AND v.valid_to > greatest($2, now()))$w$;
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
