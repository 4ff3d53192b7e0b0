"""The rerank channels computed from plain entry records; no database needed.

A record is a mapping with `id`, `parent_id`, `related_to`, `invalidated_by`, `invalidates` (each
a list, or a comma-separated string), `created_at` and `updated_at` (ISO 8601; naive is UTC).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from zerda_pg.clock import aware
from zerda_pg.scoring.importance import degree_importance
from zerda_pg.scoring.recency import decay

__all__ = ["Record", "build_get_vector", "build_importance_map", "build_recency_map"]

Record = Mapping[str, Any]

_EDGES = ("parent_id", "related_to", "invalidated_by", "invalidates")

SECONDS_PER_DAY = 86400.0


def build_importance_map(entries: Iterable[Record]) -> dict[str, float]:
    """Degree centrality by id, in (0, 1]; an isolated entry is absent, never last.

    `log1p` of the number of unique undirected neighbours over the records' edges, divided by the
    greatest. An edge to something that is no record (a project's root) counts for the record;
    the root gets no score. A link to itself and a record without an id count for nothing.
    """
    neighbours: defaultdict[str, set[str]] = defaultdict(set)
    ids: dict[str, None] = {}
    for entry in entries:
        if not (entry_id := entry.get("id")):
            continue
        ids[entry_id] = None
        for edge in _EDGES:
            for other in _endpoints(entry.get(edge)):
                if other != entry_id:
                    neighbours[entry_id].add(other)
                    neighbours[other].add(entry_id)
    scores = degree_importance([len(neighbours[entry_id]) for entry_id in ids])
    return {entry_id: float(s) for entry_id, s in zip(ids, scores, strict=True) if s > 0.0}


def build_recency_map(
    entries: Iterable[Record],
    *,
    touched_ids: Iterable[str] | None = None,
    now: datetime | None = None,
    half_life_days: float = 30.0,
) -> dict[str, float]:
    """Recency by id, in (0, 1]: `0.5 ** (age_days / half_life_days)`.

    The age counts from `updated_at`, else `created_at`. A record that has neither (or none that
    can be read) is absent unless touched; the future counts as now; of several records with one
    id the most recent counts.

    Args:
        entries: Records.
        touched_ids: What the current session touched: scores 1.
        now: Aware; None: the clock.
        half_life_days: ≤ 0 turns the age off: only what was touched scores.

    Raises:
        ValueError: If `now` is naive or `half_life_days` is NaN.
    """
    if math.isnan(half_life_days):
        raise ValueError(f"half_life_days must be a number, got {half_life_days}")
    moment = datetime.now(UTC) if now is None else aware(now, "now")
    touched = set(touched_ids or ())
    recency: dict[str, float] = {}
    for entry in entries:
        if not (entry_id := entry.get("id")):
            continue
        score = 1.0 if entry_id in touched else 0.0
        when = _parsed(entry.get("updated_at")) or _parsed(entry.get("created_at"))
        if half_life_days > 0.0 and when is not None:
            age_days = (moment - when).total_seconds() / SECONDS_PER_DAY
            score = max(score, float(decay(age_days, half_life_days)))
        if score > 0.0:
            recency[entry_id] = max(score, recency.get(entry_id, 0.0))
    return recency


def build_get_vector(
    vectors: Mapping[str, Sequence[float]] | None,
) -> Callable[[str, str], Sequence[float] | None]:
    """An accessor `(source_graph, id) -> vector or None`; the graph does not matter."""
    known = vectors or {}

    def get_vector(source_graph: str, entry_id: str) -> Sequence[float] | None:
        return known.get(entry_id)

    return get_vector


def _endpoints(value: object) -> list[str]:
    """Ids from a list, a comma-separated string, or nothing."""
    if value is None:
        return []
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable):
        return []
    names = (str(part).strip() for part in parts if part is not None)
    return [name for name in names if name]


def _parsed(value: object) -> datetime | None:
    """An aware datetime, or None where there is none to read."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value
