"""Statuses, supersession, expiry, and recall on both clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import CountRows

from zerda_pg import Memory, MemoryEntry, MemoryStore, NotFoundError, Status

DAY = timedelta(days=1)
JANUARY = datetime(2024, 1, 1, tzinfo=UTC)
MARCH = datetime(2024, 3, 1, tzinfo=UTC)
MODES = ("hybrid", "dense", "lexical")


def found(memory: Memory, query: str = "office city", **arguments: Any) -> list[str]:
    """Ids by every mode, which must agree on which entries there are."""
    results = [
        sorted(h.entry.id for h in memory.search(query, mode=mode, **arguments))  # type: ignore[arg-type]
        for mode in MODES
    ]
    assert results[0] == results[1] == results[2]
    return results[0]


def status(memory: Memory, id: str) -> Status:
    entry = memory.get(id)
    assert entry is not None
    return entry.status


def test_discarded_is_hidden_until_restored(anytenant: Memory) -> None:
    anytenant.add("The office city is Oslo", id="e")
    assert found(anytenant) == ["e"]
    assert anytenant.discard("e") is True
    assert anytenant.discard("e") is True  # it is there, hidden already
    assert found(anytenant) == []
    assert anytenant.count() == 0
    assert list(anytenant.entries()) == []
    assert anytenant.build_context("office city").entries == []
    assert status(anytenant, "e") is Status.DISCARDED
    assert found(anytenant, filter={"status": "discarded"}) == ["e"]
    assert anytenant.count({"status": ["active", "discarded"]}) == 1
    assert anytenant.restore("e") is True
    assert anytenant.restore("e") is True
    assert found(anytenant) == ["e"]
    assert anytenant.discard("missing") is False
    assert anytenant.restore("missing") is False


def test_a_superseded_entry_is_restored_as_superseded(anymemory: Memory) -> None:
    anymemory.add("x", id="e")
    anymemory.invalidate("e")
    anymemory.discard("e")
    anymemory.restore("e")
    assert status(anymemory, "e") is Status.SUPERSEDED


def test_supersedes_closes_the_old_one(anymemory: Memory) -> None:
    old = anymemory.add("The office city is Oslo", id="old", timestamp=JANUARY).entry
    new = anymemory.add(
        "The office city is Rome", id="new", timestamp=MARCH, supersedes="old"
    ).entry
    assert found(anymemory) == ["new"]
    closed = anymemory.get("old")
    assert closed is not None
    assert closed.status is Status.SUPERSEDED
    assert closed.valid_to == MARCH
    assert old.recorded_at and new.recorded_at
    assert closed.invalidated_at == new.recorded_at
    neighbours = anymemory.neighbours("new")
    assert [(n.entry.id, n.relation, n.distance) for n in neighbours] == [
        ("old", "invalidated_by", 1)
    ]
    # when it was true
    assert found(anymemory, valid_at=MARCH - DAY) == ["new", "old"]  # the new one: always valid
    assert found(anymemory, valid_at=MARCH + DAY) == ["new"]
    # when we knew it
    assert found(anymemory, known_at=old.recorded_at) == ["old"]
    assert found(anymemory, known_at=new.recorded_at) == ["new"]
    assert found(anymemory, known_at=old.recorded_at - timedelta(microseconds=1)) == []


def test_validity_intervals(anytenant: Memory) -> None:
    anytenant.add("The office city is Oslo", id="old", valid_from=JANUARY)
    anytenant.add("The office city is Rome", id="new", valid_from=MARCH, supersedes=["old"])
    assert found(anytenant, valid_at=JANUARY - DAY) == []
    assert found(anytenant, valid_at=JANUARY) == ["old"]
    assert found(anytenant, valid_at=MARCH - DAY) == ["old"]
    assert found(anytenant, valid_at=MARCH) == ["new"]
    assert found(anytenant) == ["new"]


def test_both_clocks_together(anytenant: Memory) -> None:
    """In February we believed in Oslo; since, we know that it was Rome from January on."""
    first = anytenant.add("The office city is Oslo", id="old", valid_from=JANUARY - DAY).entry
    second = anytenant.add(
        "The office city is Rome", id="new", valid_from=JANUARY, supersedes="old"
    ).entry
    assert first.recorded_at and second.recorded_at
    assert found(anytenant, valid_at=MARCH, known_at=first.recorded_at) == ["old"]
    assert found(anytenant, valid_at=MARCH, known_at=second.recorded_at) == ["new"]
    assert found(anytenant, valid_at=JANUARY - DAY, known_at=second.recorded_at) == ["old"]


def test_several_are_superseded_at_once(anymemory: Memory) -> None:
    for name in ("a", "b", "c"):
        anymemory.add(f"plan {name}", id=name)
    anymemory.add("the plan", id="new", supersedes=["b", "a", "b"])
    assert [status(anymemory, i).value for i in "abc"] == ["superseded", "superseded", "active"]


def test_nothing_is_written_if_the_old_one_is_missing(anymemory: Memory, rows: CountRows) -> None:
    anymemory.add("x", id="a")
    before = rows()
    with pytest.raises(NotFoundError, match="'missing'"):
        anymemory.add("new", id="new", supersedes=["a", "missing"])
    assert rows() == before
    assert status(anymemory, "a") is Status.ACTIVE
    with pytest.raises(ValueError, match="supersedes names the entry itself"):
        anymemory.add("new", id="new", supersedes="new")
    with pytest.raises(ValueError, match="supersedes"):
        anymemory.add("new", supersedes=5)  # type: ignore[arg-type]


def test_what_ended_first_stays_ended_then(anymemory: Memory) -> None:
    anymemory.add("x", id="e")
    first = anymemory.invalidate("e", at=JANUARY)
    second = anymemory.invalidate("e", at=MARCH)
    assert (first.valid_to, second.valid_to) == (JANUARY, JANUARY)
    assert second.invalidated_at == first.invalidated_at


def test_invalidate(anytenant: Memory) -> None:
    anytenant.add("The office city is Oslo", id="old")
    anytenant.add("The office city is Rome", id="new")
    before = datetime.now(UTC) - timedelta(seconds=5)
    entry = anytenant.invalidate("old", by="new")
    assert entry.status is Status.SUPERSEDED
    assert entry.valid_to is not None
    assert entry.valid_to > before
    assert found(anytenant) == ["new"]
    assert [n.entry.id for n in anytenant.neighbours("old", relations=["invalidated_by"])] == [
        "new"
    ]
    with pytest.raises(NotFoundError, match="missing"):
        anytenant.invalidate("new", by="missing")
    with pytest.raises(NotFoundError, match="gone"):
        anytenant.invalidate("gone")
    assert status(anytenant, "new") is Status.ACTIVE
    with pytest.raises(ValueError, match="by must be another entry"):
        anytenant.invalidate("new", by="new")
    with pytest.raises(ValueError, match=r"at .*naive"):
        anytenant.invalidate("new", at=datetime(2024, 1, 1))


def test_a_superseded_memory_never_outranks_its_successor(anymemory: Memory) -> None:
    """Even where it fits the question better, is newer, and is asked for by name."""
    anymemory.add("The office city is Oslo", id="old", timestamp=MARCH, importance=1.0)
    anymemory.add("We moved to Rome", id="new", timestamp=JANUARY, supersedes="old", importance=0.1)
    hits = anymemory.search("office city", filter={"status": ["active", "superseded"]})
    assert [h.entry.id for h in hits] == ["new", "old"]


@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
def test_a_superseded_memory_comes_with_what_replaced_it(anymemory: Memory, mode: str) -> None:
    """Also where no arm finds that, and where what stands between them is not asked for."""
    for number in range(30):
        anymemory.add(f"The office city has a park called p{number}")
    anymemory.add("The office city is Oslo", id="first")
    anymemory.add("Nine nice nights", id="second", supersedes="first")
    anymemory.add("We moved", id="third", supersedes="second")
    anymemory.discard("second")
    asked: dict[str, Any] = {"filter": {"status": ["active", "superseded"]}, "mode": mode}
    ids = [h.entry.id for h in anymemory.search("office city Oslo", k=5, **asked)]
    assert "second" not in ids
    assert ids[ids.index("first") - 1] == "third"
    assert [h.entry.id for h in anymemory.search("office city Oslo", k=1, **asked)] == ["third"]


EVERY = {"status": ["active", "superseded", "discarded"]}


@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
def test_a_chain_of_supersessions_comes_newest_first(memory: Memory, mode: str) -> None:
    """Of which only the oldest fits the question."""
    memory.add_many([{"content": f"alpha alpha filler {n}", "id": f"f{n}"} for n in range(250)])
    for n, text in enumerate(["alpha", "bravo one", "charlie two", "delta three", "echo four"]):
        memory.add(text, id=str(n), supersedes=str(n - 1) if n else (), timestamp=JANUARY)
    asked: dict[str, Any] = {"filter": EVERY, "mode": mode}
    for k in (1, 3, 10):
        ids = [h.entry.id for h in memory.search("alpha", k=k, **asked)]
        assert [name for name in ids if name.isdigit()] == ["4", "3", "2", "1", "0"][:k]


def test_circles_of_supersession_are_survived(memory: Memory) -> None:
    memory.add("city one", id="1")
    memory.add("city two", id="2", supersedes="1")
    memory.relate("2", "1", "invalidated_by")
    now = datetime.now(UTC)
    for asked in ({"filter": EVERY}, {"valid_at": now}, {"known_at": now}):
        assert {h.entry.id for h in memory.search("city", **asked)} <= {"1", "2"}
        assert memory.build_context("city", **asked).text


def test_a_context_holds_no_superseded_memory_without_its_successor(memory: Memory) -> None:
    memory.add("port is 80", id="old")
    memory.add("port is 8080 " + "since the move " * 40, id="new", supersedes="old")
    for n in range(5):
        memory.add(f"port filler {n}", id=f"f{n}")
    best = memory.build_context("port is 80", top_k=1, filter=EVERY)
    assert "old" not in [e.id for e in best.entries]
    for packing in ("value", "skip", "stop", "optimal"):
        for budget in (20, 40, 80, 300):
            context = memory.build_context(
                "port is 80", token_budget=budget, packing=packing, filter=EVERY
            )
            shown = {e.id for e in (*context.entries, *context.excerpts)}
            assert "old" not in shown or "new" in shown


def test_what_ends_a_memory_sooner_wins(memory: Memory) -> None:
    """Over an end that was told of before and lies ahead."""
    ahead = datetime.now(UTC) + timedelta(days=30)
    memory.add("office Porto", id="porto")
    memory.add("office Lisbon", id="lisbon", supersedes="porto", valid_from=ahead)
    assert found(memory, "office") == ["porto"]
    memory.add("office Faro", id="faro", supersedes="porto")
    assert found(memory, "office") == ["faro"]
    ended = memory.get("porto")
    assert ended is not None
    assert ended.valid_to is not None
    memory.invalidate("porto")
    again = memory.get("porto")
    assert again is not None
    assert again.valid_to == ended.valid_to


def test_expired_entries_are_hidden_everywhere(anymemory: Memory) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    anymemory.add("The office city is Oslo", id="e", expires_at=soon)
    anymemory.add("The office city is Rome", id="o")
    anymemory.relate("e", "o")
    assert found(anymemory) == ["e", "o"]
    assert found(anymemory, now=soon) == ["o"]
    assert found(anymemory, now=soon - timedelta(microseconds=1)) == ["e", "o"]
    anymemory.update("o", tags=["x"])
    anymemory.add("The office city is Oslo", id="e", expires_at=datetime.now(UTC) - DAY)
    assert found(anymemory) == ["o"]
    assert anymemory.get("e") is None
    assert anymemory.count() == 1
    assert [e.id for e in anymemory.entries()] == ["o"]
    assert anymemory.neighbours("o") == []
    assert anymemory.count({"status": ["active", "superseded", "discarded"]}) == 1


def test_a_time_to_live(anytenant: Memory) -> None:
    entry = anytenant.add("x", expires_at=timedelta(minutes=5)).entry
    assert entry.expires_at is not None
    left = entry.expires_at - datetime.now(UTC)
    assert timedelta(minutes=4) < left <= timedelta(minutes=5)
    for bad in (timedelta(0), timedelta(days=-1)):
        with pytest.raises(ValueError, match="expires_at"):
            anytenant.add("x", expires_at=bad)
    with pytest.raises(ValueError, match="expires_at"):
        anytenant.add("x", expires_at=timedelta.max)


def test_a_discarded_memory_was_known_before(anymemory: Memory) -> None:
    first = anymemory.add("The office city is Oslo", id="e").entry
    assert first.recorded_at
    anymemory.discard("e")
    assert found(anymemory, known_at=first.recorded_at) == ["e"]
    assert found(anymemory, known_at=datetime.now(UTC) + DAY) == []


def test_recall_replayed_with_an_explicit_now(anymemory: Memory) -> None:
    """The same question at the same moment has the same answer, whatever happened between."""
    for n in range(8):
        anymemory.add(
            f"The office city number {n} is Oslo",
            id=f"e{n}",
            timestamp=JANUARY + n * DAY,
            importance=n / 10,
        )
    moment = MARCH
    first = anymemory.search("office city", now=moment)
    second = anymemory.search("office city", now=moment)
    assert [(h.entry.id, h.score, h.recency) for h in first] == [
        (h.entry.id, h.score, h.recency) for h in second
    ]
    assert len(first) == 8
    later = anymemory.search("office city", now=moment + 60 * DAY)
    assert all(h.recency < first[0].recency for h in later)


@pytest.mark.parametrize("name", ["valid_at", "known_at", "now"])
@pytest.mark.parametrize("value", [datetime(2024, 1, 1), 5, "2024-01-01T00:00:00Z"])
def test_naive_times_are_refused(anytenant: Memory, name: str, value: Any) -> None:
    for call in (anytenant.search, anytenant.build_context, anytenant.explain):
        with pytest.raises(ValueError, match=name):
            call("x", **{name: value})


def test_status_is_repeated_beside_the_vectors(anystore: MemoryStore) -> None:
    """A row that is written superseded or discarded is so in every arm."""
    memory = anystore.tenant("acme")
    for word in ("superseded", "discarded"):
        memory.add(MemoryEntry("The office city is Oslo", id=word, status=Status(word)))
        assert found(memory) == []
        assert found(memory, filter={"status": word}) == [word]
