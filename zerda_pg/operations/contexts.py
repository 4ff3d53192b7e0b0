"""`build_context` and `explain`: what goes into the prompt, and why the rest does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np

from zerda_pg.core import Core
from zerda_pg.db import reads, recall
from zerda_pg.db.criteria import Criteria
from zerda_pg.db.gather import ARM_BITS
from zerda_pg.db.recall import Gathered, Question
from zerda_pg.entry import MemoryEntry, Status
from zerda_pg.filters import Filter
from zerda_pg.ids import check_id
from zerda_pg.operations.packer import Packer, PackingOptions, worth_by_rank
from zerda_pg.operations.recalling import (
    LEAST_LOOKED_AT,
    Recalled,
    Timer,
    recalled,
    record,
    report_of,
    shape_of,
)
from zerda_pg.operations.search_options import SearchOptions, ranker_name, ranker_of
from zerda_pg.results import Context
from zerda_pg.scope import Scope
from zerda_pg.scoring.packing import pack
from zerda_pg.scoring.signals import Ranking
from zerda_pg.steps import Steps, read
from zerda_pg.text import body_of
from zerda_pg.tokens import TokenCounter, resolve_counter

__all__ = ["PackingOptions", "build_context", "explain"]

WIDEST = 200
"""Candidates that packing considers where their sizes do not tell which could fit."""

TOKENS_EACH = 60
"""Of a memory, to tell for how many a budget has room; a wider search packs nothing more."""

MOST = 500
"""Memories for which the arms search at most, whatever the budget."""

BEST = 3
"""Candidates that are fetched whatever their length."""

SLACK = 2
"""Budget, in multiples, up to which bodies are fetched: an estimate by bytes chooses them."""

BYTES_PER_TOKEN = 4
"""Of the estimate only; what is packed is counted exactly."""


def build_context(
    core: Core, scope: Scope, task: str, options: SearchOptions, packing: PackingOptions
) -> Steps[Context]:
    """Recall for the task and pack under the budget."""
    counter = core.count_tokens
    if packing.count_tokens is not None:
        counter = resolve_counter(packing.count_tokens)

    def choose(gathered: Gathered, ranking: Ranking) -> list[int]:
        foreign = callable(packing.render) or counter is not core.count_tokens
        return _worth_fetching(gathered, ranking, options, packing, estimated=not foreign)

    room = min(packing.token_budget // TOKENS_EACH, MOST)
    if options.mode != "hybrid":  # whose arms bring so many of themselves: short ones fit as well
        room = max(room, LEAST_LOOKED_AT)
    found, question, timer = yield from recalled(
        core, scope, task, options, wanted=room, choose=choose
    )
    context = _packed(found, options, packing, counter, timer)
    yield from record(core, scope, [entry.id for entry in context.entries], question, options)
    return context


def _worth_fetching(
    gathered: Gathered,
    ranking: Ranking,
    options: SearchOptions,
    packing: PackingOptions,
    *,
    estimated: bool,
) -> list[int]:
    """Rows that could be packed, by the bodies' sizes: texts are fetched for these only.

    With a renderer or a counter of the caller's, sizes say nothing of tokens; and what is
    optimal is not known before the tokens are.
    """
    order = [
        row
        for row in ranking.order
        if ranking.scores[row] > 0.0 and ranking.scores[row] >= options.min_score
    ]
    if not estimated or packing.packing == "optimal":
        return order[:WIDEST]
    fitting = pack(
        worth_by_rank(ranking),
        np.maximum(1, gathered.signals.sizes // BYTES_PER_TOKEN),
        budget=packing.token_budget * SLACK,
        policy=packing.packing,
        order=order,
    ).chosen
    # of the best, a part may be shown where the whole does not fit
    return list(dict.fromkeys([*order[:BEST], *fitting]))


def _packed(
    found: Recalled,
    options: SearchOptions,
    packing: PackingOptions,
    counter: TokenCounter,
    timer: Timer,
) -> Context:
    ids = found.gathered.signals.ids
    packer = Packer(found, packing, counter)
    packer.fill()
    timer.lap("pack")
    report = report_of(found, options, timer)
    del report["dropped"]["beyond_k"]
    chosen = set(packer.chosen)
    report |= {
        "token_budget": packing.token_budget,
        "tokens": packer.tokens,
        "packing": packing.packing,
        "packing_exact": packer.exact,
        "packed": [_line(found, row) for row in packer.chosen],
        "excerpts": [_line(found, row) for row in packer.parts],
        "not_packed": [
            _line(found, row) | {"reason": packer.reason(row, options.min_score)}
            for row in found.ranking.order
            if row not in chosen
        ][:WIDEST],
    }
    return Context(
        text=packer.text,
        entries=packer.entries,
        tokens=packer.tokens,
        report=report,
        excerpts=[found.entries[ids[row]] for row in packer.parts],
    )


def _line(found: Recalled, row: int) -> dict[str, Any]:
    """One candidate for a report: scores, no content."""
    return {
        "id": found.gathered.signals.ids[row],
        "score": round(float(found.ranking.scores[row]), 4),
        "arms": [arm for arm, bit in ARM_BITS.items() if found.gathered.arms[row] & bit],
        "contributions": {
            name: round(float(part[row]), 4) for name, part in found.ranking.contributions.items()
        },
    }


def explain(
    core: Core,
    scope: Scope,
    task: str,
    options: SearchOptions,
    *,
    entry_id: str | None,
) -> Steps[dict[str, Any]]:
    """Every candidate with its channels and its fate; with `entry_id`, that of one entry."""
    if entry_id is not None:
        check_id(entry_id, "id")

    def choose(gathered: Gathered, ranking: Ranking) -> list[int]:
        wanted = ranking.order[: options.k]
        ids = gathered.signals.ids
        if entry_id in ids and ids.index(entry_id) not in wanted:
            wanted = [*wanted, ids.index(entry_id)]
        return list(wanted)

    found, question, timer = yield from recalled(
        core, scope, task, options, wanted=options.k, choose=choose
    )
    report = report_of(found, options, timer)
    rows = _explained(found, options)
    report["returned"] = sum(1 for row in rows if row["fate"] == "returned")
    report["rows"] = rows
    if entry_id is not None:
        one = next((row for row in rows if row["id"] == entry_id), None)
        if one is None:
            one = yield from _absent(core, scope, question, options, entry_id)
        report["entry"] = one
    return report


def _explained(found: Recalled, options: SearchOptions) -> list[dict[str, Any]]:
    signals, scores = found.gathered.signals, found.ranking.scores
    rank_of = {row: rank for rank, row in enumerate(found.ranking.order, 1)}
    rows: list[dict[str, Any]] = []
    for row in [*found.ranking.order, *(r for r in range(len(signals)) if r not in rank_of)]:
        rank = rank_of.get(row)
        if rank is None:
            fate = "dropped_by_ranker"
        elif scores[row] < options.min_score:
            fate = "below_min_score"
        else:
            fate = "returned" if rank <= options.k else "beyond_k"
        entry = found.entries.get(signals.ids[row])
        line = _line(found, row) | {
            "rank": rank,
            "fate": fate,
            "reasons": _reasons(fate, rank, float(scores[row]), options),
            "similarity": _number(signals.similarity[row]),
            "lexical": round(float(signals.lexical[row]), 4),
            "age_days": round(float(signals.age_seconds[row]) / 86400, 3),
            "importance": round(float(signals.importance[row]), 4),
        }
        if entry is not None:
            line |= {"content": body_of(entry.content)[:200], "kind": entry.kind}
        rows.append(line)
    return rows


def _reasons(fate: str, rank: int | None, score: float, options: SearchOptions) -> list[str]:
    """Why a candidate was not returned; none if it was."""
    match fate:
        case "beyond_k":
            return [f"rank {rank}, k is {options.k}"]
        case "below_min_score":
            return [f"score {score:.2f}, min_score is {options.min_score:.2f}"]
        case "dropped_by_ranker":
            return [f"the ranker {ranker_name(options.ranker)} leaves it out"]
        case _:
            return []


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 4)


def _absent(
    core: Core, scope: Scope, question: Question, options: SearchOptions, entry_id: str
) -> Steps[dict[str, Any]]:
    """Why an entry was not even ranked."""
    entry = yield from read(lambda c: reads.fetch_entry(c, scope, entry_id, now=options.now))
    if entry is None:
        reason = "there is no such entry in this scope, or it has expired"
        return {"id": entry_id, "fate": "absent", "reasons": [reason]}
    reasons: list[str] = []
    wanted = Filter.of(options.filter)
    for name in wanted.__dataclass_fields__:
        if getattr(wanted, name) in (None, (), {}):
            continue
        alone = Filter(**cast(Any, {name: getattr(wanted, name)}))
        statuses = None if name == "status" else ["active", "superseded", "discarded"]
        if statuses is not None:
            alone = replace(alone, status=statuses)
        if not (yield from _admits(Criteria(scope=scope, filter=alone, now=options.now), entry)):
            reasons.append(f"the filter's {name} leaves it out")
    if not reasons and not (yield from _admits(options.criteria(scope), entry)):
        reasons.append((yield from _state(scope, options, entry)))
    if not reasons:
        reasons.append((yield from _passed_over(core, question, options, entry_id)))
    return {"id": entry_id, "fate": "not_a_candidate", "reasons": reasons}


def _passed_over(
    core: Core, question: Question, options: SearchOptions, entry_id: str
) -> Steps[str]:
    """Why an entry that the search may find was not ranked."""
    shape = shape_of(core, [question], options, ranker_of(options.ranker, options.mode), options.k)
    everything = replace(shape, best=None)
    every = yield from read(lambda c: recall.gather(c, core.facts, question, everything))
    if entry_id not in every.signals.ids:
        return "no arm found it: its words, its vector and its edges are too far off"
    row = every.signals.ids.index(entry_id)
    arms = ", ".join(arm for arm, bit in ARM_BITS.items() if every.arms[row] & bit)
    return f"{arms} found it, but it is not among the {shape.best} that looked best"


def _state(scope: Scope, options: SearchOptions, entry: MemoryEntry) -> Steps[str]:
    """What keeps an entry out that no filter keeps out."""
    if entry.status is Status.DISCARDED:
        return "it is discarded: restore brings it back"
    present = options.known_at is None and options.valid_at is None
    begins = entry.valid_from
    if present and begins is not None and begins > (options.now or datetime.now(UTC)):
        return f"it is true only from {begins:%Y-%m-%d} on: valid_at asks for what is true then"
    past = options.known_at is not None or (
        options.valid_at is not None
        and (entry.valid_to is None or options.valid_at < entry.valid_to)
    )
    if past or entry.status is Status.ACTIVE:
        return "it is not true, or was not known, at the time asked for"
    ended = "" if entry.valid_to is None else f" on {entry.valid_to:%Y-%m-%d}"
    successors = yield from read(lambda c: reads.successors(c, scope, entry.id))
    if not successors:
        return f"it was marked as no longer true (superseded){ended}"
    return f"it was superseded by {', '.join(map(repr, successors))}{ended}"


def _admits(criteria: Criteria, entry: MemoryEntry) -> Steps[bool]:
    return (yield from read(lambda c: reads.admits(c, criteria, entry.id)))
