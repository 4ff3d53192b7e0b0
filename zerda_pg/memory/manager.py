"""AIMemoryManager: one call to save a turn in every layer, one to get the context back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from zerda_pg.db.layers import Layer
from zerda_pg.entry import MemoryEntry, MemoryType, fraction, list_of_strings, mapping_of
from zerda_pg.ids import check_id, new_id
from zerda_pg.memory.long_term import LongTermMemory
from zerda_pg.memory.semantic import SemanticMemory
from zerda_pg.memory.short_term import ShortTermMemory
from zerda_pg.operations import layers
from zerda_pg.render import renderer_of
from zerda_pg.results import Context
from zerda_pg.scoped import Memory
from zerda_pg.scoring.forgetting import ForgettingConfig
from zerda_pg.scoring.packing import pack_measured
from zerda_pg.scoring.selector import MemorySelector, SelectionConfig, check_count
from zerda_pg.store import MemoryStore

__all__ = ["AIMemoryManager", "ManagerConfig"]

MIN_SIMILARITY = 0.1
"""Least cosine of a semantic candidate (the original's figure)."""

SYSTEM_INSTRUCTION = "You are a helpful, knowledgeable assistant."

_LEFT_OUT = {
    "llm": "compression",
    "encryption_key": "encryption",
    "enable_privacy_masking": "masking",
    "max_workers": "a thread pool",
    "documents": "documents",
    "include_profile": "profiles",
    "role": "roles",
}
"""Arguments of the original, and what they belong to."""


@dataclass(frozen=True, kw_only=True)
class ManagerConfig:
    """Sizes and thresholds.

    Raises:
        ValueError: Naming the field and its value.
    """

    window_size: int = 5
    """Entries of a user's short-term window."""
    importance_threshold: float = 0.7
    """From this importance a turn becomes a member of long-term memory."""
    token_budget: int = 2000
    """Of a context."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    """How candidates are weighed; its own budget is replaced by `token_budget`."""
    forgetting: ForgettingConfig = field(default_factory=ForgettingConfig)

    def __post_init__(self) -> None:
        check_count(self.window_size, "window_size")
        check_count(self.token_budget, "token_budget")
        fraction(self.importance_threshold, "importance_threshold")


class AIMemoryManager:
    """Short-term, semantic and long-term memory of many tenants and users; thread-safe.

    Args:
        config: Sizes and thresholds; None: the defaults.
        store: None: the default store, opened at the first use.
        left_out: Arguments of the original that have no counterpart here.

    Raises:
        TypeError: For such an argument, saying what is left out.
        ValueError: If `config` is another system's.
    """

    def __init__(
        self,
        config: ManagerConfig | None = None,
        *,
        store: MemoryStore | None = None,
        **left_out: Any,
    ) -> None:
        if left_out:
            _refuse(left_out)
        given: object = config
        if given is not None and not isinstance(given, ManagerConfig):
            raise ValueError(f"config must be a ManagerConfig, got {type(given).__name__}")
        self.config = config or ManagerConfig()
        self._store = store

    def save_interaction(
        self,
        user_id: str,
        tenant_id: str,
        user_input: str,
        assistant_output: str,
        *,
        importance: float = 0.5,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        topics: Sequence[str] | None = None,
    ) -> MemoryEntry:
        """Save a turn in every layer that it belongs to, in one transaction.

        Args:
            user_id: Whose turn it is.
            tenant_id: Whose memory it is.
            user_input: What the user said.
            assistant_output: What the assistant said.
            importance: In [0, 1]; from the threshold it is kept long-term.
            tags: Labels to filter by.
            metadata: Any JSON object.
            topics: Kept in the metadata under `topics`.

        Raises:
            InvalidContentError: If text or JSON cannot be stored; nothing is written.
            ValueError: Naming the argument that is wrong.
        """
        extra = {} if topics is None else {"topics": list_of_strings(topics, "topics")}
        short_term = self._short_term(user_id, tenant_id)
        entry = MemoryEntry(
            {"input": user_input, "output": assistant_output},
            memory_type=MemoryType.SHORT_TERM,
            importance=importance,
            tags=list_of_strings(tags, "tags"),
            metadata=mapping_of(metadata, "metadata") | extra,
            id=new_id(),
        )
        into = [Layer(name="short_term", session_id=user_id), Layer(name="semantic")]
        if importance >= self.config.importance_threshold:
            into.append(Layer(name="long_term"))
        (batch,) = short_term.memory().perform(
            layers.remember, [entry], into=into, window=self.config.window_size
        )
        return batch.results[0].entry

    def build_context(
        self,
        user_id: str,
        tenant_id: str,
        query: str,
        *,
        top_k_semantic: int = 8,
        top_k_ltm: int = 10,
        **left_out: Any,
    ) -> Context:
        """The memories for a query, from all layers, under the token budget.

        Args:
            user_id: Whose memories, beside those that all users see.
            tenant_id: Whose memory it is.
            query: What the user asks.
            top_k_semantic: Candidates by meaning.
            top_k_ltm: Candidates by importance.
            left_out: Arguments of the original that have no counterpart here.

        Raises:
            InvalidContentError: If the query is empty or no text.
            ValueError: Naming the argument that is wrong.
        """
        if left_out:
            _refuse(left_out)
        check_count(top_k_semantic, "top_k_semantic")
        check_count(top_k_ltm, "top_k_ltm")
        near = self._semantic(user_id, tenant_id).search(query, top_k_semantic, MIN_SIMILARITY)
        important = self._long_term(user_id, tenant_id).get_top_by_importance(top_k_ltm)
        recent = self._short_term(user_id, tenant_id).get_all()
        candidates = {
            entry.id: entry for entry in [*recent, *important, *(entry for entry, _ in near)]
        }
        similarities = {entry.id: score for entry, score in near}
        return self._packed(self._memory(user_id, tenant_id), query, candidates, similarities)

    def build_prompt(
        self,
        user_id: str,
        tenant_id: str,
        query: str,
        *,
        system_instruction: str = SYSTEM_INSTRUCTION,
        **left_out: Any,
    ) -> str:
        """Instruction, context and query as one prompt; the context alone is under the budget."""
        context = self.build_context(user_id, tenant_id, query, **left_out)
        parts = [system_instruction, context.text, f"=== Current Query ===\n{query}"]
        return "\n\n".join(part for part in parts if part)

    def run_maintenance(self, tenant_id: str) -> dict[str, Any]:
        """Fade a tenant's memories and discard those that have faded away."""
        return {"tenant_id": tenant_id} | self._memory(None, tenant_id).forget(
            self.config.forgetting
        )

    def stats(self, tenant_id: str) -> dict[str, Any]:
        """What a tenant holds, in all and by layer."""
        memory = self._memory(None, tenant_id)
        return memory.stats() | {
            "semantic": self._semantic(None, tenant_id).stats()["entries"],
            "long_term": self._long_term(None, tenant_id).count(),
        }

    def clear_tenant(self, tenant_id: str) -> None:
        """Erase all that a tenant has."""
        self._memory(None, tenant_id).clear()

    async def asave_interaction(
        self,
        user_id: str,
        tenant_id: str,
        user_input: str,
        assistant_output: str,
        *,
        importance: float = 0.5,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        topics: Sequence[str] | None = None,
    ) -> MemoryEntry:
        """`save_interaction`, off the event loop."""
        return await asyncio.to_thread(
            self.save_interaction,
            user_id,
            tenant_id,
            user_input,
            assistant_output,
            importance=importance,
            tags=tags,
            metadata=metadata,
            topics=topics,
        )

    async def abuild_context(
        self,
        user_id: str,
        tenant_id: str,
        query: str,
        *,
        top_k_semantic: int = 8,
        top_k_ltm: int = 10,
        **left_out: Any,
    ) -> Context:
        """`build_context`, off the event loop."""
        return await asyncio.to_thread(
            self.build_context,
            user_id,
            tenant_id,
            query,
            top_k_semantic=top_k_semantic,
            top_k_ltm=top_k_ltm,
            **left_out,
        )

    async def abuild_prompt(
        self,
        user_id: str,
        tenant_id: str,
        query: str,
        *,
        system_instruction: str = SYSTEM_INSTRUCTION,
        **left_out: Any,
    ) -> str:
        """`build_prompt`, off the event loop."""
        return await asyncio.to_thread(
            self.build_prompt,
            user_id,
            tenant_id,
            query,
            system_instruction=system_instruction,
            **left_out,
        )

    async def arun_maintenance(self, tenant_id: str) -> dict[str, Any]:
        """`run_maintenance`, off the event loop."""
        return await asyncio.to_thread(self.run_maintenance, tenant_id)

    async def astats(self, tenant_id: str) -> dict[str, Any]:
        """`stats`, off the event loop."""
        return await asyncio.to_thread(self.stats, tenant_id)

    async def aclear_tenant(self, tenant_id: str) -> None:
        """`clear_tenant`, off the event loop."""
        await asyncio.to_thread(self.clear_tenant, tenant_id)

    def _packed(
        self,
        memory: Memory,
        query: str,
        candidates: Mapping[str, MemoryEntry],
        similarities: Mapping[str, float],
    ) -> Context:
        """What the selector chooses, measured on the rendered whole; then what else fits."""
        count, budget = memory.count_tokens, self.config.token_budget
        rules = replace(self.config.selection, token_budget=budget)
        explained = MemorySelector(rules, count_tokens=count).explain(
            query, list(candidates.values()), similarities, rejected=True
        )
        chosen = [row for row in explained if row["reason"] is None]
        spare = [row for row in explained if row["reason"] == "over_budget"]
        # the selector counts contents; headings may cost more than them, or leave room
        tried = chosen if rules.packing == "stop" else [*chosen, *spare]
        best_first = sorted(tried, key=lambda row: (-row["composite"], row["id"]))
        rank = {row["id"]: place for place, row in enumerate(best_first)}
        render = renderer_of("transcript")

        def rendered(rows: Iterable[int]) -> tuple[str, list[MemoryEntry]]:
            return render([candidates[best_first[row]["id"]] for row in sorted(rows)])

        packed = pack_measured(
            [rank[row["id"]] for row in tried],
            lambda rows: count(rendered(rows)[0]),
            budget=budget,
            top_k=rules.top_k,
            policy="stop" if rules.packing == "stop" else "skip",
        )
        reasons = {best_first[row]["id"]: reason for row, reason in packed.rejected.items()}
        text, entries = rendered(packed.chosen)
        return Context(
            text=text,
            entries=entries,
            tokens=packed.tokens,
            report={
                "token_budget": budget,
                "packing": rules.packing,
                "packed": [best_first[row] for row in sorted(packed.chosen)],
                "not_packed": [
                    row | {"reason": reasons.get(row["id"], row["reason"])}
                    for row in explained
                    if rank.get(row["id"]) not in packed.chosen
                ],
            },
        )

    def _memory(self, user_id: str | None, tenant_id: str) -> Memory:
        return self._semantic(user_id, tenant_id).memory()

    def _short_term(self, user_id: str, tenant_id: str) -> ShortTermMemory:
        return ShortTermMemory(
            self.config.window_size,
            tenant_id=tenant_id,
            store=self._store,
            session_id=check_id(user_id, "user_id"),
            user_id=user_id,
        )

    def _semantic(self, user_id: str | None, tenant_id: str) -> SemanticMemory:
        return SemanticMemory(tenant_id=tenant_id, store=self._store, user_id=user_id)

    def _long_term(self, user_id: str | None, tenant_id: str) -> LongTermMemory:
        return LongTermMemory(tenant_id=tenant_id, store=self._store, user_id=user_id)


def _refuse(left_out: Mapping[str, Any]) -> NoReturn:
    name = min(left_out)
    if name in _LEFT_OUT:
        raise TypeError(f"{name}: zerda_pg has no {_LEFT_OUT[name]}; leave the argument out")
    raise TypeError(f"unexpected argument {name!r}")
