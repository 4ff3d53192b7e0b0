-- Where transaction ids mean the same: this database of this cluster, not what was restored from
-- its dump.
CREATE FUNCTION zerda.cluster_identity() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN format('%s-%s', (SELECT c.system_identifier FROM pg_control_system() AS c),
        (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()));
END
$$;
