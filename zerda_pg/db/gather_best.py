"""The best candidates, and what comes with them only: state, entry, vector, the text's head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    Double,
    Select,
    Text,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import array

from zerda_pg.db.criteria import Criteria, now
from zerda_pg.db.gather_arms import constant, one, rows_limit
from zerda_pg.db.gather_shape import GatherShape
from zerda_pg.db.rows import RECORDED, STATE
from zerda_pg.db.schema import embeddings, entry_state
from zerda_pg.scoring.cues import NAME_CHARACTERS
from zerda_pg.scoring.hybrid import SHORT_BYTES

__all__ = ["NUMBERS", "the_best"]

NUMBERS = (
    "version", "arms", "similarity", "lexical", "age", "updated_age", "accessed_age", "effective",
    "access_count", "degree", "touched", "quoted", "bytes",
)  # fmt: skip
"""What comes of each candidate as one array: a column of its own costs its reader 5 µs, and as
much again for 64 rows."""

LENT = 0.5
"""Of a neighbour's words, what counts in the estimate."""

AHEAD_BYTES = 65_536
"""Text and metadata of a candidate that comes whole; a longer one is fetched if it is chosen."""


def _looks(scored: CTE) -> ColumnElement[float]:
    """How good a candidate looks, as the default ranker begins.

    The cosine, and the share of the query's words, less in long texts, its own and those of what
    it stands beside. In 95 of 100 questions the best 64 had all ten that the ranker chose from 240.
    """
    # typed, since SQLAlchemy would divide numerics, whose logarithm is slow
    length = cast(scored.c.bytes, Double) / literal_column(str(SHORT_BYTES), Double)
    longer: ColumnElement[float] = func.greatest(length, constant("1"), type_=Double())
    total: ColumnElement[float] = func.nullif(scored.c.lexical_total, constant("0"), type_=Double())
    own = scored.c.lexical / total / (constant("1.0") + func.ln(longer, type_=Double()))
    lent = scored.c.lent * literal_column(str(LENT), Double) / total
    lent /= constant("1.0") + length * length
    none = constant("0")
    return (
        func.coalesce(scored.c.similarity, none)
        + func.coalesce(own, none)
        + func.coalesce(lent, none)
    )


def the_best(
    scored: CTE,
    once: Mapping[str, ColumnElement[Any]],
    criteria: Criteria,
    shape: GatherShape,
    vector_schema: str,
) -> Select[Any]:
    """The candidates that look best, with state and entry, so that nothing is fetched after.

    What is told once, for the whole answer, comes with the first row.
    """
    place = func.row_number().over(order_by=(_looks(scored).desc(), scored.c.id)).label("place")
    ranked = select(scored, place).subquery("ranked")
    foremost = ranked.c.place <= rows_limit(shape.arms.pool)
    state_of = entry_state.alias("s")
    state = one(
        select(*[state_of.c[name] for name in STATE]).where(
            state_of.c.tenant_id == bindparam("tenant"), state_of.c.entry_id == ranked.c.id
        ),
        "state",
    )
    names = ["id", "kind", "session_id"]
    names += ["matched"] if shape.lexical else []
    names += ["seeds", "steps"] if shape.graph else []
    columns: dict[str, ColumnElement[Any]] = {name: ranked.c[name] for name in names}
    of_state = {
        "accessed_age": func.extract("epoch", now(criteria) - state.c.last_access),
        "effective": state.c.importance * state.c.decay_factor,
        "access_count": state.c.access_count,
    }
    numbers = [of_state[name] if name in of_state else ranked.c[name] for name in NUMBERS]
    columns["numbers"] = cast(array(numbers), ARRAY(Double))
    # of the others, who speaks
    columns["head"] = case(
        (foremost, ranked.c.head), else_=func.left(ranked.c.head, rows_limit(NAME_CHARACTERS))
    )
    if shape.dense and (shape.vectors or shape.arms.pool):
        v = embeddings.alias("w")
        wanted = (
            v.c.tenant_id == bindparam("tenant"),
            v.c.entry_id == ranked.c.id,
            v.c.model_id == bindparam("model"),
        )
        # as text: the schema's name is quoted already, and `func` would quote it again
        sent = constant(f"{vector_schema}.halfvec_send(w.embedding)").label("sent")
        vector: Any = select(sent).select_from(v).where(*wanted).scalar_subquery()
        columns["vector"] = vector if shape.vectors else case((foremost, vector))
    line = select(*[ranked.c[name] for name in RECORDED], *state.c).correlate(ranked, state)
    text = cast(func.row_to_json(line.subquery("line").table_valued()), Text)
    size = ranked.c.bytes + func.pg_column_size(ranked.c.metadata)
    columns["entry"] = case((size <= rows_limit(AHEAD_BYTES), select(text).scalar_subquery()))
    told: list[Any] = [constant("'lexical_total'"), ranked.c.lexical_total]
    for name, value in once.items():
        told += (constant(f"'{name}'"), value)
    columns["once"] = case((ranked.c.place == constant("1"), func.json_build_object(*told)))
    named = [column.label(name) for name, column in columns.items()]
    statement = select(*named).select_from(ranked.join(state, constant("true")))
    if shape.best is not None:
        statement = statement.where(ranked.c.place <= rows_limit(shape.best))
    return statement
