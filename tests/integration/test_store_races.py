"""Many writers at once: nothing lost, nothing twice, no deadlock that a caller sees."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import psycopg
import pytest
from conftest import CountRows, plain
from drivers import opened

from zerda_pg import (
    AlreadyExistsError,
    AsyncMemoryStore,
    ConflictError,
    DatabaseUnavailableError,
    Memory,
    MemoryStore,
    NotFoundError,
)

WRITERS = 8

T = TypeVar("T")


def at_once(work: Callable[[int], T], count: int = WRITERS) -> list[T]:
    """What `work` gives in many threads that start together."""
    barrier = Barrier(count)

    def one(number: int) -> T:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_the_same_id_is_created_once(anymemory: Memory, rows: CountRows) -> None:
    for round_ in range(4):
        results = at_once(lambda n, r=round_: anymemory.add(f"text {n}", id=f"e{r}"))  # type: ignore[misc]
        counts = Counter(r.status for r in results)
        assert counts == {"created": 1, "replaced": WRITERS - 1}
        assert sorted(r.version for r in results) == list(range(1, WRITERS + 1))
        last = max(results, key=lambda r: r.version)
        entry = anymemory.get(f"e{round_}")
        assert entry is not None
        assert (entry.version, entry.content) == (WRITERS, last.entry.content)
        found = anymemory.search(str(entry.content), mode="dense", k=WRITERS)
        assert len({h.entry.id for h in found}) == len(found)
    assert rows()["entries"] == rows()["embeddings"] == rows()["entry_state"] == 4
    assert rows()["entry_versions"] == 4 * (WRITERS - 1)


def test_versions_of_a_race_follow_one_another(
    anymemory: Memory, admin: psycopg.Connection
) -> None:
    """Each was known from when it was recorded until the next was: no gap and no overlap."""
    at_once(lambda n: [anymemory.add(f"text {n} {i}", id="e") for i in range(4)])
    found = admin.execute(
        "SELECT version, recorded_at, recorded_to FROM zerda.entry_versions UNION ALL "
        "SELECT version, recorded_at, NULL FROM zerda.entries ORDER BY version"
    ).fetchall()
    assert [row[0] for row in found] == list(range(1, 4 * WRITERS + 1))
    for (_, begun, ended), (_, following, _) in itertools.pairwise(found):
        assert begun < ended == following


def test_an_existing_id_is_refused_to_all_but_one(anymemory: Memory) -> None:
    def add(number: int) -> str:
        try:
            return anymemory.add(f"text {number}", id="e", if_exists="error").status
        except AlreadyExistsError:
            return "refused"

    assert Counter(at_once(add)) == {"created": 1, "refused": WRITERS - 1}
    kept = at_once(lambda n: anymemory.add(f"text {n}", id="f", if_exists="keep"))
    assert Counter(r.status for r in kept) == {"created": 1, "kept": WRITERS - 1}
    assert len({r.entry.content for r in kept}) == 1


def test_the_same_text_is_created_once(anymemory: Memory, rows: CountRows) -> None:
    for round_ in range(4):
        text = f"the same fact, number {round_}"
        results = at_once(lambda n, t=text: anymemory.add(t + " " * n, dedupe=True))  # type: ignore[misc]
        assert Counter(r.status for r in results) == {"created": 1, "duplicate": WRITERS - 1}
        assert len({r.id for r in results}) == 1
    assert rows()["entries"] == 4


def test_the_same_texts_in_batches(anymemory: Memory) -> None:
    """Every text once, however the batches overlap."""
    texts = [f"fact {n}" for n in range(30)]

    def add(number: int) -> Counter[str]:
        mine = texts[number:] + texts[:number]
        items = [{"content": t} for t in (mine if number % 2 else mine[::-1])]
        return Counter(r.status for r in anymemory.add_many(items, dedupe=True))

    total = sum(at_once(add), Counter[str]())
    assert total == {"created": 30, "duplicate": 30 * (WRITERS - 1)}
    assert anymemory.count() == 30


def test_batches_in_opposite_orders(anymemory: Memory) -> None:
    """Bulk writes of the same keys never deadlock in a caller's face."""
    ids = [f"e{n:03}" for n in range(60)]

    def add(number: int) -> None:
        order: Sequence[str] = ids if number % 2 else ids[::-1]
        for round_ in range(4):
            items = [{"content": f"{number} {round_} {i}", "id": i} for i in order]
            assert len(anymemory.add_many(items)) == 60

    at_once(add)
    versions = {e.version for e in anymemory.entries(limit=100)}
    assert versions == {WRITERS * 4}


