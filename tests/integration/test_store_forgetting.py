"""`Memory.forget` does in SQL what `ForgettingMechanism` does in Python."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zerda_pg import (
    ForgettingConfig,
    ForgettingMechanism,
    LongTermMemory,
    Memory,
    MemoryEntry,
    MemoryStore,
)
from zerda_pg.core import Core
from zerda_pg.db import maintenance
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, write
from zerda_pg.testing import temporary_store

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def fade_at(
    core: Core, scope: Scope, config: ForgettingConfig, clock: datetime
) -> Steps[maintenance.Faded]:
    return write(lambda c: maintenance.fade(c, scope, config, after="", clock=clock, dry_run=False))


def old(name: str, days: float = 400.0, **fields: Any) -> MemoryEntry:
    """Not accessed for that many days."""
    accessed = datetime.now(UTC) - timedelta(days=days)
    return MemoryEntry(f"what {name} says", id=name, last_access=accessed.timestamp(), **fields)


CONFIGS = st.builds(
    ForgettingConfig,
    base_decay_rate=st.sampled_from([0.0, 0.15, 1.0, 40.0]),
    recency_boost_per_access=st.sampled_from([0.0, 0.05, 0.5]),
    max_recency_boost=st.sampled_from([1.0, 2.0, 9.0]),
    min_importance=st.sampled_from([0.0, 0.05, 0.4]),
    deletion_threshold=st.sampled_from([0.0, 0.05, 0.3]),
    compat=st.booleans(),
)

ENTRIES: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(
        dict,
        importance=st.floats(0, 1) | st.sampled_from([0.0, 1.0]),
        decay_factor=st.floats(0, 1),
        access_count=st.integers(0, 60),
        days=st.floats(-2, 4000),
        pinned=st.booleans(),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def shared(server: None) -> Iterator[MemoryStore]:
    with temporary_store() as store:
        yield store


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(config=CONFIGS, rows=ENTRIES, runs=st.integers(1, 3))
def test_the_same_numbers_as_the_class(
    shared: MemoryStore, config: ForgettingConfig, rows: list[dict[str, Any]], runs: int
) -> None:
    memory = shared.tenant(uuid.uuid4().hex)
    memory.add_many(
        MemoryEntry(
            "x",
            importance=row["importance"],
            decay_factor=row["decay_factor"],
            access_count=row["access_count"],
            last_access=(NOW - timedelta(days=row["days"])).timestamp(),
            tags=["pinned"] if row["pinned"] else [],
        )
        for row in rows
    )
    mine = {entry.id: replace(entry) for entry in memory.entries(limit=50)}
    mechanism = ForgettingMechanism(config)
    for run in range(runs):
        clock = NOW + timedelta(days=run)
        active = [e for e in mine.values() if e.status.value == "active"]
        _, forgotten = mechanism.apply(active, now=clock)
        faded = memory.perform(fade_at, config, clock)
        assert faded.considered == len(active)
        edge = {
            entry.id
            for entry in active
            if abs(entry.effective_importance - config.deletion_threshold) < 1e-12
        }
        assert set(faded.forgotten) - edge == {entry.id for entry in forgotten} - edge
        for entry in memory.get_many(list(mine)):
            assert entry is not None
            own = mine[entry.id]
            assert entry.importance == pytest.approx(own.importance, abs=1e-9)
            assert entry.decay_factor == pytest.approx(own.decay_factor, abs=1e-9)
            own.status = entry.status
            assert (entry.status.value == "discarded") >= (entry.id in faded.forgotten)


def test_dry_run_changes_nothing_and_tells_the_same(store: MemoryStore, memory: Memory) -> None:
    memory.add_many([old("weak", importance=0.5), old("new", 0.0), old("kept", importance=1.0)])
    before = [vars(entry) for entry in memory.entries()]
    dry = memory.forget(dry_run=True)
    assert [vars(entry) for entry in memory.entries()] == before
    wet = memory.forget()
    assert dry == {
        "considered": 3, "forgotten": 1, "forgotten_ids": ["weak"], "dry_run": True,
    }  # fmt: skip
    assert wet == dry | {"dry_run": False}
    assert memory.get("kept").decay_factor == 0.05  # type: ignore[union-attr]


def test_pinned_is_never_forgotten_and_the_forgotten_can_be_restored(memory: Memory) -> None:
    memory.add_many(
        [
            old("plain", importance=0.9),
            old("tagged", importance=0.01, tags=["pinned"]),
            old("vital", importance=1.0),
        ]
    )
    strict = ForgettingConfig(deletion_threshold=1.0)
    assert memory.forget(strict)["forgotten_ids"] == ["plain"]
    assert memory.search("what plain says", k=5, mode="lexical")[0].entry.id != "plain"
    gone = memory.get("plain")
    assert gone is not None
    assert gone.status.value == "discarded"
    # a second run does not meet it again
    assert memory.forget(strict)["considered"] == 2
    assert memory.restore("plain")
    back = memory.search("what plain says", k=1)[0].entry
    assert (back.id, back.status.value, back.importance) == ("plain", "active", 0.9)


def test_more_than_one_batch(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.add_many([old(f"e{n:04}", importance=0.5, days=400 * (n % 2)) for n in range(2100)])
    locked: list[int] = []
    fade = maintenance.fade

    def watched(*args: Any, **kwargs: Any) -> maintenance.Faded:
        batch = fade(*args, **kwargs)
        locked.append(batch.considered)
        return batch

    monkeypatch.setattr(maintenance, "fade", watched)
    report = memory.forget()
    assert (report["considered"], report["forgotten"]) == (2100, 1050)
    assert max(locked) <= maintenance.FADE_ROWS
    assert locked == [2000, 100]
    assert memory.count() == 1050


def test_ids_that_grow_with_time(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is always one entry ahead keeps no run from its end."""
    monkeypatch.setattr(maintenance, "FADE_ROWS", 5)
    fade = maintenance.fade
    batches: list[int] = []

    def overtaken(*args: Any, **kwargs: Any) -> maintenance.Faded:
        batch = fade(*args, **kwargs)
        if len(batches) < 50:
            writer.tenant("acme").add(old(f"z{len(batches):04}", importance=0.5))
        batches.append(batch.considered)
        return batch

    with (
        MemoryStore.open(database, embedder="hashing") as store,
        MemoryStore.open(database, embedder="hashing") as writer,
    ):
        memory = store.tenant("acme")
        memory.add_many([old(f"e{n}", importance=0.5) for n in range(8)])
        monkeypatch.setattr(maintenance, "fade", overtaken)
        memory.forget()
    assert batches == [5, 4]


