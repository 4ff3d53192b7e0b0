"""Recall, then rerank: reciprocal rank fusion over channels, then maximal marginal relevance.

Fusion after Cormack, Clarke and Büttcher, SIGIR 2009; diversity after Carbonell and Goldstein,
SIGIR 1998. A channel only ever adds: a candidate that is absent from it loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from zerda_pg.scoring.rerank_config import RerankConfig, memory_rerank_config, rerank_disabled
from zerda_pg.scoring.rerank_maps import (
    Record,
    build_get_vector,
    build_importance_map,
    build_recency_map,
)
from zerda_pg.scoring.signals import Floats

__all__ = [
    "RRF_K",
    "Candidate",
    "CandidateLike",
    "Fused",
    "diversify",
    "fuse",
    "rerank",
    "rerank_entries",
]

RRF_K = 60.0
"""Constant of reciprocal rank fusion, in ranks (Cormack et al. 2009, chosen on TREC)."""


@dataclass(frozen=True)
class Candidate:
    """What recall found."""

    id: str
    similarity: float
    """To the query; finite."""
    source_graph: str = ""
    """Ids are unique within one graph."""
    keyword_tier: int = 0
    """A higher tier ranks before any similarity."""


CandidateLike: TypeAlias = (
    Candidate | tuple[str, float] | tuple[str, float, str] | tuple[str, float, str, int]
)
GetVector: TypeAlias = Callable[[str, str], ArrayLike | None]
ChannelMap: TypeAlias = Mapping[Any, float]
"""By id, or by (source_graph, id), which goes before the bare id."""


@dataclass(frozen=True, kw_only=True)
class Fused:
    """A fusion; lists are by row."""

    order: list[int]
    """Rows, best first."""
    scores: list[float]
    ranks: list[dict[str, int]]
    """From 1, by channel; a channel in which the row is absent is missing."""
    contributions: list[dict[str, float]]
    """weight / (60 + rank), by channel; they add up to the score."""


def rerank(
    candidates: Iterable[CandidateLike],
    *,
    importance_map: ChannelMap | None = None,
    recency_map: ChannelMap | None = None,
    cfg: RerankConfig | None = None,
    get_vector: GetVector | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Fuse the channels of the candidates and order them.

    Score: Σ weight / (60 + rank) over the channels similarity (by keyword tier, then
    similarity), importance and recency. Ties go by similarity rank, then (source_graph, id).
    Of duplicates the best counts.

    Args:
        candidates: `Candidate`s or tuples (id, similarity[, source_graph[, keyword_tier]]).
        importance_map: Importance; a value ≤ 0 or NaN is absent.
        recency_map: Recency; as `importance_map`.
        cfg: Weights; None: the defaults, pure similarity order.
        get_vector: Vector by (source_graph, id), for diversity; used where a boost is active and
            `mmr_lambda` < 1. None, zero and non-finite vectors cost nothing.
        limit: How many rows to return; None: all.

    Returns:
        Rows, best first: `id`, `source_graph`, `similarity`, `keyword_tier`, `importance` and
        `recency` (None: absent), `ranks` and `contributions` by channel, `score`, `mmr_score`
        (None without diversity), `rank` from 1.

    Raises:
        ValueError: A similarity is not finite (the id is named), `limit` is negative, or
            vectors differ in length.
    """
    cfg = cfg or RerankConfig()
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative, got {limit}")
    pool = _unique(candidates)
    importance = [_boost(importance_map, candidate) for candidate in pool]
    recency = [_boost(recency_map, candidate) for candidate in pool]
    fused = fuse(
        {
            "similarity": [(c.keyword_tier, c.similarity) for c in pool],
            "importance": importance,
            "recency": recency,
        },
        {"similarity": cfg.w_sim, "importance": cfg.w_importance, "recency": cfg.w_recency},
        names=[(c.source_graph, c.id) for c in pool],
    )
    picked: list[tuple[int, float | None]] = [(row, None) for row in fused.order]
    if get_vector is not None and cfg.mmr_lambda < 1.0 and not rerank_disabled(cfg):
        vectors = [get_vector(c.source_graph, c.id) for c in pool]
        picked = list(diversify(fused, vectors, cfg.mmr_lambda, limit))
    return [
        {
            "id": pool[row].id,
            "source_graph": pool[row].source_graph,
            "similarity": pool[row].similarity,
            "keyword_tier": pool[row].keyword_tier,
            "importance": importance[row],
            "recency": recency[row],
            "ranks": fused.ranks[row],
            "contributions": fused.contributions[row],
            "score": fused.scores[row],
            "mmr_score": mmr_score,
            "rank": rank,
        }
        for rank, (row, mmr_score) in enumerate(picked[:limit], start=1)
    ]


def rerank_entries(
    candidates: Iterable[CandidateLike],
    entries: Sequence[Record],
    *,
    cfg: RerankConfig | None = None,
    vectors: Mapping[str, Sequence[float]] | None = None,
    touched_ids: Iterable[str] | None = None,
    now: datetime | None = None,
    top_k: int | None = None,
) -> list[dict[str, Any]]:
    """Rerank recalled candidates by the links and ages of entry records.

    Args:
        candidates: As for `rerank`.
        entries: Every record, also of what was not recalled: degrees depend on neighbours.
        cfg: Weights; None: those of the environment. With both boosts at 0 the result is pure
            similarity order, whatever `mmr_lambda` says.
        vectors: Embeddings by id, for diversity.
        touched_ids: What the current session touched.
        now: Aware; None: the clock.
        top_k: How many rows to return; None: all.

    Returns:
        The rows of `rerank`.

    Raises:
        ConfigError: A `MEMORY_*` variable is malformed.
        ValueError: As `rerank` and `build_recency_map`.
    """
    cfg = cfg or memory_rerank_config()
    if rerank_disabled(cfg):
        return rerank(candidates, cfg=replace(cfg, mmr_lambda=1.0), limit=top_k)
    return rerank(
        candidates,
        importance_map=build_importance_map(entries),
        recency_map=build_recency_map(
            entries, touched_ids=touched_ids, now=now, half_life_days=cfg.calendar_half_life
        ),
        cfg=cfg,
        get_vector=build_get_vector(vectors),
        limit=top_k,
    )