def test_superseding_in_opposite_orders(anymemory: Memory) -> None:
    ids = [f"old{n}" for n in range(20)]
    anymemory.add_many([{"content": i, "id": i} for i in ids])

    def add(number: int) -> None:
        order = ids if number % 2 else ids[::-1]
        anymemory.add(f"new {number}", id=f"new{number}", supersedes=order)
        anymemory.add_many([{"content": i, "supersedes": [i]} for i in order])

    at_once(add)
    assert anymemory.count({"status": "superseded"}) == 20


def test_one_of_many_updates_wins(anymemory: Memory) -> None:
    anymemory.add("text", id="e")

    def update(number: int) -> int | None:
        try:
            anymemory.update("e", if_version=1, content=f"text {number}")
        except ConflictError:
            return None
        return number

    winners = [n for n in at_once(update) if n is not None]
    assert len(winners) == 1
    entry = anymemory.get("e")
    assert entry is not None
    assert (entry.version, entry.content) == (2, f"text {winners[0]}")


def test_no_update_is_lost(anymemory: Memory) -> None:
    """Readers who write back what they read, and read again where another was first."""
    anymemory.add("counter", id="e", metadata={"n": 0})

    def count(_: int) -> None:
        for _ in range(3):
            while True:
                entry = anymemory.get("e")
                assert entry is not None
                try:
                    anymemory.update(
                        "e", if_version=entry.version, metadata={"n": entry.metadata["n"] + 1}
                    )
                except ConflictError:
                    continue
                break

    at_once(count, 4)
    entry = anymemory.get("e")
    assert entry is not None
    assert (entry.metadata, entry.version) == ({"n": 12}, 13)


def test_recalls_of_the_same_entries_lose_no_count(anystore: MemoryStore) -> None:
    memory = anystore.tenant("acme")
    memory.add_many([{"content": f"deploy note {n}", "id": f"e{n}"} for n in range(10)])
    at_once(lambda n: [memory.search(f"deploy note {n}", k=10, current_session="s")
                       for _ in range(5)])  # fmt: skip
    anystore.flush()
    counts = [e.access_count for e in memory.entries()]
    assert counts == [WRITERS * 5] * 10


def test_first_writes_to_one_session(anymemory: Memory, rows: CountRows) -> None:
    """On an empty database, where the model is recorded by whoever is first."""
    talk = [{"speaker": "Ann", "text": f"turn {n}", "timestamp": 1.7e9 + n} for n in range(5)]
    results = at_once(lambda _: anymemory.add_messages(talk, session_id="s1"))
    assert len({tuple(r.id for r in batch) for batch in results}) == 1
    assert rows() == {
        "entries": 5, "entry_state": 5, "embeddings": 5, "edges": 4, "embedding_models": 1
    }  # fmt: skip


def test_deleting_while_others_write(anymemory: Memory, rows: CountRows) -> None:
    def work(number: int) -> None:
        for round_ in range(6):
            if number % 3 == 0:
                anymemory.delete("e")
            elif number % 3 == 1:
                anymemory.add(f"text {number} {round_}", id="e")
            else:
                try:
                    anymemory.update("e", content=f"changed {number} {round_}")
                    anymemory.relate("e", "other")
                except NotFoundError:
                    pass
            anymemory.search("text", current_session="s")

    anymemory.add("other", id="other")
    at_once(work)
    found = rows()
    assert found["entries"] == found["entry_state"] == found["embeddings"]


