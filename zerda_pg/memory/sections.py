"""The kind prior's packer: a fragment for the system prompt, in sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerda_pg.entry import MemoryEntry
from zerda_pg.filters import Filter
from zerda_pg.results import Context
from zerda_pg.scoped import Memory
from zerda_pg.scoring.hybrid import HybridRanker
from zerda_pg.scoring.kind_prior import DEFAULT_WEIGHTS, KindPriorWeights, score_memory
from zerda_pg.scoring.rankers import KindPriorRanker
from zerda_pg.scoring.sections import pack_sections
from zerda_pg.scoring.selector import check_count
from zerda_pg.text import body_of
from zerda_pg.tokens import TokenCounter, resolve_counter

__all__ = ["pack_memories"]

BEST = 30
NEWEST = 10
"""The best for the task, and the newest decisions and facts each (the packer's figures)."""


def pack_memories(
    memory: Memory,
    task: str,
    *,
    token_budget: int = 3000,
    top_k: int | None = None,
    weights: KindPriorWeights = DEFAULT_WEIGHTS,
    filter: Filter | Mapping[str, Any] | None = None,
    count_tokens: str | TokenCounter | None = None,
    record_access: bool = True,
) -> Context:
    """Decisions, facts, preferences, failures and attempts for a task, under a budget.

    The 30 best for the task by the kind prior, the 10 newest decisions and the 10 newest facts,
    each once, best first; what does not fit is passed over.

    Args:
        memory: The scope.
        task: What the agent is about to do.
        token_budget: Greatest number of tokens of the text, headings included.
        top_k: Most memories; None: as many as fit.
        weights: Of the kind prior.
        filter: Which entries to consider.
        count_tokens: Default: the store's counter.
        record_access: Whether access counts rise.

    Returns:
        A context whose text is a plain sentence where nothing is relevant.

    Raises:
        ValueError: Naming the argument that is wrong.
    """
    check_count(token_budget, "token_budget")
    if top_k is not None:
        check_count(top_k, "top_k")
    ranker = KindPriorRanker(weights, base=HybridRanker())
    hits = memory.search(task, k=BEST, ranker=ranker, filter=filter, record_access=record_access)
    scores = {hit.entry.id: hit.score for hit in hits}
    found = {hit.entry.id: hit.entry for hit in hits}
    for kind in ("decision", "fact"):
        for entry in _newest(memory, kind, filter):
            if entry.id not in found:
                found[entry.id] = entry
                scores[entry.id] = score_memory(
                    kind, 0.0, body_of(entry.content), entry.access_count, task,
                    weights=weights, matching="word",
                )  # fmt: skip
    ranked = sorted(found.values(), key=lambda entry: (-scores[entry.id], entry.id))
    counter = memory.count_tokens if count_tokens is None else resolve_counter(count_tokens)
    packed = pack_sections(
        range(len(ranked)),
        [entry.kind for entry in ranked],
        [body_of(entry.content) for entry in ranked],
        budget=token_budget,
        count_tokens=counter,
        top_k=top_k,
    )
    return Context(
        text=packed.text,
        entries=[ranked[row] for row in packed.chosen],
        tokens=packed.tokens,
        report={
            **hits.report,
            "token_budget": token_budget,
            "packed": [_line(ranked[row], scores) for row in packed.chosen],
            "not_packed": [
                _line(ranked[row], scores) | {"reason": reason}
                for row, reason in packed.rejected.items()
            ],
        },
    )


def _newest(
    memory: Memory, kind: str, wanted: Filter | Mapping[str, Any] | None
) -> list[MemoryEntry]:
    base = Filter.of(wanted)
    if base.kinds is not None and kind not in base.kinds:
        return []
    narrowed = {name: getattr(base, name) for name in base.__dataclass_fields__} | {"kinds": [kind]}
    return memory.entries(filter=narrowed, limit=NEWEST).items


def _line(entry: MemoryEntry, scores: Mapping[str, float]) -> dict[str, Any]:
    return {"id": entry.id, "kind": entry.kind, "score": round(scores[entry.id], 4)}
