-- The tenant of a transaction, for row-level security. `set_config` would not reach the workers
-- of a distributed database; SET LOCAL does.
CREATE FUNCTION zerda.use_tenant(p_tenant text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('SET LOCAL zerda.tenant_id = %L', p_tenant);
END
$$;
