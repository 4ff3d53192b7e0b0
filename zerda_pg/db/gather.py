"""The hot statement: every candidate for a query with its raw signals, in one round trip.

    terms      the query's lexemes with what is known of their frequency
    drivers    the rarest of them, until their frequencies add up to a cap
    postings   which entries have which driver (by the index, never AND-ed)
    lexical    the entries with the greatest sum of IDF
    dense      the entries nearest by cosine, by the raw distance
    recent     the newest entries
    graph      what stands next to the best of lexical and dense: turns of the session, edges
    successors where superseded entries are asked for: what replaced those found

The union is then joined once to state and vectors. Every arm has a limit, so that the cost is
bounded whatever the size of the store; every query block names the tenant.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    bindparam,
    cast,
    func,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import REGCONFIG, aggregate_order_by
from sqlalchemy.sql.selectable import FromClause

from zerda_pg.db.compiled import compiled
from zerda_pg.db.criteria import Criteria, admits_superseded, now
from zerda_pg.db.gather_arms import (
    Arms,
    approximate_arm,
    considered,
    constant,
    cosine_distance,
    dense_arm,
    known_entries,
    lexical_arm,
    one,
    recent_arm,
    rows_limit,
    term_bit,
)
from zerda_pg.db.gather_best import the_best
from zerda_pg.db.gather_graph import degree, graph_arm, replaced
from zerda_pg.db.gather_shape import GatherShape
from zerda_pg.db.rows import RECORDED
from zerda_pg.db.schema import (
    embedding_models,
    embeddings,
    session_touches,
    tenants,
)

__all__ = ["ARM_BITS", "Arms", "GatherShape", "gather_sql"]

HEAD = 400
"""Characters of a body that ranking sees: who speaks, and whether a value is told. Where only
who speaks is asked, `NAME_CHARACTERS`."""


def _quoted(e: FromClause) -> ColumnElement[Any]:
    """The share of the quoted phrases that an entry has, word after word."""
    given = cast(bindparam("phrases"), ARRAY(Text))
    phrase = func.unnest(given).column_valued("phrase")
    query = func.phraseto_tsquery(cast(bindparam("language"), REGCONFIG), phrase)
    found = (
        select(cast(func.count(), Double))
        .where(e.c.search.op("@@")(query))
        .correlate(e)
        .scalar_subquery()
    )
    return found / func.greatest(func.cardinality(given), constant("1"))


def _touched(entry_id: ColumnElement[str], session_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether the current session read this entry or wrote it."""
    t = session_touches.alias("t")
    read = (
        select(constant("1"))
        .where(
            t.c.tenant_id == bindparam("tenant"),
            t.c.session_id == bindparam("current_session"),
            t.c.entry_id == entry_id,
        )
        .exists()
    )
    wrote = func.coalesce(session_id == bindparam("current_session"), constant("false"))
    return or_(read, wrote)


def _statement(criteria: Criteria, shape: GatherShape, vector_schema: str) -> Select[Any]:
    limits = shape.arms
    arms: list[tuple[str, CTE]] = []
    best: list[Select[Any]] = []
    idf = matched = dense = None
    if shape.lexical:
        idf, matched = lexical_arm(criteria, limits, isolated=shape.isolated)
        ranked = (
            select(matched.c.id, matched.c.lexical)
            .order_by(matched.c.lexical.desc(), matched.c.id)
            .limit(rows_limit(limits.lexical))
            .cte("lexical")
        )
        arms.append(("lexical", ranked))
        best.append(
            select(
                select(ranked.c.id, ranked.c.lexical)
                .order_by(ranked.c.lexical.desc(), ranked.c.id)
                .limit(rows_limit(limits.seeds))
                .subquery("best_lexical")
            )
        )
    if shape.dense:
        if shape.ann is None:
            dense = dense_arm(criteria, vector_schema, limits)
        else:
            dense = approximate_arm(criteria, vector_schema, limits, shape.ann)
        arms.append(("dense", dense))
        best.append(
            select(
                select(dense.c.id, constant("NULL::double precision").label("lexical"))
                .order_by(dense.c.distance, dense.c.id)
                .limit(rows_limit(limits.seeds))
                .subquery("best_dense")
            )
        )
    if shape.recent:
        arms.append(("recent", recent_arm(criteria, limits)))
    if shape.graph and best:
        arms.append(("graph", graph_arm(best, limits)))
    chain: CTE | None = None
    if admits_superseded(criteria):
        chain = replaced([select(arm.c.id) for _, arm in arms])
        arms.append(("successors", chain))
    parts: list[Any] = [_found_by(name, cte) for name, cte in arms]
    if matched is not None:
        # Every match lends its score to whatever arm found it, by one aggregate: a join of CTEs,
        # whose sizes the planner cannot know, became a nested loop of 450,000 comparisons.
        own = (constant("0"), cast(matched.c.lexical, Double), matched.c.matched)
        parts.append(select(matched.c.id, *own, *[null()] * 4))
    every = union_all(*parts).subquery("every")
    found = (
        select(
            every.c.id,
            func.bit_or(every.c.arm).label("arms"),
            func.max(every.c.lexical).label("lexical"),
            func.bit_or(every.c.matched).label("matched"),
            func.min(every.c.distance).label("distance"),
            func.max(every.c.lent).label("lent"),
            # one row has them; `array_agg` over every match would take 3 kB each, and a file
            func.max(every.c.seeds).label("seeds"),
            func.max(every.c.steps).label("steps"),
        )
        .group_by(every.c.id)
        .having(func.bit_or(every.c.arm) > constant("0"))
        .cte("found")
    )
    scored, once = _signals(
        criteria, shape, vector_schema, found, idf=idf, dense=dense, chain=chain
    )
    return the_best(scored, once, criteria, shape, vector_schema)


