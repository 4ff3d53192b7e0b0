"""Semantic memory: entries found by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zerda_pg.entry import MemoryEntry
from zerda_pg.errors import EmbeddingMismatchError
from zerda_pg.ids import check_id
from zerda_pg.memory.layer import LayerMemory
from zerda_pg.operations import layers
from zerda_pg.scoring.selector import check_count
from zerda_pg.store import MemoryStore

__all__ = ["DEFAULT_MODEL", "SemanticMemory"]

DEFAULT_MODEL = "all-MiniLM-L6-v2"
"""The seed's default; it stands for the store's own model."""


class SemanticMemory(LayerMemory):
    """The semantic entries of a tenant and session, for every process.

    Args:
        model_name: A name other than the default must be that of the store's model: vectors of
            two models cannot be compared. There is no stub: a model that cannot be loaded is
            an error.
        cache_size: Kept for the seed's callers; repeated queries are cached by the store.
        tenant_id: Whose memory it is.
        store: None: the default store, opened at the first use.
        session_id: None: the tenant's own, of no session.
        user_id: Entries are written as this user's; seen are this user's and those without a
            user, and only this user's can be taken out.

    Raises:
        ValueError: Naming the argument that is wrong.
    """

    def __init__(
        self,
        model_name: str = DEFAULT_MODEL,
        cache_size: int = 1_000,
        *,
        tenant_id: str = "default",
        store: MemoryStore | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
    ) -> None:
        check_id(model_name, "model_name")
        check_count(cache_size, "cache_size")
        super().__init__(
            "semantic",
            tenant_id=tenant_id,
            store=store,
            session_id=session_id,
            user_id=user_id,
        )
        self.model_name = model_name

    def add(self, entry: MemoryEntry) -> None:
        """Embed and keep an entry, and fill its `embedding`; the same id is replaced.

        Raises:
            EmbeddingModelError: If the model cannot be loaded.
            EmbeddingMismatchError: If the store's model is not `model_name`.
        """
        self.add_batch([entry])

    def add_batch(self, entries: Sequence[MemoryEntry]) -> None:
        """The same for several, embedded together; nothing for none."""
        if not entries:
            return
        self._check_model()
        done = self._perform(layers.remember, entries, into=[self._layer])
        vectors = (vector for batch in done for vector in batch.vectors)
        for entry, vector in zip(entries, vectors, strict=True):
            entry.embedding = [float(x) for x in vector]

    def remove(self, entry_id: str) -> None:
        """Take an entry out; nothing if it is not here."""
        self._leave([check_id(entry_id, "entry_id")])

    def search(
        self, query: str, k: int = 5, min_score: float = 0.0, *, touch: bool = True
    ) -> list[tuple[MemoryEntry, float]]:
        """The k entries nearest to a query by cosine, with their cosines; exact.

        Args:
            query: What to look for.
            k: Most results; there are as many as score at least `min_score`.
            min_score: Least cosine, in [-1, 1].
            touch: Whether the results' accesses are counted, as by `MemoryEntry.access`.

        Returns:
            Fresh objects, best first.

        Raises:
            ValueError: Naming the argument that is wrong.
            EmbeddingModelError: If the model cannot be loaded.
        """
        check_count(k, "k")
        if not -1.0 <= min_score <= 1.0:
            raise ValueError(f"min_score must be between -1 and 1, got {min_score}")
        self._check_model()
        return self._perform(
            layers.nearest, self._layer, query, k=k, min_score=min_score, touch=touch
        )

    def search_entries(
        self, query: str, k: int = 5, min_score: float = 0.0, *, touch: bool = True
    ) -> list[MemoryEntry]:
        """`search` without the scores."""
        return [entry for entry, _ in self.search(query, k, min_score, touch=touch)]

    def stats(self) -> dict[str, Any]:
        """Size, and the model that really runs.

        Raises:
            MissingExtraError: If there is none.
        """
        embedder = self._opened().embedder
        return {
            "type": "SemanticMemory",
            "backend": "pgvector",
            "model": embedder.name,
            "entries": self._count(),
            "tenant_id": self.tenant_id,
            "session_id": self.session_id,
            "fingerprint": embedder.fingerprint,
            "dimensions": embedder.dimensions,
            "real_model": embedder.name != "hashing",
            "index": "exact",
        }

    def _check_model(self) -> None:
        if self.model_name == DEFAULT_MODEL:
            return
        name = self._opened().embedder.name
        if self.model_name not in {name, name.rpartition("/")[2]}:
            raise EmbeddingMismatchError(
                f"model_name is {self.model_name!r}, the store's model is {name!r}: open a store "
                "with that embedder, or leave model_name out"
            )
