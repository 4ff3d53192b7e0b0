-- The transaction's id is taken before the row's number, so that a reader which knows all
-- transactions below some id to be over has all their rows.
CREATE FUNCTION zerda.record_changes(p_tenant text, p_ids text[], p_operation text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_xid xid8 := pg_current_xact_id();
    v_now timestamptz := clock_timestamp();
    v_seq bigint;
BEGIN
    -- RETURNING, since Citus takes an INSERT … SELECT without it for a COPY, which row-level
    -- security refuses; ON CONFLICT would lose a change where the sequence was set back
    FOR v_seq IN
        INSERT INTO zerda.changes (tenant_id, xid, entry_id, operation, changed_at)
        SELECT p_tenant, v_xid, i.id, p_operation, v_now
        FROM unnest(p_ids) WITH ORDINALITY AS i (id, n)
        ORDER BY i.n
        RETURNING seq
    LOOP
    END LOOP;
END
$$;
