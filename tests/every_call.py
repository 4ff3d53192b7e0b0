"""Every method of a scope, used in each way that makes another statement."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from zerda_pg import (
    AIMemoryManager,
    LongTermMemory,
    Memory,
    MemoryEntry,
    MemoryStore,
    SemanticMemory,
    ShortTermMemory,
    WorkingMemory,
)

__all__ = ["calls", "searches", "use"]

THEN = datetime(2026, 3, 1, tzinfo=UTC)

EVERYTHING: dict[str, Any] = {
    "memory_types": ["semantic"], "kinds": ["fact"], "session_id": "s", "user_id": "u",
    "agent_id": "a", "tags_any": ["x"], "tags_all": ["x"], "metadata": {"n": {"$gt": 1}},
    "created_from": THEN, "created_to": THEN, "min_importance": 0.1, "status": ["active"],
}  # fmt: skip
"""A filter by each column."""

LINES = [{"id": "i1", "content": "one"}, {"session": "t", "speaker": "a", "text": "two"}]

WHOLE_TENANTS = {"enable_changes", "watch"}
"""What a user's scope refuses."""

MODES: tuple[Literal["dense", "lexical"], ...] = ("dense", "lexical")


def use(store: MemoryStore, path: str, tenant: str) -> None:
    """All of it, by a scope of the whole tenant, then by a user's."""
    for user_id in (None, "u"):
        memory = store.tenant(tenant, user_id=user_id, session_id="s")
        for name, call in calls(memory, store, path).items():
            if user_id is None or name not in WHOLE_TENANTS:
                call()
    store.flush()


def calls(m: Memory, store: MemoryStore, path: str) -> dict[str, Callable[[], object]]:
    """Method → its use."""
    return {
        "enable_changes": m.enable_changes,
        "add": lambda: [
            m.add("the ship is old", id="a", session_id="s", user_id="u", tags=["x"]),
            m.add("the ship is new", id="b", supersedes="a", expires_at=timedelta(days=1)),
            m.add("the ship is new", dedupe=True),
            m.add("once more", id="b", if_exists="keep"),
            m.add("once more", id="b"),
        ],
        "add_many": lambda: m.add_many({"id": f"m{n}", "content": f"text {n}"} for n in range(150)),
        "add_messages": lambda: m.add_messages(
            [{"role": "user", "text": "hello"}, {"role": "assistant", "text": "hi"}],
            session_id="s",
        ),
        "import_file": lambda: m.import_file(
            io.BytesIO("\n".join(map(json.dumps, LINES)).encode())
        ),
        "export": lambda: [
            m.export(path, vectors=True),
            Path(path).rename(f"{path}.partial"),
            m.export(path, vectors=True, resume=True),
            store.tenant(f"copy of {m.scope.tenant_id}").import_file(path),
        ],
        "get": lambda: m.get("a"),
        "get_many": lambda: m.get_many(["a", "b", "-"]),
        "update": lambda: [
            m.update("a", importance=0.3, tags=["y"]),
            m.update("a", content="the ship is red"),
        ],
        "search": lambda: searches(m),
        "search_many": lambda: m.search_many(["ship", "old"]),
        "build_context": lambda: m.build_context("ship it", ranker="fusion"),
        "explain": lambda: m.explain("ship it", id="a"),
        "relate": lambda: m.relate("m1", "m2", weight=0.5),
        "neighbours": lambda: m.neighbours("m1", depth=2, relations=["related"]),
        "unrelate": lambda: m.unrelate("m1", "m2"),
        "invalidate": lambda: m.invalidate("m3", by="m4"),
        "discard": lambda: m.discard("m5"),
        "restore": lambda: m.restore("m5"),
        "forget": lambda: [m.forget(dry_run=True), m.forget()],
        "entries": lambda: [
            m.entries(limit=2, cursor=m.entries(limit=2).next_cursor),
            m.entries(order="oldest", filter=EVERYTHING),
        ],
        "count": lambda: [m.count(), m.count(EVERYTHING)],
        "stats": m.stats,
        "watch": lambda: list(m.watch(timeout=0)),
        "delete": lambda: m.delete("m7"),
        "purge": lambda: m.purge(session_id="s", before=THEN),
        "perform": lambda: layers(store, m.scope.tenant_id, m.scope.user_id),
        "clear": m.clear,
    }


def searches(memory: Memory) -> None:
    """Each shape of the hot statement."""
    for ranker in ("default", "composite", "fusion", "kind_prior"):
        memory.search("ship it", ranker=ranker, current_session="s")
    for mode in MODES:
        memory.search("ship it", mode=mode)
    memory.search('the "old ship"', valid_at=THEN, known_at=THEN, now=THEN)
    memory.search("text", known_at=datetime.now(UTC) + timedelta(hours=1))
    memory.search("ship it", filter=EVERYTHING, k=100)


def layers(store: MemoryStore, tenant: str, user_id: str | None) -> None:
    """What is built on `perform`."""
    manager = AIMemoryManager(store=store)
    manager.save_interaction("u", tenant, "I moved to Bonn", "Noted", importance=0.9)
    manager.build_context("u", tenant, "Where do I live?")
    manager.run_maintenance(tenant)
    manager.stats(tenant)
    window = ShortTermMemory(2, tenant_id=tenant, store=store, user_id=user_id)
    for n in range(4):
        window.add(f"line {n}")
    window.get_recent(1)
    window.apply_decay()
    window.evict_below(0.2)
    window.stats()
    lasting = LongTermMemory(tenant_id=tenant, store=store, user_id=user_id)
    lasting.store_many([MemoryEntry(content=f"kept {n}", id=f"k{n}") for n in range(2)])
    if user_id is None:
        lasting.store(MemoryEntry(content="by itself before", id="m9"))
    lasting.get("k1")
    lasting.get_recent()
    lasting.get_top_by_importance(3)
    lasting.delete_below_importance(0.9)
    lasting.delete("k1")
    lasting.stats()
    meaning = SemanticMemory(tenant_id=tenant, store=store, user_id=user_id)
    meaning.add_batch([MemoryEntry(content=f"meant {n}", id=f"s{n}") for n in range(2)])
    meaning.search("meant")
    meaning.remove("s1")
    meaning.stats()
    meaning.clear()
    working = WorkingMemory(tenant_id=tenant)
    working.load([MemoryEntry(content="at hand", id="w1")])
    working.save(store, "s")
    WorkingMemory.restore(store, "s", tenant_id=tenant)
