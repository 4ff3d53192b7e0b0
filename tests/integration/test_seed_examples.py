"""The examples of the systems re-implemented here run unchanged but for their import."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zerda_pg import Candidate, MemoryEntry, rerank_entries, score_memory

SELECTOR = """
from zerda_pg import MemorySelector, SelectionConfig, MemoryEntry, MemoryType
import time

selector = MemorySelector(SelectionConfig(top_k=5, token_budget=1000))

candidates = [
    MemoryEntry(content={"input": f"fact {i}", "output": "ok"},
                timestamp=time.time() - i * 3600, memory_type=MemoryType.SEMANTIC,
                importance=0.5)
    for i in range(20)
]

# 1. Basic — no precomputed similarity scores (all get rel=0.5, query has no effect here)
selected = selector.select_entries("irrelevant query text", candidates)

# 2. Intermediate — with real similarity scores from SemanticMemory.search()
sim_scores = {candidates[0].id: 0.9, candidates[5].id: 0.7}
selected2 = selector.select_entries("What facts do we know?", candidates, sim_scores)

# 3. Advanced — diagnostic breakdown
breakdown = selector.explain("query", candidates, sim_scores)
for row in breakdown[:3]:
    print(row)

# 4. Error handling — invalid weights
try:
    SelectionConfig(relevance_weight=0.5, recency_weight=0.5, importance_weight=0.5)
except ValueError as e:
    print(e)  # "Weights must sum to 1.0, got 1.500"

# 5. Production — tune weights toward recency for a live-chat use case
live_chat_config = SelectionConfig(
    relevance_weight=0.4, recency_weight=0.4, importance_weight=0.2,
    recency_half_life_hours=2.0,  # much shorter half-life
)
live_selector = MemorySelector(live_chat_config)
"""

WORKING = """
from zerda_pg import WorkingMemory, MemoryEntry, MemoryType
import time

wm = WorkingMemory(capacity=5, token_budget=500)

# 1. Basic
entry = wm.add({"input": "Remember this", "output": "Got it"}, importance=0.7)

# 2. Intermediate — load() replaces contents each turn
candidates = [MemoryEntry(content={"input": f"fact {i}", "output": "ok"},
                           timestamp=time.time(), memory_type=MemoryType.WORKING,
                           importance=0.5 + i * 0.05)
              for i in range(8)]
wm.load(candidates)
print(len(wm.get_all()))  # up to 5, budget/capacity permitting

# 3. Advanced — inspect as text for prompt injection
print(wm.get_as_text())

# 4. Error handling — degenerate capacity
try:
    WorkingMemory(capacity=0).add({"input": "x", "output": "y"})
except ValueError as e:
    print(e)

# 5. Production — check token pressure
stats = wm.stats()
if stats["estimated_tokens_used"] >= stats["token_budget"] * 0.9:
    print("Working memory near its token budget")
"""

SEMANTIC = """
import time
from zerda_pg import SemanticMemory, MemoryEntry, MemoryType

sm = SemanticMemory(tenant_id="acme-corp")

# 1. Basic
entry = MemoryEntry(
    content={"input": "I prefer dark roast coffee", "output": "Noted!"},
    timestamp=time.time(), memory_type=MemoryType.SEMANTIC, importance=0.6,
)
sm.add(entry)
results = sm.search("What kind of coffee does the user like?", k=3)
for e, score in results:
    print(score, e.content)

# 2. Intermediate — batch insert
entries = [MemoryEntry(content={"input": f"fact {i}", "output": "ok"},
                        timestamp=time.time(), memory_type=MemoryType.SEMANTIC)
           for i in range(50)]
sm.add_batch(entries)

# 3. Advanced — entries-only convenience
top_entries = sm.search_entries("coffee preferences", k=5, min_score=0.2)

# 4. Error handling — searching an empty store
empty_sm = SemanticMemory()
print(empty_sm.search("anything", k=5))  # [] — no exception

# 5. Production — check backend/mode before trusting relevance
stats = sm.stats()
print(f"Backend: {stats['backend']}, configured model: {stats['model']}")
"""

AFTERWARDS = """
from zerda_pg import AIMemoryManager, LongTermMemory, ShortTermMemory
assert entry.embedding is not None and len(entry.embedding) == 384
assert [e.content["input"] for e in top_entries][0] == "I prefer dark roast coffee"
assert stats["real_model"] and stats["dimensions"] == 384
print(stats["entries"])
ShortTermMemory(tenant_id="acme-corp").add("hello")
LongTermMemory(tenant_id="acme-corp").store(MemoryEntry("kept", id="kept"))
AIMemoryManager().save_interaction("ann", "acme-corp", "I moved to Bonn", "Noted")
assert "Bonn" in AIMemoryManager().build_context("ann", "acme-corp", "Where do I live?").text
"""


def run(example: str) -> tuple[list[str], dict[str, Any]]:
    """The lines it prints, and its names."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(example, "example", "exec"), names)
    return output.getvalue().splitlines(), names


def test_memory_selector() -> None:
    lines, names = run(SELECTOR)
    rows = [ast.literal_eval(line) for line in lines[:3]]
    candidates = names["candidates"]
    # without similarities: all alike but for their age
    assert [entry.id for entry in names["selected"]] == [entry.id for entry in candidates[:5]]
    best = [candidates[n].id for n in (0, 5, 1, 2, 3)]
    assert [entry.id for entry in names["selected2"]] == best
    assert [row["id"] for row in rows] == best[:3]
    assert [row["relevance"] for row in rows] == [0.9, 0.7, 0.5]
    assert rows[0]["composite"] == pytest.approx(0.5 * 0.9 + 0.2 * 1.0 + 0.3 * 0.5, abs=1e-4)
    assert rows[0]["content"] == str(candidates[0].content)
    # better than the original: where the relevance comes from
    assert [row["relevance_source"] for row in rows] == ["given", "given", "neutral"]
    assert lines[3:] == ["Weights must sum to 1.0, got 1.500"]
    assert names["live_selector"].config.recency_half_life_hours == 2.0


