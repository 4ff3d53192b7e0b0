-- What `search` is generated from. A function, since every INSERT parses a generated column's
-- expression anew, for which a CASE over all configurations is long. As immutable as they are; a
-- column of type regconfig would be too, but pg_upgrade refuses a database that has one.
CREATE FUNCTION zerda.search_vector(p_language text, p_body text) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $$
DECLARE
    -- a tsvector holds 1 MB, which longer texts overflow
    v_indexed text := left(p_body, 100000);
BEGIN
    IF p_language IN (
        'arabic', 'armenian', 'basque', 'catalan', 'danish', 'dutch', 'english', 'finnish',
        'french', 'german', 'greek', 'hindi', 'hungarian', 'indonesian', 'irish', 'italian',
        'lithuanian', 'nepali', 'norwegian', 'portuguese', 'romanian', 'russian', 'serbian',
        'spanish', 'swedish', 'tamil', 'turkish', 'yiddish')
    THEN
        RETURN to_tsvector(('pg_catalog.' || p_language)::regconfig, v_indexed);
    END IF;
    RETURN to_tsvector('pg_catalog.simple', v_indexed);
END
$$;
