"""The arms of the hot statement, each with a limit: lexical, dense, recent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    DateTime,
    Double,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    lateral,
    literal_column,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import JSONB, REGCONFIG, TSQUERY
from sqlalchemy.sql.selectable import FromClause, LateralFromClause
from sqlalchemy.types import UserDefinedType

from zerda_pg.db.criteria import Criteria, conditions, entry_only, now
from zerda_pg.db.schema import (
    embeddings,
    entries,
    entry_state,
    entry_versions,
    lexemes,
    tenants,
)

__all__ = [
    "Arms",
    "approximate_arm",
    "considered",
    "constant",
    "cosine_distance",
    "dense_arm",
    "known_entries",
    "lexical_arm",
    "one",
    "recent_arm",
    "relation_list",
    "rows_limit",
    "term_bit",
]


@dataclass(frozen=True, kw_only=True)
class Arms:
    """How much each arm may bring; every number is a row count.

    Twice as many from each arm cost a third more and found nothing more at ten, on four question
    sets.
    """

    dense: int = 100
    lexical: int = 100
    recent: int = 20
    seeds: int = 24
    """Best of lexical and dense each, whose neighbours come along."""
    steps: int = 2
    """How far from a seed its session is followed, each way; one step costs 3.5 points of
    evidence at ten on chats of short turns, three gain nothing."""
    edges: int = 100
    """Edges of a seed that are followed, each way."""
    pool: int = 40
    """Best candidates whose vectors come along, to tell which speak of the same."""
    postings: int = 4000
    """Sum of the drivers' frequencies: 11 ms on 200,000 entries; 1,000 would be 4 ms."""
    drivers: int = 32
    """Most terms looked up in the index, whatever the query's length."""
    common: int = 8
    """Terms too frequent to drive, tested on the candidates only."""


COMPOUND = r"$$^[^-./@]+-[^./@]*$$"
"""Lexemes of hyphenated words: the parser gives their parts too, and a word counts once."""


def constant(sql: str) -> ColumnElement[Any]:
    """A constant of ours as it stands: readable in pg_stat_statements, known to the planner."""
    return literal_column(sql)


def rows_limit(rows: int) -> ColumnElement[int]:
    """A limit as a literal: under a generic plan a bound one is guessed at."""
    return literal_column(str(rows), Integer)


def one(statement: Select[Any], name: str) -> LateralFromClause:
    """A candidate's row, looked up by its key.

    The limit keeps the planner from joining whole tables instead: with statistics of a time when
    the tenant had one entry it thinks that cheaper, which then takes minutes.
    """
    return statement.limit(rows_limit(1)).lateral(name)


def term_bit(place: ColumnElement[Any]) -> ColumnElement[int]:
    """The bit of a term in the set of those that an entry has; places count from 1."""
    return cast(constant("1"), BigInteger).op("<<")(cast(place - constant("1"), Integer))


def relation_list(names: tuple[str, ...]) -> list[ColumnElement[Any]]:
    """Names of relations as constants."""
    return [constant(f"'{name}'") for name in names]


def _vector_type(schema: str) -> Any:
    class Halfvec(UserDefinedType[Any]):
        cache_ok = True

        def get_col_spec(self, **_: Any) -> str:
            return f"{schema}.halfvec"

    return Halfvec()


def cosine_distance(vector_schema: str, column: ColumnElement[Any]) -> ColumnElement[float]:
    """Raw cosine distance to the query, the only thing that an index can order by."""
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
        func.replace(lexeme, constant(r"$$\$$"), constant(r"$$\\$$")),
        constant("$$'$$"),
        constant("$$''$$"),
    )
    quoted = func.concat(constant("$$'$$"), escaped, constant("$$'$$"))
    return (
        select(
            lexeme.label("lexeme"),
            cast(quoted, TSQUERY).label("term"),
            func.coalesce(lexemes.c.entries, constant("0")).label("counted"),
        )
        .select_from(
            lexeme_of.outerjoin(
                lexemes,
                and_(lexemes.c.tenant_id == bindparam("tenant"), lexemes.c.lexeme == lexeme),
            )
        )
        .where(~lexeme.op("~")(constant(COMPOUND)))
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
                ranked.c.place <= constant("2"),
                and_(
                    ranked.c.up_to <= rows_limit(arms.postings),
                    ranked.c.place <= rows_limit(arms.drivers),
                ),
            ).label("drives"),
        )
        .cte("drivers")
    )  # fmt: skip


def known_entries(criteria: Criteria) -> FromClause:
    """`entries`, or what they were as of `known_at`: those rows and the versions before them."""
    if criteria.known_at is None:
        return entries.alias("e")
    names = [c.name for c in entries.c]
    current = select(*[entries.c[n] for n in names], constant("false").label("old")).where(
        entries.c.tenant_id == bindparam("tenant")
    )
    before = select(*[entry_versions.c[n] for n in names], constant("true").label("old")).where(
        entry_versions.c.tenant_id == bindparam("tenant"),
        entry_versions.c.recorded_to > bindparam("known_at"),
    )
    return union_all(current, before).subquery("e")


def _important(criteria: Criteria, tenant: ColumnElement[str], entry_id: ColumnElement[str]) -> Any:
    state = entry_state.alias("importance_of")
    return (
        select(constant("1"))
        .where(
            state.c.tenant_id == bindparam("tenant"),
            state.c.entry_id == entry_id,
            state.c.importance * state.c.decay_factor >= bindparam("min_importance"),
        )
        .exists()
    )


