-- An entry that a layer wrote goes with its last membership. One that was also written by itself
-- stays: it is held by a membership of its own.
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