def test_working_memory() -> None:
    lines, names = run(WORKING)
    assert lines[0] == "5"
    # 4, 5, 6, 7 and 3 by importance, as a transcript with a blank line between
    turns = "\n".join(lines[1:-1]).split("\n\n")
    assert turns == [f"user: fact {n}\nassistant: ok" for n in (7, 6, 5, 4, 3)]
    # better than the original: at construction, naming the argument
    assert lines[-1] == "capacity must be at least 1, got 0"
    assert names["entry"].memory_type.value == "working"
    assert names["stats"]["entries"] == 5


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user who has set nothing but where the data goes."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ZERDA_PG_")
    }
    environment |= {name: os.environ[name] for name in ("ZERDA_PG_BINDIR",) if name in os.environ}
    yield environment | {"ZERDA_PG_HOME": str(tmp_path_factory.mktemp("home"))}


def outside(code: str, environment: dict[str, str], directory: Path) -> list[str]:
    """The lines that a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment, cwd=directory, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.model
@pytest.mark.slow
def test_semantic_memory_on_the_default_store(home: dict[str, str], tmp_path: Path) -> None:
    lines = outside(SEMANTIC + AFTERWARDS, home, tmp_path)
    score, _, content = lines[0].partition(" ")
    assert 0.4 < float(score) < 1.0
    assert ast.literal_eval(content) == {"input": "I prefer dark roast coffee", "output": "Noted!"}
    assert lines[1:] == ["[]", "Backend: pgvector, configured model: all-MiniLM-L6-v2", "51"]

    # better than the original: what was kept is still there, so that a second run adds again
    again = outside(SEMANTIC + AFTERWARDS, home, tmp_path)
    assert [line.partition(" ")[2] for line in again[:2]] == [content, content]
    assert again[-1] == "103"  # with the turn that the manager saved


def test_nothing_is_opened_before_it_is_needed(home: dict[str, str], tmp_path: Path) -> None:
    code = """
from zerda_pg import (AIMemoryManager, ConfigError, LongTermMemory, SemanticMemory,
                      ShortTermMemory, WorkingMemory)
made = [SemanticMemory(), LongTermMemory(), ShortTermMemory(), AIMemoryManager()]
WorkingMemory().add("x")
for call in (lambda: made[0].search("x"), made[1].count, made[2].get_all,
             lambda: made[3].stats("acme")):
    try:
        call()
    except ConfigError as error:
        print(error)
"""
    lines = outside(code, home | {"ZERDA_PG_EMBEDDED": "0"}, tmp_path)
    assert len(lines) == 4
    assert all("ZERDA_PG_URL" in line for line in lines)


def test_the_kind_prior_s_function() -> None:
    """Every branch of it in one task of four words, of which two are in the text."""
    text, task = "We chose Postgres for the dialog", "postgres log of yesterday"
    for kind, prior in (
        ("decision", 0.35), ("fact", 0.30), ("preference", 0.25), ("failure", 0.20),
        ("attempt", 0.05), ("other", 0.0),
    ):  # fmt: skip
        for accesses, bonus in ((0, 0.0), (1, 0.02), (5, 0.10), (6, 0.10), (500, 0.10)):
            # `log` is in `dialog`, `of` is too short to count as a hit, and counts as a word
            expected = prior + 0.8 * 0.30 + 2 / 4 * 0.25 + bonus
            assert score_memory(kind, 0.8, text, accesses, task) == pytest.approx(expected)
    assert score_memory("fact", 0.5, text, 0, "") == pytest.approx(0.45)
    assert score_memory("fact", 0.5, text, 0, " \t\n") == pytest.approx(0.45)
    # two characters, six bytes: a word that counts
    assert score_memory("fact", 0.0, "数据库迁移", 0, "迁移") == pytest.approx(0.55)
    assert score_memory("fact", 0.0, "ÉCOLE", 0, "école") == pytest.approx(0.55)


def test_the_reranker_s_contract_without_weights() -> None:
    """Pure similarity order, whatever the graph, the ages and λ say."""
    records: list[dict[str, Any]] = [
        {"id": "a", "updated_at": "2020-01-01T00:00:00Z"},
        {"id": "b", "updated_at": "2026-01-01T00:00:00Z", "related_to": ["c", "a"]},
        {"id": "c"},
    ]
    rows = rerank_entries(
        [Candidate("b", 0.2), ("a", 0.9), ("c", 0.5, ""), ("a", 0.1)],
        records, vectors={"a": [1.0, 0.0], "b": [1.0, 0.0]}, touched_ids=["b"], top_k=2,
    )  # fmt: skip
    assert [(row["id"], row["rank"], row["importance"]) for row in rows] == [
        ("a", 1, None), ("c", 2, None),
    ]  # fmt: skip
    assert rerank_entries([], records) == []


def test_positional_arguments_stand_in_their_old_order() -> None:
    short: Any = "st"
    entry = MemoryEntry("x", 5.0, short, 0.4, 3, ["t"], {"id": "given"}, [0.1], 6.0, 0.9, 0.8)
    assert (entry.timestamp, entry.memory_type.value, entry.importance) == (5.0, "short_term", 0.4)
    assert (entry.access_count, entry.tags, entry.id) == (3, ["t"], "given")
    assert (entry.embedding, entry.last_access) == ([0.1], 6.0)
    assert (entry.decay_factor, entry.original_importance) == (0.9, 0.8)
