"""Tenants with an HNSW index of their own: built, used, exact where it must be, dropped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import psycopg
import pytest

from zerda_pg import MemoryStore
from zerda_pg.db import ann

TENANT = 'o\'brien % \\ "x"'
SIZE = 700


@pytest.fixture
def large(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryStore]:
    """A store in which a tenant has grown beyond the threshold, which is lowered for it."""
    monkeypatch.setattr(ann, "ANN_FROM", 500)
    random = np.random.default_rng(3)
    vectors = random.normal(size=(SIZE, 384))
    store.tenant(TENANT).add_many(
        {
            "id": f"e{n:04}",
            "content": f"entry number {n}",
            "kind": "rare" if n % 100 == 0 else "common",
            "embedding": vectors[n],
        }
        for n in range(SIZE)
    )
    store.tenant("small").add("a tenant without an index")
    yield store


def neighbours_of(store: MemoryStore, query: list[float], **given: object) -> list[str]:
    hits = store.tenant(TENANT).search("x", mode="dense", embedding=query, **given)  # type: ignore[arg-type]
    return [hit.entry.id for hit in hits]


def test_it_is_built_and_serves_from_the_next_search_on(large: MemoryStore) -> None:
    memory = large.tenant(TENANT)
    query = np.random.default_rng(4).normal(size=384).tolist()
    exact = neighbours_of(large, query)
    report = large.maintain()
    assert (report["indexed"], report["unindexed"]) == (1, 0)
    assert memory.stats()["index"] == "hnsw"
    assert large.tenant("small").stats()["index"] == "exact"
    paths = [memory.search("x", mode="dense", embedding=query).report["path"] for _ in range(2)]
    assert paths == ["exact", "hnsw"]
    assert len(set(exact) & set(neighbours_of(large, query))) >= 9
    assert memory.search("entry number 7", embedding=query).report["path"] == "hnsw"
    assert large.maintain()["indexed"] == 0


def test_a_filter_leaves_no_row_out(large: MemoryStore) -> None:
    large.maintain()
    memory = large.tenant(TENANT)
    query = np.random.default_rng(5).normal(size=384).tolist()
    neighbours_of(large, query)
    for _ in range(2):
        hits = memory.search("x", k=10, mode="dense", embedding=query, filter={"kinds": ["rare"]})
        assert len(hits) == SIZE // 100
        assert {hit.entry.kind for hit in hits} == {"rare"}
        assert hits.report["path"] == "exact"
    by_id = memory.search("x", mode="dense", embedding=query, filter={"created_to": None})
    assert len(by_id) == 10


def test_what_changes_afterwards_is_seen(large: MemoryStore) -> None:
    large.maintain()
    memory = large.tenant(TENANT)
    query = np.random.default_rng(6).normal(size=384)
    neighbours_of(large, query.tolist())
    memory.add("right there", id="there", embedding=query.tolist())
    assert neighbours_of(large, query.tolist())[0] == "there"
    memory.discard("there")
    assert "there" not in neighbours_of(large, query.tolist())


def test_what_is_true_now_is_told_by_it_too(large: MemoryStore) -> None:
    large.maintain()
    memory = large.tenant(TENANT)
    query = np.random.default_rng(8).normal(size=384)
    neighbours_of(large, query.tolist())
    soon = datetime.now(UTC) + timedelta(days=1)
    memory.add("until then", id="old", embedding=query.tolist())
    memory.add(
        "from then on", id="new", embedding=query.tolist(), valid_from=soon, supersedes="old"
    )
    for now, best in ((None, "old"), (soon, "new")):
        hits = memory.search("x", mode="dense", embedding=query.tolist(), now=now)
        assert hits.report["path"] == "hnsw"
        assert [hit.entry.id for hit in hits if hit.entry.id in {"old", "new"}] == [best]


def test_a_tenant_that_shrinks_loses_it(large: MemoryStore, store: MemoryStore) -> None:
    large.maintain()
    memory = large.tenant(TENANT)
    memory.purge(ids=[f"e{n:04}" for n in range(500)])
    assert large.maintain()["unindexed"] == 1
    assert memory.stats()["index"] == "exact"
    with psycopg.connect(store._core.url.set(drivername="postgresql").render_as_string(False)) as c:
        left = c.execute("SELECT indexname FROM pg_indexes WHERE indexname LIKE 'hnsw%'").fetchall()
    assert left == []
    query = np.random.default_rng(7).normal(size=384).tolist()
    assert len(neighbours_of(large, query)) == 10
    assert len(neighbours_of(large, query)) == 10
