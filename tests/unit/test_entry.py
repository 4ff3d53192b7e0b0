"""MemoryEntry and its vocabulary."""

from __future__ import annotations

import math
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.entry import MemoryEntry, MemoryPriority, MemoryType, Status

MOMENT = datetime(2026, 1, 31, 12, 30, 0, 123456, tzinfo=UTC)


def test_defaults() -> None:
    before = time.time()
    entry = MemoryEntry("x")
    assert before <= entry.timestamp <= time.time()
    assert before <= entry.last_access <= time.time()
    assert (entry.importance, entry.original_importance, entry.decay_factor) == (0.5, 0.5, 1.0)
    assert (entry.access_count, entry.tags, entry.metadata, entry.embedding) == (0, [], {}, None)
    assert (entry.kind, entry.session_id, entry.status) == (None, None, Status.ACTIVE)
    assert (entry.valid_from, entry.valid_to, entry.expires_at) == (None, None, None)
    assert uuid.UUID(entry.id).version == 7


def test_positional_arguments_in_the_seed_s_order() -> None:
    entry = MemoryEntry(
        {"input": "a", "output": "b"},
        1_700_000_000,
        MemoryType.EPISODIC,
        0.9,
        3,
        ["t"],
        {"m": 1},
        [0.1],
        1_700_000_001,
        0.5,
        0.95,
    )
    assert (entry.timestamp, entry.last_access) == (1_700_000_000.0, 1_700_000_001.0)
    assert isinstance(entry.timestamp, float)
    assert entry.effective_importance == pytest.approx(0.45)
    assert entry.original_importance == 0.95


def test_aware_datetimes_become_seconds_and_naive_ones_are_refused() -> None:
    local = MOMENT.astimezone(timezone(timedelta(hours=5)))
    entry = MemoryEntry("x", local, last_access=MOMENT)  # type: ignore[arg-type]
    assert entry.timestamp == entry.last_access == MOMENT.timestamp()
    for field in ("timestamp", "last_access", "valid_from", "valid_to", "expires_at", "updated_at"):
        with pytest.raises(ValueError, match=field):
            MemoryEntry("x", **{field: datetime(2026, 1, 31)})  # type: ignore[arg-type]
    assert MemoryEntry("x", valid_from=local).valid_from == MOMENT


