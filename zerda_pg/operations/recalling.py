"""Search, context and explanation: gather, rank, choose, fetch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from zerda_pg.core import Core
from zerda_pg.db import maintenance, reads, recall, writes
from zerda_pg.db.criteria import admits_superseded, entry_only
from zerda_pg.db.facts import Model
from zerda_pg.db.gather import Arms, GatherShape
from zerda_pg.db.recall import Gathered, Question
from zerda_pg.db.rows import entries_from_json
from zerda_pg.entry import MemoryEntry
from zerda_pg.errors import InvalidContentError
from zerda_pg.operations.search_options import SearchOptions, ranker_name, ranker_of
from zerda_pg.results import Hit, Hits
from zerda_pg.scope import Scope
from zerda_pg.scoring import hybrid
from zerda_pg.scoring.cues import phrases_of
from zerda_pg.scoring.hybrid import ChannelRanker, HybridRanker
from zerda_pg.scoring.recency import decay
from zerda_pg.scoring.signals import Ranker, Ranking, Signals, check_ranking
from zerda_pg.scoring.succession import asks_for_value, successors_first
from zerda_pg.steps import Steps, background, embed_query, read
from zerda_pg.text import check_text

__all__ = [
    "LEAST_LOOKED_AT",
    "Recalled",
    "Timer",
    "recalled",
    "record",
    "report_of",
    "search",
    "search_many",
    "shape_of",
]

LOOKED_AT = 4
"""Candidates that are ranked, for each that is wanted."""

LEAST_LOOKED_AT = 64
"""Candidates that are ranked at least; of 240 found for ten, ranking all finds nothing more."""


@dataclass(kw_only=True)
class Timer:
    """Milliseconds by step."""

    milliseconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.perf_counter)

    def lap(self, step: str) -> None:
        """The time since the last lap belongs to `step`."""
        instant = time.perf_counter()
        self.milliseconds[step] = round((instant - self._since) * 1000, 3)
        self._since = instant


@dataclass(frozen=True, kw_only=True, eq=False)
class Recalled:
    """Candidates in order."""

    gathered: Gathered
    ranking: Ranking
    entries: dict[str, MemoryEntry]
    """Those that were fetched."""
    recordable: bool
    """Whether the role counts accesses."""

    def hits(self, rows: Sequence[int]) -> list[Hit]:
        """Hits for rows whose entries were fetched."""
        signals, names = self.gathered.signals, list(self.ranking.contributions)
        told = np.array(
            [
                self.ranking.scores,
                signals.similarity,
                hybrid.lexical(signals),
                decay(signals.age_seconds, hybrid.RECENCY_HALF_LIFE_SECONDS),
                signals.importance,
                *self.ranking.contributions.values(),
            ]
        )
        return [
            Hit(
                entry=self.entries[signals.ids[row]],
                score=score,
                similarity=None if math.isnan(cosine) else cosine,
                lexical=words,
                recency=recency,
                importance=importance,
                contributions=dict(zip(names, parts, strict=True)),
            )
            for row, (score, cosine, words, recency, importance, *parts) in zip(
                rows, told.T[list(rows)].tolist(), strict=True
            )
        ]


Choice = Callable[[Gathered, Ranking], Sequence[int]]
"""Which rows to fetch."""


def question_of(core: Core, scope: Scope, query: str, options: SearchOptions) -> Steps[Question]:
    """Check the query and embed it, where the mode and the store need it."""
    if not check_text(query, "query").strip():
        raise InvalidContentError("query is empty: say what to look for")
    model: Model | None = None
    vector: NDArray[np.float32] | None = None
    if options.mode != "lexical":
        model = yield from core.model_for_reading()
        if options.embedding is not None:
            vector = core.unit_vector(options.embedding, "embedding")
        elif model is not None:
            vector = yield from embed_query(core.embedder, query)
    return Question(
        criteria=options.criteria(scope),
        text=query,
        vector=vector,
        model_id=None if model is None else model.id,
        language=core.language,
        current_session=options.current_session or scope.session_id,
        phrases=phrases_of(query) if options.mode == "hybrid" else (),
    )


def shape_of(
    core: Core, questions: Sequence[Question], options: SearchOptions, ranker: Ranker, wanted: int
) -> GatherShape:
    """What to gather for questions that differ only in their texts: in few sizes, since each is
    compiled.

    By meaning alone the arm's order is the answer's, so it need bring no more than is wanted;
    others choose from at least twice as many. The default ranker is given those that look best
    to it, and vectors where it compares some; other rankers see them all, and so does who admits
    superseded memories, whose successors come whatever they look like.
    """
    question = questions[0]
    default = isinstance(ranker, HybridRanker)
    alone = isinstance(ranker, ChannelRanker)
    compares = any(asks_for_value(asked.text) for asked in questions) if default else not alone
    least = 10 if alone else Arms().dense
    size = _size(least, wanted if alone and options.mode == "dense" else 2 * wanted)
    arms = Arms(dense=size, lexical=size, pool=Arms().pool if compares else 0)
    hybrid_mode = options.mode == "hybrid"
    criteria = question.criteria
    ann = core.ann_dimensions(criteria.scope.tenant_id, question.model_id)
    if entry_only(criteria) or criteria.filter.min_importance is not None:
        ann = None  # the index knows nothing of what is filtered by
    return GatherShape(
        dense=question.vector is not None and options.mode != "lexical",
        lexical=options.mode != "dense",
        recent=hybrid_mode,
        graph=hybrid_mode,
        degree=not (default or alone),
        session=question.current_session is not None,
        phrases=any(asked.phrases for asked in questions),
        isolated=core.facts.isolated,
        vectors=getattr(ranker, "needs_vectors", False),
        ann=ann,
        arms=arms,
        best=_size(LEAST_LOOKED_AT, LOOKED_AT * wanted)
        if default and not admits_superseded(criteria)
        else None,
    )


def _size(least: int, wanted: int) -> int:
    while least < wanted:
        least *= 2
    return least


def recalled(
    core: Core,
    scope: Scope,
    query: str,
    options: SearchOptions,
    *,
    wanted: int,
    choose: Choice,
) -> Steps[tuple[Recalled, Question, Timer]]:
    """Gather, rank, choose and fetch, on one connection."""
    timer = Timer()
    ranker = ranker_of(options.ranker, options.mode)
    question = yield from question_of(core, scope, query, options)
    timer.lap("embed")
    shape = shape_of(core, [question], options, ranker, wanted)

    def work(connection: Connection) -> Recalled:
        timer.lap("connect")
        gathered = recall.gather(connection, core.facts, question, shape)
        timer.lap("gather")
        ranking = _ranked(ranker, gathered.signals, query)
        rows = choose(gathered, ranking)
        timer.lap("rank")
        entries = _fetch(connection, scope, question, gathered, rows)
        timer.lap("fetch")
        return Recalled(
            gathered=gathered, ranking=ranking, entries=entries,
            recordable=core.facts.records_access,
        )  # fmt: skip

    with core.model_in_use():
        found = yield from read(work)
    if shape.dense and len(found.gathered.signals):
        core.note_index(scope.tenant_id, found.gathered.ann_model_id)
    if core.facts.records_access:
        yield from _count_if_stale(scope, found.gathered)
    return found, question, timer


def _ranked(ranker: Ranker, signals: Signals, text: str) -> Ranking:
    ranking = ranker.rank(signals, text)
    if not isinstance(ranker, HybridRanker | ChannelRanker):
        check_ranking(ranking, len(signals))
    return successors_first(ranking, signals)


def _fetch(
    connection: Connection, scope: Scope, question: Question, gathered: Gathered,
    rows: Sequence[int],
) -> dict[str, MemoryEntry]:  # fmt: skip
    """The chosen rows' entries, which came along, unless one is too long for that."""
    ids = gathered.signals.ids
    lines = {ids[row]: gathered.whole[ids[row]] for row in rows if ids[row] in gathered.whole}
    found = dict(zip(lines, entries_from_json(lines.values()), strict=True))
    missing = [row for row in rows if ids[row] not in found]
    if not missing:
        return found
    if question.criteria.known_at is None:
        now = question.criteria.now
        return found | reads.fetch_entries(connection, scope, [ids[r] for r in missing], now=now)
    versions = [(ids[row], gathered.versions[row]) for row in missing]
    return found | reads.fetch_versions(connection, scope, versions)


