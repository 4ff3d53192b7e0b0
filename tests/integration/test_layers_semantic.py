"""Semantic memory: exact results, replaced entries, and models that are what they say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from zerda_pg import (
    EmbeddingMismatchError,
    EmbeddingModelError,
    Memory,
    MemoryEntry,
    MemoryStore,
    SemanticMemory,
    ZerdaError,
)
from zerda_pg.embedding.hashing import HashingEmbedder
from zerda_pg.embedding.protocol import Vectors

CountRows = Callable[[], dict[str, int]]

WORDS = "coffee tea deploy disk full user likes dark roast green red server".split()


class Broken:
    """An embedder whose model turns out to be unusable at its first text."""

    name = "broken"
    fingerprint = "broken-1"
    dimensions = 8
    max_tokens = 10

    def embed(
        self, texts: Sequence[str], *, kind: Literal["document", "query"] = "document"
    ) -> Vectors:
        raise EmbeddingModelError("the model file is damaged: install the extra again")


@pytest.fixture
def layer(store: MemoryStore) -> SemanticMemory:
    return SemanticMemory(tenant_id="acme", store=store)


def test_add_fills_the_embedding_and_search_gives_fresh_objects(layer: SemanticMemory) -> None:
    entry = MemoryEntry({"input": "I prefer dark roast coffee", "output": "Noted!"})
    layer.add(entry)
    assert entry.embedding is not None
    assert np.linalg.norm(entry.embedding) == pytest.approx(1.0, abs=1e-5)
    ((found, score),) = layer.search("dark roast coffee", k=3)
    ((again, _),) = layer.search("dark roast coffee", k=3)
    assert found == again == entry
    assert found is not again
    assert found is not entry
    vector = HashingEmbedder().embed(["dark roast coffee"], kind="query")[0]
    assert score == pytest.approx(float(vector @ np.asarray(entry.embedding)), abs=2e-3)
    found.tags.append("mine")
    assert entry.tags == layer.search_entries("dark roast")[0].tags == []


def test_a_batch_and_none(layer: SemanticMemory) -> None:
    entries = [MemoryEntry({"input": f"fact {i}", "output": "ok"}) for i in range(50)]
    layer.add_batch(entries)
    layer.add_batch([])
    assert layer.stats()["entries"] == 50
    assert all(entry.embedding is not None for entry in entries)
    assert len(layer.search("fact 7 ok", k=60)) == 50


def test_an_access_is_counted_unless_it_is_not_wanted(layer: SemanticMemory) -> None:
    entry = MemoryEntry("dark roast coffee", importance=0.5)
    layer.add(entry)
    before = layer.search_entries("coffee", touch=False)[0]
    assert (before.access_count, before.importance) == (0, 0.5)
    again = layer.search_entries("coffee", touch=False)[0]
    assert (again.access_count, again.last_access) == (0, before.last_access)
    found = layer.search_entries("coffee")[0]
    assert found.access_count == 1
    assert found.importance == pytest.approx(0.525)
    assert found.last_access > before.last_access
    expected = MemoryEntry("x", importance=0.525)
    expected.access()
    assert layer.search_entries("coffee")[0].importance == pytest.approx(expected.importance)


@pytest.fixture(scope="module")
def crowd(server: None) -> Iterator[tuple[MemoryStore, dict[str, MemoryEntry]]]:
    """A hundred entries, among others that are not in the layer, or not active."""
    from zerda_pg.testing import temporary_store

    generator = np.random.default_rng(5)
    with temporary_store() as store:
        memory = store.tenant("acme")
        texts = [" ".join(generator.choice(WORDS, 4)) for _ in range(160)]
        entries = [MemoryEntry(text, id=f"e{n:03}") for n, text in enumerate(texts)]
        layer = SemanticMemory(tenant_id="acme", store=store)
        layer.add_batch(entries[:120])
        memory.add_many(entries[120:])
        for entry in entries[:20]:
            memory.discard(entry.id)
        yield store, {entry.id: entry for entry in entries[20:120]}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
    k=st.integers(1, 130),
    min_score=st.sampled_from([-1.0, 0.0, 0.1, 0.3, 0.5, 0.8, 1.0]),
)
def test_exactly_as_many_as_there_are(
    crowd: tuple[MemoryStore, dict[str, MemoryEntry]], query: str, k: int, min_score: float
) -> None:
    store, entries = crowd
    layer = SemanticMemory(tenant_id="acme", store=store)
    every = layer.search(query, k=200, min_score=-1.0, touch=False)
    vector = HashingEmbedder().embed([query], kind="query")[0]
    for entry, score in every:
        assert score == pytest.approx(
            float(vector @ np.asarray(entries[entry.id].embedding)), abs=3e-3
        )
    assert {entry.id for entry, _ in every} == set(entries)
    found = layer.search(query, k, min_score, touch=False)
    good = [(entry, score) for entry, score in every if score >= min_score]
    assert found == good[:k]
    assert [score for _, score in found] == sorted((s for _, s in found), reverse=True)


def test_exact_where_an_approximate_index_exists(database: str, admin: psycopg.Connection) -> None:
    """The index finds 40 of the tenant's vectors, of which the layer has few or none."""
    with MemoryStore.open(database, embedder="hashing:16") as store:
        layer, memory = SemanticMemory(tenant_id="acme", store=store), store.tenant("acme")
        layer.add_batch([MemoryEntry(f"server number {n}") for n in range(30)])
        memory.add_many([MemoryEntry(f"coffee {n} {WORDS[n % 11]}") for n in range(3000)])
        admin.execute("ALTER TABLE zerda.embeddings ALTER embedding TYPE halfvec(16)")
        admin.execute("CREATE INDEX ON zerda.embeddings USING hnsw (embedding halfvec_cosine_ops)")
        admin.execute("ANALYZE zerda.embeddings, zerda.layer_entries")
    name = sql.Identifier(admin.info.dbname)
    for setting in ("enable_sort", "enable_seqscan", "enable_hashjoin"):
        admin.execute(sql.SQL("ALTER DATABASE {} SET {} = off").format(name, sql.SQL(setting)))
    with MemoryStore.open(database, embedder="hashing:16") as store:
        layer = SemanticMemory(tenant_id="acme", store=store)
        assert len(layer.search("coffee", k=25, min_score=-1.0)) == 25


