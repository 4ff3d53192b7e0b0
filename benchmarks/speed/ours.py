"""zerda_pg through its public interface."""

from __future__ import annotations

from typing import Any

from benchmarks.speed.data import DIMENSIONS, Data
from zerda_pg import MemoryStore
from zerda_pg.embedding import HashingEmbedder


class Ours:
    """A store whose vectors are given."""

    def __init__(self, url: str) -> None:
        self.store = MemoryStore.open(url, embedder=HashingEmbedder(DIMENSIONS))

    def bulk(self, data: Data) -> None:
        for tenant, rows in data.rows_of().items():
            self.store.tenant(tenant).add_many(
                {"id": str(row), "content": data.texts[row], "embedding": data.vectors[row]}
                for row in rows
            )
        self.store.flush()

    def write(self, tenant: str, row: int, text: str, vector: Any) -> None:
        self.store.tenant(tenant).add(text, id=str(row), embedding=vector)

    def dense(self, tenant: str, vector: Any, k: int) -> list[int]:
        hits = self.store.tenant(tenant).search(
            "by vector", k=k, mode="dense", embedding=vector, record_access=False
        )
        return [int(hit.entry.id) for hit in hits]

    def hybrid(
        self, tenant: str, text: str, vector: Any, k: int, *, record: bool = False
    ) -> list[int]:
        hits = self.store.tenant(tenant).search(text, k=k, embedding=vector, record_access=record)
        return [int(hit.entry.id) for hit in hits]

    def close(self) -> None:
        self.store.close()
