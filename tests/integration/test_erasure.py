"""Erasure: after a purge, no table holds anything of what it named, looked up in the catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest
from conftest import plain
from psycopg import sql

from zerda_pg import Memory, MemoryStore, ShortTermMemory
from zerda_pg.db.maintenance import COUNT_FROM

MARKER = "xylophonist"
"""A word that nothing else has; it is in whatever can hold text."""


def tables_with(admin: psycopg.Connection, word: str) -> dict[str, int]:
    """Rows by table that hold the word in any column, in any form; of every table there is."""
    names = admin.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'zerda' AND c.relkind IN ('r', 'p', 'm') ORDER BY 1"
    ).fetchall()
    assert {"entries", "edges", "lexemes", "changes"} <= {name for (name,) in names}
    found: dict[str, int] = {}
    for (name,) in names:
        row = admin.execute(
            sql.SQL("SELECT count(*) FROM zerda.{} t WHERE t::text LIKE %s").format(
                sql.Identifier(name)
            ),
            [f"%{word}%"],
        ).fetchone()
        assert row is not None
        if row[0]:
            found[str(name)] = int(row[0])
    return found


def fill(store: MemoryStore, tenant: str, *, user: str, session: str) -> list[str]:
    """A marked memory in every table that can hold one."""
    memory = store.tenant(tenant)
    ids = [
        memory.add(
            {"input": f"{MARKER} one", "output": "x"},
            id=f"{MARKER}-a", kind=MARKER, tags=[MARKER], metadata={MARKER: MARKER},
            user_id=user, session_id=session, agent_id=MARKER,
        ).id,
        memory.add(
            f"{MARKER} two", id=f"{MARKER}-b", user_id=user, session_id=session
        ).id,
    ]  # fmt: skip
    memory.update(ids[0], content=f"{MARKER} corrected")
    memory.invalidate(ids[1], by=ids[0])
    memory.relate(ids[0], ids[1], MARKER)
    memory.discard(ids[1])
    memory.search(MARKER, current_session=session)
    layer = ShortTermMemory(store=store, tenant_id=tenant, session_id=session, user_id=user)
    ids.append(layer.add(f"{MARKER} three").id)
    store.flush()
    return ids


def others(store: MemoryStore) -> Callable[[], list[object]]:
    """Memories that no purge here names, and what is left of them."""
    scopes = [store.tenant("acme"), store.tenant("other")]
    for memory in scopes:
        memory.add("stays", id="stays", user_id="bob", session_id="another")

    def present() -> list[object]:
        return [memory.get("stays") for memory in scopes]

    return present


PURGES: dict[str, Callable[[Memory, list[str]], object]] = {
    "ids": lambda memory, ids: memory.purge(ids=ids),
    "user": lambda memory, ids: memory.purge(user_id="ann"),
    "session": lambda memory, ids: memory.purge(session_id=f"{MARKER}-session"),
    "delete": lambda memory, ids: [memory.delete(entry_id) for entry_id in ids],
}


@pytest.mark.parametrize("purge", PURGES)
def test_nothing_is_left(database: str, admin: psycopg.Connection, purge: str) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        present = others(store)
        session = f"{MARKER}-session" if purge == "session" else "s1"
        ids = fill(store, "acme", user="ann", session=session)
        held = {table for word in (MARKER, *ids) for table in tables_with(admin, word)}
        assert held == {
            "edges", "embeddings", "entries", "entry_state", "entry_versions", "layer_entries",
            "session_touches",
        }  # fmt: skip
        PURGES[purge](store.tenant("acme"), ids)
        assert [tables_with(admin, word) for word in (MARKER, *ids)] == [{}] * 4
        assert None not in present()


def test_a_user_by_name(database: str, admin: psycopg.Connection) -> None:
    """The user's own name goes with the memories, and only that user's."""
    with MemoryStore.open(database, embedder="hashing") as store:
        present = others(store)
        fill(store, "acme", user=f"{MARKER}-user", session="s1")
        store.tenant("acme", user_id=f"{MARKER}-user").clear()
        assert tables_with(admin, MARKER) == {}
        assert None not in present()


def test_a_tenant(database: str, admin: psycopg.Connection) -> None:
    """Settings and statistics included; with the feed, once that is off too."""
    tenant = f"{MARKER}-tenant"
    with MemoryStore.open(database, embedder="hashing") as store:
        present = others(store)
        fill(store, tenant, user="ann", session="s1")
        memory = store.tenant(tenant)
        memory.enable_changes()
        memory.add_many([{"content": f"the {MARKER} {n}"} for n in range(COUNT_FROM)])
        store.flush()
        store.maintain()
        assert {"tenants", "changes", "lexemes"} <= set(tables_with(admin, MARKER))
        memory.clear()
        assert set(tables_with(admin, MARKER)) == {"tenants", "changes"}
        memory.enable_changes(False)
        assert tables_with(admin, MARKER) == {}
        assert None not in present()


def test_the_feed_holds_no_content(database: str, admin: psycopg.Connection) -> None:
    """It tells followers what was erased by its id, and forgets that within the retention."""
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        memory.enable_changes()
        erased = memory.add(f"the {MARKER}", user_id=MARKER, tags=[MARKER]).id
        memory.update(erased, kind=MARKER)
        memory.purge(ids=erased)
        assert tables_with(admin, MARKER) == {}
        assert tables_with(admin, erased) == {"changes": 3}
        admin.execute("UPDATE zerda.changes SET changed_at = now() - interval '8 days'")
        store.maintain()
        assert tables_with(admin, erased) == {}


def test_counting_words_does_not_bring_them_back(database: str, admin: psycopg.Connection) -> None:
    """A count that began before the purge has seen what is erased: it is waited for."""
    with (
        MemoryStore.open(database, embedder="hashing") as store,
        psycopg.connect(plain(database)) as counting,
    ):
        memory = store.tenant("acme")
        memory.add_many([{"content": f"the {MARKER} {n}"} for n in range(5)])
        counting.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('zerda lexemes ' || 'acme', 0))"
        )
        counting.execute(
            "INSERT INTO zerda.lexemes (tenant_id, lexeme, entries) VALUES ('acme', %s, 5)",
            [MARKER],
        )
        purging = threading.Thread(target=memory.clear)
        purging.start()
        purging.join(0.5)
        assert purging.is_alive()
        counting.commit()
        purging.join(10)
        assert tables_with(admin, MARKER) == {}


def test_retired_vectors_go_too(database: str, admin: psycopg.Connection) -> None:
    import zerda_pg
    from zerda_pg.embedding import HashingEmbedder

    with MemoryStore.open(database, embedder="hashing") as store:
        erased = store.tenant("acme").add("text").id
    zerda_pg.reembed(database, HashingEmbedder(96))
    with MemoryStore.open(database) as store:
        assert tables_with(admin, erased)["embeddings"] == 2
        store.tenant("acme").purge(ids=erased)
        assert tables_with(admin, erased) == {}
