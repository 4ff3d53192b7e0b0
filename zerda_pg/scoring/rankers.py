"""The store's rankers of the three systems, over `Signals`; each is thin over its formula."""

from __future__ import annotations

import numpy as np

from zerda_pg.scoring.importance import degree_importance
from zerda_pg.scoring.kind_prior import DEFAULT_WEIGHTS, KindPriorWeights, score_parts
from zerda_pg.scoring.recency import decay
from zerda_pg.scoring.rerank import RRF_K, diversify, fuse, present
from zerda_pg.scoring.rerank_config import RerankConfig, rerank_disabled
from zerda_pg.scoring.rerank_maps import SECONDS_PER_DAY
from zerda_pg.scoring.selector import NEUTRAL_RELEVANCE, SelectionConfig, composite_parts
from zerda_pg.scoring.signals import Floats, Ranker, Ranking, Signals

__all__ = ["CompositeRanker", "FusionRanker", "KindPriorRanker"]


class CompositeRanker:
    """The selector's weighted composite of relevance, recency and importance.

    Candidates below `min_composite_score` are dropped. What a channel does not know counts as
    0.5, neither good nor bad.

    Args:
        config: Weights, half-life and clock; None: the defaults.
        base: Its scores are the relevance; None: the cosine is.
    """

    def __init__(self, config: SelectionConfig | None = None, *, base: Ranker | None = None):
        self.config = config or SelectionConfig()
        self._base = base
        self.needs_vectors = base is not None and base.needs_vectors

    def rank(self, signals: Signals, task: str) -> Ranking:
        """Order the candidates; contributions by `similarity` (with a base `relevance`), …"""
        config = self.config
        relevance, rows = _recall(signals, task, self._base)
        ages = {
            "created": signals.age_seconds,
            "updated": signals.updated_age_seconds,
            "accessed": signals.accessed_age_seconds,
        }[config.recency_basis]
        recency = decay(ages / 3600.0, config.recency_half_life_hours)
        known = [
            np.where(np.isnan(signal), NEUTRAL_RELEVANCE, signal)
            for signal in (relevance, recency, signals.importance)
        ]
        names = (_relevance_name(self._base), "recency", "importance")
        parts = dict(zip(names, composite_parts(config, *known), strict=True))
        total = np.asarray(sum(parts.values()))
        kept = [row for row in rows if total[row] >= config.min_composite_score]
        return _ranking(signals, kept, total, parts)


class KindPriorRanker:
    """The kind prior, with the recall score as relevance and IDF mass as overlap.

    Args:
        weights: The terms.
        base: Its scores, clamped to [0, 1], are the relevance; what it drops stays out.
    """

    def __init__(self, weights: KindPriorWeights = DEFAULT_WEIGHTS, *, base: Ranker):
        self.weights = weights
        self._base = base
        self.needs_vectors = base.needs_vectors

    def rank(self, signals: Signals, task: str) -> Ranking:
        """Order the candidates; contributions by `kind`, `relevance`, `lexical` and `access`."""
        relevance, rows = _recall(signals, task, self._base)
        shares = _lexical_share(signals)
        table = [
            score_parts(
                signals.kinds[row],
                float(relevance[row]),
                float(shares[row]),
                int(signals.access_count[row]),
                self.weights,
            )
            for row in range(len(signals))
        ]
        names = ("kind", "relevance", "lexical", "access")
        columns = np.array(table, dtype=np.float64).reshape(len(signals), len(names)).T
        parts = dict(zip(names, columns, strict=True))
        return _ranking(signals, rows, columns.sum(axis=0), parts)


class FusionRanker:
    """Reciprocal rank fusion of similarity, graph degree and recency, then diversity.

    Without boosts this is pure similarity order. The score is the fused one as a share of the
    greatest possible, that of a candidate which is first in every channel.

    Args:
        config: Weights; None: the defaults, pure similarity order.
        base: Its scores take the place of the similarity. None: the cosine is it; candidates
            without a vector follow those that have one, by their share of the query's IDF mass.
    """

    def __init__(self, config: RerankConfig | None = None, *, base: Ranker | None = None):
        self.config = config or RerankConfig()
        self._base = base
        self._diversifies = self.config.mmr_lambda < 1.0 and not rerank_disabled(self.config)
        self.needs_vectors = self._diversifies or (base is not None and base.needs_vectors)

    def rank(self, signals: Signals, task: str) -> Ranking:
        """Order the candidates; contributions by `similarity` (with a base `relevance`), …"""
        cfg = self.config
        recall, rows = _recall(signals, task, self._base)
        shares = _lexical_share(signals)
        first = _relevance_name(self._base)
        weights = {first: cfg.w_sim, "graph": cfg.w_importance, "recency": cfg.w_recency}
        graph, recency = degree_importance(signals.degree), self._recency(signals)
        fused = fuse(
            {
                first: [
                    (0, float(shares[row])) if np.isnan(recall[row]) else (1, float(recall[row]))
                    for row in rows
                ],
                "graph": [present(graph[row]) for row in rows],
                "recency": [present(recency[row]) for row in rows],
            },
            weights,
            names=[signals.ids[row] for row in rows],
        )
        order = fused.order
        if self._diversifies:
            vectors = [signals.vectors.get(signals.ids[row]) for row in rows]
            order = [place for place, _ in diversify(fused, vectors, cfg.mmr_lambda)]
        greatest = sum(weights.values()) / (RRF_K + 1.0)
        parts = {name: np.zeros(len(signals)) for name in weights}
        for place, row in enumerate(rows):
            for name, part in fused.contributions[place].items():
                parts[name][row] = part / greatest if greatest > 0.0 else 0.0
        return Ranking(
            order=[rows[place] for place in order],
            scores=np.clip(np.asarray(sum(parts.values())), 0.0, 1.0),
            contributions=parts,
        )

    def _recency(self, signals: Signals) -> Floats:
        """(n,) recency; touched is 1, NaN and 0 are absent."""
        half_life = self.config.calendar_half_life
        aged = (
            decay(signals.updated_age_seconds / SECONDS_PER_DAY, half_life)
            if half_life > 0.0
            else np.zeros(len(signals))
        )
        return np.where(signals.touched, 1.0, aged)


def _recall(signals: Signals, task: str, base: Ranker | None) -> tuple[Floats, list[int]]:
    """(n,) relevance, NaN where unknown, and the rows that take part."""
    if base is None:
        return signals.similarity, list(range(len(signals)))
    ranking = base.rank(signals, task)
    return np.clip(ranking.scores, 0.0, 1.0), ranking.order


def _relevance_name(base: Ranker | None) -> str:
    return "similarity" if base is None else "relevance"


def _lexical_share(signals: Signals) -> Floats:
    """(n,) share of the query's IDF mass, in [0, 1]; 0 where unknown."""
    if not signals.lexical_total > 0.0:
        return np.zeros(len(signals))
    return np.clip(np.nan_to_num(signals.lexical) / signals.lexical_total, 0.0, 1.0)


def _ranking(signals: Signals, rows: list[int], total: Floats, parts: dict[str, Floats]) -> Ranking:
    order = sorted(rows, key=lambda row: (-total[row], signals.ids[row]))
    return Ranking(order=order, scores=np.clip(total, 0.0, 1.0), contributions=parts)
