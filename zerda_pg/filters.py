"""Which entries a read considers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from zerda_pg.clock import aware
from zerda_pg.entry import MemoryType, Status, fraction
from zerda_pg.ids import check_id
from zerda_pg.text import check_json, check_text

__all__ = ["OPERATORS", "Filter"]

OPERATORS = frozenset({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists"})

_ORDERED = frozenset({"$gt", "$gte", "$lt", "$lte"})


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Conditions that all must hold; None and empty mean no condition.

    Raises:
        ValueError: Naming the field that is malformed.
    """

    memory_types: Sequence[MemoryType | str] | None = None
    """Any of these types."""
    kinds: Sequence[str] | None = None
    """Any of these kinds."""
    tags_any: Sequence[str] = ()
    """At least one of these tags."""
    tags_all: Sequence[str] = ()
    """All of these tags."""
    session_id: str | None = None
    user_id: str | None = None
    """That user's entries only (a scope's user also sees those without a user)."""
    agent_id: str | None = None
    created_from: datetime | None = None
    """Happened at or after."""
    created_to: datetime | None = None
    """Happened before."""
    min_importance: float | None = None
    """Least effective importance."""
    status: Status | str | Sequence[Status | str] | None = None
    """A status or several; None: active entries."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """`{"key": value}` or `{"key": {"$gte": 10}}`; compared by JSON type."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        # empty is no condition, in one form: a statement is compiled for what is present
        for name in ("memory_types", "kinds", "status"):
            if getattr(self, name) in ((), [], frozenset(), set()):
                put(self, name, None)
        for name in ("tags_any", "tags_all"):
            if getattr(self, name) is None:
                put(self, name, ())
        if self.memory_types is not None:
            types = _listed(self.memory_types, "memory_types")
            put(self, "memory_types", tuple(_memory_type(word) for word in types))
        for name in ("kinds", "tags_any", "tags_all"):
            if getattr(self, name) is not None:
                words = _listed(getattr(self, name), name)
                put(self, name, tuple(check_text(word, name) for word in words))
        for name in ("session_id", "user_id", "agent_id"):
            if getattr(self, name) is not None:
                check_id(getattr(self, name), name)
        for name in ("created_from", "created_to"):
            if getattr(self, name) is not None:
                put(self, name, aware(getattr(self, name), name))
        if self.min_importance is not None:
            put(self, "min_importance", fraction(self.min_importance, "min_importance"))
        if self.status is not None:
            given = self.status
            statuses = [given] if isinstance(given, str) else _listed(given, "status")
            put(self, "status", tuple(_status(word) for word in statuses))
        put(self, "metadata", _checked_metadata(self.metadata))

    @classmethod
    def of(cls, value: Filter | Mapping[str, Any] | None) -> Filter:
        """A filter from one, from a mapping with its field names, or from None."""
        if value is None:
            return cls()
        if isinstance(value, Filter):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"filter must be a Filter, got {type(value).__name__}")
        known = [f.name for f in fields(cls)]
        if unknown := sorted(set(value) - set(known)):
            raise ValueError(f"filter has no {unknown[0]!r}; it has {', '.join(known)}")
        return cls(**value)


def _listed(value: object, name: str) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        raise ValueError(f"{name} must be a list, got {type(value).__name__}")
    return list(value)


def _memory_type(word: Any) -> MemoryType:
    try:
        return MemoryType.from_string(word)
    except ValueError as error:
        raise ValueError(f"memory_types: {error}") from None


def _status(word: str) -> Status:
    try:
        return Status(word)
    except ValueError:
        known = ", ".join(Status)
        raise ValueError(f"status must be one of {known}; got {str(word)[:40]!r}") from None


def _checked_metadata(value: object) -> dict[str, dict[str, Any]]:
    """Every condition as `{key: {operator: operand}}`."""
    if not isinstance(value, Mapping):
        raise ValueError(f"metadata must be a mapping, got {type(value).__name__}")
    conditions: dict[str, dict[str, Any]] = {}
    for key, condition in value.items():
        check_text(key, "a key of metadata")
        is_operators = isinstance(condition, Mapping) and any(
            isinstance(word, str) and word.startswith("$") for word in condition
        )
        operators = dict(condition) if is_operators else {"$eq": condition}
        for word, operand in operators.items():
            _check_operator(key, word, operand)
        conditions[key] = operators
    return conditions


def _check_operator(key: str, word: str, operand: object) -> None:
    name = f"metadata.{key}"
    if word not in OPERATORS:
        known = ", ".join(sorted(OPERATORS))
        raise ValueError(f"{name}: unknown operator {word!r}; there are {known}")
    check_json(operand, f"{name}.{word}")
    if word == "$exists" and not isinstance(operand, bool):
        raise ValueError(f"{name}.$exists must be true or false")
    if word in {"$in", "$nin"} and not isinstance(operand, list | tuple):
        raise ValueError(f"{name}.{word} must be a list")
    if word in _ORDERED and (
        isinstance(operand, bool) or not isinstance(operand, int | float | str)
    ):
        raise ValueError(f"{name}.{word} must be a number or text")