ARM_BITS = {"lexical": 1, "dense": 2, "recent": 4, "graph": 8, "successors": 16}
"""By which a candidate says what found it."""


def _found_by(name: str, arm: CTE) -> Select[Any]:
    """An arm's entries; the dense one knows how far they are, the graph next to what they stand."""
    none = constant("NULL::double precision")
    near: tuple[Any, ...] = (none, constant("NULL::text[]"), constant("NULL::integer[]"))
    if name == "graph":
        near = (arm.c.lent, arm.c.seeds, arm.c.steps)
    return select(
        arm.c.id,
        constant(str(ARM_BITS[name])).label("arm"),
        none.label("lexical"),
        constant("NULL::bigint").label("matched"),
        (arm.c.distance if name == "dense" else none).label("distance"),
        near[0].label("lent"),
        near[1].label("seeds"),
        near[2].label("steps"),
    )


def _signals(
    criteria: Criteria,
    shape: GatherShape,
    vector_schema: str,
    found: CTE,
    *,
    idf: CTE | None,
    dense: CTE | None,
    chain: CTE | None,
) -> tuple[CTE, dict[str, ColumnElement[Any]]]:
    """The union joined once to entries and vectors, a row a candidate.

    Returns:
        The rows, and what is told once.
    """
    clock = now(criteria)
    lexical: ColumnElement[Any] = constant("0.0")
    total: Any = constant("0.0")
    once: dict[str, ColumnElement[Any]] = {"now": cast(func.extract("epoch", clock), Double)}
    known = known_entries(criteria)
    e = one(select(*known.c).where(*considered(criteria, known), known.c.id == found.c.id), "entry")
    source: Any = found.join(e, constant("true"))
    matched: ColumnElement[Any] = constant("0")
    if idf is not None:
        # what the index did not look up is tested on the candidates
        tested = idf.c.place <= rows_limit(shape.arms.drivers + shape.arms.common)
        bits = func.bit_or(term_bit(idf.c.place))
        common = (
            select(
                func.coalesce(func.sum(idf.c.idf), constant("0.0")).label("lexical"),
                bits.label("matched"),
            )
            .where(~idf.c.drives, tested, e.c.search.op("@@")(idf.c.term))
            .lateral("common")
        )
        source = source.join(common, constant("true"))
        lexical = func.coalesce(found.c.lexical, constant("0.0")) + common.c.lexical
        matched = func.coalesce(found.c.matched, constant("0")).op("|")(
            func.coalesce(common.c.matched, constant("0"))
        )
        total = (
            select(func.coalesce(func.sum(idf.c.idf), constant("0.0")))
            .where(tested)
            .scalar_subquery()
        )
        described = func.json_build_array(
            idf.c.lexeme, idf.c.entries, idf.c.counted, idf.c.drives, idf.c.idf
        )
        listed = func.json_agg(aggregate_order_by(described, idf.c.place))
        once["terms"] = select(listed).scalar_subquery()
    similarity: ColumnElement[Any] = constant("NULL::double precision")
    if shape.dense:
        v = embeddings.alias("v")
        wanted = [
            v.c.tenant_id == bindparam("tenant"),
            v.c.entry_id == found.c.id,
            v.c.model_id == bindparam("model"),
        ]
        if criteria.known_at is not None:
            wanted.append(~e.c.old)
        looked_up = select(cosine_distance(vector_schema, v.c.embedding)).where(*wanted)
        # the second is evaluated only for what the dense arm did not find
        distance = func.coalesce(found.c.distance, looked_up.limit(rows_limit(1)).scalar_subquery())
        similarity = constant("1.0") - distance
    if dense is not None:
        once["exact"] = select(func.bool_and(dense.c.exact)).scalar_subquery()
        once["ann_model_id"] = (
            select(tenants.c.ann_model_id)
            .where(tenants.c.tenant_id == bindparam("tenant"))
            .scalar_subquery()
        )
        once["model_state"] = (
            select(embedding_models.c.state)
            .where(embedding_models.c.id == bindparam("model"))
            .scalar_subquery()
        )
    if chain is not None:
        links = func.json_agg(func.json_build_array(chain.c.old, chain.c.id))
        once["replacements"] = select(links).scalar_subquery()
    touched = _touched(found.c.id, e.c.session_id) if shape.session else constant("false")

    scored = (
        select(
            found.c.arms, *[e.c[name] for name in RECORDED],
            cast(similarity, Double).label("similarity"),
            cast(lexical, Double).label("lexical"),
            cast(total, Double).label("lexical_total"),
            matched.label("matched"),
            cast(func.extract("epoch", clock - e.c.created_at), Double).label("age"),
            cast(func.extract("epoch", clock - e.c.updated_at), Double).label("updated_age"),
            (degree(found) if shape.degree else constant("0")).label("degree"),
            cast(touched, Integer).label("touched"),
            (_quoted(e) if shape.phrases else constant("0.0")).label("quoted"),
            func.octet_length(e.c.body).label("bytes"),
            func.left(e.c.body, rows_limit(HEAD)).label("head"),
            found.c.lent, found.c.seeds, found.c.steps,
        )
        .select_from(source)
        .cte("scored")
    )  # fmt: skip
    return scored, once


def gather_sql(criteria: Criteria, shape: GatherShape, vector_schema: str) -> str:
    """The statement's text with named parameters, compiled once for each shape."""
    text, _ = compiled(
        ("gather", criteria.shape, shape, vector_schema),
        lambda: _statement(criteria, shape, vector_schema),
    )
    return text
