"""The graph in the hot statement: what stands next to an entry, its degree, what replaced it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Integer,
    Select,
    bindparam,
    case,
    cast,
    func,
    lateral,
    select,
    tuple_,
    union,
    union_all,
)
from sqlalchemy.sql.selectable import Subquery

from zerda_pg.db.gather_arms import Arms, constant, one, relation_list, rows_limit
from zerda_pg.db.schema import edges, entries

__all__ = ["degree", "graph_arm", "replaced"]

ADJACENT = ("precedes", "related", "has_child")
"""Relations whose two ends lend each other score."""


MOST_LINKS = 5000
"""Supersessions that are followed from what was found."""


DEGREE_RELATIONS = ("has_child", "related", "invalidated_by")
"""Relations that count for degree; `precedes` would drown it."""


def graph_arm(best: list[Select[Any]], arms: Arms) -> CTE:
    """What stands next to the best entries, with its places relative to them and their words.

    A row an entry: `lent`, the most words of those it stands beside, `seeds` and `steps`. Beside
    it stand turns of its session, up to `arms.steps` away (-1: the turn before), and the other
    ends of edges; `precedes` counts as a step, other relations as none (0).
    """
    either = union_all(*best).subquery("either")
    seeds = (
        select(either.c.id, func.max(either.c.lexical).label("lexical"))
        .group_by(either.c.id)
        .cte("seeds")
    )
    s = entries.alias("own")
    own = one(
        select(s.c.session_id, s.c.created_at)
        .where(
            s.c.tenant_id == bindparam("tenant"),
            s.c.id == seeds.c.id,
            s.c.session_id.is_not(None),
        )
        .correlate(seeds),
        "seat",
    )
    seated = (
        select(seeds.c.id, seeds.c.lexical, own.c.session_id, own.c.created_at)
        .select_from(seeds.join(own, constant("true")))
        .cte("seated")
    )
    joined = [_joined(seeds, arms.edges, forward=forward) for forward in (True, False)]
    around = [_along(seated, arms.steps, forward=forward) for forward in (True, False)]
    beside = union_all(*joined, *around).subquery("beside")
    return (
        select(
            beside.c.id,
            func.max(beside.c.lexical).label("lent"),
            func.array_agg(beside.c.seed).label("seeds"),
            func.array_agg(beside.c.step).label("steps"),
        )
        .group_by(beside.c.id)
        .cte("graph")
    )


def _joined(seeds: CTE, most: int, *, forward: bool) -> Select[Any]:
    """The other ends of the edges from an entry, or to it."""
    e = edges.alias("edge")
    here, there = e.c.source_id, e.c.target_id
    if not forward:
        here, there = there, here
    step = case((e.c.relation == constant("'precedes'"), constant("1")), else_=constant("0"))
    near = (
        select(there.label("id"), (step if forward else -step).label("step"))
        .where(
            e.c.tenant_id == bindparam("tenant"),
            here == seeds.c.id,
            e.c.relation.in_(relation_list(ADJACENT)),
        )
        .order_by(e.c.relation, there)
        .limit(rows_limit(most))
        .correlate(seeds)
        .lateral("near")
    )
    return select(seeds.c.id.label("seed"), seeds.c.lexical, near.c.id, near.c.step).select_from(
        seeds.join(near, constant("true"))
    )


def _along(seated: CTE, steps: int, *, forward: bool) -> Select[Any]:
    """The next turns of a session, or those before, with their distance."""
    e = entries.alias("turn")
    here, there = tuple_(seated.c.created_at, seated.c.id), tuple_(e.c.created_at, e.c.id)
    order = (e.c.created_at, e.c.id) if forward else (e.c.created_at.desc(), e.c.id.desc())
    turn = (
        select(e.c.id)
        .where(
            e.c.tenant_id == bindparam("tenant"),
            e.c.session_id == seated.c.session_id,
            there > here if forward else there < here,
        )
        .order_by(*order)
        .limit(rows_limit(steps))
        .correlate(seated)
        .subquery("turns")
    )
    counted = lateral(
        select(turn.c.id, cast(func.row_number().over(), Integer).label("step")).correlate(seated),
        name="near",
    )
    step = counted.c.step if forward else -counted.c.step
    return select(
        seated.c.id.label("seed"), seated.c.lexical, counted.c.id, step.label("step")
    ).select_from(seated.join(counted, constant("true")))


def _both_ends(entry_id: ColumnElement[str], found: CTE, relations: tuple[str, ...]) -> Subquery:
    """The ids joined to an entry by edges of these relations, in both directions, each once."""
    out, back = edges.alias("o"), edges.alias("b")
    there = select(out.c.target_id.label("id")).where(
        out.c.tenant_id == bindparam("tenant"),
        out.c.source_id == entry_id,
        out.c.relation.in_(relation_list(relations)),
    )
    here = select(back.c.source_id.label("id")).where(
        back.c.tenant_id == bindparam("tenant"),
        back.c.target_id == entry_id,
        back.c.relation.in_(relation_list(relations)),
    )
    return union(there.correlate(found), here.correlate(found)).subquery("ends")


def degree(found: CTE) -> Any:
    """How many unique neighbours an entry has."""
    ends = _both_ends(found.c.id, found, DEGREE_RELATIONS)
    return select(func.count()).where(ends.c.id != found.c.id).correlate(found).scalar_subquery()


def replaced(arms: list[Select[Any]]) -> CTE:
    """What replaced the entries that the arms found, and what replaced that: (old, id).

    Each link once, the nearest first; a circle ends by itself.
    """
    every = union(*arms).cte("reached")
    first, then = edges.alias("replaced_by"), edges.alias("then_by")
    chain = (
        select(first.c.source_id.label("old"), first.c.target_id.label("id"))
        .join(every, every.c.id == first.c.source_id)
        .where(
            first.c.tenant_id == bindparam("tenant"),
            first.c.relation == constant("'invalidated_by'"),
        )
        .cte("chain", recursive=True)
    )
    further = (
        select(then.c.source_id, then.c.target_id)
        .join(chain, chain.c.id == then.c.source_id)
        .where(
            then.c.tenant_id == bindparam("tenant"),
            then.c.relation == constant("'invalidated_by'"),
        )
    )
    whole = chain.union(further)
    return select(whole.c.old, whole.c.id).limit(rows_limit(MOST_LINKS)).cte("replaced")
