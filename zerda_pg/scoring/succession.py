"""Which of two memories stands for the present: the successor, or the newer of two values."""

from __future__ import annotations

import re

import numpy as np

from zerda_pg.scoring.cues import speaker_of
from zerda_pg.scoring.signals import Floats, Ranking, Signals

__all__ = ["newer_value_first", "successors_first"]

TOP = 5
"""Ranks within which a newer value may overtake. Among ten, seven unrelated ones do for each
that should (evidence at five falls by 13 points)."""

SAME_SUBJECT = 0.4
"""Least cosine of two memories that tell the same thing's values."""

LACKING = (0.05, 0.3)
"""Greatest share of the query's IDF mass that the older one has and the newer one lacks, where
one of them is short, and where both are messages of some length. Who asks for the production
server's port does not mean the testing server's, however new that is; of two longer messages
about one thing each has words that the other lacks."""

SHORT_BYTES = 100
"""Up to this length a memory is a fact: every word of it tells."""

NEARLY_AS_GOOD = 0.6
"""Least share of the older one's score that the newer one must have by itself."""

_VALUE = re.compile(r"\d")


def newer_value_first(
    signals: Signals, scores: Floats, order: list[int]
) -> tuple[list[int], Floats]:
    """Of the best, put the newer of two values of the same thing before the older.

    Nobody says "this supersedes that" in a conversation: a count, a date or an amount is told
    anew. Two memories of the same speaker that both tell a number, on the same subject and about
    as relevant, are taken in order of time. Only the best five change places among themselves, so
    that what is found stays the same and recency cannot take over.

    Returns:
        The order, and the scores: those places' scores stay, their rows change.
    """
    top = order[:TOP]
    vectors = [signals.vectors.get(signals.ids[row]) for row in top]
    if len(signals.heads) != len(signals) or len(top) < 2:
        return order, scores
    told = [_VALUE.search(signals.heads[row]) is not None for row in top]
    speakers = [speaker_of(signals.heads[row]) for row in top]

    def updates(new: int, old: int) -> bool:
        one, other = vectors[new], vectors[old]
        return (
            told[new]
            and told[old]
            and speakers[new] == speakers[old]
            and one is not None
            and other is not None
            and bool(signals.age_seconds[top[new]] < signals.age_seconds[top[old]])
            and bool(scores[top[new]] >= NEARLY_AS_GOOD * scores[top[old]])
            and float(one @ other) >= SAME_SUBJECT
            and _lacking(signals, top[new], top[old]) <= _allowed(signals, top[new], top[old])
        )

    placed: list[int] = []
    for new in range(len(top)):
        above = [place for place, old in enumerate(placed) if updates(new, old)]
        placed.insert(above[0] if above else len(placed), new)
    if placed == list(range(len(top))):
        return order, scores
    settled = scores.copy()
    rows = [top[place] for place in placed]
    settled[rows] = scores[top]
    return [*rows, *order[TOP:]], settled


def _allowed(signals: Signals, new: int, old: int) -> float:
    short = min(signals.sizes[new], signals.sizes[old]) <= SHORT_BYTES
    return LACKING[0] if short else LACKING[1]


def _lacking(signals: Signals, new: int, old: int) -> float:
    """The share of the query's IDF mass in the words that one row has and another lacks."""
    total = float(signals.term_idf.sum())
    if total <= 0.0:
        return 0.0
    only = signals.matched[:, old] & ~signals.matched[:, new]
    return float(signals.term_idf[only].sum()) / total


def successors_first(ranking: Ranking, signals: Signals) -> Ranking:
    """Put what was superseded behind what replaced it, with no higher a score."""
    if not signals.successors:
        return ranking
    order, scores = list(ranking.order), ranking.scores.copy()
    # as often as a chain of successors is long
    for _ in signals.successors:
        changed = False
        for old, new in signals.successors:
            if old in order and new in order and order.index(old) < order.index(new):
                order.remove(old)
                order.insert(order.index(new) + 1, old)
                scores[old] = min(scores[old], scores[new])
                changed = True
        if not changed:
            break
    parts = ranking.contributions | {"superseded": np.asarray(scores - ranking.scores)}
    return Ranking(order=order, scores=scores, contributions=parts)
