-- Switches a tenant's change feed. Off erases what it recorded; on again starts another feed, to
-- which the positions of the earlier one do not belong.
CREATE FUNCTION zerda.set_changes(p_tenant text, p_enabled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_epoch text := zerda.cluster_identity() || '-' || gen_random_uuid();
    v_since xid8;
BEGIN
    PERFORM zerda.hold_writes();
    IF p_enabled AND EXISTS (
        SELECT 1 FROM zerda.tenants t
        WHERE t.tenant_id = p_tenant AND t.changes_enabled
          AND starts_with(t.changes_epoch, zerda.cluster_identity() || '-')) THEN
        RETURN;
    END IF;
    DELETE FROM zerda.changes c WHERE c.tenant_id = p_tenant;
    -- what is written from now on is by a transaction at or above this one
    v_since := pg_snapshot_xmin(pg_current_snapshot());
    IF p_enabled THEN
        INSERT INTO zerda.tenants AS t (tenant_id, changes_enabled, changes_epoch, changes_since)
        VALUES (p_tenant, true, v_epoch, v_since)
        ON CONFLICT (tenant_id) DO UPDATE
        SET changes_enabled = true, changes_epoch = excluded.changes_epoch,
            changes_since = excluded.changes_since, changes_swept = 0;
    ELSE
        UPDATE zerda.tenants t
        SET changes_enabled = false, changes_epoch = NULL, changes_since = '0', changes_swept = 0
        WHERE t.tenant_id = p_tenant;
        -- a row that says nothing beyond the defaults is one trace less
        DELETE FROM zerda.tenants t
        WHERE t.tenant_id = p_tenant AND t.counted_at IS NULL AND t.ann_model_id IS NULL;
    END IF;
END
$$;
