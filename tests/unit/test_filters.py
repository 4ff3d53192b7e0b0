"""Filters check what they are given, and name what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from zerda_pg import Filter, InvalidContentError, MemoryType, Status
from zerda_pg.db.criteria import Criteria
from zerda_pg.scope import Scope

WHEN = datetime(2024, 1, 1, tzinfo=UTC)


def test_fields_are_normalised() -> None:
    made = Filter(
        memory_types=["ep", MemoryType.SEMANTIC],
        kinds=["fact"],
        tags_any=["a"],
        tags_all=("b", "c"),
        status="active",
        min_importance=1,
        created_from=datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        metadata={"a": 1, "b": {"$gte": 2, "$lt": 3}, "c": {"x": {"y": 1}}, "d": None},
    )
    assert made.memory_types == (MemoryType.EPISODIC, MemoryType.SEMANTIC)
    assert (made.kinds, made.tags_any, made.tags_all) == (("fact",), ("a",), ("b", "c"))
    assert made.status == (Status.ACTIVE,)
    assert made.min_importance == 1.0
    assert made.created_from == WHEN
    assert made.metadata == {
        "a": {"$eq": 1},
        "b": {"$gte": 2, "$lt": 3},
        "c": {"$eq": {"x": {"y": 1}}},
        "d": {"$eq": None},
    }


@pytest.mark.parametrize("name", ["memory_types", "kinds", "tags_any", "tags_all", "status"])
def test_empty_is_no_condition(name: str) -> None:
    """In the same form as none, since a compiled statement is kept by the conditions present."""
    empties: tuple[Any, ...] = ([], (), None)
    for empty in empties:
        made = Filter(**{name: empty})
        assert made == Filter()
        criteria = Criteria(scope=Scope(tenant_id="t"), filter=made)
        plain = Criteria(scope=Scope(tenant_id="t"))
        assert criteria.shape == plain.shape
        assert criteria.params() == plain.params()


def test_of() -> None:
    assert Filter.of(None) == Filter()
    made = Filter(kinds=["fact"])
    assert Filter.of(made) is made
    assert Filter.of({"kinds": ["fact"]}) == made
    with pytest.raises(ValueError, match="filter has no 'kind'; it has memory_types, kinds"):
        Filter.of({"kind": "fact"})
    with pytest.raises(ValueError, match="filter must be a Filter, got list"):
        Filter.of([made])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"memory_types": "semantic"}, "memory_types must be a list"),
        ({"memory_types": ["dream"]}, "memory_type must be one of"),
        ({"memory_types": [5]}, "memory_type must be one of"),
        ({"kinds": "fact"}, "kinds must be a list"),
        ({"kinds": 5}, "kinds must be a list"),
        ({"kinds": [5]}, "kinds must be text"),
        ({"kinds": ["a\x00"]}, "kinds has a NUL character at position 1"),
        ({"tags_any": "a"}, "tags_any must be a list"),
        ({"tags_all": [None]}, "tags_all must be text"),
        ({"tags_all": ["\ud800"]}, "tags_all has a lone surrogate at position 0"),
        ({"session_id": ""}, "session_id must not be empty"),
        ({"session_id": 5}, "session_id must be a string"),
        ({"user_id": "u\x00"}, "user_id must not contain NUL"),
        ({"agent_id": "x" * 257}, "agent_id is 257 bytes long"),
        ({"created_from": datetime(2024, 1, 1)}, "created_from.*naive"),
        ({"created_to": "2024-01-01"}, "created_to must be an aware datetime"),
        ({"min_importance": 2}, "min_importance must be between 0 and 1"),
        ({"min_importance": float("nan")}, "min_importance must be between 0 and 1"),
        ({"min_importance": True}, "min_importance must be a number"),
        ({"min_importance": "0.5"}, "min_importance must be a number"),
        ({"status": "gone"}, "status must be one of active"),
        ({"status": ["active", "gone"]}, "status must be one of active"),
        ({"status": 5}, "status must be a list"),
        ({"metadata": [1]}, "metadata must be a mapping"),
        ({"metadata": None}, "metadata must be a mapping"),
        ({"metadata": {5: 1}}, "a key of metadata must be text"),
        ({"metadata": {"a\x00": 1}}, "a key of metadata has a NUL"),
        ({"metadata": {"a": {"$near": 1}}}, r"metadata\.a: unknown operator '\$near'"),
        ({"metadata": {"a": {"$gte": 1, "b": 2}}}, r"metadata\.a: unknown operator 'b'"),
        ({"metadata": {"a": {"$gte": None}}}, r"metadata\.a\.\$gte must be a number or text"),
        ({"metadata": {"a": {"$gte": True}}}, r"metadata\.a\.\$gte must be a number or text"),
        ({"metadata": {"a": {"$lt": [1]}}}, r"metadata\.a\.\$lt must be a number or text"),
        ({"metadata": {"a": {"$gt": float("nan")}}}, r"metadata\.a\.\$gt is nan"),
        ({"metadata": {"a": {"$in": 5}}}, r"metadata\.a\.\$in must be a list"),
        ({"metadata": {"a": {"$nin": "ab"}}}, r"metadata\.a\.\$nin must be a list"),
        ({"metadata": {"a": {"$exists": 1}}}, r"metadata\.a\.\$exists must be true or false"),
        ({"metadata": {"a": WHEN}}, r"metadata\.a\.\$eq is of type datetime, which JSON"),
        ({"metadata": {"a": "\x00"}}, r"metadata\.a\.\$eq has a NUL"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Filter(**values)


def test_content_errors_are_value_errors_too() -> None:
    with pytest.raises(InvalidContentError):
        Filter(metadata={"a": float("inf")})


def test_a_scopes_user_is_enforced() -> None:
    own = Scope(tenant_id="t", user_id="u1")
    Criteria(scope=own, filter=Filter(user_id="u1"))
    with pytest.raises(ValueError, match=r"filter\.user_id names another user"):
        Criteria(scope=own, filter=Filter(user_id="u2"))