def fuse(
    channels: Mapping[str, Sequence[Any]],
    weights: Mapping[str, float],
    *,
    names: Sequence[Any],
) -> Fused:
    """Reciprocal rank fusion.

    Args:
        channels: Per channel a comparable key a row, greater is better; None: absent. Equal
            keys share the rank of the first of them (1, 1, 3). The first channel breaks ties.
        weights: By channel.
        names: A comparable name a row, which breaks the ties that are left.
    """
    rows = range(len(names))
    ranks: list[dict[str, int]] = [{} for _ in rows]
    contributions: list[dict[str, float]] = [{} for _ in rows]
    for channel, keys in channels.items():
        for row, rank in enumerate(_shared_ranks(keys)):
            if rank is not None:
                ranks[row][channel] = rank
                contributions[row][channel] = weights[channel] / (RRF_K + rank)
    scores = [sum(parts.values()) for parts in contributions]
    first = next(iter(channels))
    order = sorted(
        rows, key=lambda row: (-scores[row], ranks[row].get(first, len(names) + 1), names[row])
    )
    return Fused(order=order, scores=scores, ranks=ranks, contributions=contributions)


def diversify(
    fused: Fused,
    vectors: Sequence[ArrayLike | None],
    mmr_lambda: float,
    limit: int | None = None,
) -> list[tuple[int, float]]:
    """Maximal marginal relevance: greedily λ · rel − (1 − λ) · max(0, closest cosine picked).

    `rel` is the fused score, min-max scaled over the pool (1 where all are equal). Ties go by
    fused order.

    Args:
        fused: The pool.
        vectors: (d,) by row; None, zero or non-finite: costs nothing.
        mmr_lambda: In [0, 1].
        limit: How many to pick; None: all.

    Returns:
        Rows with their score at the time they were picked, in the order picked.

    Raises:
        ValueError: If vectors differ in length.
    """
    order = fused.order
    scores = np.array([fused.scores[row] for row in order], dtype=np.float64)
    units = _units([vectors[row] for row in order])
    closest = np.zeros(len(order))
    relevance = mmr_lambda * _min_max(scores)
    open_rows = np.ones(len(order), dtype=np.bool_)
    picked = []
    for _ in range(len(order) if limit is None else min(limit, len(order))):
        values = np.where(open_rows, relevance - (1.0 - mmr_lambda) * closest, -np.inf)
        best = int(values.argmax())
        picked.append((order[best], float(values[best])))
        open_rows[best] = False
        closest = np.maximum(closest, units @ units[best])
    return picked


def _unique(candidates: Iterable[CandidateLike]) -> list[Candidate]:
    best: dict[tuple[str, str], Candidate] = {}
    for given in candidates:
        candidate = given if isinstance(given, Candidate) else Candidate(*given)
        if not math.isfinite(candidate.similarity):
            raise ValueError(
                f"similarity of {candidate.id!r} must be a finite number, "
                f"got {candidate.similarity}"
            )
        key = (candidate.source_graph, candidate.id)
        known = best.get(key)
        if known is None or _similarity_key(candidate) > _similarity_key(known):
            best[key] = candidate
    return list(best.values())


def _similarity_key(candidate: Candidate) -> tuple[int, float]:
    return (candidate.keyword_tier, candidate.similarity)


def _boost(channel: ChannelMap | None, candidate: Candidate) -> float | None:
    """The candidate's value in a boost channel; None where it is absent."""
    if not channel:
        return None
    bare = channel.get(candidate.id)
    return present(channel.get((candidate.source_graph, candidate.id), bare))


def present(value: float | None) -> float | None:
    """A boost's value, or None: zero, negative and NaN are the same as absent."""
    return float(value) if value is not None and value > 0.0 else None


def _shared_ranks(keys: Sequence[Any]) -> list[int | None]:
    first: dict[Any, int] = {}
    ordered = sorted((key for key in keys if key is not None), reverse=True)
    for rank, key in enumerate(ordered, start=1):
        first.setdefault(key, rank)
    return [None if key is None else first[key] for key in keys]


def _units(vectors: Sequence[ArrayLike | None]) -> Floats:
    """(n, d) unit vectors; a zero row for each that is missing or unusable."""
    arrays = [None if v is None else np.asarray(v, dtype=np.float64).reshape(-1) for v in vectors]
    sizes = {array.size for array in arrays if array is not None}
    if len(sizes) > 1:
        raise ValueError(f"vectors must have one length, got {sorted(sizes)}")
    units = np.zeros((len(arrays), sizes.pop() if sizes else 0))
    for row, array in enumerate(arrays):
        if array is not None and np.isfinite(array).all():
            norm = float(np.linalg.norm(array))
            units[row] = array / norm if norm > 0.0 else 0.0
    return units


def _min_max(values: Floats) -> Floats:
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    return (values - low) / (high - low) if high > low else np.ones_like(values)
