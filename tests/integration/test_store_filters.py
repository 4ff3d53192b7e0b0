"""Each filter in every kind of read: the same entries everywhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from zerda_pg import Filter, Memory, MemoryEntry

START = datetime(2024, 1, 1, tzinfo=UTC)
QUERY = "common words"


def matching(memory: Memory, filter: Any) -> list[str]:
    """Ids by listing, counting and each mode of search, which must agree."""
    listed = sorted(e.id for e in memory.entries(filter=filter, limit=1000))
    assert memory.count(filter) == len(listed)
    for mode in ("hybrid", "dense", "lexical"):
        hits = memory.search(QUERY, k=1000, mode=mode, filter=filter)
        assert sorted(h.entry.id for h in hits) == listed, mode
    context = memory.build_context(QUERY, token_budget=100_000, filter=filter)
    assert sorted(e.id for e in context.entries) == listed
    return listed


@pytest.fixture
def filled(anymemory: Memory) -> Memory:
    def entry(id: str, **values: Any) -> MemoryEntry:
        return MemoryEntry(f"common words of {id}", id=id, **values)

    anymemory.add_many(
        [
            entry("a", kind="fact", tags=["x"], importance=0.2, timestamp=START),
            entry("b", kind="decision", tags=["x", "y"], importance=0.5, decay_factor=0.5,
                  timestamp=START + timedelta(hours=1), session_id="s1", agent_id="a1"),
            entry("c", memory_type="episodic", tags=["y", "z"], importance=0.9,
                  timestamp=START + timedelta(hours=2), session_id="s1", user_id="u1"),
            entry("d", kind="Fact", memory_type="procedural", importance=1.0,
                  timestamp=START + timedelta(hours=3), session_id="s10", user_id="u2"),
        ]
    )  # fmt: skip
    return anymemory


CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "abcd"),
    ({"memory_types": ["episodic"]}, "c"),
    ({"memory_types": ["ep", "proc"]}, "cd"),
    ({"kinds": ["fact"]}, "a"),
    ({"kinds": ["fact", "decision", "none"]}, "ab"),
    ({"kinds": ["%"]}, ""),
    ({"tags_any": ["x"]}, "ab"),
    ({"tags_any": ["x", "z"]}, "abc"),
    ({"tags_all": ["x", "y"]}, "b"),
    ({"tags_all": ["y"], "tags_any": ["z", "q"]}, "c"),
    ({"session_id": "s1"}, "bc"),
    ({"user_id": "u1"}, "c"),
    ({"agent_id": "a1"}, "b"),
    ({"created_from": START + timedelta(hours=1)}, "bcd"),
    ({"created_to": START + timedelta(hours=1)}, "a"),
    ({"created_from": START, "created_to": START + timedelta(hours=3)}, "abc"),
    ({"created_from": START + timedelta(hours=3), "created_to": START}, ""),
    ({"min_importance": 0.25}, "bcd"),
    ({"min_importance": 0.26}, "cd"),
    ({"min_importance": 1.0}, "d"),
    ({"min_importance": 0.0}, "abcd"),
    ({"status": "superseded"}, ""),
    ({"kinds": ["fact"], "tags_any": ["y"]}, ""),
    ({"session_id": "s1", "min_importance": 0.5, "memory_types": ["episodic"]}, "c"),
]


def test_each_field(filled: Memory) -> None:
    for filter, ids in CASES:
        assert matching(filled, filter) == list(ids), filter
        assert matching(filled, Filter(**filter)) == list(ids), filter


def test_empty_lists_are_no_condition(filled: Memory) -> None:
    """And do not stay behind in the statement of a read without a filter."""
    for name in ("memory_types", "kinds", "tags_any", "tags_all", "status"):
        assert matching(filled, {name: []}) == list("abcd"), name
    assert matching(filled, None) == list("abcd")


# ── metadata, compared by JSON type ───────────────────────────────────────────────────────────

VALUES: dict[str, Any] = {
    "n2": 2, "n9": 9, "n10": 10, "n100": 100, "f9.5": 9.5, "neg": -1, "big": 2**70,
    "t10": "10", "t9": "9", "word": "Tea", "empty": "", "true": True, "false": False,
    "null": None, "list": [1, 2], "object": {"a": 1}, "nothing": ...,
}  # fmt: skip

ALL = set(VALUES)
NUMBERS = {"n2", "n9", "n10", "n100", "f9.5", "neg", "big"}

OPERATORS: list[tuple[Any, set[str]]] = [
    (10, {"n10"}),
    (10.0, {"n10"}),
    ("10", {"t10"}),
    (True, {"true"}),
    (1, set()),
    (0, set()),
    (None, {"null"}),
    ([1, 2], {"list"}),
    ([2, 1], set()),
    ({"a": 1}, {"object"}),
    ({"a": 2}, set()),
    ({}, set()),
    ({"$eq": "Tea"}, {"word"}),
    ({"$eq": "tea"}, set()),
    ({"$eq": 2**70}, {"big"}),
    ({"$gte": 10}, {"n10", "n100", "big"}),
    ({"$gt": 10}, {"n100", "big"}),
    ({"$gt": 9.4}, {"n10", "n100", "f9.5", "big"}),
    ({"$lt": 10}, {"n2", "n9", "f9.5", "neg"}),
    ({"$lte": 9.5}, {"n2", "n9", "f9.5", "neg"}),
    ({"$gte": 2, "$lte": 9}, {"n2", "n9"}),
    ({"$gte": "9"}, {"t9", "word"}),
    ({"$lt": "9"}, {"t10", "empty"}),
    ({"$gte": ""}, {"t10", "t9", "word", "empty"}),
    ({"$ne": 10}, ALL - {"n10"}),
    ({"$ne": None}, ALL - {"null"}),
    ({"$in": [10, "9", None, [1, 2]]}, {"n10", "t9", "null", "list"}),
    ({"$in": []}, set()),
    ({"$nin": [10, "9", True]}, ALL - {"n10", "t9", "true"}),
    ({"$nin": []}, ALL),
    ({"$exists": True}, ALL - {"nothing"}),
    ({"$exists": False}, {"nothing"}),
    ({"$exists": True, "$ne": None}, ALL - {"nothing", "null"}),
]


def test_metadata_by_json_type(anymemory: Memory) -> None:
    """≥ 10 over 2, 9, 10, 100 compares numbers; `$ne` and `$nin` keep a row without the key."""
    anymemory.add_many(
        [
            {"content": "common words", "id": id, "metadata": {} if v is ... else {"score": v}}
            for id, v in VALUES.items()
        ]
    )
    for condition, ids in OPERATORS:
        assert set(matching(anymemory, {"metadata": {"score": condition}})) == ids, condition
    assert matching(anymemory, {"metadata": {"scor": 10}}) == []
    assert (
        matching(anymemory, {"metadata": {"score": {"$gte": 9}, "other": {"$exists": True}}}) == []
    )


@pytest.mark.parametrize(
    "key", ["%", "a_b", "\\", "a.b", "$.x", "'", '"', " ", "ключ", "%(x)s", ":y"]
)
def test_metadata_keys_are_literal(anytenant: Memory, key: str) -> None:
    anytenant.add("common words", id="e", metadata={key: {"%s": ":x"}})
    anytenant.add("common words", id="other", metadata={"aXb": 1, "x": 1})
    assert matching(anytenant, {"metadata": {key: {"%s": ":x"}}}) == ["e"]
    assert matching(anytenant, {"metadata": {key: {"$exists": True}}}) == ["e"]


@pytest.mark.parametrize("word", ["%", "a_", "\\", "'", "{a,b}", "NULL", '"', "ü", "a,b", "%s"])
def test_names_are_literal(anytenant: Memory, word: str) -> None:
    """A tag, kind, session, user or agent named like a pattern is a name."""
    names: dict[str, Any] = {"kind": word, "session_id": word, "user_id": word, "agent_id": word}
    anytenant.add("common words", id="e", tags=[word], **names)
    other: dict[str, Any] = dict.fromkeys(names, "ab")
    anytenant.add("common words", id="other", tags=["ab", "a"], **other)
    for filter in (
        {"tags_any": [word]},
        {"tags_all": [word]},
        {"kinds": [word]},
        {"session_id": word},
        {"user_id": word},
        {"agent_id": word},
    ):
        assert matching(anytenant, filter) == ["e"], filter


def test_bad_filters_are_named_by_every_read(anytenant: Memory) -> None:
    for call in (
        lambda f: anytenant.search("x", filter=f),
        lambda f: anytenant.search_many(["x"], filter=f),
        lambda f: anytenant.build_context("x", filter=f),
        lambda f: anytenant.explain("x", filter=f),
        lambda f: anytenant.entries(filter=f),
        anytenant.count,
    ):
        with pytest.raises(ValueError, match="filter has no 'typ'"):
            call({"typ": "x"})
