"""Scope, filter and clocks as SQL conditions.

A condition stands in a statement only where it is asked for: `:x IS NULL OR …` would cost the
index under a generic plan. A `Criteria` therefore has a shape, by which statements are compiled
once, and parameters.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ARRAY,
    Boolean,
    ColumnElement,
    DateTime,
    FromClause,
    Text,
    and_,
    bindparam,
    cast,
    func,
    literal_column,
    not_,
    or_,
)
from sqlalchemy.dialects.postgresql import JSONB

from zerda_pg.filters import Filter
from zerda_pg.scope import Scope
from zerda_pg.text import dump_json

__all__ = [
    "Criteria",
    "active_now",
    "admits_superseded",
    "conditions",
    "entry_only",
    "now",
    "visible",
]

_ENTRY_ONLY = ("tags_any", "tags_all", "created_from", "created_to", "metadata")
"""Filters on columns that `entries` has and `embeddings` does not repeat."""

TIME = DateTime(timezone=True)

_ACTIVE: ColumnElement[str] = literal_column("'active'")
_SUPERSEDED: ColumnElement[str] = literal_column("'superseded'")


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """Which rows a read considers."""

    scope: Scope
    filter: Filter = field(default_factory=Filter)
    valid_at: datetime | None = None
    known_at: datetime | None = None
    now: datetime | None = None
    """None: the server's clock."""

    def __post_init__(self) -> None:
        wanted, own = self.filter.user_id, self.scope.user_id
        if wanted is not None and own is not None and wanted != own:
            raise ValueError("filter.user_id names another user than the scope's")

    @cached_property
    def shape(self) -> Hashable:
        """What a statement's text depends on."""
        f = self.filter
        present = tuple(
            name
            for name in (
                "memory_types", "kinds", "tags_any", "tags_all", "session_id", "user_id",
                "agent_id", "created_from", "created_to", "min_importance", "status",
            )
            if getattr(f, name) not in (None, ())
        )  # fmt: skip
        operators = tuple(
            (word, type(operand).__name__ if word in _ORDERED else "")
            for condition in f.metadata.values()
            for word, operand in condition.items()
        )
        clocks = (self.valid_at is None, self.known_at is None, self.now is None)
        return present, operators, clocks, admits_superseded(self), self.scope.user_id is None

    @property
    def statuses(self) -> list[str] | None:
        """The statuses that were asked for by name."""
        return None if self.filter.status is None else [str(s) for s in self.filter.status]

    def data(self) -> str:
        """The same as JSON, for `zerda.postings`; times as Postgres reads them."""
        f = self.filter
        metadata = [
            [key, word, operand]
            for key, condition in f.metadata.items()
            for word, operand in condition.items()
        ]
        values: dict[str, Any] = {
            "now": self.now,
            "valid_at": self.valid_at,
            "statuses": self.statuses,
            "scope_user": self.scope.user_id,
            "memory_type": None if f.memory_types is None else [str(t) for t in f.memory_types],
            "kind": None if f.kinds is None else list(f.kinds),
            "session_id": f.session_id,
            "user_id": f.user_id,
            "agent_id": f.agent_id,
            "tags_any": list(f.tags_any) or None,
            "tags_all": list(f.tags_all) or None,
            "created_from": f.created_from,
            "created_to": f.created_to,
            "min_importance": f.min_importance,
            "metadata": metadata or None,
        }
        return dump_json(
            {
                name: value.isoformat() if isinstance(value, datetime) else value
                for name, value in values.items()
                if value is not None
            }
        )

    def params(self) -> dict[str, Any]:
        """Values for the binds of `conditions`."""
        f = self.filter
        values: dict[str, Any] = {
            "tenant": self.scope.tenant_id,
            "scope_user": self.scope.user_id,
            "memory_types": [str(t) for t in f.memory_types or ()],
            "kinds": list(f.kinds or ()),
            "tags_any": list(f.tags_any),
            "tags_all": list(f.tags_all),
            "session_id": f.session_id,
            "user_id": f.user_id,
            "agent_id": f.agent_id,
            "created_from": f.created_from,
            "created_to": f.created_to,
            "min_importance": f.min_importance,
            "statuses": self.statuses,
            "valid_at": self.valid_at,
            "known_at": self.known_at,
            "now": self.now,
        }
        number = 0
        for key, condition in f.metadata.items():
            for word, operand in condition.items():
                values[f"meta_key_{number}"] = key
                listed = word in {"$in", "$nin"}
                values[f"meta_value_{number}"] = (
                    [dump_json(item) for item in operand] if listed else dump_json(operand)
                )
                number += 1
        return {name: value for name, value in values.items() if value is not None}


