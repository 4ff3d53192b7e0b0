"""Corrections: what changes, what is kept of before, and who may."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from zerda_pg import (
    ConflictError,
    InvalidContentError,
    Memory,
    MemoryEntry,
    MemoryStore,
    MemoryType,
    NotFoundError,
)


def stored(memory: Memory, id: str) -> MemoryEntry:
    entry = memory.get(id)
    assert entry is not None
    return entry


def test_each_field(anytenant: Memory) -> None:
    before = anytenant.add("The first text", id="e", tags=["a"], metadata={"k": 1}).entry
    moment = datetime(2024, 1, 2, tzinfo=UTC)
    changes: dict[str, Any] = {
        "kind": "decision",
        "memory_type": "episodic",
        "importance": 0.9,
        "tags": ["b"],
        "metadata": {"other": 2},
        "session_id": "s",
        "user_id": "u",
        "agent_id": "a",
        "timestamp": moment,
        "valid_from": moment,
        "valid_to": datetime(2999, 1, 1, tzinfo=UTC),
        "expires_at": timedelta(days=1),
        "language": "german",
    }
    for version, (name, value) in enumerate(changes.items(), 2):
        updated = anytenant.update("e", **{name: value})
        assert updated.version == version
        assert updated.content == "The first text"
        assert stored(anytenant, "e").to_dict() == updated.to_dict()
    entry = stored(anytenant, "e")
    assert (entry.kind, entry.memory_type) == ("decision", MemoryType.EPISODIC)
    assert (entry.importance, entry.original_importance) == (0.9, 0.9)
    assert (entry.tags, entry.metadata) == (["b"], {"other": 2})
    assert (entry.session_id, entry.user_id, entry.agent_id) == ("s", "u", "a")
    assert (entry.created_at, entry.valid_from) == (moment, moment)
    assert entry.valid_to == datetime(2999, 1, 1, tzinfo=UTC)
    assert entry.expires_at is not None
    assert timedelta(hours=23) < entry.expires_at - datetime.now(UTC) < timedelta(hours=25)
    assert entry.language == "german"
    assert entry.recorded_at is not None
    assert before.recorded_at is not None
    assert entry.recorded_at > before.recorded_at


def test_fields_can_be_emptied(anytenant: Memory) -> None:
    later = datetime(2999, 1, 1, tzinfo=UTC)
    anytenant.add("x", id="e", kind="fact", session_id="s", agent_id="a", expires_at=later,
                  valid_from=datetime(2020, 1, 1, tzinfo=UTC))  # fmt: skip
    names = ("kind", "session_id", "agent_id", "expires_at", "valid_from")
    entry = anytenant.update("e", tags=[], metadata={}, **dict.fromkeys(names))
    assert [getattr(entry, name) for name in names] == [None] * 5
    for name in ("content", "memory_type", "importance", "tags", "metadata", "timestamp"):
        with pytest.raises(ValueError, match=f"^{name} must not be None"):
            anytenant.update("e", **{name: None})


def test_changed_content_is_found_by_its_new_words_only(
    anymemory: Memory, admin: psycopg.Connection
) -> None:
    anymemory.add("Lunch is at noon", id="e")
    anymemory.add("Something unrelated", id="o")
    anymemory.update("e", content="Dinner begins after sunset")
    for mode in ("dense", "lexical", "hybrid"):
        found = anymemory.search("dinner sunset", mode=mode, k=1)
        assert [h.entry.id for h in found] == ["e"], mode
        assert found[0].entry.content == "Dinner begins after sunset"
    assert not anymemory.search("lunch noon", mode="lexical")
    old, new = (anymemory.search(q, mode="dense", k=2) for q in ("lunch noon", "dinner sunset"))
    assert next(h for h in new if h.entry.id == "e").score > 0.3
    assert all(h.score < 0.3 for h in old if h.entry.id == "e")
    assert admin.execute(
        "SELECT count(*) FROM zerda.embeddings WHERE entry_id = 'e'"
    ).fetchone() == (1,)


def test_content_of_another_shape(anytenant: Memory) -> None:
    anytenant.add("text", id="e")
    for content in ({"z": 1, "a": [1e16, None]}, ["x"], 7, {"input": "hi", "output": "hello"}):
        entry = anytenant.update("e", content=content)
        assert entry.content == content
        assert stored(anytenant, "e").content == content
    assert anytenant.search("hello", mode="lexical")[0].entry.id == "e"


def test_columns_that_the_vectors_repeat_follow(anytenant: Memory) -> None:
    """A filtered dense search reads them beside the vectors."""
    anytenant.add("The same words", id="e", kind="fact")
    anytenant.update("e", kind="decision", session_id="s2", memory_type="episodic")
    for filter in ({"kinds": ["decision"]}, {"session_id": "s2"}, {"memory_types": ["episodic"]}):
        found = anytenant.search("same words", mode="dense", filter=filter)
        assert [h.entry.id for h in found] == ["e"]
    assert not anytenant.search("same words", mode="dense", filter={"kinds": ["fact"]})
    anytenant.update("e", expires_at=timedelta(days=1))
    future = datetime.now(UTC) + timedelta(days=2)
    assert not anytenant.search("same words", mode="dense", now=future)


def test_if_version(anytenant: Memory) -> None:
    anytenant.add("one", id="e")
    assert anytenant.update("e", if_version=1, content="two").version == 2
    with pytest.raises(ConflictError, match="at version 2, not 1"):
        anytenant.update("e", if_version=1, content="three")
    assert stored(anytenant, "e").content == "two"


@pytest.mark.parametrize("version", ["1", 1.0, True])
def test_bad_versions(anytenant: Memory, version: Any) -> None:
    with pytest.raises(ValueError, match="if_version"):
        anytenant.update("e", if_version=version, content="x")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({}, ValueError, "something to change"),
        ({"id": "other"}, TypeError, "id"),
        ({"status": "active"}, ValueError, "cannot change 'status'"),
        ({"contents": "x"}, ValueError, "cannot change 'contents'"),
        ({"embedding": [1.0]}, ValueError, "cannot change 'embedding'"),
        ({"content": ""}, InvalidContentError, "content is empty"),
        ({"content": "a\x00"}, InvalidContentError, "content.*position 1"),
        ({"metadata": {"a": float("nan")}}, InvalidContentError, r"metadata\.a"),
        ({"metadata": "x"}, ValueError, "metadata"),
        ({"tags": "x"}, ValueError, "tags"),
        ({"tags": ["a", ""]}, InvalidContentError, r"tags\[1\]"),
        ({"importance": 1.5}, ValueError, "importance"),
        ({"importance": "0.5"}, ValueError, "importance"),
        ({"memory_type": "dream"}, ValueError, "memory_type"),
        ({"kind": ""}, InvalidContentError, "kind"),
        ({"language": "klingon"}, ValueError, "language"),
        ({"timestamp": datetime(2024, 1, 1)}, ValueError, "timestamp.*naive"),
        ({"valid_to": datetime(2024, 1, 1)}, ValueError, "valid_to.*naive"),
        ({"session_id": ""}, ValueError, "session_id"),
        ({"user_id": "x" * 300}, ValueError, "user_id"),
    ],
)
def test_bad_changes(
    anytenant: Memory, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    before = anytenant.add("x", id="e").entry.to_dict()
    assert stored(anytenant, "e").to_dict() == before
    with pytest.raises(error, match=said):
        anytenant.update("e", **changes)
    assert stored(anytenant, "e").to_dict() == before


def test_an_interval_must_not_end_before_it_begins(anytenant: Memory) -> None:
    """Also where only one of its ends is changed."""
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    anytenant.add("x", id="e", valid_from=noon)
    with pytest.raises(ValueError, match="valid_to must not lie before valid_from"):
        anytenant.update("e", valid_to=noon - timedelta(hours=1))
    assert stored(anytenant, "e").valid_to is None


def test_what_is_not_there(anytenant: Memory) -> None:
    with pytest.raises(NotFoundError, match="'missing'"):
        anytenant.update("missing", kind="fact")
    with pytest.raises(NotFoundError):
        anytenant.update("missing", if_version=1, kind="fact")


def test_another_users_entry_is_not_there(anystore: MemoryStore) -> None:
    anystore.tenant("acme", user_id="u1").add("secret", id="e")
    with pytest.raises(NotFoundError):
        anystore.tenant("acme", user_id="u2").update("e", content="changed")
    with pytest.raises(NotFoundError):
        anystore.tenant("other").update("e", content="changed")
    with pytest.raises(ValueError, match="user_id"):
        anystore.tenant("acme", user_id="u1").update("e", user_id="u2")
    assert stored(anystore.tenant("acme"), "e").content == "secret"


def test_known_at_shows_what_was_known(anytenant: Memory) -> None:
    first = anytenant.add("The meeting room is Jupiter", id="e").entry
    second = anytenant.update("e", content="The meeting room is Saturn")
    third = anytenant.update("e", content="The meeting room is Neptune")
    anytenant.add("The meeting room is Venus", id="e")
    assert first.recorded_at and second.recorded_at and third.recorded_at
    for known, planet in (
        (first.recorded_at, "Jupiter"),
        (second.recorded_at, "Saturn"),
        (third.recorded_at, "Neptune"),
        (datetime.now(UTC), "Venus"),
    ):
        for mode in ("hybrid", "lexical"):
            found = anytenant.search("meeting room", mode=mode, known_at=known)
            assert [h.entry.content for h in found] == [f"The meeting room is {planet}"]
    assert not anytenant.search(
        "meeting room", known_at=first.recorded_at - timedelta(microseconds=1)
    )
