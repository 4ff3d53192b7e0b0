"""Import of JSON Lines: what comes in, what is refused, what a second run does."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from zerda_pg import Memory, MemoryStore
from zerda_pg.operations import importing
from zerda_pg.operations.importing import Occurrences


def lines_of(items: Iterable[Any]) -> bytes:
    return b"".join(
        item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n" for item in items
    )


def stream(*items: Any) -> io.BytesIO:
    return io.BytesIO(lines_of(items))


def talk(session: str, *said: str, **more: Any) -> list[dict[str, Any]]:
    return [{"session": session, "speaker": "A", "text": text, **more} for text in said]


def links(memory: Memory) -> set[tuple[str, str]]:
    """Body → body of each `precedes`, read off the neighbours one step away."""
    found = set()
    items = memory.entries(limit=1000).items
    for entry in items:
        for other in memory.neighbours(entry.id, relations=["precedes"]):
            if entry.timestamp < other.entry.timestamp:
                found.add((entry.content["text"], other.entry.content["text"]))
    return found


def test_entries_with_adds_names(anytenant: Memory) -> None:
    report = anytenant.import_file(
        stream(
            {"content": "the first", "id": "one", "kind": "fact", "importance": 0.9,
             "tags": ["a"], "metadata": {"id": "data"}, "timestamp": "2025-01-01T00:00:00Z"},
            {"content": {"input": "hi", "output": "hello"}, "id": 2},
        )
    )  # fmt: skip
    assert report == {
        "lines": 2, "created": 2, "replaced": 0, "kept": 0, "duplicate": 0, "failed": 0,
        "errors": [],
    }  # fmt: skip
    one = anytenant.get("one")
    assert one is not None
    assert (one.kind, one.importance, one.tags) == ("fact", 0.9, ["a"])
    assert one.metadata == {"id": "data"}
    assert one.created_at.isoformat() == "2025-01-01T00:00:00+00:00"
    two = anytenant.get("2")
    assert two is not None
    assert two.content == {"input": "hi", "output": "hello"}


def test_messages_become_linked_episodes(anytenant: Memory) -> None:
    anytenant.import_file(
        stream(
            {"session": "s1", "speaker": "A", "text": "one", "id": "D1:1", "mood": "calm"},
            {"session": "s2", "role": "user", "content": "uno"},
            {"session": "s1", "speaker": "B", "text": "two"},
            {"session": "s2", "role": "assistant", "content": "dos"},
            {"session": "s1", "speaker": "A", "text": "three"},
        )
    )
    first = anytenant.get("D1:1")
    assert first is not None
    assert first.memory_type == "episodic"
    assert first.session_id == "s1"
    assert first.content == {"speaker": "A", "text": "one"}
    assert first.metadata == {"mood": "calm"}, "what is not known is kept, not dropped"
    assert links(anytenant) == {("one", "two"), ("two", "three"), ("uno", "dos")}


@pytest.mark.parametrize("timed", [True, False])
def test_a_second_run_changes_nothing(anytenant: Memory, timed: bool) -> None:
    stamp = {"timestamp": "2025-01-01T00:00:00Z"} if timed else {}
    items = [
        *talk("s", "hello", "ok", "ok", "bye", **stamp),
        {"content": "a fact"},
        {"content": "a fact"},
        {"content": "another", "tags": ["x"]},
    ]
    first = anytenant.import_file(stream(*items))
    assert first["created"] == 7, "a repeated ok and a repeated fact are memories of their own"
    before = {e.id: e.version for e in anytenant.entries(limit=100)}
    edges = anytenant.stats()["edges"]
    again = anytenant.import_file(stream(*items))
    assert (again["created"], again["kept"]) == (0, 7)
    assert {e.id: e.version for e in anytenant.entries(limit=100)} == before
    assert anytenant.stats()["edges"] == edges == 3


def test_an_import_and_add_messages_agree_on_ids(memory: Memory) -> None:
    messages = talk("s", "hello", "ok", "ok", timestamp="2025-01-01T00:00:00Z")
    memory.import_file(stream(*messages))
    results = memory.add_messages(messages, session_id="s")
    assert [result.status for result in results] == ["kept"] * 3


def test_bad_lines_are_told_and_the_others_written(anytenant: Memory) -> None:
    report = anytenant.import_file(
        stream(
            {"content": "good 1"},
            b"not json\n",
            b"\n",
            b"[1, 2]\n",
            {"content": "x", "importance": 7},
            {"content": "x", "colour": "red"},
            {"kind": "fact"},
            b'{"content": "\\u0000"}\n',
            b'{"content": NaN}\n',
            b'{"content": "\xff"}\n',
            b'{"content": "\\ud800"}\n',
            {"text": "no session", "speaker": "A"},
            {"session": "s", "text": "no speaker"},
            {"session": "s", "speaker": "A", "text": "t", "timestamp": "2025-01-01T00:00:00"},
            {"content": "x", "supersedes": ["nowhere"]},
            b"[" * 100_000 + b"\n",
            {"content": "good 2"},
            b'{"content": "good 3, without a line break at its end"}',
        )
    )
    assert report["created"] == 3
    assert report["lines"] == 17, "a blank line is none"
    assert report["failed"] == 14
    told = {error["line"]: error["error"] for error in report["errors"]}
    assert sorted(told) == [2, *range(4, 17)]
    for number, words in {
        2: "not JSON", 4: "JSON object", 5: "importance", 6: "colour", 7: "content", 8: "NUL",
        9: "NaN", 10: "UTF-8", 11: "surrogate", 12: "session", 13: "speaker", 14: "timestamp",
        15: "nowhere", 16: "JSON",
    }.items():  # fmt: skip
        assert words in told[number], (number, told[number])


def test_a_line_may_replace_one_before_it(memory: Memory) -> None:
    # ids chosen so that the order of writing by id is the wrong one
    report = memory.import_file(
        stream(
            {"content": "the office is in Porto", "id": "z-old"},
            {"content": "the office is in Lisbon", "id": "a-new", "supersedes": "z-old"},
        )
    )
    assert report["created"] == 2, report
    old = memory.get("z-old")
    assert old is not None
    assert old.status == "superseded"


def test_what_exists_is_kept_replaced_or_refused(anytenant: Memory) -> None:
    anytenant.add("before", id="one")
    kept = anytenant.import_file(stream({"content": "after", "id": "one"}))
    assert kept["kept"] == 1
    refused = anytenant.import_file(
        stream({"content": "after", "id": "one"}, {"content": "new", "id": "two"}),
        if_exists="error",
    )
    assert (refused["created"], refused["failed"]) == (1, 1)
    assert refused["errors"][0]["line"] == 1
    replaced = anytenant.import_file(stream({"content": "after", "id": "one"}), if_exists="replace")
    assert replaced["replaced"] == 1
    found = anytenant.get("one")
    assert found is not None
    assert found.content == "after"
    with pytest.raises(ValueError, match="if_exists"):
        anytenant.import_file(stream(), if_exists="maybe")  # type: ignore[arg-type]


def test_dedupe_finds_the_same_content(memory: Memory) -> None:
    memory.add("Rotate the keys monthly")
    report = memory.import_file(stream({"content": "rotate the  KEYS monthly"}), dedupe=True)
    assert report["duplicate"] == 1
    assert memory.count() == 1


def test_dedupe_tells_times_of_being_true_apart(memory: Memory) -> None:
    ahead = (datetime.now(UTC) + timedelta(days=30)).isoformat()
    lines = [
        {"content": "Ines leads", "valid_from": ahead},
        {"content": "Ines leads"},
        {"content": "ines leads", "valid_from": ahead},
    ]
    report = memory.import_file(stream(*lines), dedupe=True)
    assert (report["created"], report["duplicate"]) == (2, 1)
    assert len(memory.search("Ines leads")) == 1


def test_files_compressed_marked_or_damaged(memory: Memory, tmp_path: Path) -> None:
    plain = tmp_path / "a.jsonl"
    plain.write_bytes(b"\xef\xbb\xbf" + lines_of([{"content": "with a byte order mark"}]))
    assert memory.import_file(plain)["created"] == 1
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(lines_of({"content": f"memory {n}"} for n in range(1500))))
    damaged = tmp_path / "c.jsonl.gz"
    damaged.write_bytes(packed.read_bytes()[:-1000])
    report = memory.import_file(damaged)
    assert report["failed"] == 1
    assert "cut off" in report["errors"][0]["error"]
    assert 0 < report["created"] < 1500
    report = memory.import_file(str(packed))
    assert report["created"] + report["kept"] == 1500
    with pytest.raises(FileNotFoundError):
        memory.import_file(tmp_path / "missing")


def test_progress_counts_lines_of_a_file(memory: Memory, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines_of({"content": f"memory {n}"} for n in range(600)))
    seen: list[Any] = []
    memory.import_file(path, progress=lambda *told: seen.append(told))
    assert seen[-1] == (600, 600)
    assert seen == sorted(seen)
    memory.import_file(stream({"content": "x"}), progress=lambda *told: seen.append(told))
    assert seen[-1] == (1, None), "how long a stream is shows at its end"


def test_users_do_not_meet_in_a_file(store: MemoryStore) -> None:
    ada, bob = (store.tenant("acme", user_id=name) for name in ("ada", "bob"))
    assert ada.import_file(stream({"content": "mine"}))["created"] == 1
    assert bob.import_file(stream({"content": "mine"}))["created"] == 1
    assert ada.count() == bob.count() == 1


def test_sessions_beyond_those_remembered_are_linked_too(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "SESSIONS_KEPT", 20)
    many = 70
    first = [line for n in range(many) for line in talk(f"s{n}", f"a{n}")]
    second = [line for n in range(many) for line in talk(f"s{n}", f"b{n}")]
    memory.import_file(stream(*first, *second))
    assert memory.stats()["edges"] == many


def test_occurrences_beyond_the_recent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Occurrences, "RECENT", 10)
    occurrences, expected = Occurrences(), Counter[str]()
    for n in range(300):
        key = f"key {n * n % 101}"
        expected[key] += 1
        assert occurrences.count(key) == expected[key]


def test_memory_does_not_grow_with_the_file(memory: Memory, tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.jsonl"
        path.write_bytes(lines_of({"content": f"{count} {n} {'x' * 1900}"} for n in range(count)))
        tracemalloc.reset_peak()
        memory.import_file(path)
        return tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    try:
        peak(300)  # what is made once
        small, large = peak(600), peak(3000)
    finally:
        tracemalloc.stop()
    # the longer file is 4.8 MB larger
    assert large < small + 1_500_000, f"{small} bytes for 600 lines, {large} for 3000"
