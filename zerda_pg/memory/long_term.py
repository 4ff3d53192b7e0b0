"""Long-term memory: what was found worth keeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zerda_pg.entry import MemoryEntry, fraction
from zerda_pg.ids import check_id
from zerda_pg.memory.layer import LayerMemory
from zerda_pg.operations import layers
from zerda_pg.scoring.selector import check_count
from zerda_pg.store import MemoryStore

__all__ = ["LongTermMemory"]


class LongTermMemory(LayerMemory):
    """The long-term entries of a tenant and session, for every process.

    Args:
        tenant_id: Whose memory it is.
        store: None: the default store, opened at the first use.
        session_id: None: the tenant's own, of no session.
        user_id: Entries are written as this user's; seen are this user's and those without a
            user, and only this user's can be taken out.

    Raises:
        ValueError: Naming the argument that is no usable key.
    """

    def __init__(
        self,
        *,
        tenant_id: str = "default",
        store: MemoryStore | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
    ) -> None:
        super().__init__(
            "long_term",
            tenant_id=tenant_id,
            store=store,
            session_id=session_id,
            user_id=user_id,
        )

    def store(self, entry: MemoryEntry) -> None:
        """Keep an entry; one with the same id is replaced."""
        self.store_many([entry])

    def store_many(self, entries: Sequence[MemoryEntry]) -> None:
        """Keep entries; one with the same id is replaced."""
        self._perform(layers.remember, entries, into=[self._layer])

    def get(self, entry_id: str) -> MemoryEntry | None:
        """One entry, its access counted as by `MemoryEntry.access`; None if it is not here."""
        return self._perform(layers.touch_member, self._layer, entry_id)

    def get_recent(self, limit: int = 20) -> list[MemoryEntry]:
        """The entries that happened last, newest first."""
        check_count(limit, "limit")
        return self._perform(layers.recall_members, self._layer, order="newest", limit=limit)

    def get_top_by_importance(
        self, limit: int = 20, min_importance: float = 0.0
    ) -> list[MemoryEntry]:
        """The entries of the greatest effective importance."""
        check_count(limit, "limit")
        return self._perform(
            layers.recall_members,
            self._layer,
            order="importance",
            limit=limit,
            min_importance=fraction(min_importance, "min_importance"),
        )

    def delete(self, entry_id: str) -> bool:
        """Take an entry out; False if it is not here."""
        return bool(self._leave([check_id(entry_id, "entry_id")]))

    def delete_below_importance(self, threshold: float) -> int:
        """Take out entries of a lower effective importance; how many."""
        least = fraction(threshold, "threshold")
        return len(self._perform(layers.evict_below, self._layer, least))

    def count(self) -> int:
        """How many entries there are."""
        return self._count()

    def stats(self) -> dict[str, Any]:
        """Size and place."""
        return {
            "type": "LongTermMemory",
            "backend": "postgres",
            "tenant_id": self.tenant_id,
            "session_id": self.session_id,
            "total_entries": self.count(),
        }
