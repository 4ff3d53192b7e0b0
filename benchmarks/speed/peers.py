"""Other memory stores on Postgres, each with its own recommended settings.

Run in an environment of its own (`peers.txt`), which has no zerda_pg:
`python -m benchmarks.speed.peers NAME URL DATA` prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.speed.data import DIMENSIONS, Data, load
from benchmarks.speed.measure import System, measure

BATCH = 500


def key_of(row: int) -> str:
    """A UUID that names a row, for stores that want one."""
    return str(uuid.UUID(int=row))


def row_of(key: str) -> int:
    return uuid.UUID(key).int


class LangGraph:
    """`PostgresStore` with its default HNSW index, or without one; a tenant is a namespace."""

    def __init__(self, url: str, data: Data, kind: str = "hnsw") -> None:
        from langgraph.store.postgres import PostgresStore

        self.vectors: dict[str, Any] = {}
        index: Any = {
            "dims": DIMENSIONS, "embed": self._embed, "fields": ["text"],
            "ann_index_config": {"kind": kind},
        }  # fmt: skip
        self._open = PostgresStore.from_conn_string(url, index=index)
        self.store = self._open.__enter__()
        self.store.setup()
        self.vectors |= {t: v.tolist() for t, v in zip(data.texts, data.vectors, strict=True)}

    def _embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [self.vectors[text] for text in texts]

    def bulk(self, data: Data) -> None:
        from langgraph.store.base import PutOp

        rows = range(len(data))
        for start in range(0, len(data), BATCH):
            self.store.batch(
                [
                    PutOp((data.tenants[row],), str(row), {"text": data.texts[row]})
                    for row in rows[start : start + BATCH]
                ]
            )

    def write(self, tenant: str, row: int, text: str, vector: Any) -> None:
        self.vectors[text] = vector.tolist()
        self.store.put((tenant,), str(row), {"text": text})

    def dense(self, tenant: str, vector: Any, k: int) -> list[int]:
        self.vectors["query"] = vector.tolist()
        return [int(item.key) for item in self.store.search((tenant,), query="query", limit=k)]


class LangChain:
    """`PGVectorStore` with an HNSW index and the tenant as a metadata column."""

    def __init__(self, url: str, data: Data) -> None:
        from langchain_core.embeddings import Embeddings
        from langchain_postgres import Column, PGEngine, PGVectorStore
        from langchain_postgres.v2.indexes import HNSWIndex

        class Given(Embeddings):  # type: ignore[misc]
            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                raise NotImplementedError

            def embed_query(self, text: str) -> list[float]:
                raise NotImplementedError

        engine = PGEngine.from_connection_string(url.replace("postgresql:", "postgresql+psycopg:"))
        engine.init_vectorstore_table(
            "peer_langchain", DIMENSIONS, metadata_columns=[Column("tenant", "TEXT")]
        )
        self.store = PGVectorStore.create_sync(
            engine, Given(), "peer_langchain", metadata_columns=["tenant"]
        )
        self.store.apply_vector_index(HNSWIndex())

    def bulk(self, data: Data) -> None:
        for start in range(0, len(data), BATCH):
            rows = range(start, min(start + BATCH, len(data)))
            self._add([(data.tenants[r], r, data.texts[r], data.vectors[r]) for r in rows])

    def _add(self, rows: Sequence[tuple[str, int, str, Any]]) -> None:
        self.store.add_embeddings(
            [text for _, _, text, _ in rows],
            [vector.tolist() for _, _, _, vector in rows],
            metadatas=[{"tenant": tenant} for tenant, _, _, _ in rows],
            ids=[key_of(row) for _, row, _, _ in rows],
        )

    def write(self, tenant: str, row: int, text: str, vector: Any) -> None:
        self._add([(tenant, row, text, vector)])

    def dense(self, tenant: str, vector: Any, k: int) -> list[int]:
        found = self.store.similarity_search_by_vector(
            vector.tolist(), k=k, filter={"tenant": tenant}
        )
        return [row_of(document.id or "") for document in found]


class Mem0:
    """mem0's `PGVector` class with HNSW; the tenant as `user_id` in the payload."""

    def __init__(self, url: str, data: Data) -> None:
        from mem0.vector_stores.pgvector import PGVector

        self.store = PGVector(
            dbname="", collection_name="peer_mem0", embedding_model_dims=DIMENSIONS, user=None,
            password=None, host=None, port=None, diskann=False, hnsw=True, connection_string=url,
        )  # fmt: skip

    def bulk(self, data: Data) -> None:
        for start in range(0, len(data), BATCH):
            rows = range(start, min(start + BATCH, len(data)))
            self.store.insert(
                vectors=[data.vectors[r].tolist() for r in rows],
                payloads=[{"data": data.texts[r], "user_id": data.tenants[r]} for r in rows],
                ids=[key_of(r) for r in rows],
            )

    def write(self, tenant: str, row: int, text: str, vector: Any) -> None:
        self.store.insert(
            vectors=[vector.tolist()],
            payloads=[{"data": text, "user_id": tenant}],
            ids=[key_of(row)],
        )

    def dense(self, tenant: str, vector: Any, k: int) -> list[int]:
        found = self.store.search(
            query="", vectors=vector.tolist(), top_k=k, filters={"user_id": tenant}
        )
        return [row_of(hit.id) for hit in found]


class LlamaIndex:
    """llama-index's `PGVectorStore`, exact as by default; the tenant as metadata."""

    def __init__(self, url: str, data: Data) -> None:
        from llama_index.vector_stores.postgres import PGVectorStore

        plain = url.split("://", 1)[1]
        self.store = PGVectorStore.from_params(
            connection_string=f"postgresql+psycopg2://{plain}",
            async_connection_string=f"postgresql+asyncpg://{plain}",
            table_name="peer_llama", embed_dim=DIMENSIONS, schema_name="public",
        )  # fmt: skip

    def bulk(self, data: Data) -> None:
        for start in range(0, len(data), BATCH):
            rows = range(start, min(start + BATCH, len(data)))
            self._add([(data.tenants[r], r, data.texts[r], data.vectors[r]) for r in rows])

    def _add(self, rows: Sequence[tuple[str, int, str, Any]]) -> None:
        from llama_index.core.schema import TextNode

        self.store.add(
            [
                TextNode(
                    id_=key_of(row), text=text, embedding=vector.tolist(),
                    metadata={"tenant": tenant},
                )
                for tenant, row, text, vector in rows
            ]
        )  # fmt: skip

    def write(self, tenant: str, row: int, text: str, vector: Any) -> None:
        self._add([(tenant, row, text, vector)])

    def dense(self, tenant: str, vector: Any, k: int) -> list[int]:
        from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
        from llama_index.core.vector_stores.types import VectorStoreQuery

        found = self.store.query(
            VectorStoreQuery(
                query_embedding=vector.tolist(),
                similarity_top_k=k,
                filters=MetadataFilters(filters=[MetadataFilter(key="tenant", value=tenant)]),
            )
        )
        return [row_of(key) for key in found.ids or []]


PEERS: dict[str, Callable[[str, Data], System]] = {
    "langgraph": LangGraph,
    "langgraph-exact": partial(LangGraph, kind="flat"),
    "langchain": LangChain,
    "mem0": Mem0,
    "llama-index": LlamaIndex,
}


def main() -> None:
    """Measure one peer."""
    name, url, path = sys.argv[1:]
    data = load(Path(path))
    print(json.dumps(measure(PEERS[name](url, data), data, url)))


if __name__ == "__main__":
    main()
