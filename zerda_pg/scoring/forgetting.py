"""Forgetting: importance that fades with the time since the last access, slower with use.

After Ebbinghaus' curve with rehearsal, by the figures of the original's ForgettingConfig.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from zerda_pg.clock import to_epoch
from zerda_pg.entry import MemoryEntry, fraction
from zerda_pg.scoring.recency import decay
from zerda_pg.scoring.signals import Floats

__all__ = [
    "PINNED_TAG",
    "ForgettingConfig",
    "ForgettingMechanism",
    "decay_rate",
    "half_life_hours",
    "is_pinned",
    "retention",
]

PINNED_TAG = "pinned"
"""The tag of an entry that is never forgotten."""

AT_RISK = 0.2
"""Retention below which `report` counts an entry as at risk (the original's figure)."""

AT_RISK_SHOWN = 10
"""Ids that `report` lists (the original's figure)."""

LEAST_RATE = 1e-9
"""Per day; stands in for a rate of 0, whose half-life would be infinite (the original's)."""

COMPAT_LEAST_DECAY = 0.05
"""Floor of the decay factor in the original's step, whatever the config says."""


@dataclass
class ForgettingConfig:
    """The seven fields of the original, and which of the two steps to take.

    Raises:
        ValueError: Naming the field and its value.
    """

    base_decay_rate: float = 0.15
    """Per day, of an entry never accessed; its half-life is 1/rate days. 0: nothing fades."""
    recency_boost_per_access: float = 0.05
    """Share by which each access lengthens the half-life; ≥ 0."""
    max_recency_boost: float = 2.0
    """Greatest factor on the half-life; ≥ 1."""
    min_importance: float = 0.05
    """Floor of the decay factor (in the original's step: of the importance); in [0, 1]."""
    deletion_threshold: float = 0.05
    """Forget at an effective importance of this or less; in [0, 1]."""
    high_frequency_threshold: int = 5
    """Kept for the original's callers; it has no effect there either."""
    apply_decay_on_read: bool = False
    """Kept for the original's callers; it has no effect there either."""
    compat: bool = False
    """Take the original's step, which multiplies the retention into the decay factor and the
    importance at every run, so that the result depends on how often maintenance ran."""

    def __post_init__(self) -> None:
        for name, least in (
            ("base_decay_rate", 0.0),
            ("recency_boost_per_access", 0.0),
            ("max_recency_boost", 1.0),
            ("high_frequency_threshold", 0),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise ValueError(f"{name} must be finite and at least {least}, got {value}")
        fraction(self.min_importance, "min_importance")
        fraction(self.deletion_threshold, "deletion_threshold")


def decay_rate(access_count: ArrayLike, config: ForgettingConfig) -> Floats:
    """Loss per day: the base rate ÷ min(2, 1 + 0.05 · accesses); scalar or (n,)."""
    counts = np.asarray(access_count, dtype=np.float64)
    boost = np.minimum(config.max_recency_boost, 1.0 + config.recency_boost_per_access * counts)
    return np.asarray(config.base_decay_rate / boost, dtype=np.float64)


def half_life_hours(access_count: ArrayLike, config: ForgettingConfig) -> Floats:
    """24 / rate, in hours; scalar or (n,)."""
    return np.asarray(24.0 / np.maximum(decay_rate(access_count, config), LEAST_RATE))


def retention(idle_seconds: ArrayLike, access_count: ArrayLike, config: ForgettingConfig) -> Floats:
    """0.5 ^ (time since the last access / half-life), in (0, 1]; scalar or (n,)."""
    hours = np.asarray(idle_seconds, dtype=np.float64) / 3600.0
    return decay(hours, half_life_hours(access_count, config))


def is_pinned(entry: MemoryEntry) -> bool:
    """Whether an entry must never be forgotten: importance 1 or the tag `pinned`."""
    return entry.importance >= 1.0 or PINNED_TAG in entry.tags


class ForgettingMechanism:
    """Fades entries and tells which are forgotten.

    A run sets `decay_factor` to the retention, at least `min_importance`: runs do not add up.
    A pinned entry (importance 1 or the tag `pinned`) fades like any other, but is never
    forgotten. With `compat` the step is the original's to the letter, where only the tag pins.

    Args:
        config: Rates and thresholds; None: the defaults.
        compat: Overrides `config.compat`.
    """

    def __init__(
        self, config: ForgettingConfig | None = None, *, compat: bool | None = None
    ) -> None:
        config = config or ForgettingConfig()
        self.config = config if compat is None else replace(config, compat=compat)

    def apply(
        self, entries: Sequence[MemoryEntry], *, now: float | datetime | None = None
    ) -> tuple[list[MemoryEntry], list[MemoryEntry]]:
        """Fade every entry in place; `(alive, forgotten)`, each in the order given.

        Args:
            entries: Any number, also none.
            now: Seconds since the epoch or an aware datetime; None: the clock.
        """
        moment = time.time() if now is None else to_epoch(now, "now")
        alive: list[MemoryEntry] = []
        forgotten: list[MemoryEntry] = []
        for entry in entries:
            kept = self.apply_to_single(entry, now=moment)
            (alive if kept else forgotten).append(entry)
        return alive, forgotten

    def apply_to_single(self, entry: MemoryEntry, *, now: float | datetime | None = None) -> bool:
        """Fade one entry in place; whether it is to be kept."""
        importance, factor = self._faded(entry, now)
        entry.importance, entry.decay_factor = importance, factor
        # the original's step lowers an importance of 1 at its first run: it cannot pin there
        pinned = PINNED_TAG in entry.tags if self.config.compat else is_pinned(entry)
        return pinned or entry.effective_importance > self.config.deletion_threshold

    def score_retention(self, entry: MemoryEntry, *, now: float | datetime | None = None) -> float:
        """What a run would leave of the effective importance, in [0, 1]; changes nothing.

        With `compat`, as in the original, before its floors.
        """
        if not self.config.compat:
            importance, factor = self._faded(entry, now)
            return importance * factor
        left = entry.importance * self._retention(entry, now) * entry.decay_factor
        return max(0.0, min(1.0, left))

    def report(
        self, entries: Sequence[MemoryEntry], *, now: float | datetime | None = None
    ) -> dict[str, Any]:
        """How many entries are at risk (retention below 0.2), and the first ten ids."""
        moment = time.time() if now is None else to_epoch(now, "now")
        at_risk = [e.id for e in entries if self.score_retention(e, now=moment) < AT_RISK]
        return {
            "total": len(entries),
            "at_risk_count": len(at_risk),
            "at_risk_ids": at_risk[:AT_RISK_SHOWN],
            "config": {
                "base_decay_rate": self.config.base_decay_rate,
                "min_importance": self.config.min_importance,
                "deletion_threshold": self.config.deletion_threshold,
            },
        }

    def _retention(self, entry: MemoryEntry, now: float | datetime | None) -> float:
        moment = time.time() if now is None else to_epoch(now, "now")
        return float(retention(moment - entry.last_access, entry.access_count, self.config))

    def _faded(self, entry: MemoryEntry, now: float | datetime | None) -> tuple[float, float]:
        """Importance and decay factor after a run."""
        left = self._retention(entry, now)
        floor = self.config.min_importance
        if not self.config.compat:
            return entry.importance, max(floor, left)
        factor = max(COMPAT_LEAST_DECAY, entry.decay_factor * left)
        return max(floor, entry.importance * left), factor
