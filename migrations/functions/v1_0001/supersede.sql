-- Marks one entry superseded, in both tables that repeat its status. What has ended stays ended
-- then: a second time changes nothing, unless the end lies ahead and this one comes sooner. What
-- is discarded stays so, and is superseded when it is restored.
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
    WHERE e.tenant_id = p_tenant AND e.id = p_id
        AND (e.invalidated_at IS NULL OR e.valid_to > p_now AND p_from < e.valid_to)
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
