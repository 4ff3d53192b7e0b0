"""The weighted composite: relevance, recency and importance, then packing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from zerda_pg.clock import to_epoch
from zerda_pg.entry import MemoryEntry, fraction
from zerda_pg.scoring.importance import importances
from zerda_pg.scoring.packing import Packed, Policy, check_policy, pack
from zerda_pg.scoring.recency import RECENCY_BASES, age_seconds, check_half_life, decay
from zerda_pg.scoring.signals import Floats
from zerda_pg.text import body_of

__all__ = [
    "HitLike",
    "MemorySelector",
    "QueryEmbedder",
    "RecencyBasis",
    "RelevanceSource",
    "ScoredMemory",
    "SelectionConfig",
    "check_count",
    "estimate_tokens",
]

RecencyBasis = Literal["created", "updated", "accessed"]
RelevanceSource = Literal["given", "query", "neutral"]

NEUTRAL_RELEVANCE = 0.5
"""Relevance of an entry of which no similarity is known (the original's middle score)."""

CONTENT_PREVIEW = 120
"""Characters of the content that `to_dict` shows (the original's figure)."""

CHARACTERS_PER_TOKEN = 4
"""The original's token estimate, a rule of thumb for English."""


class QueryEmbedder(Protocol):
    """What a selector needs of an embedder; every embedder of the package has it."""

    def embed(
        self, texts: Sequence[str], *, kind: Literal["document", "query"] = "document"
    ) -> NDArray[np.float32]:
        """(n, d) float32, unit norm, in the order given."""
        ...


class HitLike(Protocol):
    """A search hit: an entry with the cosine of its embedding to the query."""

    @property
    def entry(self) -> MemoryEntry:
        """The memory."""
        ...

    @property
    def similarity(self) -> float | None:
        """Cosine to the query; None: not known."""
        ...


@dataclass
class SelectionConfig:
    """How a selection weighs and packs.

    Args:
        relevance_weight: In [0, 1]; the three weights sum to 1 (within 1e-3, relative).
        recency_weight: In [0, 1].
        importance_weight: In [0, 1].
        recency_half_life_hours: Age at which recency is 0.5, in hours; > 0.
        min_composite_score: Candidates below it are dropped; in [0, 1].
        top_k: Greatest number of memories, ≥ 1.
        token_budget: Greatest total of their tokens, ≥ 1.
        packing: `skip`, `stop`, `value` or `optimal`; see `zerda_pg.scoring.packing`.
        recency_basis: The clock that ages: `created`, `updated` or `accessed`.

    Raises:
        ValueError: Naming the field and its value.
    """

    relevance_weight: float = 0.50
    recency_weight: float = 0.20
    importance_weight: float = 0.30
    recency_half_life_hours: float = 24.0
    min_composite_score: float = 0.10
    top_k: int = 10
    token_budget: int = 3000
    packing: Policy = "skip"
    recency_basis: RecencyBasis = "created"

    def __post_init__(self) -> None:
        for name in ("relevance_weight", "recency_weight", "importance_weight"):
            fraction(getattr(self, name), name)
        total = self.relevance_weight + self.recency_weight + self.importance_weight
        if not math.isclose(total, 1.0, rel_tol=1e-3):
            raise ValueError(f"Weights must sum to 1.0, got {total:.3f}")
        check_half_life(self.recency_half_life_hours, "recency_half_life_hours")
        fraction(self.min_composite_score, "min_composite_score")
        check_count(self.top_k, "top_k")
        check_count(self.token_budget, "token_budget")
        check_policy(self.packing, "packing")
        if self.recency_basis not in RECENCY_BASES:
            raise ValueError(
                f"recency_basis must be one of {', '.join(RECENCY_BASES)}, "
                f"got {self.recency_basis!r}"
            )


@dataclass
class ScoredMemory:
    """An entry with its scores."""

    entry: MemoryEntry
    relevance_score: float = 0.0
    recency_score: float = 0.0
    importance_score: float = 0.0
    composite_score: float = 0.0
    relevance_source: RelevanceSource = "neutral"

    def to_dict(self) -> dict[str, Any]:
        """For logs: the content cut at 120 characters, scores rounded to 4 places."""
        return {
            "id": self.entry.id,
            "content": str(self.entry.content)[:CONTENT_PREVIEW],
            "relevance": round(self.relevance_score, 4),
            "recency": round(self.recency_score, 4),
            "importance": round(self.importance_score, 4),
            "composite": round(self.composite_score, 4),
        }


class MemorySelector:
    """Ranks candidates by weighted relevance, recency and importance and packs the best.

    Thread-safe: nothing is changed after construction.

    Args:
        config: Weights and limits; None: the defaults.
        embedder: Computes the relevance of candidates whose similarity is not given. An entry's
            own `embedding` is used where it has one, so it must come from the same embedder.
        count_tokens: Tokens of a text; None: a quarter of its characters, as in the original.
    """

    def __init__(
        self,
        config: SelectionConfig | None = None,
        *,
        embedder: QueryEmbedder | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        self.config = config or SelectionConfig()
        self._embedder = embedder
        self._count_tokens = count_tokens or estimate_tokens

    def select(
        self,
        query: str,
        candidates: Sequence[MemoryEntry | HitLike],
        similarity_scores: Mapping[str, float] | None = None,
        *,
        now: float | datetime | None = None,
    ) -> list[ScoredMemory]:
        """The best candidates that fit, best first; ties break by id.

        Args:
            query: What the memories are for; used by a selector with an embedder, for those
                whose similarity is neither given nor carried by a hit.
            candidates: Entries, or hits of a search, whose similarity is used.
            similarity_scores: Cosine by id; goes before a hit's.
            now: Seconds since the epoch or an aware datetime, to replay a selection.

        Raises:
            ValueError: A similarity is not a finite number (the id is named), or an entry's
                embedding has another length than the query's.
        """
        scored, packed = self._run(query, candidates, similarity_scores, now)
        return [scored[row] for row in packed.chosen]

    def select_entries(
        self,
        query: str,
        candidates: Sequence[MemoryEntry | HitLike],
        similarity_scores: Mapping[str, float] | None = None,
        *,
        now: float | datetime | None = None,
    ) -> list[MemoryEntry]:
        """The entries of `select`."""
        selected = self.select(query, candidates, similarity_scores, now=now)
        return [memory.entry for memory in selected]

    def explain(
        self,
        query: str,
        candidates: Sequence[MemoryEntry | HitLike],
        similarity_scores: Mapping[str, float] | None = None,
        *,
        rejected: bool = False,
        now: float | datetime | None = None,
    ) -> list[dict[str, Any]]:
        """`select` as rows of data: `ScoredMemory.to_dict` and `relevance_source`.

        Args:
            query: As for `select`.
            candidates: As for `select`.
            similarity_scores: As for `select`.
            rejected: Also list what was not chosen, after what was, best first. Every row then
                has a `reason`: None for the chosen, else `over_budget`, `beyond_top_k` or
                `below_min_score`.
            now: As for `select`.

        Raises:
            ValueError: As `select`.
        """
        scored, packed = self._run(query, candidates, similarity_scores, now)
        rows: list[tuple[int, str | None]] = [(row, None) for row in packed.chosen]
        if rejected:
            rows += packed.rejected.items()
            low = set(range(len(scored))) - {row for row, _ in rows}
            by_rank = sorted(low, key=lambda row: _rank_key(scored[row]))
            rows += [(row, "below_min_score") for row in by_rank]
        table = []
        for row, reason in rows:
            memory = scored[row]
            line = {**memory.to_dict(), "relevance_source": memory.relevance_source}
            table.append({**line, "reason": reason} if rejected else line)
        return table

    def _run(
        self,
        query: str,
        candidates: Sequence[MemoryEntry | HitLike],
        similarity_scores: Mapping[str, float] | None,
        now: float | datetime | None,
    ) -> tuple[list[ScoredMemory], Packed]:
        moment = time.time() if now is None else to_epoch(now, "now")
        scored = self._score(query, candidates, similarity_scores or {}, moment)
        least = self.config.min_composite_score
        kept = [row for row in range(len(scored)) if scored[row].composite_score >= least]
        kept.sort(key=lambda row: _rank_key(scored[row]))
        lengths = [0] * len(scored)
        for row in kept:
            lengths[row] = self._count_tokens(str(scored[row].entry.content))
        packed = pack(
            # a negative cosine can outweigh the rest, but then the row is not in `order`
            [max(0.0, memory.composite_score) for memory in scored],
            lengths,
            budget=self.config.token_budget,
            top_k=self.config.top_k,
            policy=self.config.packing,
            order=kept,
        )
        return scored, packed

    def _score(
        self,
        query: str,
        candidates: Sequence[MemoryEntry | HitLike],
        given: Mapping[str, float],
        now: float,
    ) -> list[ScoredMemory]:
        entries = [_entry_of(candidate) for candidate in candidates]
        relevance, sources = self._relevance(query, candidates, entries, given)
        ages = [age_seconds(entry, self.config.recency_basis, now) / 3600.0 for entry in entries]
        recency = decay(ages, self.config.recency_half_life_hours)
        importance = importances(entries)
        parts = composite_parts(self.config, relevance, recency, importance)
        composite = parts[0] + parts[1] + parts[2]
        rows = zip(
            entries,
            relevance.tolist(),
            recency.tolist(),
            importance.tolist(),
            composite.tolist(),
            sources,
            strict=True,
        )
        return [ScoredMemory(*row) for row in rows]

    def _relevance(
        self,
        query: str,
        candidates: Sequence[MemoryEntry | HitLike],
        entries: Sequence[MemoryEntry],
        given: Mapping[str, float],
    ) -> tuple[Floats, list[RelevanceSource]]:
        relevance = np.full(len(entries), NEUTRAL_RELEVANCE)
        sources: list[RelevanceSource] = ["neutral"] * len(entries)
        unknown = []
        for row, (candidate, entry) in enumerate(zip(candidates, entries, strict=True)):
            carried = None if isinstance(candidate, MemoryEntry) else candidate.similarity
            if entry.id in given:
                relevance[row], sources[row] = _similarity(given[entry.id], entry.id), "given"
            elif carried is not None:
                relevance[row], sources[row] = _similarity(carried, entry.id), "query"
            else:
                unknown.append(row)
        if self._embedder is not None and unknown and query.strip():
            cosines = _cosines(self._embedder, query, [entries[row] for row in unknown])
            for row, cosine in zip(unknown, cosines, strict=True):
                if cosine is not None:
                    relevance[row], sources[row] = _similarity(cosine, entries[row].id), "query"
        return relevance, sources


def composite_parts(
    config: SelectionConfig, relevance: Floats, recency: Floats, importance: Floats
) -> tuple[Floats, Floats, Floats]:
    """(n,) weighted signals, whose sum is the composite; for selector and store ranker alike."""
    return (
        config.relevance_weight * relevance,
        config.recency_weight * recency,
        config.importance_weight * importance,
    )


def estimate_tokens(text: str) -> int:
    """The original's estimate: a quarter of the characters, at least 1."""
    return max(1, len(text) // CHARACTERS_PER_TOKEN)


def check_count(value: object, name: str) -> None:
    """Raise a `ValueError` naming `name` unless `value` is a whole number ≥ 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def _rank_key(memory: ScoredMemory) -> tuple[float, str]:
    return (-memory.composite_score, memory.entry.id)


def _entry_of(candidate: MemoryEntry | HitLike) -> MemoryEntry:
    return candidate if isinstance(candidate, MemoryEntry) else candidate.entry


def _similarity(value: float, entry_id: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"similarity of {entry_id!r} must be a finite number, got {value}")
    return float(value)


def _cosines(
    embedder: QueryEmbedder, query: str, entries: Sequence[MemoryEntry]
) -> list[float | None]:
    """Cosine of each entry to the query; None for an entry without text."""
    wanted = embedder.embed([query], kind="query")[0].astype(np.float64)
    cosines: list[float | None] = [None] * len(entries)
    missing: dict[int, str] = {}
    for row, entry in enumerate(entries):
        if entry.embedding is None:
            text = body_of(entry.content)
            if text.strip():
                missing[row] = text
            continue
        vector = np.asarray(entry.embedding, dtype=np.float64)
        if vector.shape != wanted.shape:
            raise ValueError(
                f"embedding of {entry.id!r} has {vector.size} dimensions, the query {wanted.size}"
            )
        norm = float(np.linalg.norm(vector))
        cosines[row] = float(vector @ wanted) / norm if norm > 0.0 else None
    if missing:
        vectors = embedder.embed(list(missing.values()), kind="document").astype(np.float64)
        for row, cosine in zip(missing, vectors @ wanted, strict=True):
            cosines[row] = float(cosine)
    return cosines