def _count_if_stale(scope: Scope, gathered: Gathered) -> Steps[None]:
    """Have a tenant's lexemes counted where the search met many more than were counted."""
    missed = max((t.entries - 2 * t.counted for t in gathered.terms if t.looked_up), default=0)
    if missed > maintenance.COUNT_FROM:
        yield from background(lambda c: maintenance.count_lexemes(c, scope.tenant_id))


def search(core: Core, scope: Scope, query: str, options: SearchOptions) -> Steps[Hits]:
    """The best k for a query."""

    def choose(gathered: Gathered, ranking: Ranking) -> list[int]:
        return _best(ranking, options)

    found, question, timer = yield from recalled(
        core, scope, query, options, wanted=options.k, choose=choose
    )
    hits = _hits(found, options, timer)
    yield from record(core, scope, [hit.entry.id for hit in hits], question, options)
    return hits


def _best(ranking: Ranking, options: SearchOptions) -> list[int]:
    good = [row for row in ranking.order if ranking.scores[row] >= options.min_score]
    return good[: options.k]


def _hits(found: Recalled, options: SearchOptions, timer: Timer) -> Hits:
    ids = found.gathered.signals.ids
    rows = [row for row in _best(found.ranking, options) if ids[row] in found.entries]
    report = report_of(found, options, timer)
    report["returned"] = len(rows)
    return Hits(found.hits(rows), report)


