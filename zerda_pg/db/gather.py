"""The hot statement: every candidate for a query with its raw signals, in one round trip.

    terms      the query's lexemes with what is known of their frequency
    drivers    the rarest of them, until their frequencies add up to a cap
    postings   which entries have which driver (by the index, never AND-ed)
    lexical    the entries with the greatest sum of IDF
    dense      the entries nearest by cosine, by the raw distance
    recent     the newest entries
    graph      what an edge joins to the best of lexical and dense

The union is then joined once to state and vectors. Every arm has a limit, so that the cost is
bounded whatever the size of the store; every query block names the tenant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    lateral,
    literal_column,
    null,
    or_,
    select,
    union,
    union_all,
)
from sqlalchemy.dialects.postgresql import REGCONFIG, TSQUERY
from sqlalchemy.sql.selectable import FromClause, Subquery
from sqlalchemy.types import UserDefinedType

from zerda_pg.db.compiled import compiled
from zerda_pg.db.criteria import Criteria, conditions, entry_only, now
from zerda_pg.db.schema import (
    edges,
    embeddings,
    entries,
    entry_state,
    entry_versions,
    lexemes,
    session_touches,
    tenants,
)

__all__ = ["Arms", "GatherShape", "gather_sql"]

ADJACENT = ("precedes", "related", "has_child")
"""Relations whose two ends lend each other score."""

DEGREE_RELATIONS = ("has_child", "related", "invalidated_by")
"""Relations that count for degree; `precedes` would drown it."""


@dataclass(frozen=True, kw_only=True)
class Arms:
    """How much each arm may bring; every number is a row count."""

    dense: int = 200
    lexical: int = 200
    recent: int = 20
    seeds: int = 40
    """Best of lexical and dense each, whose neighbours come along."""
    postings: int = 4000
    """Sum of the drivers' frequencies: 11 ms on 200,000 entries; 1,000 would be 4 ms."""
    drivers: int = 48
    """Most terms looked up in the index, whatever the query's length."""
    common: int = 8
    """Terms too frequent to drive, tested on the candidates only."""


@dataclass(frozen=True, kw_only=True)
class GatherShape:
    """What the statement's text depends on, besides the criteria."""

    dense: bool = True
    lexical: bool = True
    recent: bool = True
    graph: bool = True
    degree: bool = False
    session: bool = False
    """Whether a current session is given, whose touches are looked up."""
    vectors: bool = False
    """Whether the candidates' vectors are fetched, for diversity."""
    arms: Arms = field(default_factory=Arms)


def _sql(constant: str) -> ColumnElement[Any]:
    """A constant of ours as it stands: readable in pg_stat_statements, known to the planner."""
    return literal_column(constant)


def _count(rows: int) -> ColumnElement[int]:
    """A limit as a literal: under a generic plan a bound one is guessed at."""
    return literal_column(str(rows), Integer)


def _relations(names: tuple[str, ...]) -> list[ColumnElement[Any]]:
    return [_sql(f"'{name}'") for name in names]


def _vector_type(schema: str) -> Any:
    class Halfvec(UserDefinedType[Any]):
        cache_ok = True

        def get_col_spec(self, **_: Any) -> str:
            return f"{schema}.halfvec"

    return Halfvec()


def _distance(vector_schema: str, column: ColumnElement[Any]) -> ColumnElement[float]:
    query = cast(bindparam("query_vector"), _vector_type(vector_schema))
    return column.op(f"OPERATOR({vector_schema}.<=>)", return_type=Double())(query)


def _terms() -> CTE:
    """The query's lexemes, each with its tsquery and its last counted frequency."""
    configuration = cast(bindparam("language"), REGCONFIG)
    lexeme_of = func.unnest(
        func.to_tsvector(configuration, cast(bindparam("query_text"), Text))
    ).table_valued("lexeme", "positions", "weights", name="found")
    lexeme: ColumnElement[str] = lexeme_of.c.lexeme
    # as a quoted lexeme of a tsquery: backslashes and quotes doubled
    escaped = func.replace(
        func.replace(lexeme, _sql(r"$$\$$"), _sql(r"$$\\$$")), _sql("$$'$$"), _sql("$$''$$")
    )
    quoted = func.concat(_sql("$$'$$"), escaped, _sql("$$'$$"))
    return (
        select(
            lexeme.label("lexeme"),
            cast(quoted, TSQUERY).label("term"),
            func.coalesce(lexemes.c.entries, _sql("0")).label("counted"),
        )
        .select_from(
            lexeme_of.outerjoin(
                lexemes,
                and_(lexemes.c.tenant_id == bindparam("tenant"), lexemes.c.lexeme == lexeme),
            )
        )
        .cte("terms")
    )


