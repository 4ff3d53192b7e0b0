-- Makes another embedding model the one that searches compare with. Writes wait meanwhile, so
-- that none is missed by the check. SQLSTATE ZD004: there is no such model; ZD005: entries lack
-- its vector.
CREATE FUNCTION zerda.activate_model(p_model integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM zerda.hold_writes();
    PERFORM 1 FROM zerda.embedding_models m WHERE m.id = p_model FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'ZD004',
            MESSAGE = format('there is no embedding model %s', p_model);
    END IF;
    IF EXISTS (
        SELECT 1 FROM zerda.entries e
        WHERE NOT EXISTS (
            SELECT 1 FROM zerda.embeddings v
            WHERE v.tenant_id = e.tenant_id AND v.entry_id = e.id AND v.model_id = p_model)) THEN
        RAISE EXCEPTION USING ERRCODE = 'ZD005',
            MESSAGE = format('entries lack a vector of embedding model %s', p_model);
    END IF;
    UPDATE zerda.embedding_models m SET state = 'retired'
    WHERE m.state = 'active' AND m.id <> p_model;
    UPDATE zerda.embedding_models m SET state = 'active' WHERE m.id = p_model;
END
$$;
