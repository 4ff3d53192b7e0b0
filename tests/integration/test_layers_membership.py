"""Layers are memberships: what an entry's life hangs on, and who may end it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import psycopg
import pytest

from zerda_pg import (
    AlreadyExistsError,
    LongTermMemory,
    Memory,
    MemoryEntry,
    MemoryStore,
    SemanticMemory,
    ShortTermMemory,
    WorkingMemory,
)

CountRows = Callable[[], dict[str, int]]


def entry(name: str, content: Any = None, **fields: Any) -> MemoryEntry:
    return MemoryEntry(content or f"what {name} says", id=name, **fields)


def long_term(store: MemoryStore, session_id: str | None = None, **scope: Any) -> LongTermMemory:
    return LongTermMemory(tenant_id="acme", store=store, session_id=session_id, **scope)


def semantic(store: MemoryStore, session_id: str | None = None, **scope: Any) -> SemanticMemory:
    return SemanticMemory(tenant_id="acme", store=store, session_id=session_id, **scope)


def test_one_entry_in_several_layers_goes_with_the_last(store: MemoryStore, memory: Memory) -> None:
    layers = (long_term(store), long_term(store, "s1"), semantic(store))
    shared = entry("a")
    layers[0].store(shared)
    layers[1].store(shared)
    layers[2].add(shared)
    assert memory.count() == 1
    assert [layer.stats()["tenant_id"] for layer in layers] == ["acme"] * 3
    assert layers[0].delete("a")
    assert layers[0].get("a") is None
    assert layers[1].get("a") == layers[2].search_entries("what a says")[0] == shared
    layers[2].remove("a")
    assert memory.get("a") == shared
    layers[1].clear()
    assert memory.get("a") is None
    assert memory.count() == 0


def test_nothing_of_an_entry_is_left_behind(database: str, rows: CountRows) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        layer = long_term(store)
        layer.store_many([entry("a"), entry("b")])
        layer.store(entry("a", "another text"))  # leaves an old version
        store.tenant("acme").relate("a", "b")
        layer.clear()
    assert rows() == {"embedding_models": 1}


def test_the_same_id_twice_in_one_call_leaves_no_orphan(store: MemoryStore, memory: Memory) -> None:
    layer = long_term(store)
    layer.store_many([entry("a", "first"), entry("b"), entry("a", "second")])
    assert layer.count() == 2
    assert [found.content for found in layer.get_recent()].count("second") == 1
    assert layer.delete("a")
    assert memory.get("a") is None


@pytest.mark.parametrize("if_exists", ["replace", "keep"])
def test_what_add_wrote_stays_whichever_came_first(
    store: MemoryStore, memory: Memory, if_exists: Literal["replace", "keep"]
) -> None:
    layer = long_term(store)
    memory.add("by name", id="before")
    layer.store(entry("before", "by the layer"))
    layer.store(entry("after", "by the layer"))
    memory.add("by name", id="after", if_exists=if_exists)
    layer.store(entry("never"))
    assert memory.get("after").content == (  # type: ignore[union-attr]
        "by name" if if_exists == "replace" else "by the layer"
    )
    layer.clear()
    assert layer.count() == 0
    assert {found.id for found in memory.entries()} == {"before", "after"}
    assert memory.delete("before")
    assert memory.get("before") is None


def test_a_duplicate_by_add_is_held_too(store: MemoryStore, memory: Memory) -> None:
    layer = long_term(store)
    layer.store(entry("a", "The deploy runs at noon"))
    added = memory.add("the deploy  runs at NOON", dedupe=True)
    assert (added.status, added.id) == ("duplicate", "a")
    layer.delete("a")
    assert memory.get("a") is not None


def test_deleted_by_name_it_is_out_of_every_layer(store: MemoryStore, memory: Memory) -> None:
    first, second = long_term(store), semantic(store, "s1")
    first.store(entry("a"))
    second.add(entry("a"))
    assert memory.delete("a")
    assert first.count() == second.stats()["entries"] == 0
    assert second.search("what a says") == []
    # and a new one of that id is in no layer until it is put there
    memory.add("new", id="a")
    assert first.get("a") is None
    first.clear()
    assert memory.get("a") is not None


def test_memory_sees_every_active_entry_and_layers_see_active_members(
    store: MemoryStore, memory: Memory
) -> None:
    layer = semantic(store)
    layer.add_batch([entry("a"), entry("b")])
    memory.add("by itself", id="c")
    assert {found.id for found in memory.entries()} == {"a", "b", "c"}
    memory.discard("a")
    memory.invalidate("b", by="c")
    assert layer.stats()["entries"] == 0
    assert layer.search("what a says") == []
    memory.restore("a")
    assert [found.id for found in layer.search_entries("what a says")] == ["a"]


def test_sessions_and_tenants_are_apart(store: MemoryStore) -> None:
    tenants = {
        (tenant, session): LongTermMemory(tenant_id=tenant, store=store, session_id=session)
        for tenant in ("acme", "other")
        for session in (None, "s1", "s2")
    }
    for (tenant, session), layer in tenants.items():
        layer.store(entry("same-id" if session is None else f"{session}", f"{tenant} {session}"))
    for (tenant, session), layer in tenants.items():
        assert [found.content for found in layer.get_recent()] == [f"{tenant} {session}"]
    tenants["acme", "s1"].clear()
    tenants["acme", None].clear()
    assert [layer.count() for layer in tenants.values()] == [0, 0, 1, 1, 1, 1]


def test_a_user_s_layer_sees_and_ends_only_what_is_the_user_s(store: MemoryStore) -> None:
    ann, bob, everyone = (long_term(store, user_id=user) for user in ("ann", "bob", None))
    ann.store(entry("of-ann"))
    bob.store(entry("of-bob"))
    everyone.store(entry("shared"))
    assert {found.id for found in ann.get_recent()} == {"of-ann", "shared"}
    assert (ann.count(), bob.count(), everyone.count()) == (2, 2, 3)
    assert ann.get("of-bob") is None
    assert not ann.delete("of-bob")
    assert not ann.delete("shared")
    assert ann.delete_below_importance(0.9) == 1
    bob.clear()
    assert [found.id for found in everyone.get_recent()] == ["shared"]
    everyone.store(entry("of-carol", user_id="carol"))
    with pytest.raises(AlreadyExistsError):
        ann.store(entry("of-carol", "taken over"))


def test_leaving_two_layers_at_once_leaves_no_orphan(database: str, rows: CountRows) -> None:
    names = [f"e{n:02}" for n in range(40)]
    with (
        MemoryStore.open(database, embedder="hashing") as one,
        MemoryStore.open(database, embedder="hashing") as two,
    ):
        for layer in (long_term(one), long_term(two, "s1")):
            layer.store_many([entry(name) for name in names])
        start = threading.Barrier(2)

        def leave(layer: LongTermMemory, order: list[str]) -> int:
            start.wait()
            return sum(layer.delete(name) for name in order)

        with ThreadPoolExecutor(2) as pool:
            left = list(pool.map(leave, (long_term(one), long_term(two, "s1")), (names, names)))
    assert left == [len(names)] * 2
    assert rows() == {"embedding_models": 1}


def test_storing_and_leaving_at_once_never_loses_a_member(database: str) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        here, there, memory = long_term(store), long_term(store, "s1"), store.tenant("acme")
        for _ in range(15):
            here.store(entry("a"))
            start = threading.Barrier(2)

            def join(start: threading.Barrier = start) -> None:
                start.wait()
                there.store(entry("a"))

            with ThreadPoolExecutor(1) as pool:
                joined = pool.submit(join)
                start.wait()
                here.delete("a")
                joined.result()
            assert there.get("a") is not None
            there.delete("a")
            assert memory.get("a") is None


def test_two_layers_that_store_it_at_once_hold_what_was_written_alone(
    database: str, admin: psycopg.Connection
) -> None:
    names = [f"e{n:02}" for n in range(20)]
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        memory.add_many([{"id": name, "content": f"what {name} says"} for name in names])
        layers = [long_term(store, f"s{n}") for n in range(4)]
        start = threading.Barrier(len(layers))

        def join(layer: LongTermMemory) -> None:
            start.wait()
            layer.store_many([entry(name) for name in names])
            layer.clear()

        with ThreadPoolExecutor(len(layers)) as pool:
            list(pool.map(join, layers))
        assert [memory.get(name) is not None for name in names] == [True] * len(names)
    held = admin.execute("SELECT layer, count(*) FROM zerda.layer_entries GROUP BY 1").fetchall()
    assert held == [("direct", len(names))]


def test_an_add_that_finds_a_leaving_duplicate_does_not_rely_on_it(
    database: str, admin: psycopg.Connection
) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        memory, layer = store.tenant("acme"), long_term(store)
        layer.store(entry("a", "said twice"))
        with psycopg.connect(admin.info.dsn) as other, ThreadPoolExecutor(1) as pool:
            # what `leave` does, stopped before its commit
            other.execute("SELECT 1 FROM zerda.entries WHERE id = 'a' FOR UPDATE")
            for table, column in (
                ("layer_entries", "entry_id"), ("embeddings", "entry_id"),
                ("entry_state", "entry_id"), ("entries", "id"),
            ):  # fmt: skip
                other.execute(f"DELETE FROM zerda.{table} WHERE {column} = 'a'")
            adding = pool.submit(memory.add, "said twice", dedupe=True)
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not admin.execute(waiting).fetchone()[0]:  # type: ignore[index]
                assert not adding.done()
            other.commit()
            added = adding.result()
        assert added.status == "created"
        assert memory.get(added.id) is not None


def test_two_processes_see_the_same(database: str) -> None:
    with (
        MemoryStore.open(database, embedder="hashing") as one,
        MemoryStore.open(database, embedder="hashing") as two,
    ):
        ShortTermMemory(tenant_id="acme", store=one, session_id="s").add("said just now")
        long_term(one).store(entry("kept"))
        semantic(one).add(entry("meant"))
        here = ShortTermMemory(tenant_id="acme", store=two, session_id="s")
        assert [found.content for found in here.get_all()] == ["said just now"]
        assert long_term(two).get("kept") == entry("kept")
        assert semantic(two).search_entries("what meant says", k=1) == [entry("meant")]


def test_long_term_memory(store: MemoryStore) -> None:
    layer = long_term(store)
    layer.store_many(
        [entry(f"e{n}", timestamp=1_700_000_000 + n, importance=n / 10) for n in range(8)]
    )
    assert layer.count() == layer.stats()["total_entries"] == 8
    assert [found.id for found in layer.get_recent(2)] == ["e7", "e6"]
    assert [found.id for found in layer.get_top_by_importance(2)] == ["e7", "e6"]
    assert [found.id for found in layer.get_top_by_importance(9, 0.6)] == ["e7", "e6"]
    got = layer.get("e4")
    assert got is not None
    assert got.access_count == 1
    assert got.importance == pytest.approx(0.4 + 0.05 * 0.6)
    assert layer.get("missing") is None
    assert layer.delete_below_importance(0.5) == 5
    assert not layer.delete("e0")
    layer.store_many([])
    assert layer.count() == 3
    for name, call in (
        ("limit", lambda: layer.get_recent(0)),
        ("min_importance", lambda: layer.get_top_by_importance(1, 2.0)),
        ("threshold", lambda: layer.delete_below_importance(float("nan"))),
        ("entry_id", lambda: layer.get("")),
    ):
        with pytest.raises(ValueError, match=name):
            call()


def test_more_than_one_batch(store: MemoryStore, memory: Memory) -> None:
    layer = long_term(store)
    layer.store_many([entry(f"e{n:03}") for n in range(300)])
    assert layer.count() == 300
    layer.clear()
    assert memory.count() == 0


def test_working_memory_is_saved_and_restored(store: MemoryStore, memory: Memory) -> None:
    memory.add("known already", id="known")
    working = WorkingMemory(capacity=5, tenant_id="acme")
    turn = working.add({"input": "Remember this", "output": "Got it"}, importance=0.7, tags=["x"])
    working.load([*working.get_all(), entry("known", "as the agent has it", importance=0.9)])
    working.save(store, "run-1")
    back = WorkingMemory.restore(store, "run-1", tenant_id="acme")
    assert {found.id for found in back.get_all()} == {turn.id, "known"}
    kept = next(found for found in back.get_all() if found.id == turn.id)
    assert (kept.content, kept.importance, kept.tags) == (turn.content, 0.7, ["x"])
    assert memory.get("known").content == "known already"  # type: ignore[union-attr]
    assert WorkingMemory.restore(store, "run-2", tenant_id="acme").get_all() == []
    assert WorkingMemory.restore(store, "run-1", tenant_id="other").get_all() == []
    small = WorkingMemory.restore(store, "run-1", tenant_id="acme", capacity=1)
    assert len(small.get_all()) == 1

    working.remove(turn.id)
    working.save(store, "run-1")
    assert memory.get(turn.id) is None
    working.clear()
    working.save(store, "run-1")
    assert WorkingMemory.restore(store, "run-1", tenant_id="acme").get_all() == []
    assert [found.id for found in memory.entries()] == ["known"]
    with pytest.raises(ValueError, match="session_id"):
        working.save(store, "")


def test_a_saved_working_memory_keeps_its_entries_across_batches(
    store: MemoryStore, memory: Memory
) -> None:
    working = WorkingMemory(capacity=400, token_budget=10_000, tenant_id="acme")
    working.load([entry(f"e{n:03}", "x", importance=1 - n / 1000) for n in range(300)])
    working.save(store, "run")
    memory.relate("e298", "e299")
    working.save(store, "run")
    assert memory.count() == 300
    assert [n.entry.id for n in memory.neighbours("e298")] == ["e299"]


@pytest.mark.parametrize("make", [LongTermMemory, SemanticMemory, ShortTermMemory])
@pytest.mark.parametrize("argument", ["tenant_id", "session_id", "user_id"])
def test_a_bad_key_is_named(make: Any, argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        make(**({"tenant_id": "acme"} | {argument: "a\x00b"}))
