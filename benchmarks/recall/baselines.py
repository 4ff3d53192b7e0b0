"""What a store would do without a ranker of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import psycopg

__all__ = ["fused", "ranked_by_words"]

RRF_K = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009)."""

BY_WORDS = """
WITH asked AS (
    SELECT replace(plainto_tsquery('english', %(text)s)::text, '&', '|')::tsquery AS words
)
SELECT e.id
FROM zerda.entries AS e, asked
WHERE e.tenant_id = %(tenant)s AND e.search @@ asked.words
ORDER BY ts_rank(e.search, asked.words) DESC, e.id
LIMIT %(depth)s
"""


def fused(legs: Sequence[Sequence[str]]) -> list[str]:
    """Plain reciprocal rank fusion."""
    scores: dict[str, float] = defaultdict(float)
    for leg in legs:
        for rank, memory in enumerate(leg, 1):
            scores[memory] += 1.0 / (RRF_K + rank)
    return sorted(scores, key=lambda memory: (-scores[memory], memory))


def ranked_by_words(database: psycopg.Connection, tenant: str, text: str, depth: int) -> list[str]:
    """Postgres' own: any of the words, by `ts_rank`."""
    rows = database.execute(BY_WORDS, {"tenant": tenant, "text": text, "depth": depth})
    return [row[0] for row in rows]
