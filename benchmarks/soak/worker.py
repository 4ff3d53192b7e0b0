"""One process: a mix of every operation, until it is told to stop or killed.

Entries whose id it gave belong to it alone, so that their history can be replayed; texts to be
kept once, and a counter in each tenant, are shared by all processes.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from benchmarks.soak.history import History
from zerda_pg import (
    ConflictError,
    DatabaseUnavailableError,
    Memory,
    MemoryEntry,
    MemoryStore,
    NotFoundError,
    ShortTermMemory,
)

TENANTS = ("red", "green", "blue")
SHARED_TEXTS = 40
POOL = 3
WORDS = ("deploy", "invoice", "coffee", "queue", "garden", "meeting", "budget", "train")


class Worker:
    """What a process does."""

    def __init__(self, store: MemoryStore, history: History, name: str) -> None:
        self.store = store
        self.history = history
        self.name = name
        self.chance = random.Random(name)
        self.number = 0
        self.mine: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}

    def once(self) -> None:
        """One operation, chosen by weight."""
        operation = self.chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]
        tenant = self.chance.choice(TENANTS)
        memory = self.store.tenant(tenant)
        try:
            getattr(self, operation)(memory, tenant)
        except DatabaseUnavailableError as error:
            self.history.unknown(str(error))
            time.sleep(0.05)
        except ConflictError as error:
            self.history.surface("deadlock", str(error))
        except Exception as error:
            self.history.surface("error", f"{operation}: {type(error).__name__}: {error}")

    def _text(self, tenant: str) -> str:
        self.number += 1
        words = " ".join(self.chance.choices(WORDS, k=8))
        return f"{tenant} {self.name} {self.number}: {words}"

    def _write(
        self, operation: str, tenant: str, given: dict[str, Any], call: Callable[[], Any]
    ) -> Any:
        self.history.intend(operation, tenant, given)
        result = call()
        self.history.acknowledge(result)
        return result

    def _belongs(self, tenant: str, entries: list[MemoryEntry]) -> None:
        for entry in entries:
            if not _said(entry).startswith(tenant):
                self.history.surface("foreign", f"{tenant} saw {entry.id}")

    # ── writes ────────────────────────────────────────────────────────────────────────────────

    def add(self, memory: Memory, tenant: str) -> None:
        text = self._text(tenant)
        self._write("add", tenant, {"text": text}, lambda: memory.add(text).status)

    def put(self, memory: Memory, tenant: str) -> None:
        """With ids of its own, some of them again."""
        again = self.mine[tenant][-20:]
        items = {f"{self.name}-{self.number}-{n}": self._text(tenant) for n in range(5)}
        if again and self.chance.random() < 0.5:
            items[self.chance.choice(again)] = self._text(tenant)
        self.mine[tenant] += [i for i in items if i not in self.mine[tenant]]
        order = list(items)
        self.chance.shuffle(order)
        given = [{"id": i, "content": items[i], "session_id": f"s-{self.name}"} for i in order]
        self._write(
            "put", tenant, {"items": items},
            lambda: {r.id: r.version for r in memory.add_many(given)},
        )  # fmt: skip

    def share(self, memory: Memory, tenant: str) -> None:
        """The same texts from everywhere, each to be kept once."""
        text = f"{tenant} shared fact {self.chance.randrange(SHARED_TEXTS)}"
        self._write("share", tenant, {"text": text}, lambda: memory.add(text, dedupe=True).id)

    def count_up(self, memory: Memory, tenant: str) -> None:
        """Read, add one, write if it is still what was read."""
        while True:
            entry = memory.get("counter")
            if entry is None:
                return
            following = {"n": entry.metadata["n"] + 1}
            self.history.intend("count_up", tenant, {})
            try:
                memory.update("counter", if_version=entry.version, metadata=following)
            except ConflictError:
                self.history.acknowledge(False)
                continue
            self.history.acknowledge(True)
            return

    def _one(self, tenant: str) -> str | None:
        return self.chance.choice(self.mine[tenant]) if self.mine[tenant] else None

    def change(self, memory: Memory, tenant: str) -> None:
        if (entry_id := self._one(tenant)) is None:
            return
        text = self._text(tenant)

        def call() -> int | None:
            try:
                return memory.update(entry_id, content=text).version
            except NotFoundError:
                return None

        self._write("change", tenant, {"id": entry_id, "text": text}, call)

    def delete(self, memory: Memory, tenant: str) -> None:
        if (entry_id := self._one(tenant)) is not None:
            self._write("delete", tenant, {"id": entry_id}, lambda: memory.delete(entry_id))

    def hide(self, memory: Memory, tenant: str) -> None:
        if (entry_id := self._one(tenant)) is not None:
            self._write("hide", tenant, {"id": entry_id}, lambda: memory.discard(entry_id))
            self._write("show", tenant, {"id": entry_id}, lambda: memory.restore(entry_id))

    def relate(self, memory: Memory, tenant: str) -> None:
        one, two = self._one(tenant), self._one(tenant)
        if one is None or two is None or one == two:
            return
        try:
            memory.relate(one, two)
            memory.relate(two, one, "precedes")
            memory.neighbours(one)
            memory.unrelate(two, one, "precedes")
            memory.invalidate(self._replaced(memory, tenant), by=one)
        except NotFoundError:
            pass  # one of them is deleted

    def _replaced(self, memory: Memory, tenant: str) -> str:
        text = self._text(tenant)
        return str(self._write("add_old", tenant, {"text": text}, lambda: memory.add(text).id))

    def talk(self, memory: Memory, tenant: str) -> None:
        turns = [
            {"speaker": "Ann", "text": self._text(tenant), "timestamp": 1.7e9 + n} for n in range(3)
        ]
        texts = [turn["text"] for turn in turns]
        session = f"talk-{self.name}"
        self._write(
            "talk", tenant, {"texts": texts},
            lambda: [r.id for r in memory.add_messages(turns, session_id=session)],
        )  # fmt: skip

    def window(self, memory: Memory, tenant: str) -> None:
        layer = ShortTermMemory(5, tenant_id=tenant, store=self.store, session_id=self.name)
        layer.add(self._text(tenant))
        entries = layer.get_all()
        self._belongs(tenant, entries)
        if len(entries) > 5:
            self.history.surface("error", f"a window of 5 has {len(entries)}")

    # ── reads ─────────────────────────────────────────────────────────────────────────────────

    def search(self, memory: Memory, tenant: str) -> None:
        query = " ".join(self.chance.choices(WORDS, k=3))
        hits = memory.search(query, k=10, current_session=f"s-{self.name}")
        self._belongs(tenant, [hit.entry for hit in hits])
        for found in memory.search_many([query, "shared fact"], k=3):
            self._belongs(tenant, [hit.entry for hit in found])

    def context(self, memory: Memory, tenant: str) -> None:
        self._belongs(tenant, memory.build_context(self.chance.choice(WORDS)).entries)

    def listing(self, memory: Memory, tenant: str) -> None:
        self._belongs(tenant, list(memory.entries(limit=50)))
        memory.count()
        memory.stats()
        memory.forget(dry_run=True)

    def copy(self, memory: Memory, tenant: str) -> None:
        """Out of one tenant and into another of its own."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "copy.jsonl"
            memory.export(path)
            self.store.tenant(f"copy-{tenant}").import_file(path)


WEIGHTS = {
    "add": 14, "put": 10, "share": 10, "count_up": 6, "change": 10, "delete": 3, "hide": 4,
    "relate": 5, "talk": 4, "window": 4, "search": 18, "context": 5, "listing": 6, "copy": 0.3,
}  # fmt: skip


def _said(entry: MemoryEntry) -> str:
    content = entry.content
    return str(content.get("text", content) if isinstance(content, dict) else content)


def main() -> None:
    """`python -m benchmarks.soak.worker URL HISTORY NAME`, until SIGTERM."""
    url, path, name = sys.argv[1:4]
    ended = Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    history = History(Path(path))
    while not ended.is_set():
        try:
            store = MemoryStore.open(url, embedder="hashing", pool_size=POOL, pool_timeout=20)
        except DatabaseUnavailableError:
            time.sleep(0.1)
            continue
        with store:
            worker = Worker(store, history, name)
            while not ended.is_set():
                worker.once()
        return


if __name__ == "__main__":
    main()