_ORDERED = {"$gt": "__gt__", "$gte": "__ge__", "$lt": "__lt__", "$lte": "__le__"}


def now(criteria: Criteria) -> ColumnElement[Any]:
    """The clock of a read: the server's, unless one was given."""
    if criteria.now is None:
        return func.now()
    return cast(bindparam("now"), TIME)


def conditions(
    criteria: Criteria, table: FromClause, *, narrow: bool = False
) -> list[ColumnElement[bool]]:
    """Conditions on `entries` or, with `narrow`, on the columns that `embeddings` repeats.

    `min_importance` is not among them: it lives in `entry_state` (see `important`).
    """
    c, f = table.c, criteria.filter
    found: list[ColumnElement[bool]] = [c.tenant_id == bindparam("tenant")]
    found += visible(criteria, table)
    found += _time_conditions(criteria, table, narrow=narrow)
    if f.memory_types is not None:
        found.append(c.memory_type == func.any(cast(bindparam("memory_types"), ARRAY(Text))))
    if f.kinds is not None:
        found.append(c.kind == func.any(cast(bindparam("kinds"), ARRAY(Text))))
    for name in ("session_id", "user_id", "agent_id"):
        if getattr(f, name) is not None:
            found.append(c[name] == bindparam(name))
    return found if narrow else found + _entry_conditions(criteria, table)


def visible(criteria: Criteria, table: FromClause) -> list[ColumnElement[bool]]:
    """A user's scope sees that user's entries and those without a user."""
    if criteria.scope.user_id is None:
        return []
    user = table.c.user_id
    return [or_(user.is_(None), user == bindparam("scope_user"))]


def active_now(criteria: Criteria, table: FromClause) -> ColumnElement[bool]:
    """Not expired."""
    expires = table.c.expires_at
    return or_(expires.is_(None), expires > now(criteria))


def _time_conditions(
    criteria: Criteria, table: FromClause, *, narrow: bool
) -> list[ColumnElement[bool]]:
    """Status, validity and expiry on both clocks.

    By default: what is true now, see `_in_force`. At a time `valid_at`: what was true then,
    superseded since or not. As `known_at` a time: what had been recorded and not yet invalidated
    or discarded.
    """
    c = table.c
    found = [active_now(criteria, table)]
    if criteria.filter.status is not None:
        found.append(c.status == func.any(cast(bindparam("statuses"), ARRAY(Text))))
    elif criteria.known_at is None and criteria.valid_at is not None:
        found.append(c.status.in_([_ACTIVE, _SUPERSEDED]))
    if criteria.known_at is not None and not narrow:
        found += _known(criteria, table)
    if criteria.known_at is not None and narrow:
        # the end that `embeddings` repeats is today's; `entries` knows when it became known
        return found
    if criteria.valid_at is not None:
        at: ColumnElement[Any] = cast(bindparam("valid_at"), TIME)
        found += [_begun(table, at), _not_ended(criteria, table, at)]
    elif criteria.filter.status is None and criteria.known_at is not None:
        at = cast(bindparam("known_at"), TIME)
        found += [_begun(table, at), _not_ended(criteria, table, at)]
    elif criteria.filter.status is None:
        found += [_begun(table, now(criteria)), _in_force(criteria, table)]
    return found


