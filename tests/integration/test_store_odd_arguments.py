"""Vectors, filters, limits, cursors and queries of any shape: used, or refused by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from zerda_pg import Filter, InvalidContentError, Memory, MemoryEntry, MemoryStore
from zerda_pg.testing import temporary_store

MODEST = settings(
    max_examples=60,
    deadline=None,
    # examples share a tenant, whose entries they do not mind
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.datetimes() | st.datetimes(timezones=st.just(UTC)) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner,
                                                                max_size=3),
    max_leaves=8,
)  # fmt: skip

FIELDS = sorted(field.name for field in fields(Filter))
OPERATORS = ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists"]


@pytest.fixture(scope="module")
def narrow(server: None) -> Any:
    """A store whose vectors are short."""
    with temporary_store(embedder="hashing:8") as store:
        yield store


def filled(memory: Memory) -> Memory:
    if memory.get("e") is None:
        memory.add("The deploy failed", id="e", kind="fact", tags=["a"], metadata={"n": 2})
        memory.add("The deploy went well", id="f", session_id="s", agent_id="bot")
    return memory


# ── vectors ───────────────────────────────────────────────────────────────────────────────────


@given(vector=st.lists(st.floats(), min_size=8, max_size=8) | st.lists(st.floats(), max_size=10))
@example(vector=[0.0] * 8)
@example(vector=[-0.0] * 8)
@example(vector=[math.nan] + [1.0] * 7)
@example(vector=[math.inf] + [1.0] * 7)
@example(vector=[1.0] * 7)
@example(vector=[1.7976931348623157e308] * 8)
@example(vector=[5e-324] + [0.0] * 7)
@example(vector=[1.0] + [1e-300] * 7)
@MODEST
def test_a_vector_is_used_as_its_direction_or_refused(
    narrow: MemoryStore, vector: list[float]
) -> None:
    memory = narrow.tenant("acme")
    good = len(vector) == 8 and all(map(math.isfinite, vector)) and any(vector)
    if not good:
        for call in (
            lambda: memory.add("refused", id="e", embedding=vector),
            lambda: memory.search("refused", embedding=vector),
        ):
            with pytest.raises(ValueError, match=r"^embedding must"):
                call()
        return
    memory.add("taken", id="e", embedding=vector)
    found = memory.search("anything", mode="dense", embedding=vector)
    assert found[0].similarity == pytest.approx(1.0, abs=2e-3)


# ── filters, limits, cursors ──────────────────────────────────────────────────────────────────


@given(given=st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=3))
@example(given={"min_importance": math.nan})
@example(given={"memory_types": [None]})
@example(given={"created_from": datetime(1, 1, 1, tzinfo=UTC)})
@example(given={"created_to": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)})
@example(given={"kinds": ["\x00"]})
@example(given={"tags_any": ["\ud800"]})
@MODEST
def test_any_filter_is_used_or_refused(narrow: MemoryStore, given: dict[str, Any]) -> None:
    memory = filled(narrow.tenant("filters"))
    try:
        counted = memory.count(given)
    except ValueError as error:
        named = str(error)
        assert "filter" in named or any(name in named for name in given), named
        return
    listed = {entry.id for entry in memory.entries(filter=given)}
    assert counted == len(listed)
    for mode in ("hybrid", "dense", "lexical"):
        assert {hit.entry.id for hit in memory.search("deploy", filter=given, mode=mode)} == listed


@given(key=st.text(max_size=8), word=st.sampled_from(OPERATORS), operand=ANYTHING)
@example(key="n", word="$gte", operand=2)
@example(key="n", word="$in", operand=[2, "2", None])
@example(key="", word="$exists", operand=False)
@example(key="n", word="$lt", operand=10**4001)
@MODEST
def test_any_condition_on_metadata_is_used_or_refused(
    narrow: MemoryStore, key: str, word: str, operand: Any
) -> None:
    memory = filled(narrow.tenant("filters"))
    condition = {"metadata": {key: {word: operand}}}
    try:
        counted = memory.count(condition)
    except ValueError as error:
        assert "metadata" in str(error)
        return
    assert counted == len(memory.entries(filter=condition))
    assert counted == len(memory.search("deploy", filter=condition))


@given(limit=ANYTHING, cursor=ANYTHING)
@example(limit=10**30, cursor=None)
@example(limit=-1, cursor=None)
@example(limit=1, cursor="é\ud800\x00")
@example(limit=True, cursor=None)
@MODEST
def test_any_limit_and_cursor_is_used_or_refused(
    narrow: MemoryStore, limit: Any, cursor: Any
) -> None:
    memory = filled(narrow.tenant("filters"))
    try:
        page = memory.entries(limit=limit, cursor=cursor)
    except ValueError as error:
        assert str(error).startswith(("limit", "cursor"))
    else:
        assert len(page) == min(2, limit)
    try:
        hits = memory.search("deploy", k=limit)
    except ValueError as error:
        assert str(error).startswith("k ")
    else:
        assert len(hits) == min(2, limit)


# ── shapes that a property seldom meets ───────────────────────────────────────────────────────


def nested(depth: int) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    inner = whole
    for _ in range(depth):
        inner["a"] = {}
        inner = inner["a"]
    return whole


def test_metadata_deep_wide_and_large(anymemory: Memory) -> None:
    wide = {f"key {n}": n for n in range(50_000)}
    for metadata in (nested(40), wide, {"k" * 100_000: "v" * 1_000_000}, {"n": -(10**3999)}):
        anymemory.add("x", id="e", metadata=metadata)
        entry = anymemory.get("e")
        assert entry is not None
        assert entry.metadata == metadata
    for metadata in (nested(100_000), {"n": 10**4000}, {"n": math.inf}):
        with pytest.raises(InvalidContentError, match=r"^metadata\."):
            anymemory.add("x", id="e", metadata=metadata)
        with pytest.raises(InvalidContentError, match=r"metadata\."):
            anymemory.count({"metadata": {"m": {"$eq": metadata}}})


@pytest.mark.parametrize(
    "time",
    ["2016-12-31T23:59:60Z", "2024-02-30T00:00:00Z", "2024-01-01T00:00:00", "2024-01-01T24:30:00Z",
     "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00",
     "0001-01-01T00:00:00+01:00", "now", "", "infinity"],
)  # fmt: skip
def test_times_that_are_none(anytenant: Memory, time: str) -> None:
    """A leap second among them: the calendar of Python and of Postgres has none."""
    for name in ("timestamp", "valid_from", "expires_at"):
        with pytest.raises(ValueError, match=f"^{name} "):
            anytenant.add("x", **{name: time})  # type: ignore[arg-type]
    assert anytenant.count() == 0


FIRST, LAST = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))
LAST_SECOND = LAST.replace(microsecond=0)
BEYOND = LAST.replace(tzinfo=timezone(timedelta(hours=-1)))
BEFORE = FIRST.replace(tzinfo=timezone(timedelta(hours=1)))


def in_every_place(memory: Memory, time: datetime) -> dict[str, Callable[[], Any]]:
    """What takes a time, by the argument's name."""
    past = min(time, datetime.now(UTC)) if time.tzinfo is UTC else time
    return {
        "timestamp": lambda: memory.add("deploy", timestamp=time),
        "messages[0]: timestamp": lambda: memory.add_messages(
            [{"speaker": "a", "text": "deploy", "timestamp": time}], session_id="s"
        ),
        "items[0]: timestamp": lambda: memory.add_many([{"content": "x", "timestamp": time}]),
        "last_access": lambda: memory.add(MemoryEntry("deploy", last_access=time)),  # type: ignore[arg-type]
        "valid_from": lambda: memory.add("deploy", valid_from=time),
        "valid_to": lambda: memory.update("f", valid_to=time),
        "expires_at": lambda: memory.add("deploy", expires_at=time),
        "at": lambda: memory.invalidate(memory.add("deploy").id, at=past),
        "before": lambda: memory.purge(before=time, status="discarded"),
        "created_from": lambda: memory.count({"created_from": time}),
        "created_to": lambda: memory.search("deploy", filter={"created_to": time}),
        "now": lambda: [
            memory.search("deploy 3 days ago", now=time, ranker=ranker)
            for ranker in ("default", "composite", "fusion", "kind_prior")
        ],
        "valid_at": lambda: memory.build_context("deploy in March", valid_at=time),
        "known_at": lambda: memory.explain("deploy", known_at=time, id="f"),
    }


