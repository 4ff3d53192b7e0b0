"""What reranking weighs, from arguments or from `MEMORY_*` variables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from zerda_pg.config import env_float
from zerda_pg.errors import ConfigError

__all__ = ["RerankConfig", "memory_rerank_config", "rerank_disabled"]


@dataclass(frozen=True)
class RerankConfig:
    """Weights of the channels and of diversity; by default pure similarity order.

    Raises:
        ValueError: Naming the field and its value.
    """

    w_sim: float = 1.0
    """Weight of the similarity channel; weights are finite and ≥ 0."""
    w_importance: float = 0.0
    """Weight of degree centrality; 0: off."""
    w_recency: float = 0.0
    """Weight of recency; 0: off."""
    w_calendar_recency: float = 0.0
    """Must be 0: entries have no chronology apart from when they were written."""
    mmr_lambda: float = 1.0
    """1: relevance only (no diversity), 0: diversity only."""
    overfetch: int = 3
    """Candidates to recall for each result wanted, ≥ 1."""
    calendar_half_life: float = 30.0
    """Age in days at which recency is 0.5; ≤ 0 turns the age off."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name), field.name)


_VARIABLES = {
    "w_sim": "MEMORY_RERANK_W_SIM",
    "w_importance": "MEMORY_RERANK_W_IMPORTANCE",
    "w_recency": "MEMORY_RERANK_W_RECENCY",
    "mmr_lambda": "MEMORY_RERANK_MMR_LAMBDA",
    "overfetch": "MEMORY_RERANK_OVERFETCH",
    "calendar_half_life": "MEMORY_RECENCY_HALF_LIFE_DAYS",
}


def memory_rerank_config(environ: Mapping[str, str] | None = None) -> RerankConfig:
    """The config that the environment asks for; unset variables mean the defaults.

    `MEMORY_RERANK_W_SIM` (1), `MEMORY_RERANK_W_IMPORTANCE` (0), `MEMORY_RERANK_W_RECENCY` (0),
    `MEMORY_RERANK_MMR_LAMBDA` (1: diversity off), `MEMORY_RERANK_OVERFETCH` (3; 0 means 3, less
    means 1), `MEMORY_RECENCY_HALF_LIFE_DAYS` (30).

    Args:
        environ: Variables by name; None: those of the process.

    Raises:
        ConfigError: Naming a variable that is malformed or out of range.
    """
    defaults = RerankConfig()
    values = {
        field: env_float(variable, float(getattr(defaults, field)), environ)
        for field, variable in _VARIABLES.items()
    }
    overfetch = max(1, int(values.pop("overfetch")) or defaults.overfetch)
    for field, value in values.items():
        try:
            _check(field, value, _VARIABLES[field])
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return RerankConfig(**values, overfetch=overfetch)


def rerank_disabled(cfg: RerankConfig) -> bool:
    """Whether the config means pure similarity order: no boost, and so no diversity either."""
    return cfg.w_importance == 0.0 and cfg.w_recency == 0.0


def _check(field: str, value: float, label: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{label} must be a number, got {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{label} must be finite, got {value}")
    if field == "w_calendar_recency" and value != 0.0:
        raise ValueError(f"{label} must be 0, since memory has no calendar channel; got {value}")
    if field.startswith("w_") and value < 0.0:
        raise ValueError(f"{label} must not be negative, got {value}")
    if field == "mmr_lambda" and not 0.0 <= value <= 1.0:
        raise ValueError(f"{label} must be between 0 and 1, got {value}")
    if field == "overfetch" and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{label} must be a whole number of at least 1, got {value}")