def report_of(found: Recalled, options: SearchOptions, timer: Timer) -> dict[str, Any]:
    """How the candidates were found, as data."""
    scores, order = found.ranking.scores, found.ranking.order
    below = sum(1 for row in order if scores[row] < options.min_score)
    return {
        "mode": options.mode,
        "ranker": ranker_name(options.ranker),
        "candidates": len(found.gathered.signals),
        "arms": found.gathered.arm_counts(),
        "path": "exact" if found.gathered.exact else "hnsw",
        "terms": [
            {"lexeme": t.lexeme, "entries": t.entries, "looked_up": t.looked_up}
            for t in found.gathered.terms
        ],
        "dropped": {
            "below_min_score": below,
            "beyond_k": max(0, len(order) - below - options.k),
            "by_ranker": len(found.gathered.signals) - len(order),
        },
        "milliseconds": timer.milliseconds,
        "access_recorded": options.record_access and found.recordable,
    }  # fmt: skip


def record(
    core: Core, scope: Scope, ids: Sequence[str], question: Question, options: SearchOptions
) -> Steps[None]:
    """Count the accesses, after the answer is known; a replay of the past counts nothing."""
    if not (options.record_access and core.facts.records_access and ids):
        return
    session = question.current_session
    yield from background(lambda c: writes.record_access(c, scope, ids, session))


def _questions(
    core: Core, scope: Scope, queries: Sequence[str], options: SearchOptions
) -> Steps[list[Question]]:
    asked: list[Question] = []
    for query in queries:
        question = yield from question_of(core, scope, query, options)
        asked.append(question)
    return asked


def search_many(
    core: Core, scope: Scope, queries: Sequence[str], options: SearchOptions
) -> Steps[list[Hits]]:
    """One `Hits` a query; all are gathered in one round trip."""
    if isinstance(queries, str) or not isinstance(queries, Sequence):
        raise ValueError(f"queries must be a list of strings, got {type(queries).__name__}")
    if options.embedding is not None and len(queries) > 1:
        raise ValueError("embedding belongs to one query: search_many embeds its queries itself")
    timer = Timer()
    ranker = ranker_of(options.ranker, options.mode)
    if not queries:
        return []
    questions = yield from _questions(core, scope, queries, options)
    timer.lap("embed")
    shape = shape_of(core, questions, options, ranker, options.k)

    def work(connection: Connection) -> list[Recalled]:
        timer.lap("connect")
        every = recall.gather_many(connection, core.facts, questions, shape)
        timer.lap("gather")
        rankings = [
            _ranked(ranker, gathered.signals, question.text)
            for gathered, question in zip(every, questions, strict=True)
        ]
        timer.lap("rank")
        found = [
            Recalled(
                gathered=gathered,
                ranking=ranking,
                recordable=core.facts.records_access,
                entries=_fetch(connection, scope, question, gathered, _best(ranking, options)),
            )
            for gathered, ranking, question in zip(every, rankings, questions, strict=True)
        ]
        timer.lap("fetch")
        return found

    with core.model_in_use():
        found = yield from read(work)
    results = [_hits(one, options, timer) for one in found]
    ids = [hit.entry.id for hits in results for hit in hits]
    yield from record(core, scope, ids, questions[0], options)
    return results
