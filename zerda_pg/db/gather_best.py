"""What only the best candidates bring along: vectors, columns, the head of the text."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
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

from zerda_pg.db.criteria import Criteria
from zerda_pg.db.gather_arms import constant, rows_limit
from zerda_pg.db.gather_shape import GatherShape
from zerda_pg.db.rows import whole
from zerda_pg.db.schema import embeddings, entries
from zerda_pg.scoring.cues import NAME_CHARACTERS
from zerda_pg.scoring.hybrid import SHORT_BYTES

__all__ = ["with_the_best"]


def with_the_best(
    scored: CTE, criteria: Criteria, shape: GatherShape, vector_schema: str
) -> Select[Any]:
    """The best candidates' vectors and columns come along, the others' are left where they are.

    What is best is estimated as the default ranker begins: the cosine, and the share of the
    query's words, less in long texts.
    """
    # typed, since SQLAlchemy would divide numerics, whose logarithm is slow
    short = literal_column(str(SHORT_BYTES), Double)
    longer: ColumnElement[float] = func.greatest(
        cast(scored.c.bytes, Double) / short, constant("1"), type_=Double()
    )
    total: ColumnElement[float] = func.nullif(scored.c.lexical_total, constant("0"), type_=Double())
    words = scored.c.lexical / total / (constant("1.0") + func.ln(longer, type_=Double()))
    relevance = func.coalesce(scored.c.similarity, constant("0")) + func.coalesce(
        words, constant("0")
    )
    place = func.row_number().over(order_by=(relevance.desc(), scored.c.id)).label("place")
    ranked = select(scored, place).subquery("ranked")
    columns = {column.key: column for column in ranked.c if column.key != "place"}
    # of the others, who speaks
    columns["head"] = case(
        (ranked.c.place <= rows_limit(shape.arms.pool), ranked.c.head),
        else_=func.left(ranked.c.head, rows_limit(NAME_CHARACTERS)),
    ).label("head")
    if shape.dense:
        v = embeddings.alias("w")
        wanted = (
            v.c.tenant_id == bindparam("tenant"),
            v.c.entry_id == ranked.c.id,
            v.c.model_id == bindparam("model"),
        )
        # as text: the schema's name is quoted already, and `func` would quote it again
        sent = constant(f"{vector_schema}.halfvec_send(w.embedding)").label("sent")
        vector: Any = select(sent).select_from(v).where(*wanted).scalar_subquery()
        if not shape.vectors:
            vector = case((ranked.c.place <= rows_limit(shape.arms.pool), vector))
        columns["vector"] = vector.label("vector")
    if shape.whole and criteria.known_at is None:
        own = entries.c.tenant_id == bindparam("tenant"), entries.c.id == ranked.c.id
        row = whole(entries).where(*own).correlate(ranked).subquery("row")
        line = select(cast(func.row_to_json(row.table_valued()), Text)).scalar_subquery()
        columns["entry"] = case((ranked.c.place <= rows_limit(shape.whole), line)).label("entry")
    return select(*columns.values())