@pytest.mark.parametrize("time", [FIRST, LAST_SECOND])
def test_the_ends_of_the_calendar_are_used(anymemory: Memory, time: datetime) -> None:
    filled(anymemory)
    for call in in_every_place(anymemory, time).values():
        call()
    entry = anymemory.add("at the end of the calendar", timestamp=time).entry
    assert entry.created_at == time
    assert anymemory.get(entry.id).created_at == time  # type: ignore[union-attr]
    assert anymemory.update("f", timestamp=time).created_at == time
    anymemory.forget()
    cursor, ids = None, set()
    while (page := anymemory.entries(limit=3, cursor=cursor)).next_cursor:
        ids |= {entry.id for entry in page}
        cursor = page.next_cursor
    assert len(ids | {entry.id for entry in page}) == anymemory.count()


@pytest.mark.parametrize("time", [BEFORE, BEYOND, LAST])
def test_what_is_outside_the_calendar_is_refused_by_name(anymemory: Memory, time: datetime) -> None:
    """And by what is allowed; the last instant is a time, but cannot be counted in seconds."""
    filled(anymemory)
    for name, call in in_every_place(anymemory, time).items():
        counted = name == "now" or name.endswith(("timestamp", "last_access"))
        if time == LAST and not counted:
            call()
            continue
        with pytest.raises(ValueError, match=f"^{re.escape(name)} .* from 0001-01-01T00:00:00"):
            call()


def test_an_entry_of_a_wrong_time_is_refused_by_name() -> None:
    for name in ("timestamp", "last_access", "valid_from", "updated_at"):
        with pytest.raises(ValueError, match=f"^{name} must be ISO 8601"):
            MemoryEntry.from_dict({"content": "x", name: "yesterday"})


def test_two_megabytes_of_query(memory: Memory) -> None:
    memory.add("The deploy failed", id="e")
    query = "deploy & | ! <-> :* ( ' \\ \" word " * 70_000
    assert len(query) > 2_000_000
    assert [hit.entry.id for hit in memory.search(query)] == ["e"]
