"""Which of two memories stands for the present: the successor, or the newer of two values."""

from __future__ import annotations

import re

import numpy as np

from zerda_pg.scoring.cues import speaker_of
from zerda_pg.scoring.signals import Floats, Ranking, Signals

__all__ = ["asks_for_value", "newer_value_first", "successors_first"]

TOP = 10
"""Ranks within which a newer value may overtake."""

SAME_SUBJECT = 0.4
"""Least cosine of two memories that tell the same thing's values."""

SHORT_BYTES = 100
"""Up to this length a memory is a fact: every word of it tells."""

LACKING = 0.05
"""Greatest share of the query's IDF mass that the older of two facts has and the newer one lacks:
who asks for the production server's port does not mean the testing server's, however new."""

NEARLY_AS_GOOD = 0.5
"""Least share of the older one's score that the newer one must have by itself."""

_VALUE = re.compile(r"\d")
_ASKS = re.compile(
    r"\b(how (many|much|long|often|far|old|big|large|fast|high)|when|dates?|times?|days?"
    r"|deadline|percent\w*|numbers?|counts?|amount|total|scores?|rates?|accuracy|coverage|average"
    r"|versions?|ports?|sizes?|limits?|quotas?|targets?|budgets?|prices?|costs?)\b",
    re.IGNORECASE,
)
"""Of a query: asks for something that is told in numbers."""

_PAST = re.compile(r"\b(did|was|were|had|first|ago|between|across|both|evolved)\b", re.IGNORECASE)
"""Of a query: asks what happened, or about several times, where the latest is no better."""

_CHANGE = re.compile(
    r"\b(now|new|newly|no longer|instead|actually|latest|recent|recently|reschedul\w+"
    r"|(updat|chang|increas|decreas|improv|rais|reduc|revis)\w+|mov(ed|ing)|gr(ow\w*|ew)"
    r"|(extend|adjust|switch|lower|postpon|correct|upgrad|expand|shift)(ed|ing|s|ion)?"
    r"|push\w+ (back|to)|brought forward)\b",
    re.IGNORECASE,
)
"""Of a longer message: tells of a change."""


def asks_for_value(task: str) -> bool:
    """Whether a query asks for something that is told in numbers, as it is now."""
    return _ASKS.search(task) is not None and _PAST.search(task) is None


def newer_value_first(
    signals: Signals, scores: Floats, order: list[int], task: str
) -> tuple[list[int], Floats]:
    """Where the query asks for a value, put the newer of two values before the older.

    Nobody says "this supersedes that" in a conversation: a count, a date or an amount is told
    anew. Two memories of one speaker on one subject that both tell a number, and are about as
    relevant, are taken in order of time if they are facts of the query's words or if the newer
    one tells of a change. Only the best ten change places among themselves, so that what is
    found stays the same and recency cannot take over.

    Returns:
        The order, and the scores: those places' scores stay, their rows change.
    """
    top = order[:TOP]
    known = len(signals.heads) == len(signals.sizes) == len(signals)
    if not known or len(top) < 2 or not asks_for_value(task):
        return order, scores
    vectors = [signals.vectors.get(signals.ids[row]) for row in top]
    heads = [signals.heads[row] for row in top]
    told = [_VALUE.search(head) is not None for head in heads]
    speakers = [speaker_of(head) for head in heads]

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
            and replaces(new, old)
        )

    def replaces(new: int, old: int) -> bool:
        if min(signals.sizes[top[new]], signals.sizes[top[old]]) <= SHORT_BYTES:
            return _lacking(signals, top[new], top[old]) <= LACKING
        return _CHANGE.search(heads[new]) is not None

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


def _lacking(signals: Signals, new: int, old: int) -> float:
    """The share of the query's IDF mass in the words that one row has and another lacks."""
    total = float(signals.term_idf.sum())
    if total <= 0.0:
        return 0.0
    only = signals.matched[:, old] & ~signals.matched[:, new]
    return float(signals.term_idf[only].sum()) / total


def successors_first(ranking: Ranking, signals: Signals) -> Ranking:
    """Put what replaced a memory before it, with no lower a score.

    Who meets the outdated one asks about that subject, so its successor rises to it, also where
    the ranker had left it out.
    """
    if not signals.successors:
        return ranking
    then: dict[int, list[int]] = {}
    for old, new in signals.successors:
        then.setdefault(old, []).append(new)
    order: list[int] = []
    scores = ranking.scores.copy()
    begun: set[int] = set()
    for best in ranking.order:
        # what replaced a row goes before it, and what replaced that before both; a row that is
        # begun already stands there, or is part of a circle
        stack = [(best, False)]
        while stack:
            row, replaced = stack.pop()
            if replaced:
                order.append(row)
            elif row not in begun:
                begun.add(row)
                stack.append((row, True))
                for new in sorted(then.get(row, []), key=lambda one: (scores[one], one)):
                    if new not in begun:
                        scores[new] = max(scores[new], scores[row])
                        stack.append((new, False))
    parts = ranking.contributions | {"superseded": np.asarray(scores - ranking.scores)}
    return Ranking(order=order, scores=scores, contributions=parts)
