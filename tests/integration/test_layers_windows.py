"""Short-term memory: a window that many threads and processes add to."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from zerda_pg import InvalidContentError, LongTermMemory, Memory, MemoryStore, ShortTermMemory

WRITER = """
import sys
from zerda_pg import MemoryStore, ShortTermMemory
with MemoryStore.open(sys.argv[1], embedder="hashing") as store:
    window = ShortTermMemory(5, tenant_id="acme", store=store, session_id="s")
    for n in range(12):
        window.add(f"{sys.argv[2]} says {n}")
        assert window.size <= 5
        assert len(window.get_all()) <= 5
"""


def window_of(store: MemoryStore, size: int = 3, **scope: str) -> ShortTermMemory:
    return ShortTermMemory(size, tenant_id="acme", store=store, **scope)


def said(window: ShortTermMemory) -> list[str]:
    return [found.content for found in window.get_all()]


def test_first_in_first_out(store: MemoryStore, memory: Memory) -> None:
    window = window_of(store)
    assert (window.size, window.is_full, said(window)) == (0, False, [])
    added = [window.add(f"turn {n}") for n in range(5)]
    assert said(window) == ["turn 2", "turn 3", "turn 4"]
    assert (window.size, window.is_full) == (3, True)
    assert [found.content for found in window.get_recent(2)] == ["turn 3", "turn 4"]
    assert window.get_recent(0) == []
    assert len(window.get_recent(99)) == 3
    assert memory.count() == 3
    assert memory.get(added[0].id) is None
    window.clear()
    assert memory.count() == 0


def test_defaults_and_fields(store: MemoryStore) -> None:
    window = window_of(store, session_id="s")
    assert window.stats() == {
        "type": "ShortTermMemory", "window_size": 3, "current_size": 0, "is_full": False,
        "tenant_id": "acme", "session_id": "s",
    }  # fmt: skip
    given = {"id": "order-17"}
    added = window.add({"input": "hi", "output": "hello"}, tags=["greeting"], metadata=given)
    (found,) = window.get_all()
    assert found == added
    assert (found.importance, found.memory_type.value) == (0.5, "short_term")
    assert (found.tags, found.metadata, found.session_id) == (["greeting"], given, "s")
    assert found.id != "order-17"
    assert ShortTermMemory(tenant_id="acme", store=store).window_size == 20


def test_what_falls_out_stays_where_else_it_belongs(store: MemoryStore, memory: Memory) -> None:
    window, long_term = window_of(store, 1), LongTermMemory(tenant_id="acme", store=store)
    kept = window.add("keep me")
    long_term.store(kept)
    window.add("the next turn")
    assert said(window) == ["the next turn"]
    assert long_term.get(kept.id) is not None
    long_term.delete(kept.id)
    assert memory.get(kept.id) is None


def test_a_smaller_window_shows_less_and_trims_at_its_next_add(
    store: MemoryStore, memory: Memory
) -> None:
    wide, narrow = window_of(store, 6), window_of(store, 2)
    for n in range(6):
        wide.add(f"turn {n}")
    assert (narrow.size, said(narrow)) == (2, ["turn 4", "turn 5"])
    assert memory.count() == 6
    narrow.add("turn 6")
    assert said(wide) == ["turn 5", "turn 6"]


def test_sessions_tenants_and_users_have_windows_of_their_own(store: MemoryStore) -> None:
    windows = [
        window_of(store, 2),
        window_of(store, 2, session_id="a"),
        window_of(store, 2, session_id="b"),
        ShortTermMemory(2, tenant_id="other", store=store, session_id="a"),
    ]
    for number, window in enumerate(windows):
        for n in range(3):
            window.add(f"{number}: {n}")
    assert [said(window) for window in windows] == [
        [f"{number}: 1", f"{number}: 2"] for number in range(4)
    ]
    ann, bob = window_of(store, 2, user_id="ann"), window_of(store, 2, user_id="bob")
    windows[0].clear()
    for n in range(3):
        ann.add(f"ann {n}")
        bob.add(f"bob {n}")
    assert (said(ann), said(bob)) == (["ann 1", "ann 2"], ["bob 1", "bob 2"])


@pytest.fixture
def open_store(database: str) -> Iterator[MemoryStore]:
    """A store on `database`, so that `admin` sees the same."""
    with MemoryStore.open(database, embedder="hashing") as store:
        yield store


def test_decay_is_set_not_accumulated(open_store: MemoryStore, admin: psycopg.Connection) -> None:
    window = window_of(open_store)
    for n in range(3):
        window.add(f"turn {n}", importance=0.5)
    first, second, third = window.get_all()
    for found, days in ((first, 2), (second, 40)):
        admin.execute(
            "UPDATE zerda.entry_state SET last_access = now() - %s * interval '1 day' "
            "WHERE entry_id = %s",
            [days, found.id],
        )
    for _ in range(3):
        window.apply_decay(0.1)
    factors = [found.decay_factor for found in window.get_all()]
    assert factors == pytest.approx([0.8, 0.1, 1.0], abs=1e-3)
    assert [found.importance for found in window.get_all()] == [0.5] * 3
    assert window.evict_below(0.3) == [second]
    assert window.evict_below(0.0) == []
    assert window.get_all() == [first, third]


def test_eight_threads_never_exceed_the_window(store: MemoryStore) -> None:
    window = window_of(store, 5)
    sizes: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            # of the table itself: `size` and `get_all` cut to the window
            sizes.append(store.tenant("acme").count())

    def add(worker: int) -> None:
        for n in range(8):
            window.add(f"{worker}: {n}")

    with ThreadPoolExecutor(9) as pool:
        watching = pool.submit(watch)
        list(pool.map(add, range(8)))
        stop.set()
        watching.result()
    assert max(sizes) <= 5
    assert store.tenant("acme").count() == 5


def test_several_processes_never_exceed_the_window(database: str, open_store: MemoryStore) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, database, name])
        for name in ("ann", "bob", "eve")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    window = window_of(open_store, 5, session_id="s")
    assert (window.size, open_store.tenant("acme").count()) == (5, 5)
    assert said(window)[-1].endswith("says 11")


def test_an_add_and_a_clear_at_once(store: MemoryStore, memory: Memory) -> None:
    window = window_of(store, 3)
    end = time.monotonic() + 1.5

    def add() -> None:
        while time.monotonic() < end:
            window.add("turn")

    def clear() -> None:
        while time.monotonic() < end:
            window.clear()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(add), pool.submit(add), pool.submit(clear)]:
            done.result()
    assert memory.count() == len(window.get_all()) <= 3
    window.clear()
    assert memory.count() == 0


@pytest.mark.parametrize("size", [0, -1, 2.5, True, None])
def test_a_bad_window_is_named_at_construction(size: object) -> None:
    with pytest.raises(ValueError, match="window_size"):
        ShortTermMemory(size)  # type: ignore[arg-type]


def test_bad_arguments_are_named_and_write_nothing(store: MemoryStore, memory: Memory) -> None:
    window = window_of(store)
    for name, arguments in (
        ("importance", {"importance": 1.5}),
        ("tags", {"tags": "urgent"}),
        ("metadata", {"metadata": ["no", "mapping"]}),
    ):
        with pytest.raises(ValueError, match=name):
            window.add("turn", **arguments)
    with pytest.raises(InvalidContentError, match="NUL"):
        window.add("a\x00b")
    with pytest.raises(InvalidContentError, match="empty"):
        window.add("  ")
    with pytest.raises(ValueError, match="decay_rate"):
        window.apply_decay(-0.1)
    with pytest.raises(ValueError, match="min_importance"):
        window.evict_below(2)
    assert memory.count() == 0
