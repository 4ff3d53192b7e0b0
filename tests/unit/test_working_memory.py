"""WorkingMemory: the seed's examples, eviction, budget, ties, threads."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.entry import MemoryEntry, MemoryType
from zerda_pg.memory.working import WorkingMemory


def entry(name: str, importance: float, content: Any = "text", **fields: Any) -> MemoryEntry:
    return MemoryEntry(content, importance=importance, id=name, **fields)


def ids(memory: WorkingMemory) -> list[str]:
    return [kept.id for kept in memory.get_all()]


# --- the seed's examples


def test_seed_examples() -> None:
    wm = WorkingMemory(capacity=5, token_budget=500)

    added = wm.add({"input": "Remember this", "output": "Got it"}, importance=0.7)
    assert wm.get_all() == [added]

    candidates = [
        MemoryEntry(
            content={"input": f"fact {i}", "output": "ok"},
            timestamp=time.time(),
            memory_type=MemoryType.WORKING,
            importance=0.5 + i * 0.05,
        )
        for i in range(8)
    ]
    wm.load(candidates)
    assert len(wm.get_all()) == 5
    assert wm.get_all() == candidates[:2:-1]

    text = wm.get_as_text()
    assert text.startswith("user: fact 7\nassistant: ok\n\nuser: fact 6\nassistant: ok")

    with pytest.raises(ValueError, match="capacity"):
        WorkingMemory(capacity=0).add({"input": "x", "output": "y"})

    stats = wm.stats()
    assert not stats["estimated_tokens_used"] >= stats["token_budget"] * 0.9


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"capacity": -3}, "capacity"),
        ({"capacity": 2.0}, "capacity"),
        ({"token_budget": 0}, "token_budget"),
    ],
)
def test_bad_limits_are_an_error_at_construction(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        WorkingMemory(**arguments)


def test_add_defaults() -> None:
    wm = WorkingMemory(tenant_id="acme")
    metadata = {"id": "order-17"}
    first, second = wm.add("a", metadata=metadata), wm.add("b", metadata=metadata, tags=["t"])
    assert (first.importance, first.memory_type) == (0.6, MemoryType.WORKING)
    assert (second.tags, second.metadata) == (["t"], {"id": "order-17"})
    assert metadata == {"id": "order-17"}
    assert len(wm.get_all()) == 2  # the metadata's id is the caller's own
    assert wm.get_all() == [first, second]


def test_stats_keys() -> None:
    wm = WorkingMemory(3, 100, tenant_id="acme")
    wm.add("x" * 40)
    assert wm.stats() == {
        "type": "WorkingMemory",
        "capacity": 3,
        "token_budget": 100,
        "entries": 1,
        "estimated_tokens_used": 10,
        "tenant_id": "acme",
    }


def test_load_replaces_and_stops_at_the_first_that_does_not_fit() -> None:
    wm = WorkingMemory(capacity=5, token_budget=20)
    wm.add("gone")
    entries = [entry("a", 0.9, "x" * 40), entry("b", 0.8, "x" * 80), entry("c", 0.7, "x" * 4)]
    wm.load(entries)
    assert ids(wm) == ["a"]
    wm.load(entries, packing="skip")
    assert ids(wm) == ["a", "c"]
    with pytest.raises(ValueError, match="packing"):
        wm.load(entries, packing="first")  # type: ignore[arg-type]
    assert ids(wm) == ["a", "c"]
    wm.load([])
    assert ids(wm) == []


def test_load_by_effective_importance_with_ties_in_the_given_order() -> None:
    wm = WorkingMemory(capacity=4)
    wm.load(
        [
            entry("b", 0.5),
            entry("faded", 1.0, decay_factor=0.1),
            entry("a", 0.5),
            entry("top", 0.9),
        ]
    )
    assert ids(wm) == ["top", "b", "a", "faded"]


def test_of_one_id_the_most_important_is_loaded() -> None:
    wm = WorkingMemory(capacity=2)
    wm.load([entry("a", 0.2), entry("a", 0.9), entry("b", 0.1)])
    assert [(e.id, e.importance) for e in wm.get_all()] == [("a", 0.9), ("b", 0.1)]


def test_eviction_takes_the_least_important_and_of_equals_the_oldest() -> None:
    wm = WorkingMemory(capacity=3)
    first, second = wm.add("1", importance=0.4), wm.add("2", importance=0.4)
    third = wm.add("3", importance=0.9)
    fourth = wm.add("4", importance=0.1)
    assert wm.get_all() == [third, second, fourth]
    fifth = wm.add("5", importance=0.2)
    assert wm.get_all() == [third, second, fifth]
    with pytest.raises(ValueError, match="importance"):
        wm.add("6", importance=1.5)
    assert wm.get_all() == [third, second, fifth]
    assert first not in wm.get_all()


@pytest.mark.parametrize(
    ("field", "value"),
    [("importance", 1.5), ("tags", "one string"), ("metadata", ["no", "mapping"])],
)
def test_a_bad_argument_is_named_and_nothing_is_evicted(field: str, value: Any) -> None:
    memory = WorkingMemory(capacity=1)
    kept = memory.add("kept")
    with pytest.raises(ValueError, match=field):
        memory.add("new", **{field: value})
    assert memory.get_all() == [kept]


def test_remove_and_clear() -> None:
    wm = WorkingMemory()
    added = wm.add("x")
    assert wm.remove("nobody") is None
    assert wm.remove(added.id) is added
    assert wm.remove(added.id) is None
    wm.add("y")
    wm.clear()
    assert wm.get_all() == []
    assert wm.get_as_text() == ""


def test_text_of_every_shape() -> None:
    wm = WorkingMemory()
    for importance, content in (
        (0.9, {"input": "hi", "output": "hello"}),
        (0.8, {"input": "hi"}),
        (0.7, "plain"),
        (0.6, {"city": "Köln"}),
        (0.5, [1, 2]),
    ):
        wm.add(content, importance=importance)
    assert wm.get_as_text() == (
        'user: hi\nassistant: hello\n\nuser: hi\nassistant: \n\nplain\n\n{"city": "Köln"}\n\n[1, 2]'
    )


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 120)), max_size=12),
    st.integers(1, 6),
    st.integers(1, 60),
    st.sampled_from(["stop", "skip", "value", "optimal"]),
)
def test_limits_hold(
    rows: list[tuple[float, int]], capacity: int, budget: int, packing: Any
) -> None:
    wm = WorkingMemory(capacity, budget)
    wm.load([entry(f"{i}", p, "x" * size) for i, (p, size) in enumerate(rows)], packing=packing)
    assert wm.stats()["estimated_tokens_used"] <= budget
    assert len(wm.get_all()) <= capacity
    kept = [e.effective_importance for e in wm.get_all()]
    assert kept == sorted(kept, reverse=True)


def test_many_threads() -> None:
    wm = WorkingMemory(capacity=8)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(200):
                added = wm.add(f"{seed}-{i}", importance=(i % 10) / 10)
                wm.get_as_text()
                wm.stats()
                if i % 3 == 0:
                    wm.remove(added.id)
                if i % 50 == 0:
                    wm.load([entry(f"{seed}-{i}-{j}", 0.5) for j in range(10)])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(wm.get_all()) <= 8
