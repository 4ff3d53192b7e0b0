"""Short-term memory: a window of the newest entries, first in, first out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerda_pg.entry import MemoryEntry, MemoryType, fraction, list_of_strings, mapping_of
from zerda_pg.ids import new_id
from zerda_pg.memory.layer import LayerMemory
from zerda_pg.operations import layers
from zerda_pg.scoring.selector import check_count
from zerda_pg.store import MemoryStore

__all__ = ["ShortTermMemory"]

LEAST_DECAY = 0.1
"""Floor of the decay factor (the original's figure)."""


class ShortTermMemory(LayerMemory):
    """The newest `window_size` entries of a tenant and session, for every process.

    Args:
        window_size: Greatest number of entries, ≥ 1.
        tenant_id: Whose memory it is.
        store: None: the default store, opened at the first use.
        session_id: None: the tenant's own window.
        user_id: Entries are written as this user's; seen are this user's and those without a
            user, and only this user's can be taken out.

    Raises:
        ValueError: Naming the argument that is wrong.
    """

    def __init__(
        self,
        window_size: int = 20,
        *,
        tenant_id: str = "default",
        store: MemoryStore | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
    ) -> None:
        check_count(window_size, "window_size")
        super().__init__(
            "short_term",
            tenant_id=tenant_id,
            store=store,
            session_id=session_id,
            user_id=user_id,
        )
        self.window_size = window_size

    def add(
        self,
        content: Any,
        *,
        importance: float = 0.5,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> MemoryEntry:
        """Add an entry; the oldest falls out of a full window.

        Raises:
            InvalidContentError: If text or JSON cannot be stored.
            ValueError: Naming the argument that is wrong; `importance` is in [0, 1].
        """
        entry = MemoryEntry(
            content,
            memory_type=MemoryType.SHORT_TERM,
            importance=importance,
            tags=list_of_strings(tags, "tags"),
            metadata=mapping_of(metadata, "metadata"),
            # given, so that an `id` in the metadata stays the caller's own
            id=new_id(),
            session_id=self.session_id,
        )
        (batch,) = self._perform(
            layers.remember, [entry], into=[self._layer], window=self.window_size
        )
        return batch.results[0].entry

    def get_all(self) -> list[MemoryEntry]:
        """The window, oldest first."""
        return self._perform(layers.recall_members, self._layer)[-self.window_size :]

    def get_recent(self, n: int) -> list[MemoryEntry]:
        """The newest n, oldest first."""
        return self.get_all()[-n:] if n > 0 else []

    def apply_decay(self, decay_rate: float = 0.1) -> None:
        """Set decay factors to 1 − rate · days since the last access, at least 0.1.

        The original multiplies the factor into the importance at every call as well; here the
        number of calls does not matter.
        """
        self._perform(layers.fade, self._layer, fraction(decay_rate, "decay_rate"), LEAST_DECAY)

    def evict_below(self, min_importance: float) -> list[MemoryEntry]:
        """Take out entries of a lower effective importance; what was taken out."""
        least = fraction(min_importance, "min_importance")
        return self._perform(layers.evict_below, self._layer, least)

    @property
    def size(self) -> int:
        """How many entries the window holds."""
        return min(self._count(), self.window_size)

    @property
    def is_full(self) -> bool:
        """Whether the next entry pushes one out."""
        return self.size == self.window_size

    def stats(self) -> dict[str, Any]:
        """Size and limits."""
        size = self.size
        return {
            "type": "ShortTermMemory",
            "window_size": self.window_size,
            "current_size": size,
            "is_full": size == self.window_size,
            "tenant_id": self.tenant_id,
            "session_id": self.session_id,
        }
