-- The transaction below which all are over that could have changed the tenant. The oldest one that
-- is not over would do, but it may belong to another database, whose long work would hold this
-- feed back: such a one is passed over where its session is known. STABLE, so that it looks at
-- the snapshot of the statement that reads the rows. SQLSTATE ZD004 on a replica: its snapshot
-- lists no transaction that is under way on the primary, and what these commit would be lost.
CREATE FUNCTION zerda.changes_horizon(p_tenant text) RETURNS xid8
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
DECLARE
    v_snapshot pg_snapshot := pg_current_snapshot();
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION USING ERRCODE = 'ZD004',
            MESSAGE = 'this is a replica, which cannot tell what is still being written: '
                'follow the changes on the primary';
    END IF;
    IF NOT EXISTS (
        SELECT 1 FROM zerda.changes c
        WHERE c.tenant_id = p_tenant AND c.xid >= pg_snapshot_xmin(v_snapshot)) THEN
        RETURN pg_snapshot_xmin(v_snapshot);
    END IF;
    RETURN (
        SELECT coalesce(min(running.xid), pg_snapshot_xmax(v_snapshot))
        FROM pg_snapshot_xip(v_snapshot) AS running (xid)
        WHERE NOT EXISTS (
            SELECT 1
            FROM pg_locks l
            JOIN pg_stat_activity a ON a.pid = l.pid
            JOIN pg_database d ON d.datname = current_database()
            WHERE l.locktype = 'transactionid' AND l.transactionid = running.xid::xid
              AND l.mode = 'ExclusiveLock' AND l.granted AND a.datid <> d.oid));
END
$$;