def test_an_id_again_replaces_text_vector_and_index_rows(
    database: str, admin: psycopg.Connection, rows: CountRows
) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        layer, memory = SemanticMemory(tenant_id="acme", store=store), store.tenant("acme")
        layer.add(MemoryEntry("green tea", id="drink", importance=0.4, tags=["old"]))
        layer.add(MemoryEntry("dark roast coffee", id="drink", importance=0.6))
        ((found, score),) = layer.search("dark roast coffee", touch=False)
        assert (found.content, found.importance, found.tags) == ("dark roast coffee", 0.6, [])
        assert score == pytest.approx(1.0, abs=1e-3)
        assert layer.search("green tea", min_score=0.5) == []
        assert len(memory.search("tea", mode="lexical")) == 0
        assert len(memory.search("coffee", mode="lexical", record_access=False)) == 1
    counts = rows()
    assert (counts["entries"], counts["embeddings"], counts["layer_entries"]) == (1, 1, 1)
    assert admin.execute("SELECT count(*) FROM zerda.entry_state").fetchone() == (1,)


def test_removal(layer: SemanticMemory) -> None:
    layer.add_batch([MemoryEntry(f"fact {n}", id=f"f{n}") for n in range(3)])
    layer.remove("f1")
    layer.remove("f1")
    layer.remove("never there")
    assert {entry.id for entry in layer.search_entries("fact")} == {"f0", "f2"}
    layer.clear()
    assert layer.search("fact") == []
    layer.add(MemoryEntry("fact again", id="f1"))
    assert layer.stats()["entries"] == 1


