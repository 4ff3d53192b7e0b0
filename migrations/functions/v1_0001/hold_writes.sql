-- Waits for the writes under way and keeps others waiting until the transaction ends; not for
-- long, since they queue behind it.
CREATE FUNCTION zerda.hold_writes() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog SET lock_timeout = '10s' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(8819581220831720549);
END
$$;
