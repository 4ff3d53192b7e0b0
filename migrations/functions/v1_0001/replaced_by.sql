-- Whether one of some entries has replaced this one, by itself or over others.
CREATE FUNCTION zerda.replaced_by(p_tenant text, p_id text, p_ids text[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN EXISTS (
        WITH RECURSIVE later (id) AS (
            SELECT g.target_id FROM zerda.edges g
            WHERE g.tenant_id = p_tenant AND g.source_id = p_id AND g.relation = 'invalidated_by'
            UNION
            SELECT g.target_id
            FROM later
            JOIN zerda.edges g ON g.source_id = later.id
            WHERE g.tenant_id = p_tenant AND g.relation = 'invalidated_by')
        SELECT 1 FROM later WHERE later.id = ANY (p_ids));
END
$$;