def test_removal_does_not_rebuild_anything(layer: SemanticMemory) -> None:
    """O(log n): a removal from 50 and one from 2,000 take the same, within noise."""
    times = []
    for have in (50, 2000):
        now = layer.stats()["entries"]
        layer.add_batch([MemoryEntry(f"fact {n}", id=f"{have}-{n}") for n in range(have - now)])
        taken = []
        for n in range(7):
            start = time.perf_counter()
            layer.remove(f"{have}-{n}")
            taken.append(time.perf_counter() - start)
        times.append(min(taken))
    assert times[1] < 8 * times[0]


def test_an_empty_store(store: MemoryStore, layer: SemanticMemory) -> None:
    assert layer.search("anything", k=5) == []
    assert layer.search_entries("anything") == []
    assert layer.stats() == {
        "type": "SemanticMemory",
        "backend": "pgvector",
        "model": "hashing",
        "entries": 0,
        "tenant_id": "acme",
        "session_id": None,
        "fingerprint": store.embedder.fingerprint,
        "dimensions": store.embedder.dimensions,
        "real_model": False,
        "index": "exact",
    }


def test_users_see_their_own_and_what_is_everyone_s(store: MemoryStore, memory: Memory) -> None:
    layers = {
        user: SemanticMemory(tenant_id="acme", store=store, user_id=user)
        for user in ("ann", "bob", None)
    }
    for user, layer in layers.items():
        layer.add(MemoryEntry(f"the coffee of {user}", id=str(user)))
    found = {
        user: {entry.id for entry in layer.search_entries("coffee", k=9, touch=False)}
        for user, layer in layers.items()
    }
    assert found == {
        "ann": {"ann", "None"}, "bob": {"bob", "None"}, None: {"ann", "bob", "None"}
    }  # fmt: skip


def test_another_model_s_name_is_refused_before_anything_is_written(
    database: str, rows: CountRows
) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        layer = SemanticMemory("multi-qa-mpnet", tenant_id="acme", store=store)
        with pytest.raises(EmbeddingMismatchError, match=r"multi-qa-mpnet.*hashing"):
            layer.add(MemoryEntry("x"))
        with pytest.raises(EmbeddingMismatchError):
            layer.search("x")
        assert rows() == {}
        SemanticMemory("hashing", tenant_id="acme", store=store).add(MemoryEntry("x"))
    with (
        MemoryStore.open(database, embedder="hashing:64") as other,
        pytest.raises(EmbeddingMismatchError, match="reembed"),
    ):
        SemanticMemory(tenant_id="acme", store=other).add(MemoryEntry("y"))
    assert rows()["entries"] == 1


def test_a_model_that_cannot_be_loaded_writes_nothing_and_is_not_recorded(
    database: str, rows: CountRows
) -> None:
    with MemoryStore.open(database, embedder=Broken()) as store:
        layer = SemanticMemory(tenant_id="acme", store=store)
        with pytest.raises(EmbeddingModelError, match="install"):
            layer.add(MemoryEntry("x"))
        with pytest.raises(EmbeddingModelError):
            store.tenant("acme").add("x")
    assert rows() == {}
    with MemoryStore.open(database, embedder="hashing") as store:
        SemanticMemory(tenant_id="acme", store=store).add(MemoryEntry("x"))


def test_half_a_batch_is_never_written(layer: SemanticMemory, memory: Memory) -> None:
    entries = [MemoryEntry("good"), MemoryEntry("bad\x00text")]
    with pytest.raises(ZerdaError, match="NUL"):
        layer.add_batch(entries)
    assert memory.count() == 0
    assert entries[0].embedding is None


def test_bad_arguments_are_named(layer: SemanticMemory) -> None:
    for name, call in (
        ("k", lambda: layer.search("x", k=0)),
        ("min_score", lambda: layer.search("x", min_score=1.5)),
        ("min_score", lambda: layer.search("x", min_score=float("nan"))),
        ("model_name", lambda: SemanticMemory("")),
        ("cache_size", lambda: SemanticMemory(cache_size=0)),
        ("query", lambda: layer.search("  ")),
        ("entry_id", lambda: layer.remove("")),
    ):
        with pytest.raises(ValueError, match=name):
            call()