@pytest.mark.parametrize("field", ["importance", "decay_factor", "original_importance"])
@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf])
def test_fractions_outside_their_range_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be between 0 and 1"):
        MemoryEntry("x", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"access_count": -1}, "access_count"),
        ({"access_count": 1.5}, "access_count"),
        ({"timestamp": math.nan}, "timestamp"),
        ({"timestamp": "today"}, "timestamp"),
        ({"tags": "one"}, "tags"),
        ({"metadata": ["a"]}, "metadata"),
        ({"memory_type": "dream"}, "memory_type"),
        ({"metadata": {"id": 17}}, "metadata"),
        ({"metadata": {"id": " "}}, "metadata"),
        ({"id": "x" * 257}, "id"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        MemoryEntry("x", **fields)


def test_the_id_and_the_caller_s_metadata() -> None:
    metadata = {"id": "order-17"}
    assert MemoryEntry("x", metadata=metadata).id == "order-17"
    assert MemoryEntry("x", metadata=metadata, id="mine").id == "mine"
    assert MemoryEntry.from_dict({"content": "x", "metadata": metadata}).id == "order-17"
    assert MemoryEntry.from_dict({"content": "x", "metadata": metadata, "id": "top"}).id == "top"
    assert metadata == {"id": "order-17"}
    plain: dict[str, Any] = {}
    tags = ["a"]
    entry = MemoryEntry("x", metadata=plain, tags=tags)
    entry.metadata["new"] = 1
    entry.tags.append("b")
    assert (plain, tags) == ({}, ["a"])


def test_equality_hash_and_order() -> None:
    low, high = MemoryEntry("x", importance=0.9, decay_factor=0.1), MemoryEntry("x")
    assert low < high
    assert low != high
    same = MemoryEntry("other", id=low.id)
    assert same == low
    assert len({same, low, high}) == 2
    assert low != "x"
    with pytest.raises(TypeError):
        assert low < 1  # type: ignore[operator]


def test_access_by_hand() -> None:
    entry = MemoryEntry("x", last_access=1.0, importance=0.5, decay_factor=0.4)
    entry.access()
    assert entry.access_count == 1
    assert entry.importance == pytest.approx(0.525)
    assert entry.decay_factor == 0.4
    assert entry.last_access > 1.0
    assert entry.original_importance == 0.5
    top = MemoryEntry("x", importance=1.0)
    top.access()
    assert top.importance == 1.0


@pytest.mark.parametrize(
    ("importance", "priority"),
    [
        (1.0, "CRITICAL"),
        (0.9, "CRITICAL"),
        (0.89, "HIGH"),
        (0.7, "HIGH"),
        (0.69, "MEDIUM"),
        (0.5, "MEDIUM"),
        (0.49, "LOW"),
        (0.3, "LOW"),
        (0.29, "MINIMAL"),
        (0.0, "MINIMAL"),
    ],
)
def test_priority(importance: float, priority: str) -> None:
    assert MemoryEntry("x", importance=importance).priority is MemoryPriority[priority]


@pytest.mark.parametrize(
    ("word", "memory_type"),
    [
        ("st", MemoryType.SHORT_TERM),
        ("short", MemoryType.SHORT_TERM),
        ("Short-Term", MemoryType.SHORT_TERM),
        ("lt", MemoryType.LONG_TERM),
        ("wm", MemoryType.WORKING),
        ("ep", MemoryType.EPISODIC),
        ("sem", MemoryType.SEMANTIC),
        (" proc ", MemoryType.PROCEDURAL),
        *((member.value, member) for member in MemoryType),
    ],
)
def test_memory_type_from_string(word: str, memory_type: MemoryType) -> None:
    assert MemoryType.from_string(word) is memory_type


@pytest.mark.parametrize("word", ["", "dream", "shrt"])
def test_an_unknown_type_is_an_error(word: str) -> None:
    with pytest.raises(ValueError, match="memory_type"):
        MemoryType.from_string(word)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
TIMES = st.none() | st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))


@given(
    JSON,
    st.floats(0.0, 4e9),
    st.sampled_from(MemoryType),
    st.floats(0.0, 1.0),
    st.none() | st.lists(st.floats(-1.0, 1.0), max_size=3),
    TIMES,
    TIMES,
    st.sampled_from(Status),
)
def test_every_field_round_trips(
    content: Any,
    timestamp: float,
    memory_type: MemoryType,
    importance: float,
    embedding: list[float] | None,
    valid_from: datetime | None,
    expires_at: datetime | None,
    status: Status,
) -> None:
    entry = MemoryEntry(
        content,
        timestamp,
        memory_type,
        importance,
        4,
        ["a", "ü"],
        {"id": "in-metadata", "n": 1},
        embedding,
        timestamp,
        0.7,
        1.0,
        id="top",
        kind="fact",
        session_id="s",
        user_id="u",
        agent_id="a",
        status=status,
        valid_from=valid_from,
        valid_to=MOMENT,
        expires_at=expires_at,
        updated_at=MOMENT,
        version=3,
        language="german",
    )
    for copy in (MemoryEntry.from_dict(entry.to_dict()), MemoryEntry.from_json(entry.to_json())):
        assert vars(copy) == vars(entry)


def test_from_dict_needs_content_and_passes_over_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="content"):
        MemoryEntry.from_dict({"id": "a"})
    entry = MemoryEntry.from_dict({"content": None, "colour": "red", "memory_type": "ep"})
    assert entry.memory_type is MemoryType.EPISODIC
    assert entry.content is None
    text = MemoryEntry.from_dict({"content": 1, "timestamp": "2026-01-31T12:30:00.123456Z"})
    assert text.timestamp == MOMENT.timestamp()


def test_text_is_what_is_shown() -> None:
    assert MemoryEntry("as it is").text == "as it is"
    assert MemoryEntry({"speaker": "Ada", "text": "Hello"}).text == "Ada: Hello"
    assert MemoryEntry({"input": "a", "output": "b"}).text == "user: a\nassistant: b"
    assert MemoryEntry({"n": 1}).text == '{"n": 1}'
    assert "as it is" not in repr(MemoryEntry("as it is")), "a log holds no content"
    assert "text" not in MemoryEntry("x").to_dict()
