"""What ranking works on: one row a candidate, one array a signal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Ranker", "Ranking", "Signals", "check_ranking"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Signals:
    """The candidates of one query with their raw signals; every array is (n,).

    NaN says that a channel knows nothing of a candidate; rankers never punish for it.
    """

    ids: list[str]
    kinds: list[str | None]
    similarity: Floats
    """Cosine to the query, in [-1, 1]; NaN: no vector."""
    lexical: Floats
    """Sum of the IDF of the query's lexemes that the entry has; 0: none."""
    lexical_total: float
    """Sum of the IDF of all the query's lexemes: what a full match scores."""
    age_seconds: Floats
    """By the chosen clock, from creation; negative for the future."""
    updated_age_seconds: Floats
    """From the last change."""
    accessed_age_seconds: Floats
    """From the last access."""
    importance: Floats
    """Effective importance, in [0, 1]."""
    access_count: NDArray[np.int64]
    degree: NDArray[np.int64]
    """Unique undirected neighbours over has_child, related and invalidated_by."""
    touched: NDArray[np.bool_]
    """Whether the current session touched it."""
    quoted: Floats = field(default_factory=lambda: np.zeros(0))
    """Share of the query's quoted phrases that it has, in [0, 1]; empty: nothing is known."""
    now: float = 0.0
    """The clock, in seconds since the epoch; `age_seconds` counts back from it."""
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(n,) UTF-8 bytes of each text; empty where unknown."""
    heads: list[str] = field(default_factory=list)
    """(n) how each text begins, with its speaker; empty where unknown."""
    term_idf: Floats = field(default_factory=lambda: np.zeros(0))
    """(t,) IDF of each of the query's lexemes, as far as they were looked up."""
    matched: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.bool_))
    """(t, n) whether an entry has the lexeme."""
    links: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))
    """(m, 3) row, the row next to it, and where that stands: -1 one turn before, +1 one after, …;
    0: joined by an edge that is no order."""
    successors: list[tuple[int, int]] = field(default_factory=list)
    """Superseded row and the row that replaced it."""
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Unit vectors by id: of the best candidates, or of all where the ranker diversifies;
    for the default one only where the query asks for a value."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """An order over the candidates, with what each channel gave."""

    order: list[int]
    """Row numbers, best first; rows that a ranker drops are absent."""
    scores: Floats
    """(n,) by row, in [0, 1]."""
    contributions: dict[str, Floats]
    """(n,) by row for each channel; they add up to the score before clamping."""


def check_ranking(ranking: object, count: int) -> None:
    """Refuse what a ranker of the caller's may not return for so many candidates.

    Raises:
        ValueError: Saying what is wrong with it.
    """
    if not isinstance(ranking, Ranking):
        raise ValueError(f"ranker must return a Ranking, got {type(ranking).__name__}")
    if len(set(ranking.order)) < len(ranking.order):
        raise ValueError("ranker: `order` names a row twice")
    if not set(ranking.order) <= set(range(count)):
        raise ValueError(f"ranker: `order` must be row numbers from 0 to {count - 1}")
    scores = np.asarray(ranking.scores)
    if scores.shape != (count,) or not np.isfinite(scores).all():
        raise ValueError(f"ranker: `scores` must be {count} finite numbers, one for each row")


class Ranker(Protocol):
    """Turns candidates into an order."""

    needs_vectors: bool
    """Whether `Signals.vectors` must be filled (diversity)."""

    def rank(self, signals: Signals, task: str) -> Ranking:
        """Order the candidates for `task`; pure, and independent of the rows' order."""
        ...
