-- Keeps the row as it is now, before a correction or a replacing write.
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