def _drivers(terms: CTE, arms: Arms) -> CTE:
    """The rarest terms, until their frequencies add up to the cap; at least the two rarest."""
    order = (terms.c.counted, func.length(terms.c.lexeme).desc(), terms.c.lexeme)
    ranked = select(
        terms,
        func.sum(terms.c.counted).over(order_by=order, rows=(None, 0)).label("up_to"),
        func.row_number().over(order_by=order).label("place"),
    ).subquery("ranked")
    return (
        select(
            ranked.c.lexeme, ranked.c.term, ranked.c.counted, ranked.c.place,
            or_(
                ranked.c.place <= _sql("2"),
                and_(
                    ranked.c.up_to <= _count(arms.postings),
                    ranked.c.place <= _count(arms.drivers),
                ),
            ).label("drives"),
        )
        .cte("drivers")
    )  # fmt: skip


def _known_entries(criteria: Criteria) -> FromClause:
    """`entries`, or what they were as of `known_at`: those rows and the versions before them."""
    if criteria.known_at is None:
        return entries.alias("e")
    names = [c.name for c in entries.c]
    current = select(*[entries.c[n] for n in names], _sql("false").label("old")).where(
        entries.c.tenant_id == bindparam("tenant")
    )
    before = select(*[entry_versions.c[n] for n in names], _sql("true").label("old")).where(
        entry_versions.c.tenant_id == bindparam("tenant"),
        entry_versions.c.recorded_to > bindparam("known_at"),
    )
    return union_all(current, before).subquery("e")


def _important(criteria: Criteria, tenant: ColumnElement[str], entry_id: ColumnElement[str]) -> Any:
    state = entry_state.alias("importance_of")
    return (
        select(_sql("1"))
        .where(
            state.c.tenant_id == bindparam("tenant"),
            state.c.entry_id == entry_id,
            state.c.importance * state.c.decay_factor >= bindparam("min_importance"),
        )
        .exists()
    )


def _considered(criteria: Criteria, table: FromClause) -> list[Any]:
    found: list[Any] = list(conditions(criteria, table))
    if criteria.filter.min_importance is not None:
        found.append(_important(criteria, table.c.tenant_id, table.c.id))
    return found


def _lexical(criteria: Criteria, drivers: CTE, arms: Arms) -> tuple[CTE, CTE]:
    """Each term's IDF, also of those that do not drive, and the entries with their sums."""
    e = _known_entries(criteria)
    matching = lateral(
        select(e.c.id)
        .where(*_considered(criteria, e), e.c.search.op("@@")(drivers.c.term))
        .limit(_count(arms.postings)),
        name="matching",
    )
    postings = (
        select(drivers.c.lexeme, matching.c.id)
        .select_from(drivers.join(matching, drivers.c.drives))
        .cte("postings")
    )
    frequency = (
        select(postings.c.lexeme, func.count().label("entries"))
        .group_by(postings.c.lexeme)
        .subquery("frequency")
    )
    counted = (
        select(func.count().label("entries"))
        .select_from(
            select(_sql("1"))
            .where(entries.c.tenant_id == bindparam("tenant"))
            .limit(_count(arms.postings))
            .subquery("some")
        )
        .scalar_subquery()
    )
    recorded = (
        select(tenants.c.entries_counted)
        .where(tenants.c.tenant_id == bindparam("tenant"))
        .scalar_subquery()
    )
    # what was counted last is near enough for an IDF, and saves counting
    size = select(func.coalesce(func.nullif(recorded, _sql("0")), counted).label("entries")).cte(
        "size"
    )
    occurring = (
        select(
            drivers.c.lexeme,
            drivers.c.term,
            drivers.c.counted,
            drivers.c.drives,
            drivers.c.place,
            case(
                (drivers.c.drives, func.coalesce(frequency.c.entries, _sql("0"))),
                else_=drivers.c.counted,
            ).label("entries"),
        )
        .select_from(drivers.outerjoin(frequency, frequency.c.lexeme == drivers.c.lexeme))
        .subquery("occurring")
    )
    n, df = cast(size.c.entries, Double), cast(occurring.c.entries, Double)
    idf = (
        select(
            occurring,
            func.ln(
                _sql("1.0") + (func.greatest(n - df, _sql("0")) + _sql("0.5")) / (df + _sql("0.5"))
            ).label("idf"),
        )
        .select_from(occurring.join(size, _sql("true")))
        .cte("idf")
    )
    matched = (
        select(postings.c.id, func.sum(idf.c.idf).label("lexical"))
        .select_from(postings.join(idf, idf.c.lexeme == postings.c.lexeme))
        .group_by(postings.c.id)
        .cte("matched")
    )
    return idf, matched