def test_two_processes_write(database: str) -> None:
    code = (
        "import sys\nfrom zerda_pg import MemoryStore\n"
        "with MemoryStore.open(sys.argv[1], embedder='hashing') as store:\n"
        "    memory = store.tenant('acme')\n"
        "    items = [{'content': f'fact {n}', 'id': f'e{n}'} for n in range(40)]\n"
        "    if sys.argv[2] == '1': items.reverse()\n"
        "    for _ in range(3): memory.add_many(items)\n"
        "    print([r.status for r in memory.add_many([{'content': 'once'}], dedupe=True)][0])\n"
    )

    def run(number: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, database, str(number)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    results = at_once(run, 2)
    assert [r.returncode for r in results] == [0, 0], [r.stderr for r in results]
    assert sorted(r.stdout for r in results) == ["created\n", "duplicate\n"]
    with MemoryStore.open(database) as store:
        assert {e.version for e in store.tenant("acme").entries() if e.id[0] == "e"} == {6}


# ── connections ───────────────────────────────────────────────────────────────────────────────


def test_connections_go_back_to_the_pool(kind: str, database: str) -> None:
    """Far more calls than connections, and errors among them."""
    with opened(kind, database, pool_size=2, pool_timeout=5) as store:
        memory = store.tenant("acme")
        memory.add("deploy", id="e")

        def work(number: int) -> None:
            for _ in range(5):
                memory.search("deploy")
                memory.get("e")
                with pytest.raises(NotFoundError):
                    memory.update("missing", kind="fact")
                with pytest.raises(NotFoundError):
                    memory.add("x", supersedes="missing")

        at_once(work)
        store.flush()
        with psycopg.connect(plain(database)) as connection:
            row = connection.execute(
                "SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in%') "
                "FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'zerda_pg'"
            ).fetchone()
        assert row is not None
        assert row[0] <= 2
        assert row[1] == 0


def test_the_store_survives_the_end_of_its_connections(kind: str, database: str) -> None:
    with opened(kind, database) as store:
        memory = store.tenant("acme")
        memory.add("deploy", id="e")
        for _ in range(3):
            with psycopg.connect(plain(database), autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            assert memory.count() == 1
            assert memory.search("deploy")[0].entry.id == "e"
            memory.add("deploy again", id="e")


def test_a_failing_database_is_an_error_and_no_empty_result(kind: str, database: str) -> None:
    with opened(kind, database, statement_timeout=0.5) as store:
        memory = store.tenant("acme")
        memory.add("deploy", id="e")
        store.flush()
        with psycopg.connect(plain(database)) as connection:
            connection.execute("LOCK TABLE zerda.entries IN ACCESS EXCLUSIVE MODE")
            for call in (
                lambda: memory.search("deploy"),
                memory.count,
                lambda: memory.get("e"),
                memory.entries,
                lambda: memory.build_context("deploy"),
            ):
                with pytest.raises(DatabaseUnavailableError, match="statement_timeout"):
                    call()
        assert memory.search("deploy")[0].entry.id == "e"


async def test_the_event_loop_keeps_running(database: str) -> None:
    """Many awaited at once, on one loop."""
    async with AsyncMemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        added: list[Any] = await asyncio.gather(
            *(memory.add("the same fact", dedupe=True) for _ in range(20))
        )
        assert Counter(r.status for r in added) == {"created": 1, "duplicate": 19}
        found = await asyncio.gather(*(memory.search("fact") for _ in range(20)))
        assert {hits[0].entry.id for hits in found} == {added[0].id}
        await store.flush()
        entry = await memory.get(added[0].id)
        assert entry is not None
        assert entry.access_count == 20
