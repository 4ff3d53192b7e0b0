"""Working memory: what matters in the current turn, in this process until it is saved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from zerda_pg.db.layers import Layer
from zerda_pg.entry import MemoryEntry, MemoryType, list_of_strings, mapping_of
from zerda_pg.ids import check_id, new_id
from zerda_pg.operations import layers
from zerda_pg.scoring.importance import importances
from zerda_pg.scoring.packing import Policy, check_policy, pack
from zerda_pg.scoring.selector import check_count, estimate_tokens
from zerda_pg.store import MemoryStore
from zerda_pg.text import body_of

__all__ = ["WorkingMemory"]


class WorkingMemory:
    """A small set of entries, kept by effective importance. Thread-safe; needs no database.

    Args:
        capacity: Greatest number of entries, ≥ 1.
        token_budget: Greatest total of the tokens that `load` fills, ≥ 1.
        tenant_id: Whose memory it is; shown by `stats`.
        count_tokens: Tokens of a text; None: a quarter of its characters, as in the original.

    Raises:
        ValueError: Naming the argument that is out of range.
    """

    def __init__(
        self,
        capacity: int = 10,
        token_budget: int = 3000,
        *,
        tenant_id: str = "default",
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        check_count(capacity, "capacity")
        check_count(token_budget, "token_budget")
        self.capacity = capacity
        self.token_budget = token_budget
        self.tenant_id = tenant_id
        self._count_tokens = count_tokens or estimate_tokens
        self._lock = threading.RLock()
        self._entries: dict[str, MemoryEntry] = {}

    def load(self, entries: Sequence[MemoryEntry], *, packing: Policy = "stop") -> None:
        """Replace the contents by the most important entries that fit.

        Args:
            entries: Ties in effective importance keep this order; of several with one id the
                most important counts.
            packing: `stop` ends at the first that does not fit; `skip`, `value` and `optimal`
                as in `zerda_pg.scoring.packing`.

        Raises:
            ValueError: If `packing` is unknown.
        """
        check_policy(packing, "packing")
        unique: dict[str, MemoryEntry] = {}
        for entry in _by_importance(entries):
            unique.setdefault(entry.id, entry)
        offered = list(unique.values())
        packed = pack(
            importances(offered),
            [self._tokens(entry) for entry in offered],
            budget=self.token_budget,
            top_k=self.capacity,
            policy=packing,
        )
        with self._lock:
            self._entries = {offered[row].id: offered[row] for row in packed.chosen}

    def add(
        self,
        content: Any,
        *,
        importance: float = 0.6,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> MemoryEntry:
        """Add an entry; a full memory evicts the least important first, of equals the oldest.

        Raises:
            ValueError: Naming the argument that is wrong; nothing is evicted then.
        """
        entry = MemoryEntry(
            content,
            memory_type=MemoryType.WORKING,
            importance=importance,
            tags=list_of_strings(tags, "tags"),
            metadata=mapping_of(metadata, "metadata"),
            # given, so that an `id` in the metadata stays the caller's own
            id=new_id(),
        )
        with self._lock:
            while len(self._entries) >= self.capacity:
                # the first of equals is the one that has been here longest
                least = min(self._entries.values(), key=lambda kept: kept.effective_importance)
                del self._entries[least.id]
            self._entries[entry.id] = entry
        return entry

    def remove(self, entry_id: str) -> MemoryEntry | None:
        """Take an entry out; None if it is not here."""
        with self._lock:
            return self._entries.pop(entry_id, None)

    def clear(self) -> None:
        """Take every entry out."""
        with self._lock:
            self._entries = {}

    def get_all(self) -> list[MemoryEntry]:
        """Every entry, by effective importance, descending; ties in the order of arrival."""
        with self._lock:
            entries = list(self._entries.values())
        return _by_importance(entries)

    def get_as_text(self) -> str:
        """The entries as a transcript for the prompt, in the order of `get_all`."""
        return "\n\n".join(_as_text(entry.content) for entry in self.get_all())

    def save(self, store: MemoryStore, session_id: str) -> None:
        """Keep the entries in the database as the session's, in place of what it had there.

        What the store has already is left as it is there.

        Raises:
            InvalidContentError: If text or JSON cannot be stored.
            ValueError: If `session_id` is no usable key.
        """
        layer = Layer(name="working", session_id=check_id(session_id, "session_id"))
        store.tenant(self.tenant_id).perform(
            layers.remember, self.get_all(), into=[layer], if_exists="keep", afresh=True
        )

    @classmethod
    def restore(
        cls,
        store: MemoryStore,
        session_id: str,
        *,
        capacity: int = 10,
        token_budget: int = 3000,
        tenant_id: str = "default",
    ) -> Self:
        """What `save` kept of a session, within the limits given; empty if nothing was kept."""
        memory = cls(capacity, token_budget, tenant_id=tenant_id)
        layer = Layer(name="working", session_id=check_id(session_id, "session_id"))
        memory.load(store.tenant(tenant_id).perform(layers.recall_members, layer))
        return memory

    def stats(self) -> dict[str, Any]:
        """Limits and use."""
        entries = self.get_all()
        return {
            "type": "WorkingMemory",
            "capacity": self.capacity,
            "token_budget": self.token_budget,
            "entries": len(entries),
            "estimated_tokens_used": sum(self._tokens(entry) for entry in entries),
            "tenant_id": self.tenant_id,
        }

    def _tokens(self, entry: MemoryEntry) -> int:
        return self._count_tokens(str(entry.content))


def _by_importance(entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    return sorted(entries, key=lambda entry: entry.effective_importance, reverse=True)


def _as_text(content: Any) -> str:
    """The seed's transcript; a mapping that is no chat turn keeps its content, as JSON."""
    if isinstance(content, Mapping) and content.keys() & {"input", "output"}:
        return f"user: {content.get('input', '')}\nassistant: {content.get('output', '')}"
    return body_of(content) if isinstance(content, Mapping) else str(content)
