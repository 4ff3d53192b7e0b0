"""The kind prior: what sort of memory it is, its relevance, word overlap, and use.

Source: `scoreMemory` of Agent-Observer (internal/smartctx/packer.go).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from zerda_pg.entry import fraction
from zerda_pg.scoring.lexical import Matching
from zerda_pg.scoring.lexical import overlap as word_overlap

__all__ = ["DEFAULT_WEIGHTS", "KindPriorWeights", "score_memory", "score_parts"]


@dataclass(frozen=True, kw_only=True)
class KindPriorWeights:
    """The terms of the score; the defaults are the original's and add up to 1 at most.

    Raises:
        ValueError: Naming the field that is out of range.
    """

    decision: float = 0.35
    """Prior of the kind `decision`; priors and weights are in [0, 1]."""
    fact: float = 0.30
    preference: float = 0.25
    failure: float = 0.20
    attempt: float = 0.05
    unknown: float = 0.0
    """Prior of any other kind, and of none."""
    relevance: float = 0.30
    """Weight of the stored relevance."""
    overlap: float = 0.25
    """Weight of the share of the task's words."""
    access_cap: float = 0.10
    """Greatest bonus for use, so that churn cannot dominate."""
    accesses_per_point: float = 50.0
    """Accesses that would earn a bonus of 1; > 0. The cap of 0.10 is reached at 5."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "accesses_per_point":
                fraction(value, field.name)
            elif not (math.isfinite(value) and value > 0.0):
                raise ValueError(f"{field.name} must be finite and greater than 0, got {value}")


DEFAULT_WEIGHTS = KindPriorWeights()

_KINDS = frozenset({"decision", "fact", "preference", "failure", "attempt"})


def score_memory(
    kind: str | None,
    relevance: float,
    content: str,
    access_count: int,
    task: str,
    *,
    weights: KindPriorWeights = DEFAULT_WEIGHTS,
    matching: Matching = "substring",
    overlap: float | None = None,
) -> float:
    """Score one memory for a task; compare scores within one call only.

    Args:
        kind: `decision`, `fact`, `preference`, `failure`, `attempt`; anything else is unknown.
        relevance: The store's score of the memory for the task, usually in [0, 1].
        content: Its text.
        access_count: How often it was recalled.
        task: What memories are wanted for.
        weights: The terms.
        matching: How words of the task are looked for in the text; see `lexical.overlap`.
        overlap: The share of the task that the memory covers, in [0, 1], where the caller
            knows it better than by comparing words; `matching` is then not used.

    Raises:
        ValueError: If `relevance` is not finite, `overlap` outside [0, 1] or `matching` unknown.
    """
    if not math.isfinite(relevance):
        raise ValueError(f"relevance must be a finite number, got {relevance}")
    if overlap is None:
        overlap = word_overlap(task, content, matching)
    return sum(score_parts(kind, relevance, fraction(overlap, "overlap"), access_count, weights))


def score_parts(
    kind: str | None,
    relevance: float,
    overlap: float,
    access_count: int,
    weights: KindPriorWeights,
) -> tuple[float, float, float, float]:
    """What kind, relevance, overlap and use each give to the score."""
    prior: float = (
        getattr(weights, kind) if kind is not None and kind in _KINDS else weights.unknown
    )
    bonus = min(max(access_count, 0) / weights.accesses_per_point, weights.access_cap)
    return prior, relevance * weights.relevance, overlap * weights.overlap, bonus
