-- Every write passes here first, once a transaction, before it locks a row. It holds a lock in
-- shared mode which a switch of the embedding model, or of the change feed, takes alone: neither
-- then misses a write that goes on beside it. Returns whether the tenant's changes are recorded.
-- SQLSTATE ZD003: the vectors to be written are of a model that is not the active one.
CREATE FUNCTION zerda.begin_write(p_tenant text, p_model integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(8819581220831720549);
    IF p_model IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM zerda.embedding_models m WHERE m.id = p_model AND m.state = 'active') THEN
        RAISE EXCEPTION USING ERRCODE = 'ZD003',
            MESSAGE = 'the active embedding model is another one by now';
    END IF;
    RETURN EXISTS (
        SELECT 1 FROM zerda.tenants t WHERE t.tenant_id = p_tenant AND t.changes_enabled);
END
$$;