def _dense(criteria: Criteria, vector_schema: str, arms: Arms) -> CTE:
    v = embeddings.alias("v")
    distance = _distance(vector_schema, v.c.embedding)
    wanted: list[Any] = [
        *conditions(criteria, v, narrow=True), v.c.model_id == bindparam("model")
    ]  # fmt: skip
    source: FromClause = v
    if entry_only(criteria):
        e = entries.alias("e")
        source = v.join(e, and_(e.c.tenant_id == v.c.tenant_id, e.c.id == v.c.entry_id))
        wanted += conditions(criteria, e)
    if criteria.filter.min_importance is not None:
        wanted.append(_important(criteria, v.c.tenant_id, v.c.entry_id))
    return (
        select(v.c.entry_id.label("id"), distance.label("distance"))
        .select_from(source)
        .where(*wanted)
        .order_by(distance)
        .limit(_count(arms.dense))
        .cte("dense")
    )


def _recent(criteria: Criteria, arms: Arms) -> CTE:
    e = _known_entries(criteria)
    return (
        select(e.c.id)
        .where(*_considered(criteria, e))
        .order_by(e.c.created_at.desc(), e.c.id.desc())
        .limit(_count(arms.recent))
        .cte("recent")
    )


def _graph(best: list[Select[Any]]) -> CTE:
    """The other ends of the best entries' edges, in both directions."""
    seeds = union(*best).cte("seeds")
    e = edges.alias("edge")
    there = (
        select(e.c.target_id.label("id"))
        .join(seeds, seeds.c.id == e.c.source_id)
        .where(e.c.tenant_id == bindparam("tenant"), e.c.relation.in_(_relations(ADJACENT)))
    )
    back = (
        select(e.c.source_id.label("id"))
        .join(seeds, seeds.c.id == e.c.target_id)
        .where(e.c.tenant_id == bindparam("tenant"), e.c.relation.in_(_relations(ADJACENT)))
    )
    return union(there, back).cte("graph")


def _both_ends(entry_id: ColumnElement[str], found: CTE, relations: tuple[str, ...]) -> Subquery:
    """The ids joined to an entry by edges of these relations, in both directions, each once."""
    out, back = edges.alias("o"), edges.alias("b")
    there = select(out.c.target_id.label("id")).where(
        out.c.tenant_id == bindparam("tenant"),
        out.c.source_id == entry_id,
        out.c.relation.in_(_relations(relations)),
    )
    here = select(back.c.source_id.label("id")).where(
        back.c.tenant_id == bindparam("tenant"),
        back.c.target_id == entry_id,
        back.c.relation.in_(_relations(relations)),
    )
    return union(there.correlate(found), here.correlate(found)).subquery("ends")


def _ends(found: CTE) -> ColumnElement[Any]:
    ends = _both_ends(found.c.id, found, ADJACENT)
    return func.array(select(ends.c.id).scalar_subquery(), type_=ARRAY(Text))


def _degree(found: CTE) -> Any:
    ends = _both_ends(found.c.id, found, DEGREE_RELATIONS)
    return select(func.count()).where(ends.c.id != found.c.id).correlate(found).scalar_subquery()


