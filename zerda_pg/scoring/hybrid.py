"""The store's default ranker: meaning and words on one scale, with the neighbours' help."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zerda_pg.entry import fraction
from zerda_pg.scoring.cues import spoken_by
from zerda_pg.scoring.recency import decay
from zerda_pg.scoring.signals import Floats, Ranking, Signals
from zerda_pg.scoring.succession import newer_value_first
from zerda_pg.scoring.times import spans_of, within

__all__ = ["ChannelRanker", "HybridRanker", "HybridWeights", "lexical", "ranked_rows", "similarity"]

RECENCY_HALF_LIFE_SECONDS = 30 * 86400.0
"""Half-life of the recency channel: 30 days, as the rerank seed's default."""

SHORT_BYTES = 400
"""Up to this length a text has its words for what it says; beyond, it has many by chance."""

BEFORE, AFTER = 0.6, 0.5
"""What a word of the turn before (an answer follows its question), or after, counts of one's
own; nothing in the gain depends on it sharply: 0.5 and 0.4 lose 0.7 points."""

FADE = 0.7
"""For each further step."""


TOLD_WITHIN_DAYS = 7.0
"""People tell what happened on a day within the week after it."""


@dataclass(frozen=True, kw_only=True)
class HybridWeights:
    """What each channel may give; the channels are in [0, 1] before their weight.

    Measured on four question sets, of which half were not looked at (docs/recall.md).

    Raises:
        ValueError: Naming the weight outside [0, 1].
    """

    similarity: float = 0.42
    """Of the cosine."""
    lexical: float = 0.50
    """Of the share of the query's IDF mass, less in long texts."""
    neighbours: float = 0.08
    """Of the excess of a neighbour's cosine; the words that neighbours lend count as `lexical`."""
    speaker: float = 0.04
    """Given to what was said by whom the query speaks of."""
    time: float = 0.12
    """Given to what happened when the query says; 14 points of evidence where it says a time."""
    quoted: float = 0.15
    """Of the share of the query's quoted phrases that it has, word after word."""
    recency: float = 0.01
    importance: float = 0.02
    touched: float = 0.05
    """Given to what the current session read or wrote."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            fraction(getattr(self, name), name)


class HybridRanker:
    """Adds calibrated channels.

    Similarity is the cosine, lexical the share of the query's IDF mass. Both are absolute, so
    that a score means the same in every query and `min_score` can be compared with it.
    """

    needs_vectors = False

    def __init__(self, weights: HybridWeights | None = None) -> None:
        self.weights = weights or HybridWeights()

    def rank(self, signals: Signals, task: str) -> Ranking:
        """Order by the sum of the channels; of near-equals with other values, newer first."""
        w = self.weights
        brief = brevity(signals)
        happened = signals.now - signals.age_seconds
        cosine, words = similarity(signals), lexical(signals) * brief
        lent_words, lent_cosine = _lent(signals, cosine, brief)
        relevance = w.similarity * cosine + w.lexical * words
        parts = {
            "similarity": w.similarity * cosine,
            "lexical": w.lexical * words,
            "neighbours": w.lexical * lent_words + w.neighbours * lent_cosine,
            "speaker": w.speaker * spoken_by(task, signals.heads, len(signals)),
            "quoted": w.quoted * (signals.quoted if len(signals.quoted) else np.zeros_like(cosine)),
            "time": w.time * within(spans_of(task, signals.now), happened, TOLD_WITHIN_DAYS),
            # what is not relevant at all is not lifted by being new, important or touched
            "recency": w.recency * relevance
            * decay(signals.age_seconds, RECENCY_HALF_LIFE_SECONDS),
            "importance": w.importance * relevance * signals.importance,
            "touched": w.touched * relevance * signals.touched,
        }  # fmt: skip
        scores = np.clip(np.sum(list(parts.values()), axis=0), 0.0, 1.0)
        order, settled = newer_value_first(signals, scores, ranked_rows(scores, signals.ids), task)
        parts["newer"] = settled - scores
        return Ranking(order=order, scores=settled, contributions=parts)


class ChannelRanker:
    """One channel alone, for the modes `dense` and `lexical`."""

    needs_vectors = False

    def __init__(self, channel: str) -> None:
        self.channel = channel

    def rank(self, signals: Signals, task: str) -> Ranking:
        """Order by the channel; rows it knows nothing of are left out."""
        # by the cosine as it is: those below 0 all score 0, and are asked for all the same
        dense = self.channel == "similarity"
        scores = similarity(signals) if dense else lexical(signals)
        values = signals.similarity if dense else scores
        known = ~np.isnan(values) if dense else values > 0.0
        ranked = ranked_rows(np.where(known, values, -1.0), signals.ids)
        order = [row for row in ranked if known[row]]
        return Ranking(order=order, scores=scores, contributions={self.channel: scores})


def similarity(signals: Signals) -> Floats:
    """The cosine, where there is one and it is positive."""
    # `fmax` takes NaN for absent; `clip` and `nan_to_num` take four times as long
    return np.minimum(np.fmax(signals.similarity, 0.0), 1.0)


def lexical(signals: Signals) -> Floats:
    """The share of the query's IDF mass that an entry's lexemes cover, in [0, 1]."""
    if signals.lexical_total <= 0.0:
        return np.zeros(len(signals))
    return np.clip(signals.lexical / signals.lexical_total, 0.0, 1.0)


def brevity(signals: Signals) -> Floats:
    """(n,) what a word in a text of this length is worth: 1 up to 400 bytes, then 1 / (1 + ln)."""
    if not len(signals.sizes):
        return np.ones(len(signals))
    return 1.0 / (1.0 + np.log(np.maximum(signals.sizes, SHORT_BYTES) / SHORT_BYTES))


def ranked_rows(scores: Floats, ids: list[str]) -> list[int]:
    """Row numbers by score, descending, ties by id: the same order whatever the rows' order."""
    order: list[int] = np.lexsort((np.array(ids, dtype=np.str_), -scores)).tolist()
    return order


def _lent(signals: Signals, cosine: Floats, brief: Floats) -> tuple[Floats, Floats]:
    """(n,) what neighbours add to a row's words and to its cosine, each in [0, 1].

    A neighbour lends the words that a row lacks, and the cosine by which it exceeds the row's:
    what both have counts once. A long text borrows little, for it stands by itself, and lends
    little, for its words prove little.
    """
    rows, lenders, places = signals.links.T
    borrows = 1.0 / (1.0 + (signals.sizes / SHORT_BYTES) ** 2) if len(rows) else np.ones(0)
    own = signals.matched.astype(np.float64)
    lent = np.zeros((len(signals), len(own)))
    excess = np.zeros((2, len(signals)))
    if len(rows):
        side = np.where(places < 0, BEFORE, AFTER)
        weight = side * FADE ** np.maximum(np.abs(places) - 1, 0) * borrows[rows]
        given = weight[:, None] * (own * brief).T[lenders]
        np.maximum.at(lent, rows, given)
        beside = np.abs(places) <= 1
        more = np.maximum(cosine[lenders] - cosine[rows], 0.0) * borrows[rows]
        for number, chosen in enumerate((beside & (places < 0), beside & (places >= 0))):
            np.maximum.at(excess[number], rows[chosen], more[chosen])
    words = np.zeros(len(signals))
    if signals.lexical_total > 0.0 and len(own):
        missing = np.maximum(lent.T - own, 0.0)
        words = brief * (signals.term_idf @ missing) / signals.lexical_total
    return words, excess.sum(axis=0)
