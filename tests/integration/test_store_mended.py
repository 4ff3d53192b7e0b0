"""Kinds of faults that a hostile tester found, each with the right value."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from zerda_pg import AsyncMemoryStore, Memory, MemoryStore
from zerda_pg.scoring.forgetting import ForgettingConfig


def test_what_was_superseded_stays_so_when_its_program_runs_again(memory: Memory) -> None:
    for _ in range(2):
        memory.add("the office is in Porto", id="o")
        memory.add("moved to Lisbon, the office", id="n", supersedes="o")
    assert [hit.entry.id for hit in memory.search("the office is in Porto")] == ["n"]
    assert memory.add("the office is in Porto", id="o").status == "kept"
    # something new under the same id is a memory in force
    assert memory.add("the office is in Rome", id="o").status == "replaced"
    assert "o" in [hit.entry.id for hit in memory.search("office in Rome")]


def test_what_was_discarded_and_then_superseded_is_superseded_when_restored(
    memory: Memory,
) -> None:
    memory.add("the office is in Porto", id="o")
    memory.discard("o")
    memory.add("moved to Lisbon, the office", id="n", supersedes="o")
    assert memory.get("o").status == "discarded"  # type: ignore[union-attr]
    memory.restore("o")
    assert memory.get("o").status == "superseded"  # type: ignore[union-attr]
    assert [hit.entry.id for hit in memory.search("the office is in Porto")] == ["n"]


def test_an_end_in_the_future_is_refused(memory: Memory) -> None:
    memory.add("office", id="o")
    with pytest.raises(ValueError, match=r"^at must not lie in the future"):
        memory.invalidate("o", at=datetime.now(UTC) + timedelta(days=5))
    assert memory.count() == 1


def test_a_users_stats_and_export_tell_nothing_of_others(
    store: MemoryStore, tmp_path: Path
) -> None:
    whole = store.tenant("acme")
    ann, bob = (store.tenant("acme", user_id=user) for user in ("ann", "bob"))
    ann.add("mine", kind="note")
    bob.add("secret of bob", id="u", kind="hidden")
    bob.relate("u", bob.add("another of bob").id)
    stats = ann.stats()
    assert (stats["entries"], stats["vectors"], stats["edges"]) == (1, 1, 0)
    assert "hidden" not in stats["by_kind"]
    whole.update("u", user_id="ann", content="handed over")
    ann.export(tmp_path / "ann.jsonl")
    assert "secret of bob" not in (tmp_path / "ann.jsonl").read_text()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("expires_at", "infinity"),
        ("created_at", "4000-01-01 BC"),
        ("metadata", "text"),
        ("decay_factor", "NaN"),
        ("importance", 7),
        ("tags", [None]),
        ("version", -1),
        ("access_count", -5),
        ("language", "klingon"),
        ("kind", ""),
    ],
)
def test_an_edited_export_is_checked(
    memory: Memory, store: MemoryStore, tmp_path: Path, column: str, value: Any
) -> None:
    memory.add("good", id="good")
    file = tmp_path / "export.jsonl"
    memory.export(file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if "entry" in line:
            line["entry"][column] = value
    file.write_text("\n".join(json.dumps(line) for line in lines))
    other = store.tenant("other")
    report = other.import_file(file)
    assert (report["created"], report["failed"]) == (0, 1)
    assert report["errors"][0]["error"].startswith(column)
    assert other.entries().items == []


def test_a_memory_far_beyond_the_budget_is_shown_in_part(memory: Memory) -> None:
    filler = " ".join(f"Sentence number {n} is about nothing in particular." for n in range(600))
    memory.add(f"{filler} The zebra was seen at the harbour. {filler}", id="long")
    context = memory.build_context("Where was the zebra seen?", token_budget=200)
    assert "zebra" in context.text
    assert 0 < context.tokens <= 200


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: m.add("x", dedupe=1), "dedupe must be"),
        (lambda m: m.add_many([{"content": "x"}], dedupe="yes"), "dedupe must be"),
        (lambda m: m.add("x", if_exists=[]), "if_exists must be"),
        (lambda m: m.add_many([{"content": "x"}], progress=5), "progress must be"),
        (lambda m: m.add_messages([], session_id="s", user_id=b"x"), "user_id must be"),
        (lambda m: m.search("x", mode=[]), "mode must be"),
        (lambda m: m.entries(order=[]), "order must be"),
        (lambda m: m.build_context("x", render={}), "render must be"),
        (lambda m: m.build_context("x", render=lambda _: 5), "render must give text"),
        (lambda m: m.build_context("x", count_tokens=lambda _: -1), "count_tokens must give"),
        (lambda m: m.build_context("x", count_tokens=lambda _: float("nan")), "count_tokens must"),
        (lambda m: m.forget("zzz"), "config must be"),
        (lambda m: m.add("x", expires_at=3600), "expires_at must be a datetime"),
        (lambda m: m.update("there", expires_at=3600.0), "expires_at must be a datetime"),
        (lambda m: m.search("x", embedding=[10**400] * 384), "embedding must be"),
    ],
)
def test_wrong_arguments_are_named(memory: Memory, call: Any, said: str) -> None:
    memory.add("something about x", id="there")
    with pytest.raises(ValueError, match=f"^{said}"):
        call(memory)
    assert memory.count() == 1
    assert isinstance(memory.forget(ForgettingConfig(), dry_run=True), dict)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: m.build_context("x", budget=5), r"build_context\(\) has no argument 'budget'"),
        (lambda m: m.search_many(["x"], limit=5), r"search_many\(\) has no argument 'limit'"),
        (lambda m: m.explain("x", top_k=5), r"explain\(\) has no argument 'top_k'"),
        (lambda m: MemoryStore("postgresql://"), r"MemoryStore\.open\(url\)"),
        (lambda m: AsyncMemoryStore(), r"AsyncMemoryStore\.open\(url\)"),
    ],
)
def test_arguments_that_there_are_not(memory: Memory, call: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call(memory)


def test_k_of_a_context_is_its_top_k(memory: Memory) -> None:
    memory.add_many([{"content": f"the harbour log, page {n}"} for n in range(9)])
    assert len(memory.build_context("harbour log", k=3).entries) == 3
    assert len(memory.build_context("harbour log", k=3, top_k=5).entries) == 5
    assert len(memory.build_context("harbour log").entries) == 9


def test_an_engine_that_is_none() -> None:
    for engine in ("postgresql://", 5):
        with pytest.raises(ValueError, match=r"^engine must be a SQLAlchemy engine"):
            MemoryStore.open(engine=engine)  # type: ignore[arg-type]


def test_a_cancelled_call_gives_its_connection_back(database: str) -> None:
    async def run() -> int:
        async with AsyncMemoryStore.open(database, embedder="hashing", pool_size=2) as store:
            memory = store.tenant("acme")
            await memory.add("something to find", id="one")
            for wait in range(40):
                task = asyncio.create_task(memory.search("something", record_access=False))
                await asyncio.sleep(wait * 0.0005)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            found = await asyncio.gather(*(memory.search("something") for _ in range(4)))
            return sum(len(hits) for hits in found)

    assert asyncio.run(run()) == 4
