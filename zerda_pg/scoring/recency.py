"""Recency: how much of 1 is left of an age, by half-life. The only decay curve of the package."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from zerda_pg.entry import MemoryEntry
from zerda_pg.scoring.signals import Floats

__all__ = ["RECENCY_BASES", "age_seconds", "check_half_life", "decay"]

RECENCY_BASES = ("created", "updated", "accessed")
"""The clocks that an age can be read from."""

MAX_HALF_LIVES = 1000.0
"""Half-lives after which an age counts no further: 2^-1000 is still a normal float64 (the least
is 2^-1022), so that the oldest entry neither underflows nor drops out of its channel."""


def decay(age: ArrayLike, half_life: ArrayLike) -> Floats:
    """`0.5 ** (age / half_life)`: 1 now, 0.5 after one half-life.

    Args:
        age: Scalar or (n,), in the unit of `half_life`; the future (negative) counts as now,
            NaN stays NaN.
        half_life: Scalar or (n,), > 0.

    Returns:
        The shape of the arguments, in (0, 1]; the same curve as `exp(-ln 2 · age / half_life)`.
    """
    ages = np.asarray(age, dtype=np.float64)
    lives = np.clip(ages / np.asarray(half_life, dtype=np.float64), 0.0, MAX_HALF_LIVES)
    return np.asarray(np.exp2(-lives), dtype=np.float64)


def age_seconds(entry: MemoryEntry, basis: str, now: float) -> float:
    """Seconds from the entry's clock `basis` to `now` (both since the epoch).

    An entry that was never updated is as old as its creation.
    """
    if basis == "accessed":
        return now - entry.last_access
    if basis == "updated" and entry.updated_at is not None:
        return now - entry.updated_at.timestamp()
    return now - entry.timestamp


def check_half_life(value: object, name: str) -> float:
    """Return `value` as a float if it is a usable half-life.

    Raises:
        ValueError: Naming `name`, if it is no finite number > 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ValueError(f"{name} must be a number, got {type(value).__name__}")
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name} must be finite and greater than 0, got {value}")
    return float(value)
