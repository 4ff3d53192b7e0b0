WITH terms AS 
(SELECT found.lexeme AS lexeme, CAST(concat($$'$$, replace(replace(found.lexeme, $$\$$, $$\\$$), $$'$$, $$''$$), $$'$$) AS TSQUERY) AS term, coalesce(zerda.lexemes.entries, 0) AS counted 
FROM unnest(to_tsvector(CAST(%(language)s AS REGCONFIG), CAST(%(query_text)s AS TEXT))) AS found LEFT OUTER JOIN zerda.lexemes ON zerda.lexemes.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND zerda.lexemes.lexeme = found.lexeme 
WHERE NOT (found.lexeme ~ $$^[^-./@]+-[^./@]*$$)), 
drivers AS 
(SELECT ranked.lexeme AS lexeme, ranked.term AS term, ranked.counted AS counted, ranked.place AS place, ranked.place <= 2 OR ranked.up_to <= 4000 AND ranked.place <= 32 AS drives 
FROM (SELECT terms.lexeme AS lexeme, terms.term AS term, terms.counted AS counted, sum(terms.counted) OVER (ORDER BY terms.counted, length(terms.lexeme) DESC, terms.lexeme ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS up_to, row_number() OVER (ORDER BY terms.counted, length(terms.lexeme) DESC, terms.lexeme) AS place 
FROM terms) AS ranked), 
postings AS 
(SELECT drivers.lexeme AS lexeme, matching.id AS id 
FROM drivers JOIN LATERAL (SELECT e.id AS id 
FROM zerda.entries AS e 
WHERE e.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND (e.expires_at IS NULL OR e.expires_at > now()) AND (e.valid_from IS NULL OR e.valid_from <= now()) AND (e.status = 'active' AND (e.valid_to IS NULL OR e.valid_to > now()) OR e.status = 'superseded' AND e.valid_to > now()) AND (e.search @@ drivers.term) 
 LIMIT 4000) AS matching ON drivers.drives), 
size AS 
(SELECT coalesce(nullif((SELECT zerda.tenants.entries_counted 
FROM zerda.tenants 
WHERE zerda.tenants.tenant_id = %(tenant)s::VARCHAR COLLATE "C"), 0), (SELECT count(*) AS entries 
FROM (SELECT 1 
FROM zerda.entries 
WHERE zerda.entries.tenant_id = %(tenant)s::VARCHAR COLLATE "C" 
 LIMIT 4000) AS "some")) AS entries), 
idf AS 
(SELECT occurring.lexeme AS lexeme, occurring.term AS term, occurring.counted AS counted, occurring.drives AS drives, occurring.place AS place, occurring.entries AS entries, ln(1.0 + (greatest(CAST(size.entries AS DOUBLE PRECISION) - CAST(occurring.entries AS DOUBLE PRECISION), 0) + 0.5) / CAST((CAST(occurring.entries AS DOUBLE PRECISION) + 0.5) AS DOUBLE PRECISION)) AS idf 
FROM (SELECT drivers.lexeme AS lexeme, drivers.term AS term, drivers.counted AS counted, drivers.drives AS drives, drivers.place AS place, CASE WHEN drivers.drives THEN coalesce(frequency.entries, 0) ELSE drivers.counted END AS entries 
FROM drivers LEFT OUTER JOIN (SELECT postings.lexeme AS lexeme, count(*) AS entries 
FROM postings GROUP BY postings.lexeme) AS frequency ON frequency.lexeme = drivers.lexeme) AS occurring JOIN size ON true), 
dense AS 
(SELECT v.entry_id AS id, v.embedding OPERATOR(public.<=>) CAST(%(query_vector)s AS public.halfvec) AS distance, true AS exact 
FROM zerda.embeddings AS v 
WHERE v.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND (v.expires_at IS NULL OR v.expires_at > now()) AND (v.valid_from IS NULL OR v.valid_from <= now()) AND (v.status = 'active' AND (v.valid_to IS NULL OR v.valid_to > now()) OR v.status = 'superseded' AND v.valid_to > now()) AND v.model_id = %(model)s::INTEGER ORDER BY v.embedding OPERATOR(public.<=>) CAST(%(query_vector)s AS public.halfvec), v.entry_id 
 LIMIT 100), 
matched AS 
(SELECT postings.id AS id, sum(idf.idf) AS lexical, bit_or(CAST(1 AS BIGINT) << CAST(idf.place - 1 AS INTEGER)) AS matched 
FROM postings JOIN idf ON idf.lexeme = postings.lexeme GROUP BY postings.id), 
lexical AS 
(SELECT matched.id AS id, matched.lexical AS lexical 
FROM matched ORDER BY matched.lexical DESC, matched.id 
 LIMIT 100), 
recent AS 
(SELECT e.id AS id 
FROM zerda.entries AS e 
WHERE e.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND (e.expires_at IS NULL OR e.expires_at > now()) AND (e.valid_from IS NULL OR e.valid_from <= now()) AND (e.status = 'active' AND (e.valid_to IS NULL OR e.valid_to > now()) OR e.status = 'superseded' AND e.valid_to > now()) ORDER BY e.created_at DESC, e.id DESC 
 LIMIT 20), 
seeds AS 
(SELECT either.id AS id, max(either.lexical) AS lexical 
FROM (SELECT best_lexical.id AS id, best_lexical.lexical AS lexical 
FROM (SELECT lexical.id AS id, lexical.lexical AS lexical 
FROM lexical ORDER BY lexical.lexical DESC, lexical.id 
 LIMIT 24) AS best_lexical UNION ALL SELECT best_dense.id AS id, best_dense.lexical AS lexical 
FROM (SELECT dense.id AS id, NULL::double precision AS lexical 
FROM dense ORDER BY dense.distance, dense.id 
 LIMIT 24) AS best_dense) AS either GROUP BY either.id), 
seated AS 
(SELECT seeds.id AS id, seeds.lexical AS lexical, seat.session_id AS session_id, seat.created_at AS created_at 
FROM seeds JOIN LATERAL (SELECT own.session_id AS session_id, own.created_at AS created_at 
FROM zerda.entries AS own 
WHERE own.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND own.id = seeds.id AND own.session_id IS NOT NULL 
 LIMIT 1) AS seat ON true), 
graph AS 
(SELECT beside.id AS id, max(beside.lexical) AS lent, array_agg(beside.seed) AS seeds, array_agg(beside.step) AS steps 
FROM (SELECT seeds.id AS seed, seeds.lexical AS lexical, near.id AS id, near.step AS step 
FROM seeds JOIN LATERAL (SELECT edge.target_id AS id, CASE WHEN (edge.relation = 'precedes') THEN 1 ELSE 0 END AS step 
FROM zerda.edges AS edge 
WHERE edge.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND edge.source_id = seeds.id AND edge.relation IN ('precedes', 'related', 'has_child') ORDER BY edge.relation, edge.target_id 
 LIMIT 100) AS near ON true UNION ALL SELECT seeds.id AS seed, seeds.lexical AS lexical, near.id AS id, near.step AS step 
FROM seeds JOIN LATERAL (SELECT edge.source_id AS id, -CASE WHEN (edge.relation = 'precedes') THEN 1 ELSE 0 END AS step 
FROM zerda.edges AS edge 
WHERE edge.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND edge.target_id = seeds.id AND edge.relation IN ('precedes', 'related', 'has_child') ORDER BY edge.relation, edge.source_id 
 LIMIT 100) AS near ON true UNION ALL SELECT seated.id AS seed, seated.lexical AS lexical, near.id AS id, near.step AS step 
FROM seated JOIN LATERAL (SELECT turns.id AS id, CAST(row_number() OVER () AS INTEGER) AS step 
FROM (SELECT turn.id AS id 
FROM zerda.entries AS turn 
WHERE turn.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND turn.session_id = seated.session_id AND (turn.created_at, turn.id) > (seated.created_at, seated.id) ORDER BY turn.created_at, turn.id 
 LIMIT 2) AS turns) AS near ON true UNION ALL SELECT seated.id AS seed, seated.lexical AS lexical, near.id AS id, -near.step AS step 
FROM seated JOIN LATERAL (SELECT turns.id AS id, CAST(row_number() OVER () AS INTEGER) AS step 
FROM (SELECT turn.id AS id 
FROM zerda.entries AS turn 
WHERE turn.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND turn.session_id = seated.session_id AND (turn.created_at, turn.id) < (seated.created_at, seated.id) ORDER BY turn.created_at DESC, turn.id DESC 
 LIMIT 2) AS turns) AS near ON true) AS beside GROUP BY beside.id), 
found AS 
(SELECT every.id AS id, bit_or(every.arm) AS arms, max(every.lexical) AS lexical, bit_or(every.matched) AS matched, min(every.distance) AS distance, max(every.lent) AS lent, max(every.seeds) AS seeds, max(every.steps) AS steps 
FROM (SELECT lexical.id AS id, 1 AS arm, NULL::double precision AS lexical, NULL::bigint AS matched, NULL::double precision AS distance, NULL::double precision AS lent, NULL::text[] AS seeds, NULL::integer[] AS steps 
FROM lexical UNION ALL SELECT dense.id AS id, 2 AS arm, NULL::double precision AS lexical, NULL::bigint AS matched, dense.distance AS distance, NULL::double precision AS lent, NULL::text[] AS seeds, NULL::integer[] AS steps 
FROM dense UNION ALL SELECT recent.id AS id, 4 AS arm, NULL::double precision AS lexical, NULL::bigint AS matched, NULL::double precision AS distance, NULL::double precision AS lent, NULL::text[] AS seeds, NULL::integer[] AS steps 
FROM recent UNION ALL SELECT graph.id AS id, 8 AS arm, NULL::double precision AS lexical, NULL::bigint AS matched, NULL::double precision AS distance, graph.lent AS lent, graph.seeds AS seeds, graph.steps AS steps 
FROM graph UNION ALL SELECT matched.id AS id, 0, CAST(matched.lexical AS DOUBLE PRECISION) AS lexical, matched.matched AS matched, NULL AS anon_2, NULL AS anon__1, NULL AS anon__2, NULL AS anon__3 
FROM matched) AS every GROUP BY every.id 
HAVING bit_or(every.arm) > 0), 
scored AS 
(SELECT found.arms AS arms, entry.id AS id, entry.version AS version, entry.memory_type AS memory_type, entry.kind AS kind, entry.content AS content, entry.session_id AS session_id, entry.user_id AS user_id, entry.agent_id AS agent_id, entry.tags AS tags, entry.metadata AS metadata, entry.language AS language, entry.status AS status, entry.created_at AS created_at, entry.recorded_at AS recorded_at, entry.updated_at AS updated_at, entry.valid_from AS valid_from, entry.valid_to AS valid_to, entry.invalidated_at AS invalidated_at, entry.expires_at AS expires_at, CAST(1.0 - coalesce(found.distance, (SELECT v.embedding OPERATOR(public.<=>) CAST(%(query_vector)s AS public.halfvec) AS anon_1 
FROM zerda.embeddings AS v 
WHERE v.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND v.entry_id = found.id AND v.model_id = %(model)s::INTEGER 
 LIMIT 1)) AS DOUBLE PRECISION) AS similarity, CAST(coalesce(found.lexical, 0.0) + common.lexical AS DOUBLE PRECISION) AS lexical, CAST((SELECT coalesce(sum(idf.idf), 0.0) AS coalesce_1 
FROM idf 
WHERE idf.place <= 40) AS DOUBLE PRECISION) AS lexical_total, coalesce(found.matched, 0) | coalesce(common.matched, 0) AS matched, CAST(EXTRACT(epoch FROM now() - entry.created_at) AS DOUBLE PRECISION) AS age, CAST(EXTRACT(epoch FROM now() - entry.updated_at) AS DOUBLE PRECISION) AS updated_age, 0 AS degree, CAST(false AS INTEGER) AS touched, 0.0 AS quoted, octet_length(entry.body) AS bytes, left(entry.body, 400) AS head, found.lent AS lent, found.seeds AS seeds, found.steps AS steps 
FROM found JOIN LATERAL (SELECT e.tenant_id AS tenant_id, e.id AS id, e.version AS version, e.memory_type AS memory_type, e.kind AS kind, e.content AS content, e.body AS body, e.session_id AS session_id, e.user_id AS user_id, e.agent_id AS agent_id, e.tags AS tags, e.metadata AS metadata, e.language AS language, e.status AS status, e.created_at AS created_at, e.recorded_at AS recorded_at, e.updated_at AS updated_at, e.valid_from AS valid_from, e.valid_to AS valid_to, e.invalidated_at AS invalidated_at, e.expires_at AS expires_at, e.discarded_at AS discarded_at, e.content_hash AS content_hash, e.search AS search 
FROM zerda.entries AS e 
WHERE e.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND (e.expires_at IS NULL OR e.expires_at > now()) AND (e.valid_from IS NULL OR e.valid_from <= now()) AND (e.status = 'active' AND (e.valid_to IS NULL OR e.valid_to > now()) OR e.status = 'superseded' AND e.valid_to > now()) AND e.id = found.id 
 LIMIT 1) AS entry ON true JOIN LATERAL (SELECT coalesce(sum(idf.idf), 0.0) AS lexical, bit_or(CAST(1 AS BIGINT) << CAST(idf.place - 1 AS INTEGER)) AS matched 
FROM idf 
WHERE NOT idf.drives AND idf.place <= 40 AND (entry.search @@ idf.term)) AS common ON true)
 SELECT ranked.id AS id, ranked.kind AS kind, ranked.session_id AS session_id, ranked.matched AS matched, ranked.seeds AS seeds, ranked.steps AS steps, CAST(ARRAY[ranked.version, ranked.arms, ranked.similarity, ranked.lexical, ranked.age, ranked.updated_age, EXTRACT(epoch FROM now() - state.last_access), state.importance * state.decay_factor, state.access_count, ranked.degree, ranked.touched, ranked.quoted, ranked.bytes] AS DOUBLE PRECISION[]) AS numbers, CASE WHEN (ranked.place <= 40) THEN ranked.head ELSE left(ranked.head, 60) END AS head, CASE WHEN (ranked.place <= 40) THEN (SELECT public.halfvec_send(w.embedding) AS sent 
FROM zerda.embeddings AS w 
WHERE w.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND w.entry_id = ranked.id AND w.model_id = %(model)s::INTEGER) END AS vector, CASE WHEN (ranked.bytes + pg_column_size(ranked.metadata) <= 65536) THEN (SELECT CAST(row_to_json(line) AS TEXT) AS row_to_json_1 
FROM (SELECT ranked.id AS id, ranked.version AS version, ranked.memory_type AS memory_type, ranked.kind AS kind, ranked.content AS content, ranked.session_id AS session_id, ranked.user_id AS user_id, ranked.agent_id AS agent_id, ranked.tags AS tags, ranked.metadata AS metadata, ranked.language AS language, ranked.status AS status, ranked.created_at AS created_at, ranked.recorded_at AS recorded_at, ranked.updated_at AS updated_at, ranked.valid_from AS valid_from, ranked.valid_to AS valid_to, ranked.invalidated_at AS invalidated_at, ranked.expires_at AS expires_at, state.importance AS importance, state.original_importance AS original_importance, state.decay_factor AS decay_factor, state.access_count AS access_count, state.last_access AS last_access) AS line) END AS entry, CASE WHEN (ranked.place = 1) THEN json_build_object('lexical_total', ranked.lexical_total, 'now', CAST(EXTRACT(epoch FROM now()) AS DOUBLE PRECISION), 'terms', (SELECT json_agg(json_build_array(idf.lexeme, idf.entries, idf.counted, idf.drives, idf.idf) ORDER BY idf.place) AS json_agg_1 
FROM idf), 'exact', (SELECT bool_and(dense.exact) AS bool_and_1 
FROM dense), 'ann_model_id', (SELECT zerda.tenants.ann_model_id 
FROM zerda.tenants 
WHERE zerda.tenants.tenant_id = %(tenant)s::VARCHAR COLLATE "C"), 'model_state', (SELECT zerda.embedding_models.state 
FROM zerda.embedding_models 
WHERE zerda.embedding_models.id = %(model)s::INTEGER)) END AS once 
FROM (SELECT scored.arms AS arms, scored.id AS id, scored.version AS version, scored.memory_type AS memory_type, scored.kind AS kind, scored.content AS content, scored.session_id AS session_id, scored.user_id AS user_id, scored.agent_id AS agent_id, scored.tags AS tags, scored.metadata AS metadata, scored.language AS language, scored.status AS status, scored.created_at AS created_at, scored.recorded_at AS recorded_at, scored.updated_at AS updated_at, scored.valid_from AS valid_from, scored.valid_to AS valid_to, scored.invalidated_at AS invalidated_at, scored.expires_at AS expires_at, scored.similarity AS similarity, scored.lexical AS lexical, scored.lexical_total AS lexical_total, scored.matched AS matched, scored.age AS age, scored.updated_age AS updated_age, scored.degree AS degree, scored.touched AS touched, scored.quoted AS quoted, scored.bytes AS bytes, scored.head AS head, scored.lent AS lent, scored.seeds AS seeds, scored.steps AS steps, row_number() OVER (ORDER BY coalesce(scored.similarity, 0) + coalesce((scored.lexical / CAST(nullif(scored.lexical_total, 0) AS DOUBLE PRECISION)) / CAST((1.0 + ln(greatest(CAST(scored.bytes AS DOUBLE PRECISION) / CAST(400 AS DOUBLE PRECISION), 1))) AS DOUBLE PRECISION), 0) + coalesce(((scored.lent * 0.5) / CAST(nullif(scored.lexical_total, 0) AS DOUBLE PRECISION)) / CAST((1.0 + (CAST(scored.bytes AS DOUBLE PRECISION) / CAST(400 AS DOUBLE PRECISION)) * (CAST(scored.bytes AS DOUBLE PRECISION) / CAST(400 AS DOUBLE PRECISION))) AS DOUBLE PRECISION), 0) DESC, scored.id) AS place 
FROM scored) AS ranked JOIN LATERAL (SELECT s.importance AS importance, s.original_importance AS original_importance, s.decay_factor AS decay_factor, s.access_count AS access_count, s.last_access AS last_access 
FROM zerda.entry_state AS s 
WHERE s.tenant_id = %(tenant)s::VARCHAR COLLATE "C" AND s.entry_id = ranked.id 
 LIMIT 1) AS state ON true
