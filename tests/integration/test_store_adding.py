"""Adding one entry or many: what comes back, what exists already, what is refused whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import CountRows
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from zerda_pg import (
    AlreadyExistsError,
    InvalidContentError,
    Memory,
    MemoryEntry,
    MemoryStore,
    MemoryType,
    NotFoundError,
    Status,
)

WHEN = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)


def test_every_field_comes_back(anytenant: Memory) -> None:
    result = anytenant.add(
        "The cache was cold",
        id="e1",
        kind="fact",
        memory_type="procedural",
        importance=0.75,
        tags=["cache", "ops"],
        metadata={"id": "order-17", "n": 2},
        session_id="s1",
        user_id="u1",
        agent_id="a1",
        timestamp=WHEN,
        valid_from=WHEN,
        expires_at=datetime(2999, 1, 1, tzinfo=UTC),
        language="german",
    )
    assert (result.id, result.status, result.version) == ("e1", "created", 1)
    stored = anytenant.get("e1")
    for entry in (stored, result.entry):
        assert entry is not None
        assert entry.content == "The cache was cold"
        assert (entry.id, entry.kind, entry.memory_type) == ("e1", "fact", MemoryType.PROCEDURAL)
        assert (entry.importance, entry.original_importance, entry.decay_factor) == (0.75, 0.75, 1)
        assert (entry.tags, entry.metadata) == (["cache", "ops"], {"id": "order-17", "n": 2})
        assert (entry.session_id, entry.user_id, entry.agent_id) == ("s1", "u1", "a1")
        assert entry.created_at == WHEN
        assert entry.valid_from == WHEN
        assert entry.valid_to is None
        assert entry.expires_at == datetime(2999, 1, 1, tzinfo=UTC)
        assert (entry.status, entry.version, entry.language) == (Status.ACTIVE, 1, "german")
        assert entry.access_count == 0
        assert entry.recorded_at is not None
        assert entry.recorded_at == entry.updated_at
        assert abs(datetime.now(UTC) - entry.recorded_at) < timedelta(minutes=1)
        assert entry.invalidated_at is None


def test_defaults(anytenant: Memory) -> None:
    before = datetime.now(UTC)
    entry = anytenant.add({"any": ["json", 1]}).entry
    assert len(entry.id) == 36
    assert entry.id[14] == "7"
    assert (entry.memory_type, entry.importance, entry.kind) == (MemoryType.SEMANTIC, 0.5, None)
    assert (entry.tags, entry.metadata, entry.language) == ([], {}, "english")
    assert before <= entry.created_at <= datetime.now(UTC)
    assert (entry.valid_from, entry.expires_at, entry.session_id) == (None, None, None)


def test_a_callers_containers_are_left_alone(anytenant: Memory) -> None:
    tags, metadata = ["a"], {"k": 1}
    given = MemoryEntry("x", tags=tags, metadata=metadata, id="e")
    result = anytenant.add(given)
    result.entry.tags.append("b")
    result.entry.metadata["k"] = 2
    assert (tags, metadata, given.tags, given.metadata) == (["a"], {"k": 1}, ["a"], {"k": 1})


def test_metadata_ids_are_data(anymemory: Memory) -> None:
    """Two orders that carry the same metadata id are two memories."""
    first = anymemory.add("paid", metadata={"id": "order-17"})
    second = anymemory.add("shipped", metadata={"id": "order-17"})
    assert first.id != second.id
    assert anymemory.count() == 2
    assert "order-17" not in {first.id, second.id}


def test_an_entry_is_written_as_it_is(anytenant: Memory) -> None:
    entry = MemoryEntry(
        {"input": "hi", "output": "hello"},
        timestamp=1_600_000_000.25,
        memory_type=MemoryType.EPISODIC,
        importance=0.9,
        access_count=7,
        decay_factor=0.5,
        original_importance=0.4,
        last_access=1_650_000_000.5,
        status=Status.SUPERSEDED,
        valid_to=WHEN,
        id="whole",
    )
    anytenant.add(entry)
    found = anytenant.get("whole")
    assert found is not None
    for name in (
        "content timestamp memory_type importance access_count decay_factor original_importance "
        "last_access status valid_to"
    ).split():
        assert getattr(found, name) == getattr(entry, name), name


def test_arguments_beside_an_entry_are_refused(anytenant: Memory) -> None:
    with pytest.raises(ValueError, match="kind was given beside a MemoryEntry"):
        anytenant.add(MemoryEntry("x"), kind="fact")
    anytenant.add("old", id="old")
    assert anytenant.add(MemoryEntry("new"), supersedes="old").status == "created"


@pytest.mark.parametrize("if_exists", ["replace", "keep", "error"])
def test_what_exists_already(anytenant: Memory, if_exists: Any) -> None:
    first = anytenant.add("first text", id="e", importance=0.2, kind="fact")
    if if_exists == "error":
        with pytest.raises(AlreadyExistsError, match="'e'"):
            anytenant.add("second text", id="e", if_exists="error")
        second = None
    else:
        second = anytenant.add("second text", id="e", importance=0.9, if_exists=if_exists)
    now = anytenant.get("e")
    assert now is not None
    if if_exists == "replace":
        assert second is not None
        assert (second.status, second.version) == ("replaced", 2)
        assert (now.content, now.importance, now.kind, now.version) == ("second text", 0.9, None, 2)
        assert [h.entry.id for h in anytenant.search("second", mode="lexical")] == ["e"]
        assert not anytenant.search("first", mode="lexical")
        return
    assert (now.content, now.importance, now.kind, now.version) == ("first text", 0.2, "fact", 1)
    assert not anytenant.search("second", mode="lexical")
    if second is not None:
        assert (second.status, second.version, second.entry.content) == ("kept", 1, "first text")
        assert second.entry.recorded_at == first.entry.recorded_at


def test_an_expired_entry_does_not_stand_in_the_way(anymemory: Memory) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    for if_exists in ("keep", "error"):
        anymemory.add("gone", id=f"e-{if_exists}", expires_at=past)
        result = anymemory.add("here", id=f"e-{if_exists}", if_exists=if_exists)
        assert (result.status, result.entry.content) == ("replaced", "here")
        found = anymemory.get(f"e-{if_exists}")
        assert found is not None
        assert found.content == "here"


def test_a_replaced_entry_keeps_its_count(anymemory: Memory) -> None:
    anymemory.add(MemoryEntry("one", id="e", access_count=4))
    anymemory.add("two", id="e")
    found = anymemory.get("e")
    assert found is not None
    assert found.access_count == 4


# ── what is returned ──────────────────────────────────────────────────────────────────────────

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text("aBé🔑_", max_size=3), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
FRACTIONS = st.sampled_from([0.0, 5e-324, 1e-101, 1e-100, 0.1, 1.0]) | st.floats(0, 1)


def told(entry: MemoryEntry) -> str:
    """Everything, the order of keys and the types of numbers included."""
    return repr(entry.to_dict())


@given(content=JSON, metadata=st.dictionaries(st.text("abc", max_size=3), JSON), fraction=FRACTIONS)
@example(content={"b": (1, 2)}, metadata={"long": 1e16, "a": {"é": -0.0, "zz": 1.0}}, fraction=0.5)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_returned_is_what_is_stored(
    anytenant: Memory, content: Any, metadata: dict[str, Any], fraction: float
) -> None:
    given = MemoryEntry(["a content that is not empty", content], metadata=metadata)
    given.importance = given.decay_factor = fraction
    for id, status in (("one", Status.ACTIVE), ("two", Status.SUPERSEDED)):
        anytenant.delete(id)
        for _ in range(2):  # created, and replaced
            entry = replace(given, id=id, status=status, last_access=1.25, access_count=3)
            entry.metadata = metadata
            result = anytenant.add(entry)
            assert told(result.entry) == told(anytenant.get(id))  # type: ignore[arg-type]
            given.content = [*given.content, 1e16]


def test_what_a_replaced_entry_keeps_is_returned(anystore: MemoryStore) -> None:
    memory = anystore.tenant("acme")
    memory.add("deploy on friday", id="e")
    memory.search("deploy on friday")
    memory.search("friday")
    anystore.flush()
    replaced = memory.add("deploy on monday", id="e", metadata={"bb": 1, "a": 2})
    stored = memory.get("e")
    assert stored is not None
    assert replaced.status == "replaced"
    assert (replaced.entry.access_count, stored.access_count) == (2, 2)
    assert told(replaced.entry) == told(stored)


def test_what_others_of_its_batch_superseded_is_returned_so(anytenant: Memory) -> None:
    results = anytenant.add_many(
        [
            {"content": "The office is in Porto", "id": "old"},
            {"content": "The office is in Lisbon", "id": "new", "supersedes": ["old"]},
        ]
    )
    assert results[0].entry.status is Status.SUPERSEDED
    for result in results:
        assert told(result.entry) == told(anytenant.get(result.id))  # type: ignore[arg-type]


# ── dedupe ────────────────────────────────────────────────────────────────────────────────────


def test_dedupe_compares_the_normalised_content(anytenant: Memory) -> None:
    first = anytenant.add("The  Café\nis open", kind="fact", dedupe=True)
    same = anytenant.add("the cafe\u0301 IS open ", kind="fact", dedupe=True)
    assert first.status == "created"
    assert (same.status, same.id, same.version) == ("duplicate", first.id, 1)
    assert same.entry.content == "The  Café\nis open"
    assert anytenant.count() == 1


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "decision"},
        {"memory_type": "episodic"},
        {"session_id": "s2"},
        {"user_id": "u2"},
        {"agent_id": "a2"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_dedupe_only_within_the_same_scope(anytenant: Memory, other: dict[str, Any]) -> None:
    anytenant.add("the same", dedupe=True)
    assert anytenant.add("the same", dedupe=True, **other).status == "created"
    assert anytenant.count() == 2


def test_dedupe_does_not_cross_tenants(anystore: MemoryStore) -> None:
    assert anystore.tenant("a").add("the same", dedupe=True).status == "created"
    assert anystore.tenant("b").add("the same", dedupe=True).status == "created"


def test_dedupe_among_active_entries_only(anytenant: Memory) -> None:
    first = anytenant.add("the same", dedupe=True)
    anytenant.discard(first.id)
    second = anytenant.add("the same", dedupe=True)
    assert second.status == "created"
    anytenant.invalidate(second.id)
    third = anytenant.add("the same", dedupe=True, expires_at=datetime(2001, 1, 1, tzinfo=UTC))
    assert third.status == "created"
    assert anytenant.add("the same", dedupe=True).status == "created"  # the third has expired


AHEAD = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
BEHIND = datetime(2020, 1, 1, tzinfo=UTC)


def test_what_is_not_true_yet_stands_for_nothing_that_is(anytenant: Memory) -> None:
    """Nor the other way round: a duplicate is true at the same time."""
    ahead = anytenant.add("Ines leads", valid_from=AHEAD, dedupe=True)
    now = anytenant.add("ines LEADS", dedupe=True)
    assert (ahead.status, now.status) == ("created", "created")
    assert [h.entry.id for h in anytenant.search("Ines leads")] == [now.id]
    # what has begun says the same, whenever it did
    for begun in (None, BEHIND, datetime.now(UTC)):
        again = anytenant.add("Ines leads", valid_from=begun, dedupe=True)
        assert (again.status, again.id) == ("duplicate", now.id)
    same = anytenant.add("Ines leads", valid_from=AHEAD, dedupe=True)
    assert (same.status, same.id) == ("duplicate", ahead.id)
    later = anytenant.add("Ines leads", valid_from=AHEAD + timedelta(days=1), dedupe=True)
    assert later.status == "created"


def test_what_is_over_stands_for_nothing_that_is_true(anytenant: Memory) -> None:
    over = MemoryEntry("Ines leads", valid_from=BEHIND, valid_to=BEHIND + timedelta(days=9))
    assert anytenant.add(over).status == "created"
    now = anytenant.add("Ines leads", dedupe=True)
    assert now.status == "created"
    ending = MemoryEntry("Ines leads", valid_to=AHEAD)  # true now, too
    twice = MemoryEntry("Ines leads", valid_from=BEHIND, valid_to=over.valid_to)
    results = anytenant.add_many([ending, twice, {"content": "Ines leads"}], dedupe=True)
    assert [(r.status, r.id) for r in results] == [
        ("duplicate", now.id), ("duplicate", over.id), ("duplicate", now.id)
    ]  # fmt: skip


def test_duplicates_of_one_batch_are_true_at_the_same_time(anytenant: Memory) -> None:
    times = [None, AHEAD, BEHIND, AHEAD, AHEAD + timedelta(days=1)]
    items = [{"content": "Ines leads", "valid_from": time} for time in times]
    results = anytenant.add_many(items, dedupe=True)
    assert [r.status for r in results] == [
        "created", "created", "duplicate", "duplicate", "created"
    ]  # fmt: skip
    assert (results[2].id, results[3].id) == (results[0].id, results[1].id)


def test_the_same_fact_twice_in_one_batch(anymemory: Memory) -> None:
    items = [{"content": c} for c in ("Water is wet", "x", "water is  WET", "y", "Water is wet")]
    results = anymemory.add_many(items, dedupe=True)
    assert [r.status for r in results] == [
        "created", "created", "duplicate", "created", "duplicate"
    ]  # fmt: skip
    assert results[2].id == results[4].id == results[0].id
    assert anymemory.count() == 3
    again = anymemory.add_many(items, dedupe=True)
    assert {r.status for r in again} == {"duplicate"}
    assert anymemory.count() == 3


# ── many ──────────────────────────────────────────────────────────────────────────────────────


def test_results_stand_in_the_order_given(anymemory: Memory) -> None:
    ids = [f"id-{n:03}" for n in (5, 1, 9, 0, 7, 3)]
    anymemory.add("there before", id="id-009")
    seen: list[tuple[int, int | None]] = []
    results = anymemory.add_many(
        [{"content": f"text {i}", "id": i, "tags": [i]} for i in ids],
        if_exists="keep",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [r.id for r in results] == ids
    assert [r.status for r in results] == ["created"] * 2 + ["kept"] + ["created"] * 3
    assert [r.entry.content for r in results][:3] == ["text id-005", "text id-001", "there before"]
    assert seen == [(6, 6)]


def test_a_generator_of_more_than_a_batch(anymemory: Memory) -> None:
    seen: list[tuple[int, int | None]] = []

    def items() -> Iterator[Any]:
        for n in range(600):
            yield MemoryEntry(f"entry number {n}") if n % 2 else {"content": f"entry number {n}"}

    results = anymemory.add_many(items(), progress=lambda *step: seen.append(step))
    assert len({r.id for r in results}) == 600
    assert anymemory.count() == 600
    assert seen == [(256, None), (512, None), (600, None)]


def test_nothing_of_a_bad_batch_is_written(anymemory: Memory, rows: CountRows) -> None:
    good = [{"content": f"number {n}"} for n in range(10)]
    with pytest.raises(InvalidContentError, match=r"items\[10\].*content.*position 3"):
        anymemory.add_many([*good, {"content": "abc\x00"}])
    with pytest.raises(ValueError, match=r"items\[10\].*importance"):
        anymemory.add_many([*good, {"content": "abc", "importance": 2}])
    with pytest.raises(ValueError, match=r"items\[0\].*unknown field 'contents'"):
        anymemory.add_many([{"content": "a", "contents": "b"}])
    with pytest.raises(NotFoundError, match="missing"):
        anymemory.add_many([*good, {"content": "abc", "supersedes": ["missing"]}])
    with pytest.raises(AlreadyExistsError):
        anymemory.add_many([*good, {"content": "a", "id": "e"}, {"content": "b", "id": "e"}],
                           if_exists="error")  # fmt: skip
    assert set(rows()) <= {"embedding_models"}


def test_batches_before_the_bad_one_stay_and_can_be_resumed(anymemory: Memory) -> None:
    items: list[dict[str, Any]] = [{"content": f"number {n}", "id": f"i{n}"} for n in range(300)]
    with pytest.raises(ValueError, match=r"items\[299\]"):
        anymemory.add_many([*items[:299], {"content": ""}])
    assert anymemory.count() == 256
    results = anymemory.add_many(items, if_exists="keep")
    assert [r.status for r in results] == ["kept"] * 256 + ["created"] * 44
    assert anymemory.count() == 300


def test_one_id_twice_in_a_batch_is_written_in_order(anytenant: Memory) -> None:
    results = anytenant.add_many(
        [{"content": "first", "id": "e"}, {"content": "other"}, {"content": "last", "id": "e"}]
    )
    assert [(r.status, r.version) for r in results] == [
        ("created", 1), ("created", 1), ("replaced", 2)
    ]  # fmt: skip
    found = anytenant.get("e")
    assert found is not None
    assert found.content == "last"


@pytest.mark.parametrize("ids", [("a", "b"), ("b", "a")])
def test_a_batch_may_supersede_within_itself(anytenant: Memory, ids: tuple[str, str]) -> None:
    old, new = ids
    anytenant.add_many(
        [{"content": "old plan", "id": old}, {"content": "new plan", "id": new, "supersedes": old}]
    )
    status = {e.id: e.status for e in anytenant.get_many([old, new]) if e is not None}
    assert status == {old: Status.SUPERSEDED, new: Status.ACTIVE}


def test_no_items(anymemory: Memory) -> None:
    assert anymemory.add_many([]) == []
    assert anymemory.add_messages([], session_id="s") == []


# ── vectors ───────────────────────────────────────────────────────────────────────────────────


def test_a_given_vector_is_used_and_normalised(anymemory: Memory) -> None:
    vector = [0.0] * 384
    vector[7] = 250.0
    anymemory.add("something", id="e", embedding=vector)
    anymemory.add("something else", id="other")
    hit = anymemory.search("unrelated", mode="dense", embedding=vector, k=1)[0]
    assert hit.entry.id == "e"
    assert hit.similarity == pytest.approx(1.0, abs=1e-3)


def test_vectors_of_extreme_length_keep_their_direction(anymemory: Memory) -> None:
    for scale in (1e300, 1e-300):
        vector = [0.0] * 384
        vector[3] = scale
        vector[4] = scale
        anymemory.add("something", id=f"{scale}", embedding=vector)
        found = anymemory.search("x", mode="dense", embedding=vector, k=5, min_score=0.99)
        assert f"{scale}" in [h.entry.id for h in found]


@pytest.mark.parametrize(
    ("vector", "said"),
    [
        ([0.0] * 384, "zero"),
        ([1.0] * 383, r"384 numbers.*\(383,\)"),
        ([], r"384 numbers"),
        ([float("nan")] + [1.0] * 383, "finite"),
        ([float("inf")] + [1.0] * 383, "finite"),
        ([[1.0] * 384], r"\(1, 384\)"),
        (["a"] * 384, "embedding must"),
        ([[1.0], [1.0, 2.0]], "embedding must"),
        ("text", "embedding must"),
        (5, "embedding must"),
        ([None] * 384, "embedding must"),
    ],
)
def test_bad_vectors(anytenant: Memory, vector: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        anytenant.add("x", embedding=vector)
    assert str(raised.value).startswith("embedding")
    with pytest.raises(ValueError, match=said):
        anytenant.search("x", embedding=vector)
    assert anytenant.count() == 0
