"""Asks a store the questions of the cases, through its public methods."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any

import psycopg

from benchmarks.recall.baselines import fused, ranked_by_words
from benchmarks.recall.cases import Case, Question
from benchmarks.recall.metrics import Row, evidence_share, ranking_figures
from zerda_pg import Context, MemoryEntry, MemoryStore
from zerda_pg.scoped import Memory

__all__ = ["BUDGETS", "METHODS", "Clocks", "ask", "write"]

BUDGETS = (500, 1000, 2000)
"""Token budgets at which evidence is packed."""

DEPTH = 200
"""Memories that a baseline ranks: enough to fill the largest budget."""

METHODS = ("zerda", "dense", "lexical", "rrf", "ts_rank")

Clocks = defaultdict[str, list[float]]
"""Milliseconds of every call, by what was called."""


MARK = "\x1e"
"""Between memories whose texts are counted one by one."""


def quarter(text: str) -> int:
    """The metric's token: four characters."""
    return -(-len(text) // 4)


def quarters(text: str) -> int:
    """The metric's cost of several memories: of each one's text, and of nothing else."""
    return sum(quarter(part) for part in text.split(MARK))


def write(store: MemoryStore, case: Case) -> Memory:
    """A case's conversations, into a tenant of its own."""
    memory = store.tenant(case.name)
    by_session = groupby(sorted(case.memories, key=lambda m: m.session), lambda m: m.session)
    for session, memos in by_session:
        memory.add_messages(
            [
                {"id": m.id, "speaker": m.speaker, "text": m.text, "timestamp": m.timestamp}
                for m in memos
            ],
            session_id=session,
        )
    return memory


def ask(
    memory: Memory,
    database: psycopg.Connection,
    case: Case,
    methods: Sequence[str],
    clocks: Clocks,
) -> Iterator[Row]:
    """A row for each question and method."""
    after = max(m.timestamp for m in case.memories) + timedelta(seconds=1)
    for question in case.questions:
        asked = {"now": question.asked_at or after, "record_access": False}
        for method, figures in _asked(memory, database, case, question, methods, asked, clocks):
            yield Row(
                case=case.name, suite=case.suite, category=question.category,
                question=question.id, method=method, figures=figures,
            )  # fmt: skip


def _asked(
    memory: Memory,
    database: psycopg.Connection,
    case: Case,
    question: Question,
    methods: Sequence[str],
    asked: Mapping[str, Any],
    clocks: Clocks,
) -> Iterator[tuple[str, dict[str, float]]]:
    if "zerda" in methods:
        yield "zerda", _ours(memory, case, question, asked, clocks)
    legs = {
        mode: _ids(memory, question, asked, mode, clocks)
        for mode in ("dense", "lexical")
        if mode in methods or "rrf" in methods
    }
    if "rrf" in methods:
        legs["rrf"] = fused([legs["dense"], legs["lexical"]])
    if "ts_rank" in methods:
        legs["ts_rank"] = ranked_by_words(database, case.name, question.text, DEPTH)
    for method, ranked in legs.items():
        if method in methods:
            yield method, _baseline(case, question, ranked)


def _ours(
    memory: Memory, case: Case, question: Question, asked: Mapping[str, Any], clocks: Clocks
) -> dict[str, float]:
    started = time.perf_counter()
    hits = memory.search(question.text, k=50, **asked)
    clocks["search"].append(_since(started, hits.report))
    figures = ranking_figures(case, question, [hit.entry.id for hit in hits])
    texts = {memo.id: memo.text for memo in case.memories}

    def texts_alone(entries: Sequence[MemoryEntry]) -> str:
        return MARK.join(texts[entry.id] for entry in entries)

    for budget in BUDGETS:
        started = time.perf_counter()
        context = memory.build_context(
            question.text, token_budget=budget, count_tokens=quarter, **asked
        )
        clocks["build_context"].append(_since(started, context.report))
        figures[f"shown@{budget}"] = _share(case, question, context)
        context = memory.build_context(
            question.text, token_budget=budget, render=texts_alone, count_tokens=quarters, **asked
        )
        figures[f"packed@{budget}"] = _share(case, question, context)
    return figures


def _share(case: Case, question: Question, context: Context) -> float:
    return evidence_share(case, question, {entry.id for entry in context.entries})


def _since(started: float, report: Mapping[str, Any]) -> float:
    """Milliseconds of a call without those of the query's embedding."""
    spent = (time.perf_counter() - started) * 1000.0
    return spent - float(report["milliseconds"].get("embed", 0.0))


def _ids(
    memory: Memory, question: Question, asked: Mapping[str, Any], mode: Any, clocks: Clocks
) -> list[str]:
    started = time.perf_counter()
    hits = memory.search(question.text, k=DEPTH, mode=mode, **asked)
    clocks[mode].append(_since(started, hits.report))
    return [hit.entry.id for hit in hits]


def _baseline(case: Case, question: Question, ranked: Sequence[str]) -> dict[str, float]:
    """A ranking's figures; packed greedily by rank, by the texts' lengths alone."""
    figures = ranking_figures(case, question, ranked[:50])
    tokens = {m.id: m.tokens for m in case.memories}
    for budget in BUDGETS:
        left, packed = budget, set()
        for memory in ranked:
            if tokens[memory] <= left:
                left -= tokens[memory]
                packed.add(memory)
        figures[f"packed@{budget}"] = evidence_share(case, question, packed)
    return figures