def test_a_deletion_meanwhile_does_not_end_the_run(
    database: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that waited for a deleted row is short; what comes after it is faded all the same."""
    monkeypatch.setattr(maintenance, "FADE_ROWS", 3)
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        memory.add_many([old(f"e{n}", importance=0.5) for n in range(8)])
        with psycopg.connect(admin.info.dsn) as other:
            other.execute("DELETE FROM zerda.entry_state WHERE entry_id = 'e1'")
            with ThreadPoolExecutor(1) as pool:
                running = pool.submit(memory.forget)
                waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                while not admin.execute(waiting).fetchone()[0]:  # type: ignore[index]
                    assert not running.done()
                other.commit()
                report = running.result()
    assert report["forgotten_ids"] == ["e0", "e2", "e3", "e4", "e5", "e6", "e7"]


def test_what_has_faded_to_nothing_breaks_no_search_and_no_run(
    store: MemoryStore,
) -> None:
    memory = store.tenant("acme")
    memory.add(old("e", 10_000_000 / 365, importance=0.5, tags=["pinned"]))
    least = old("least", 20_000, importance=1e-200, decay_factor=5e-324)
    LongTermMemory(tenant_id="acme", store=store).store_many([old("long"), least])
    memory.update("long", importance=1e-300)
    for compat in (True, True, True, False):
        config = ForgettingConfig(
            base_decay_rate=50.0, min_importance=0.0, deletion_threshold=0.0, compat=compat
        )
        memory.forget(config)
        for name in ("least", "long"):
            memory.restore(name)
        assert "e" in {hit.entry.id for hit in memory.search("what e says", k=5)}
        assert memory.entries(filter={"min_importance": 0.0}).items
        long_term = LongTermMemory(tenant_id="acme", store=store)
        assert long_term.get_top_by_importance(5)


def test_scopes_hold(store: MemoryStore) -> None:
    for user in ("ann", "bob", None):
        store.tenant("acme", user_id=user).add(old(str(user), importance=0.5))
    store.tenant("other").add(old("elsewhere", importance=0.5))
    assert store.tenant("acme", user_id="ann").forget()["forgotten_ids"] == ["ann"]
    assert store.tenant("acme").forget()["forgotten_ids"] == ["None", "bob"]
    assert store.tenant("other").count() == 1
    assert store.tenant("nobody").forget()["considered"] == 0


def test_runs_do_not_add_up_unless_asked(memory: Memory) -> None:
    memory.add(old("e", 30.0, importance=0.8))
    memory.forget()
    once = memory.get("e")
    memory.forget()
    twice = memory.get("e")
    assert once is not None
    assert twice is not None
    assert twice.decay_factor == pytest.approx(once.decay_factor, rel=1e-4)
    assert twice.importance == once.importance == 0.8
    memory.add(old("c", 4.0, importance=0.8))
    compat = ForgettingConfig(compat=True, deletion_threshold=0.0)
    left = []
    for _ in range(3):
        memory.forget(compat)
        left += [(e.importance, e.original_importance) for e in memory.entries() if e.id == "c"]
    assert 0.8 > left[0][0] > left[1][0] > left[2][0]
    assert {original for _, original in left} == {0.8}
