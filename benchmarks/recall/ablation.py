"""`python -m benchmarks.recall.ablation PATH`: what each part of ranking and packing is worth.

Every question is asked once as for ten memories and once as for fifty, by a ranker that keeps the
signals it was given. What follows needs no store: each variant ranks the same candidates anew.
The last line is an oracle that knows, for each question and figure, which of five rankings to take.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.recall.__main__ import OUT
from benchmarks.recall.cache import CachedEmbedder
from benchmarks.recall.cases import Case, Question, load
from benchmarks.recall.metrics import Row, averages, evidence_share, groups_of, ranking_figures
from benchmarks.recall.run import BUDGETS, write
from zerda_pg import MemoryStore
from zerda_pg.embedding.resolve import resolve
from zerda_pg.operations.packer import worth_by_rank
from zerda_pg.scoring import hybrid, packing, succession
from zerda_pg.scoring.hybrid import HybridRanker, HybridWeights
from zerda_pg.scoring.signals import Ranking, Signals
from zerda_pg.testing import temporary_database

SUITES = ("locomo", "beam-core", "longmemeval-mini", "devmembench")
NARROW, WIDE = 10, 50
"""Memories wanted: of as many candidates as for the first, contexts up to 1,000 tokens choose."""


class Keeping(HybridRanker):
    """The default ranker, which keeps what it saw."""

    signals: Signals

    def rank(self, signals: Signals, task: str) -> Ranking:
        """Rank, and keep."""
        self.signals = signals
        return super().rank(signals, task)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question with its candidates."""

    case: Case
    question: Question
    tokens: dict[str, int]
    signals: dict[int, Signals]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A change of the recipe."""

    name: str
    weights: HybridWeights = field(default_factory=HybridWeights)
    patched: tuple[tuple[Any, str, Any], ...] = ()
    """Module, name and value."""
    changed: Callable[[Signals], Signals] = lambda signals: signals


def _within(steps: int) -> Callable[[Signals], Signals]:
    """Neighbours so far away only."""

    def changed(signals: Signals) -> Signals:
        near = np.abs(signals.links[:, 2]) <= steps
        return replace(signals, links=signals.links[near])

    return changed


def _alone(signals: Signals) -> Signals:
    return replace(signals, links=signals.links[:0])


def _as_it_was(_: Signals, scores: Any, order: list[int], __: str) -> tuple[list[int], Any]:
    return order, scores


def _all_short(signals: Signals) -> NDArray[np.float64]:
    return np.ones(len(signals))


NEVER, ALWAYS = re.compile("(?!)"), re.compile("")

NOTHING = dict.fromkeys(HybridWeights.__dataclass_fields__, 0.0)

VARIANTS = [
    Variant(name="everything"),
    Variant(name="no neighbours", changed=_alone),
    Variant(name="neighbours lend words, not cosine", weights=HybridWeights(neighbours=0.0)),
    Variant(name="neighbours one step away only", changed=_within(1)),
    Variant(name="no discount for length", patched=((hybrid, "brevity", _all_short),)),
    Variant(name="no speaker", weights=HybridWeights(speaker=0.0)),
    Variant(name="no time", weights=HybridWeights(time=0.0)),
    Variant(name="no newer value first", patched=((hybrid, "newer_value_first", _as_it_was),)),
    Variant(name="newer among the best five", patched=((succession, "TOP", 5),)),
    Variant(name="newer from cosine 0.5 on", patched=((succession, "SAME_SUBJECT", 0.5),)),
    Variant(name="newer also for the past", patched=((succession, "_PAST", NEVER),)),
    Variant(name="newer without a word of change", patched=((succession, "_CHANGE", ALWAYS),)),
    Variant(name="cosine alone", weights=HybridWeights(**NOTHING | {"similarity": 1.0})),
    Variant(name="words alone", weights=HybridWeights(**NOTHING | {"lexical": 1.0})),
    *(
        Variant(name=f"γ = {exponent}", patched=((packing, "LENGTH_EXPONENT", exponent),))
        for exponent in (0.0, 0.15, 0.25, 0.5)
    ),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, then print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall.ablation")
    parser.add_argument("path", type=Path, help="a folder of SUITE/CASE.json.gz, or one file")
    parser.add_argument("--embedder", default="onnx", help="as of MemoryStore.open")
    parser.add_argument("--out", type=Path, default=OUT, help="where vectors are kept")
    options = parser.parse_args(arguments)
    embedder = CachedEmbedder(resolve(options.embedder), options.out / "cache")
    with temporary_database() as url, MemoryStore.open(url, embedder=embedder) as store:
        asked = [one for case in load(options.path) for one in ask(store, case)]
    print(f"| | {' | '.join(SUITES)} | updated; R@1; R@3; nDCG@10 of beam-core |")
    print("| --- " * (len(SUITES) + 2) + "|")
    every: dict[str, list[Row]] = {}
    for variant in VARIANTS:
        every[variant.name] = rows(variant, asked)
        print(line(variant.name, means(every[variant.name])), flush=True)
    print(line("an oracle over five", means(oracle([every[name] for name in RANKINGS]))))
    return 0


def ask(store: MemoryStore, case: Case) -> Iterator[Asked]:
    """Every question of a case."""
    memory, ranker = write(store, case), Keeping()
    after = max(m.timestamp for m in case.memories) + timedelta(seconds=1)
    tokens = {m.id: m.tokens for m in case.memories}
    for question in case.questions:
        found = {}
        for k in (NARROW, WIDE):
            now = question.asked_at or after
            memory.search(question.text, k=k, ranker=ranker, now=now, record_access=False)
            found[k] = ranker.signals
        yield Asked(case=case, question=question, tokens=tokens, signals=found)


RANKINGS = ("everything", "no neighbours", "no time", "cosine alone", "words alone")
"""Of which the oracle chooses."""


def rows(variant: Variant, asked: Sequence[Asked]) -> list[Row]:
    """A row for each question."""
    with ExitStack() as patches:
        for module, name, value in variant.patched:
            patches.enter_context(patch.object(module, name, value))
        return [_row(HybridRanker(variant.weights), variant, one) for one in asked]


def oracle(rankings: Sequence[Sequence[Row]]) -> list[Row]:
    """Of each question and figure the best."""
    return [
        replace(
            same[0],
            figures={name: max(row.figures[name] for row in same) for name in same[0].figures},
        )
        for same in zip(*rankings, strict=True)
    ]


def means(found: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By suite."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        for group in groups_of(row):
            groups[group].append(row)
    return {group: averages(rows) for group, rows in groups.items()}


def _row(ranker: HybridRanker, variant: Variant, one: Asked) -> Row:
    ranked: dict[int, tuple[Signals, Ranking]] = {}
    for k, signals in one.signals.items():
        changed = variant.changed(signals)
        ranked[k] = changed, ranker.rank(changed, one.question.text)
    signals, ranking = ranked[WIDE]
    order = [signals.ids[row] for row in ranking.order[:WIDE]]
    found = ranking_figures(one.case, one.question, order)
    for budget in BUDGETS:
        packed = _packed(*ranked[NARROW if budget <= 1000 else WIDE], one.tokens, budget)
        found[f"packed@{budget}"] = evidence_share(one.case, one.question, packed)
    return Row(
        case=one.case.name, suite=one.case.suite, category=one.question.category,
        question=one.question.id, method=variant.name, figures=found,
    )  # fmt: skip


def _packed(signals: Signals, ranking: Ranking, tokens: dict[str, int], budget: int) -> set[str]:
    chosen = packing.pack(
        worth_by_rank(ranking),
        np.array([tokens[name] for name in signals.ids], dtype=np.int64),
        budget=budget,
        policy="value",
        order=[row for row in ranking.order if ranking.scores[row] > 0.0],
    ).chosen
    return {signals.ids[row] for row in chosen}


def line(name: str, found: dict[str, dict[str, float]]) -> str:
    """R@5 / R@10; evidence packed at 500 / 1,000 / 2,000 tokens, of each suite, in percent."""

    def shares(suite: str, names: Sequence[str], between: str) -> str:
        values = found.get(suite, {})
        return between.join(f"{values[n] * 100:.1f}" if n in values else "–" for n in names)

    packed = [f"packed@{budget}" for budget in BUDGETS]
    cells = [
        f"{shares(suite, ('R@5', 'R@10'), ' / ')}; {shares(suite, packed, ' / ')}"
        for suite in SUITES
    ]
    last = shares("beam-core", ("updated", "R@1", "R@3", "nDCG@10"), "; ")
    return f"| {name} | {' | '.join(cells)} | {last} |"


if __name__ == "__main__":
    sys.exit(main())
