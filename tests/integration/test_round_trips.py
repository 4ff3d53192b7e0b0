"""One statement a recall, whatever is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import sent_statements

from zerda_pg import Memory, MemoryStore
from zerda_pg.db.gather_best import AHEAD_BYTES
from zerda_pg.testing import temporary_database

LATER = datetime.now(UTC) + timedelta(hours=1)


def reads(statements: list[str]) -> int:
    """How many of them read memories."""
    return sum("zerda.entries" in statement for statement in statements)


@pytest.fixture(scope="module")
def memory(server: None) -> Iterator[Memory]:
    with temporary_database() as url, MemoryStore.open(url, embedder="hashing") as store:
        memory = store.tenant("talk")
        told = [f"turn {n}: the {'cat' if n % 3 else 'dog'} has {n} toys" for n in range(300)]
        for start in range(0, 300, 30):
            memory.add_messages(
                [{"speaker": "user", "text": text} for text in told[start : start + 30]],
                session_id=f"s{start}",
            )
        yield memory


@pytest.mark.parametrize("k", [1, 10, 100])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"mode": "dense"},
        {"mode": "lexical"},
        {"valid_at": LATER},
        {"known_at": LATER},
        {"now": LATER},
    ],
)
def test_a_search_sends_one_statement(memory: Memory, k: int, asked: dict[str, Any]) -> None:
    with sent_statements() as statements:
        hits = memory.search("how many toys has the dog?", k=k, record_access=False, **asked)
    assert len(hits) == k
    assert reads(statements) == 1
    assert [hit.entry for hit in hits] == memory.get_many([hit.entry.id for hit in hits])


@pytest.mark.parametrize("ranker", ["default", "composite", "fusion", "kind_prior"])
@pytest.mark.parametrize("budget", [200, 3000, 30_000])
def test_a_context_sends_one_statement(memory: Memory, budget: int, ranker: str) -> None:
    with sent_statements() as statements:
        context = memory.build_context(
            "how many toys has the dog?", token_budget=budget, ranker=ranker, record_access=False
        )
    assert context.entries
    assert reads(statements) == 1


def test_several_queries_send_one_statement(memory: Memory) -> None:
    with sent_statements() as statements:
        found = memory.search_many(["the dog", "the cat", "toys"], record_access=False)
    assert [len(hits) for hits in found] == [10, 10, 10]
    assert reads(statements) == 1


def test_only_a_very_long_memory_is_fetched_by_itself(memory: Memory) -> None:
    text = "zebra " + "x" * AHEAD_BYTES
    added = memory.add(text)
    with sent_statements() as statements:
        (hit,) = memory.search("zebra", k=1, record_access=False)
    assert hit.entry.content == text
    assert hit.entry.id == added.entry.id
    assert reads(statements) == 2


def test_a_very_long_memory_goes_by_the_same_clock(memory: Memory) -> None:
    ends = datetime.now(UTC) + timedelta(milliseconds=300)
    for size in (1, AHEAD_BYTES):
        memory.add("okapi " + "x" * size, id=f"okapi {size}", expires_at=ends)
    before = ends - timedelta(hours=1)
    time.sleep(0.4)
    asked: dict[str, Any] = {"k": 2, "record_access": False}
    assert len(memory.search("okapi", now=before, **asked)) == 2
    assert not [h for h in memory.search("okapi", **asked) if h.entry.id.startswith("okapi")]
    context = memory.build_context("okapi", now=before, token_budget=50_000, record_access=False)
    assert f"okapi {AHEAD_BYTES}" in [entry.id for entry in context.entries]
    told = memory.explain("okapi", id="okapi 1", now=ends + timedelta(days=1))["entry"]
    assert "expired" in told["reasons"][0]


def test_explain_tells_of_what_was_found_and_not_ranked(memory: Memory) -> None:
    task = "how many toys has the dog?"
    ranked = {row["id"] for row in memory.explain(task, k=1)["rows"]}
    others = [entry.id for entry in memory.entries(limit=150) if entry.id not in ranked]
    reasons = [memory.explain(task, k=1, id=other)["entry"]["reasons"] for other in others]
    passed = [reason for (reason,) in reasons if "not among the 64 that looked best" in reason]
    assert len(ranked) == 64
    assert passed
    assert any(reason.startswith("lexical") for reason in passed)