def considered(criteria: Criteria, table: FromClause) -> list[Any]:
    """Every condition on an entry, its importance included."""
    found: list[Any] = list(conditions(criteria, table))
    if criteria.filter.min_importance is not None:
        found.append(_important(criteria, table.c.tenant_id, table.c.id))
    return found


def _postings(criteria: Criteria, arms: Arms, drivers: CTE) -> CTE:
    """Which entries have which driver, by the index."""
    e = known_entries(criteria)
    matching = lateral(
        select(e.c.id)
        .where(*considered(criteria, e), e.c.search.op("@@")(drivers.c.term))
        .limit(rows_limit(arms.postings)),
        name="matching",
    )
    return (
        select(drivers.c.lexeme, matching.c.id)
        .select_from(drivers.join(matching, drivers.c.drives))
        .cte("postings")
    )


def _isolated_postings(arms: Arms, drivers: CTE) -> CTE:
    """The same by a function that may use the index under row-level security."""

    def driving(name: str) -> Any:
        chosen = select(drivers.c[name]).where(drivers.c.drives).order_by(drivers.c.place)
        return func.array(chosen.scalar_subquery())

    found = func.zerda.postings(
        driving("lexeme"),
        driving("term"),
        rows_limit(arms.postings),
        cast(bindparam("criteria"), JSONB),
    ).table_valued(column("lexeme", Text), column("id", Text), name="found_postings")
    return select(found.c.lexeme, found.c.id.collate("C").label("id")).cte("postings")


def lexical_arm(criteria: Criteria, arms: Arms, *, isolated: bool = False) -> tuple[CTE, CTE]:
    """Each term's IDF, also of those that do not drive, and the entries with their sums.

    Under row-level security what was known earlier is looked for without the index: the version
    of a memory is asked for seldom.
    """
    drivers = _drivers(_terms(), arms)
    if isolated and criteria.known_at is None:
        postings = _isolated_postings(arms, drivers)
    else:
        postings = _postings(criteria, arms, drivers)
    frequency = (
        select(postings.c.lexeme, func.count().label("entries"))
        .group_by(postings.c.lexeme)
        .subquery("frequency")
    )
    counted = (
        select(func.count().label("entries"))
        .select_from(
            select(constant("1"))
            .where(entries.c.tenant_id == bindparam("tenant"))
            .limit(rows_limit(arms.postings))
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
    size = select(
        func.coalesce(func.nullif(recorded, constant("0")), counted).label("entries")
    ).cte("size")
    occurring = (
        select(
            drivers.c.lexeme,
            drivers.c.term,
            drivers.c.counted,
            drivers.c.drives,
            drivers.c.place,
            case(
                (drivers.c.drives, func.coalesce(frequency.c.entries, constant("0"))),
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
                constant("1.0")
                + (func.greatest(n - df, constant("0")) + constant("0.5")) / (df + constant("0.5"))
            ).label("idf"),
        )
        .select_from(occurring.join(size, constant("true")))
        .cte("idf")
    )
    matched = (
        select(
            postings.c.id,
            func.sum(idf.c.idf).label("lexical"),
            func.bit_or(term_bit(idf.c.place)).label("matched"),
        )
        .select_from(postings.join(idf, idf.c.lexeme == postings.c.lexeme))
        .group_by(postings.c.id)
        .cte("matched")
    )
    return idf, matched


def approximate_arm(criteria: Criteria, vector_schema: str, arms: Arms, dimensions: int) -> CTE:
    """The nearest by the tenant's own index, or exactly where a filter leaves too few."""
    f = criteria.filter

    def given(name: str, kind: Any, present: object) -> ColumnElement[Any]:
        return cast(null() if present is None else bindparam(name), kind)

    texts = ARRAY(Text)
    near = func.zerda.nearest(
        cast(bindparam("tenant"), Text),
        bindparam("model", type_=Integer),
        rows_limit(dimensions),
        cast(bindparam("query_vector"), _vector_type(vector_schema)),
        rows_limit(arms.dense),
        now(criteria),
        given("valid_at", DateTime(timezone=True), criteria.valid_at),
        given("statuses", texts, f.status),
        given("scope_user", Text, criteria.scope.user_id),
        given("memory_types", texts, f.memory_types),
        given("kinds", texts, f.kinds),
        given("session_id", Text, f.session_id),
        given("user_id", Text, f.user_id),
        given("agent_id", Text, f.agent_id),
    ).table_valued(column("id", Text), column("distance", Double), column("exact", Boolean))
    return select(near.c.id, near.c.distance, near.c.exact).cte("dense")


def dense_arm(criteria: Criteria, vector_schema: str, arms: Arms) -> CTE:
    """The nearest by cosine, exactly, over the tenant's vectors that the criteria admit."""
    v = embeddings.alias("v")
    distance = cosine_distance(vector_schema, v.c.embedding)
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
        select(
            v.c.entry_id.label("id"), distance.label("distance"), constant("true").label("exact")
        )
        .select_from(source)
        .where(*wanted)
        .order_by(distance, v.c.entry_id)  # of equals the same ones, whatever the plan
        .limit(rows_limit(arms.dense))
        .cte("dense")
    )


def recent_arm(criteria: Criteria, arms: Arms) -> CTE:
    """The newest entries."""
    e = known_entries(criteria)
    return (
        select(e.c.id)
        .where(*considered(criteria, e))
        .order_by(e.c.created_at.desc(), e.c.id.desc())
        .limit(rows_limit(arms.recent))
        .cte("recent")
    )
