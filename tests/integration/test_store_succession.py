"""What supersedes what, when it begins to be true, and whose it is to change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import CountRows
from test_store_clocks import found, status

from zerda_pg import AccessDeniedError, ConflictError, Memory, MemoryStore, NotFoundError, Status

DAY = timedelta(days=1)
PAST = datetime(2024, 1, 1, tzinfo=UTC)


def successors(memory: Memory, id: str) -> list[str]:
    near = memory.neighbours(id, relations=["invalidated_by"])
    return sorted(n.entry.id for n in near if n.direction == "out")


# ── a write whose entry is there already ──────────────────────────────────────────────────────


def test_a_duplicate_supersedes_by_what_was_there(anymemory: Memory) -> None:
    anymemory.add("The office city is Oslo", id="old")
    anymemory.add("The office city is Rome", id="there")
    done = anymemory.add(
        "the office city is Rome", id="again", dedupe=True, supersedes="old", timestamp=PAST
    )
    assert (done.status, done.id) == ("duplicate", "there")
    assert successors(anymemory, "old") == ["there"]
    assert found(anymemory) == ["there"]
    old = anymemory.get("old")
    assert old is not None
    assert (old.status, old.valid_to) == (Status.SUPERSEDED, PAST)


def test_what_is_kept_supersedes(anymemory: Memory) -> None:
    anymemory.add("The office city is Oslo", id="old")
    anymemory.add("The office city is Rome", id="there", kind="fact")
    done = anymemory.add("other words", id="there", if_exists="keep", supersedes=["old"])
    assert (done.status, done.version, done.entry.kind) == ("kept", 1, "fact")
    assert successors(anymemory, "old") == ["there"]
    assert found(anymemory) == ["there"]


def test_a_batch_supersedes_by_what_was_there(anymemory: Memory) -> None:
    for name, city in (("o1", "Oslo"), ("o2", "Bern"), ("o3", "Kyiv"), ("there", "Rome")):
        anymemory.add(f"The office city is {city}", id=name)
    results = anymemory.add_many(
        [
            {"content": "The office city is Rome", "supersedes": "o1"},
            {"content": "The office city is Paris", "id": "new", "supersedes": "o2"},
            {"content": "The office city is Paris", "supersedes": ["o3"]},
        ],
        dedupe=True,
    )
    assert [(r.status, r.id) for r in results] == [
        ("duplicate", "there"), ("created", "new"), ("duplicate", "new")
    ]  # fmt: skip
    assert [successors(anymemory, name) for name in ("o1", "o2", "o3")] == [
        ["there"], ["new"], ["new"]
    ]  # fmt: skip
    again = anymemory.add_many(
        [{"content": "unused", "id": "new", "supersedes": "there"}], if_exists="keep"
    )
    assert again[0].status == "kept"
    assert found(anymemory) == ["new"]


def test_an_import_that_keeps_supersedes(anymemory: Memory, tmp_path: Any) -> None:
    file = tmp_path / "lines.jsonl"
    line = '{"id": "new", "content": "The office city is Rome", "supersedes": ["old"]}\n'
    file.write_text(line)
    anymemory.add("The office city is Oslo", id="old")
    anymemory.add("The office city is Rome", id="new")
    report = anymemory.import_file(file)
    assert (report["kept"], report["failed"]) == (1, 0)
    assert found(anymemory) == ["new"]
    file.write_text(line.replace('"new"', '"x"').replace('"old"', '"new"') + line.replace(
        '["old"]', '["x"]'))  # fmt: skip
    report = anymemory.import_file(file)
    assert (report["created"], report["failed"]) == (1, 1)
    assert "has itself replaced" in report["errors"][0]["error"]
    assert found(anymemory) == ["x"]


def test_what_is_superseded_is_no_duplicate_of_its_successor(anymemory: Memory) -> None:
    anymemory.add("The office city is Oslo", id="old", importance=0.2)
    done = anymemory.add(
        "The office city is Oslo", id="new", importance=0.9, dedupe=True, supersedes="old"
    )
    assert (done.status, done.id) == ("created", "new")
    assert found(anymemory) == ["new"]
    again = anymemory.add("The office city is Oslo", dedupe=True, supersedes="old")
    assert (again.status, again.id) == ("duplicate", "new")


def test_a_missing_one_is_told_beside_a_duplicate_too(anymemory: Memory, rows: CountRows) -> None:
    anymemory.add("The office city is Rome", id="there")
    before = rows()
    for given in ({"dedupe": True}, {"id": "there", "if_exists": "keep"}):
        with pytest.raises(NotFoundError, match="'gone'"):
            anymemory.add("The office city is Rome", supersedes="gone", **given)
    assert rows() == before


# ── circles ───────────────────────────────────────────────────────────────────────────────────


def test_what_is_true_again_replaces_what_had_replaced_it(anymemory: Memory) -> None:
    """However often a program tells the same story: at its end one of the two is in force."""
    for _ in range(2):
        anymemory.add("The office city door is open", id="open")
        anymemory.add("The office city door is shut", id="shut", supersedes="open")
        assert found(anymemory) == ["shut"]
        anymemory.add("The office city door is open", id="open", supersedes="shut")
        assert found(anymemory) == ["open"]
        assert (successors(anymemory, "open"), successors(anymemory, "shut")) == ([], ["open"])


def test_a_successor_is_not_superseded_by_what_it_replaced(anymemory: Memory) -> None:
    """Over others, too; by any write that leaves the earlier one as it is."""
    anymemory.add("The office city is Oslo", id="one")
    anymemory.add("The office city is Bern", id="two", supersedes="one")
    anymemory.add("The office city is Rome", id="three", supersedes="two")
    with pytest.raises(ConflictError, match="'three' has itself replaced 'one'"):
        anymemory.add("unused", id="one", if_exists="keep", supersedes="three")
    with pytest.raises(ConflictError, match="'three' has itself replaced 'one'"):
        anymemory.invalidate("three", by="one")
    with pytest.raises(ConflictError, match="has itself replaced"):
        anymemory.add_many(
            [
                {"content": "a", "id": "a", "supersedes": "b"},
                {"content": "b", "id": "b", "supersedes": "a"},
            ]
        )
    assert found(anymemory) == ["three"]
    assert anymemory.get("a") is None
    anymemory.add("The office city is Oslo", id="one", supersedes="three")
    assert found(anymemory) == ["one"]


# ── not yet ───────────────────────────────────────────────────────────────────────────────────


def test_what_is_not_yet_true_is_not_found(anymemory: Memory) -> None:
    soon = datetime.now(UTC) + DAY
    entry = anymemory.add("The office city is Rome", id="e", valid_from=soon).entry
    assert entry.recorded_at is not None
    assert found(anymemory) == []
    assert (anymemory.count(), list(anymemory.entries())) == (0, [])
    assert anymemory.build_context("office city").entries == []
    assert found(anymemory, known_at=entry.recorded_at) == []
    why = anymemory.explain("office city", id="e")["entry"]
    assert why["fate"] == "not_a_candidate"
    assert why["reasons"] == [
        f"it is true only from {soon:%Y-%m-%d} on: valid_at asks for what is true then"
    ]
    # by its time, by name, and once that time has come
    assert found(anymemory, valid_at=soon) == ["e"]
    assert found(anymemory, filter={"status": "active"}) == ["e"]
    assert anymemory.get("e") is not None
    assert found(anymemory, now=soon - timedelta(microseconds=1)) == []
    assert found(anymemory, now=soon) == ["e"]


def test_what_is_superseded_ahead_of_time_holds_until_then(anymemory: Memory) -> None:
    soon = datetime.now(UTC) + DAY
    anymemory.add("The office city is Oslo", id="old")
    entry = anymemory.add(
        "The office city is Rome", id="new", valid_from=soon, supersedes="old"
    ).entry
    assert entry.recorded_at is not None
    assert found(anymemory) == ["old"]
    assert found(anymemory, known_at=entry.recorded_at) == ["old"]
    assert anymemory.count() == 1
    assert found(anymemory, now=soon) == ["new"]
    assert found(anymemory, valid_at=soon - DAY / 2) == ["old"]
    assert found(anymemory, valid_at=soon) == ["new"]


def test_a_clock_of_the_past_brings_back_nothing_superseded(anymemory: Memory) -> None:
    anymemory.add("The office city is Oslo", id="old", timestamp=PAST)
    anymemory.add("The office city is Rome", id="new", supersedes="old")
    assert found(anymemory, now=PAST + DAY) == ["new"]


def test_what_is_true_at_once_ends_the_other_at_once(anymemory: Memory) -> None:
    """Whatever the clock of the program says that writes."""
    anymemory.add("The office city is Oslo", id="old")
    anymemory.add(
        "The office city is Rome", id="new", supersedes="old", timestamp=datetime.now(UTC) + DAY
    )
    assert found(anymemory) == ["new"]


# ── everyone's memories ───────────────────────────────────────────────────────────────────────


def test_a_user_changes_nothing_that_is_everyones(anystore: MemoryStore, rows: CountRows) -> None:
    tenant = anystore.tenant("acme")
    ann = anystore.tenant("acme", user_id="ann")
    tenant.add("The office city is Oslo", id="all")
    tenant.add("The office city is big", id="too")
    tenant.relate("all", "too")
    ann.add("Ann likes the office city", id="own")
    before = rows()
    for call in (
        lambda: ann.update("all", content="x"),
        lambda: ann.update("all", if_version=1, user_id="ann"),
        lambda: ann.invalidate("all"),
        lambda: ann.invalidate("all", by="own"),
        lambda: ann.relate("all", "too", "knows"),
        lambda: ann.add("The office city is Rome", supersedes="all"),
        lambda: ann.add("x", id="own", if_exists="keep", supersedes=["all"]),
        lambda: ann.add_many([{"content": "x", "supersedes": "all"}]),
    ):
        with pytest.raises(
            AccessDeniedError, match=r"'all' belongs to all users .* without user_id"
        ):
            call()
    assert (ann.delete("all"), ann.discard("all"), ann.restore("all")) == (False, False, False)
    assert ann.unrelate("all", "too") is False
    assert ann.purge(ids="all") == {}
    assert rows() == before
    assert status(tenant, "all") is Status.ACTIVE
    assert tenant.get("all") == ann.get("all")


def test_a_user_links_and_ends_own_memories(anystore: MemoryStore) -> None:
    tenant, ann = anystore.tenant("acme"), anystore.tenant("acme", user_id="ann")
    tenant.add("The office city is Oslo", id="all")
    ann.add("The office city is Bern", id="own")
    ann.relate("own", "all")
    ann.relate("all", "own", "mentions")
    assert ann.unrelate("all", "own", "mentions") is True
    ann.invalidate("own", by="all")
    assert found(ann) == ["all"]