def _touched(entry_id: ColumnElement[str], session_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether the current session read this entry or wrote it."""
    t = session_touches.alias("t")
    read = (
        select(_sql("1"))
        .where(
            t.c.tenant_id == bindparam("tenant"),
            t.c.session_id == bindparam("current_session"),
            t.c.entry_id == entry_id,
        )
        .exists()
    )
    wrote = func.coalesce(session_id == bindparam("current_session"), _sql("false"))
    return or_(read, wrote)


def _statement(criteria: Criteria, shape: GatherShape, vector_schema: str) -> Select[Any]:
    limits = shape.arms
    arms: list[tuple[str, CTE]] = []
    best: list[Select[Any]] = []
    idf = matched = None
    if shape.lexical:
        idf, matched = _lexical(criteria, _drivers(_terms(), limits), limits)
        ranked = (
            select(matched.c.id, matched.c.lexical)
            .order_by(matched.c.lexical.desc(), matched.c.id)
            .limit(_count(limits.lexical))
            .cte("lexical")
        )
        arms.append(("lexical", ranked))
        best.append(
            select(
                select(ranked.c.id)
                .order_by(ranked.c.lexical.desc(), ranked.c.id)
                .limit(_count(limits.seeds))
                .subquery("best_lexical")
            )
        )
    if shape.dense:
        dense = _dense(criteria, vector_schema, limits)
        arms.append(("dense", dense))
        best.append(
            select(
                select(dense.c.id)
                .order_by(dense.c.distance)
                .limit(_count(limits.seeds))
                .subquery("best_dense")
            )
        )
    if shape.recent:
        arms.append(("recent", _recent(criteria, limits)))
    if shape.graph and best:
        arms.append(("graph", _graph(best)))
    bits = {"lexical": 1, "dense": 2, "recent": 4, "graph": 8}
    none = _sql("NULL::double precision").label("lexical")
    parts: list[Any] = [
        select(cte.c.id, _sql(str(bits[name])).label("arm"), none) for name, cte in arms
    ]
    if matched is not None:
        # Every match lends its score to whatever arm found it, by one aggregate: a join of CTEs,
        # whose sizes the planner cannot know, became a nested loop of 450,000 comparisons.
        parts.append(select(matched.c.id, _sql("0"), cast(matched.c.lexical, Double)))
    every = union_all(*parts).subquery("every")
    found = (
        select(
            every.c.id,
            func.bit_or(every.c.arm).label("arms"),
            func.max(every.c.lexical).label("lexical"),
        )
        .group_by(every.c.id)
        .having(func.bit_or(every.c.arm) > _sql("0"))
        .cte("found")
    )
    return _signals(criteria, shape, vector_schema, found, idf=idf)


def _signals(
    criteria: Criteria,
    shape: GatherShape,
    vector_schema: str,
    found: CTE,
    *,
    idf: CTE | None,
) -> Select[Any]:
    """The union joined once to entries, state and vectors, a row a candidate."""
    e = _known_entries(criteria)
    s, v = entry_state.alias("s"), embeddings.alias("w")
    clock = now(criteria)
    lexical: ColumnElement[Any] = _sql("0.0")
    total: Any = _sql("0.0")
    terms: Any = null()
    source: Any = found.join(e, and_(e.c.tenant_id == bindparam("tenant"), e.c.id == found.c.id))
    source = source.join(s, and_(s.c.tenant_id == bindparam("tenant"), s.c.entry_id == found.c.id))
    if idf is not None:
        common = (
            select(func.coalesce(func.sum(idf.c.idf), _sql("0.0")))
            .where(
                ~idf.c.drives,
                idf.c.place <= _count(shape.arms.drivers) + _count(shape.arms.common),
                e.c.search.op("@@")(idf.c.term),
            )
            .scalar_subquery()
        )
        lexical = func.coalesce(found.c.lexical, _sql("0.0")) + common
        total = select(func.coalesce(func.sum(idf.c.idf), _sql("0.0"))).scalar_subquery()
        described = func.json_build_array(idf.c.lexeme, idf.c.entries, idf.c.counted, idf.c.drives)
        # once, not on every row
        terms = case(
            (
                func.row_number().over() == _sql("1"),
                select(func.json_agg(described)).scalar_subquery(),
            )
        )
    similarity: ColumnElement[Any] = _sql("NULL::double precision")
    vector: ColumnElement[Any] = null()
    if shape.dense:
        join = [
            v.c.tenant_id == bindparam("tenant"),
            v.c.entry_id == found.c.id,
            v.c.model_id == bindparam("model"),
        ]
        if criteria.known_at is not None:
            join.append(~e.c.old)
        source = source.outerjoin(v, and_(*join))
        similarity = _sql("1.0") - _distance(vector_schema, v.c.embedding)
        if shape.vectors:
            vector = cast(v.c.embedding, Text)
    touched = _touched(found.c.id, e.c.session_id) if shape.session else _sql("false")

    return (
        select(
            found.c.id, e.c.version, found.c.arms, e.c.kind, e.c.status, e.c.session_id,
            cast(similarity, Double).label("similarity"),
            cast(lexical, Double).label("lexical"),
            cast(total, Double).label("lexical_total"),
            cast(func.extract("epoch", clock - e.c.created_at), Double).label("age"),
            cast(func.extract("epoch", clock - e.c.updated_at), Double).label("updated_age"),
            cast(func.extract("epoch", clock - s.c.last_access), Double).label("accessed_age"),
            (s.c.importance * s.c.decay_factor).label("importance"),
            s.c.access_count,
            (_degree(found) if shape.degree else _sql("0")).label("degree"),
            touched.label("touched"),
            func.octet_length(e.c.body).label("bytes"),
            (_ends(found) if shape.graph else null()).label("ends"),
            terms.label("terms"),
            vector.label("vector"),
        )
        .select_from(source)
        .where(*_considered(criteria, e))
    )  # fmt: skip


def gather_sql(criteria: Criteria, shape: GatherShape, vector_schema: str) -> str:
    """The statement's text with named parameters, compiled once for each shape."""
    text, _ = compiled(
        ("gather", criteria.shape, shape, vector_schema),
        lambda: _statement(criteria, shape, vector_schema),
    )
    return text
