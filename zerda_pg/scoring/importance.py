"""Importance: of an entry by itself, and by its place in the graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from zerda_pg.entry import MemoryEntry
from zerda_pg.scoring.signals import Floats

__all__ = ["degree_importance", "importances"]


def importances(entries: Sequence[MemoryEntry]) -> Floats:
    """(n,) effective importance (importance × decay factor) of each entry, in [0, 1]."""
    return np.array([entry.effective_importance for entry in entries], dtype=np.float64)


def degree_importance(degrees: ArrayLike) -> Floats:
    """Degree centrality: `log1p(degree)` divided by the greatest of them.

    Args:
        degrees: (n,) numbers of unique neighbours, ≥ 0.

    Returns:
        (n,) in [0, 1]; 0 for an isolated entry, which means absent, and for all where none has
        a neighbour.
    """
    logs = np.log1p(np.asarray(degrees, dtype=np.float64))
    greatest = logs.max(initial=0.0)
    return logs / greatest if greatest > 0.0 else logs