def admits_superseded(criteria: Criteria) -> bool:
    """Whether an entry may be admitted beside what replaced it."""
    statuses = criteria.statuses
    past = criteria.valid_at is not None or criteria.known_at is not None
    return past if statuses is None else "superseded" in statuses


def _begun(table: FromClause, at: ColumnElement[Any]) -> ColumnElement[bool]:
    return or_(table.c.valid_from.is_(None), table.c.valid_from <= at)


def _in_force(criteria: Criteria, table: FromClause) -> ColumnElement[bool]:
    """Active and not ended, or superseded from a moment on that is still to come.

    The server's clock tells whether it is: to a `now` of the past everything superseded since
    would be in force again.
    """
    c, at = table.c, now(criteria)
    latest = at if criteria.now is None else func.greatest(at, func.now())
    return or_(
        and_(c.status == _ACTIVE, or_(c.valid_to.is_(None), c.valid_to > at)),
        and_(c.status == _SUPERSEDED, c.valid_to > latest),
    )


def _known(criteria: Criteria, table: FromClause) -> list[ColumnElement[bool]]:
    c, at = table.c, cast(bindparam("known_at"), TIME)
    found = [c.recorded_at <= at, or_(c.discarded_at.is_(None), c.discarded_at > at)]
    if criteria.valid_at is None and criteria.filter.status is None:
        # what was known to end later still was true
        found.append(or_(c.invalidated_at.is_(None), c.invalidated_at > at, c.valid_to > at))
    return found


def _not_ended(
    criteria: Criteria, table: FromClause, at: ColumnElement[Any]
) -> ColumnElement[bool]:
    ended = table.c.valid_to
    still = or_(ended.is_(None), ended > at)
    if criteria.known_at is None:
        return still
    # An end that became known later was not known then.
    return or_(still, table.c.invalidated_at > cast(bindparam("known_at"), TIME))


def entry_only(criteria: Criteria) -> bool:
    """Whether a condition needs `entries`, beyond what `embeddings` repeats."""
    f = criteria.filter
    return criteria.known_at is not None or any(getattr(f, name) for name in _ENTRY_ONLY)


def _entry_conditions(criteria: Criteria, table: FromClause) -> list[ColumnElement[bool]]:
    c, f = table.c, criteria.filter
    found: list[ColumnElement[bool]] = []
    if f.tags_any:
        found.append(c.tags.op("&&")(cast(bindparam("tags_any"), ARRAY(Text))))
    if f.tags_all:
        found.append(c.tags.op("@>")(cast(bindparam("tags_all"), ARRAY(Text))))
    if f.created_from is not None:
        found.append(c.created_at >= cast(bindparam("created_from"), TIME))
    if f.created_to is not None:
        found.append(c.created_at < cast(bindparam("created_to"), TIME))
    number = 0
    for condition in f.metadata.values():
        for word, operand in condition.items():
            found.append(_metadata_condition(table, number, word, operand))
            number += 1
    return found


def _metadata_condition(
    table: FromClause, number: int, word: str, operand: object
) -> ColumnElement[bool]:
    """One comparison by JSON type: a number never equals or orders with text."""
    value = table.c.metadata.op("->", return_type=JSONB())(
        cast(bindparam(f"meta_key_{number}"), Text)
    )
    name = f"meta_value_{number}"
    if word == "$exists":
        return value.is_not(None) == cast(cast(bindparam(name), Text), Boolean)
    if word in {"$in", "$nin"}:
        listed = cast(cast(bindparam(name), ARRAY(Text)), ARRAY(JSONB))
        # a constant of the text: the statement is run with the parameters of `params` alone
        found = func.coalesce(value == func.any(listed), literal_column("false"))
        return found if word == "$in" else not_(found)
    other = cast(cast(bindparam(name), Text), JSONB)
    if word == "$eq":
        return value == other
    if word == "$ne":
        return value.is_distinct_from(other)
    kind = "string" if isinstance(operand, str) else "number"
    compared: ColumnElement[bool] = getattr(value, _ORDERED[word])(other)
    return and_(func.jsonb_typeof(value) == literal_column(f"'{kind}'"), compared)
