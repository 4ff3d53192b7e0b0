"""What is measured, for one question and over many; all figures are shares in [0, 1]."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from benchmarks.recall.cases import Case, Question

__all__ = ["KS", "Row", "averages", "evidence_share", "groups_of", "half", "ranking_figures"]

KS = (1, 3, 5, 10, 20, 50)
"""Ranks at which recall is taken."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One question asked by one method."""

    case: str
    suite: str
    category: str
    question: str
    method: str
    figures: Mapping[str, float]


def evidence_share(case: Case, question: Question, found: Set[str]) -> float:
    """The share of the evidence that is among `found`: memories, or else sessions."""
    if question.sessions:
        sessions = {case.session_of[memory] for memory in found}
        return len(question.sessions & sessions) / len(question.sessions)
    return len(question.evidence & found) / len(question.evidence)


def ranking_figures(case: Case, question: Question, ranked: Sequence[str]) -> dict[str, float]:
    """Recall at each k, nDCG at 10, and which of two values came first."""
    figures = {f"R@{k}": evidence_share(case, question, set(ranked[:k])) for k in KS}
    if not question.sessions:
        figures["nDCG@10"] = _ndcg(question.evidence, ranked, 10)
    if question.updated and question.outdated:
        figures["updated"] = float(
            _best(question.updated, ranked) < _best(question.outdated, ranked)
        )
    return figures


def _best(wanted: Set[str], ranked: Sequence[str]) -> int:
    """Rank of the first; one that was not retrieved ranks last."""
    return next((rank for rank, memory in enumerate(ranked) if memory in wanted), len(ranked))


def _ndcg(evidence: Set[str], ranked: Sequence[str], k: int) -> float:
    gain = sum(
        1.0 / math.log2(rank + 2) for rank, memory in enumerate(ranked[:k]) if memory in evidence
    )
    ideal = sum(1.0 / math.log2(rank + 2) for rank in range(min(k, len(evidence))))
    return gain / ideal


CORE_WITHOUT = {"event_ordering", "summarization"}
"""Categories of BEAM whose evidence is most of a conversation: no top ten can hold it."""


def groups_of(row: Row) -> list[str]:
    """Suites that a row counts in: its own, and its half of that."""
    suite = row.suite
    core = suite.startswith("beam") and row.category not in CORE_WITHOUT
    suites = [suite, "beam-core"] if core else [suite]
    return [*suites, *(f"{name}:{half(row)}" for name in suites)]


def half(row: Row) -> str:
    """`a` or `b`, so that what is tuned on one half can be checked on the other.

    By case, so that nothing of the other half's conversations is looked at; a suite of a single
    case is split by question.
    """
    name = row.question if row.case.endswith("/all") else row.case
    return "ab"[zlib.crc32(name.encode()) % 2]


def averages(rows: Iterable[Row]) -> dict[str, float]:
    """The mean of each figure over the questions that have it, and their number."""
    sums: dict[str, list[float]] = defaultdict(list)
    count = 0
    for row in rows:
        count += 1
        for name, value in row.figures.items():
            sums[name].append(value)
    return {"questions": float(count)} | {
        name: sum(values) / len(values) for name, values in sums.items()
    }
