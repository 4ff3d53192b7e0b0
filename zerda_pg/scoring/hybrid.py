"""The store's default ranker: similarity and words on one scale, with the neighbours' help."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zerda_pg.entry import fraction
from zerda_pg.scoring.recency import decay
from zerda_pg.scoring.signals import Floats, Ranking, Signals

__all__ = ["HybridRanker", "HybridWeights", "ranked_rows"]

RECENCY_HALF_LIFE_SECONDS = 30 * 86400.0
"""Half-life of the recency channel: 30 days, as the rerank seed's default."""


@dataclass(frozen=True, kw_only=True)
class HybridWeights:
    """What each channel may give; relevance is `similarity` + `lexical` + `neighbours`.

    Raises:
        ValueError: Naming the weight outside [0, 1].
    """

    similarity: float = 0.50
    lexical: float = 0.40
    neighbours: float = 0.15
    """Of the mean relevance of the best two neighbours."""
    recency: float = 0.01
    importance: float = 0.02
    touched: float = 0.05
    """Given to what the current session read or wrote."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            fraction(getattr(self, name), name)


class HybridRanker:
    """Adds calibrated channels; every channel is in [0, 1] before its weight.

    Similarity is the cosine, lexical the share of the query's IDF mass. Both are absolute, so
    that a score means the same in every query and `min_score` can be compared with it.
    """

    needs_vectors = False

    def __init__(self, weights: HybridWeights | None = None) -> None:
        self.weights = weights or HybridWeights()

    def rank(self, signals: Signals, task: str) -> Ranking:
        """Order by the sum of the channels."""
        w = self.weights
        own = {
            "similarity": w.similarity * similarity(signals),
            "lexical": w.lexical * lexical(signals),
        }
        relevance = own["similarity"] + own["lexical"]
        parts = own | {
            "neighbours": w.neighbours * _neighbours(signals, relevance),
            # what is not relevant at all is not lifted by being new, important or touched
            "recency": w.recency * relevance
            * decay(signals.age_seconds, RECENCY_HALF_LIFE_SECONDS),
            "importance": w.importance * relevance * signals.importance,
            "touched": w.touched * relevance * signals.touched,
        }  # fmt: skip
        scores = np.clip(np.sum(list(parts.values()), axis=0), 0.0, 1.0)
        return Ranking(order=ranked_rows(scores, signals.ids), scores=scores, contributions=parts)


class ChannelRanker:
    """One channel alone, for the modes `dense` and `lexical`."""

    needs_vectors = False

    def __init__(self, channel: str) -> None:
        self.channel = channel

    def rank(self, signals: Signals, task: str) -> Ranking:
        """Order by the channel; rows it knows nothing of are left out."""
        scores = similarity(signals) if self.channel == "similarity" else lexical(signals)
        order = [row for row in ranked_rows(scores, signals.ids) if scores[row] > 0.0]
        return Ranking(order=order, scores=scores, contributions={self.channel: scores})


def similarity(signals: Signals) -> Floats:
    """The cosine, where there is one and it is positive."""
    return np.clip(np.nan_to_num(signals.similarity, nan=0.0), 0.0, 1.0)


def lexical(signals: Signals) -> Floats:
    """The share of the query's IDF mass that an entry's lexemes cover, in [0, 1]."""
    if signals.lexical_total <= 0.0:
        return np.zeros(len(signals))
    return np.clip(signals.lexical / signals.lexical_total, 0.0, 1.0)


def ranked_rows(scores: Floats, ids: list[str]) -> list[int]:
    """Row numbers by score, descending, ties by id: the same order whatever the rows' order."""
    return sorted(range(len(ids)), key=lambda row: (-scores[row], ids[row]))


def _neighbours(signals: Signals, relevance: Floats) -> Floats:
    """(n,) mean relevance of each row's best two neighbours; a missing one counts as none."""
    lent = np.zeros(len(signals))
    for row, others in enumerate(signals.neighbours):
        if others:
            lent[row] = float(np.sort(relevance[others])[-2:].sum()) / 2.0
    return lent
