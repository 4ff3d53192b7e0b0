"""Deleting, purging and clearing leave nothing behind; forgetting hides."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from conftest import CountRows

from zerda_pg import Memory, MemoryEntry, MemoryStore, Status
from zerda_pg.scoring.forgetting import ForgettingConfig

DAY = timedelta(days=1)
SECRET = "xylophonist"


def leave_traces(store: MemoryStore, memory: Memory) -> None:
    """A row that names `e` or holds its text, in every table that can."""
    memory.add(f"The {SECRET} lives here", id="e", session_id="s1", user_id="u1", tags=[SECRET],
               metadata={SECRET: SECRET}, expires_at=datetime(2999, 1, 1, tzinfo=UTC))  # fmt: skip
    memory.add("Something that stays", id="stays")
    memory.update("e", content=f"The {SECRET} lived here")
    memory.relate("e", "stays")
    memory.relate("stays", "e", "has_child")
    memory.search(SECRET, current_session="s1", k=1)
    store.flush()


def insert_the_rest(admin: psycopg.Connection) -> None:
    """What layers and the counting of words write."""
    for statement in (
        "INSERT INTO zerda.layer_entries (tenant_id, layer, session_id, entry_id) "
        "VALUES ('acme', 'short_term', 's1', 'e')",
        "INSERT INTO zerda.lexemes (tenant_id, lexeme, entries) VALUES ('acme', 'xylophonist', 2)",
    ):
        admin.execute(statement)


def mentions(admin: psycopg.Connection) -> list[str]:
    """Tables that still hold the id or the secret word anywhere."""
    tables = admin.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'zerda'"
    ).fetchall()
    found = []
    for (table,) in tables:
        rows = admin.execute(f"SELECT t::text FROM zerda.{table} t").fetchall()
        values = [row[0] for row in rows]
        if any(SECRET in v or ",e," in v or "(e," in v or ",e)" in v for v in values):
            found.append(str(table))
    return sorted(found)


ERASERS: dict[str, Callable[[Memory], Any]] = {
    "delete": lambda m: m.delete("e"),
    "ids": lambda m: m.purge(ids="e"),
    "ids list": lambda m: m.purge(ids=["e", "missing"]),
    "session_id": lambda m: m.purge(session_id="s1"),
    "user_id": lambda m: m.purge(user_id="u1"),
    "clear": lambda m: m.clear(),
}


@pytest.mark.parametrize("way", ERASERS)
def test_nothing_is_left_in_any_table(
    anystore: MemoryStore, admin: psycopg.Connection, rows: CountRows, way: str
) -> None:
    memory = anystore.tenant("acme")
    leave_traces(anystore, memory)
    insert_the_rest(admin)
    tables = set(rows())
    assert tables == {
        "entries", "entry_versions", "entry_state", "edges", "embedding_models", "embeddings",
        "layer_entries", "session_touches", "lexemes",
    }  # fmt: skip
    assert len(mentions(admin)) >= 7
    result = ERASERS[way](memory)
    anystore.flush()
    assert mentions(admin) == []
    left = rows()
    kept = 0 if way == "clear" else 1
    assert left.get("entries", 0) == left.get("embeddings", 0) == kept
    assert left.get("edges", 0) == left.get("session_touches", 0) == 0
    if isinstance(result, dict):
        assert result["entries"] == 1
        assert (result["entry_versions"], result["entry_state"], result["embeddings"]) == (1, 1, 1)
        assert (result["edges"], result["layer_entries"]) == (2, 1)
        assert result["session_touches"] == 1
    else:
        assert result is True


def test_an_access_counted_late_leaves_nothing(
    anystore: MemoryStore, rows: CountRows, admin: psycopg.Connection
) -> None:
    """The access of an entry that was erased meanwhile is not recorded."""
    memory = anystore.tenant("acme")
    memory.add("The deploy failed", id="e")
    with admin.transaction():
        # holds back the recording, which locks the state's row
        admin.execute("SELECT 1 FROM zerda.entry_state FOR UPDATE")
        memory.search("deploy", current_session="s1")
        admin.execute("DELETE FROM zerda.entries")
    anystore.flush()
    assert set(rows()) == {"embedding_models"}


def test_purge_by_each_criterion(anymemory: Memory) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    anymemory.add("a", id="a", session_id="s", user_id="u")
    anymemory.add("b", id="b", session_id="s")
    anymemory.add("c", id="c", timestamp=past)
    anymemory.add("d", id="d", expires_at=past)
    anymemory.add("e", id="e")
    anymemory.add("f", id="f")
    anymemory.discard("e")
    anymemory.invalidate("f")
    assert anymemory.purge(session_id="s", user_id="nobody") == {"session_touches": 0}
    assert anymemory.purge(session_id="s", user_id="u")["entries"] == 1  # all criteria
    assert anymemory.purge(expired=True)["entries"] == 1
    assert anymemory.purge(before=past) == {}
    assert anymemory.purge(before=past + DAY)["entries"] == 1
    assert anymemory.purge(status="superseded")["entries"] == 1
    assert anymemory.purge(status=Status.DISCARDED)["entries"] == 1
    assert [e.id for e in anymemory.entries()] == ["b"]
    assert anymemory.purge(ids=[]) == {}


@pytest.mark.parametrize(
    ("criteria", "said"),
    [
        ({}, "purge needs a criterion"),
        ({"expired": False}, "purge needs a criterion"),
        ({"status": "gone"}, "status must be one of"),
        ({"before": datetime(2024, 1, 1)}, r"before .*naive|naive"),
        ({"before": "2024-01-01"}, "before"),
        ({"ids": [5]}, "ids"),
        ({"ids": 5}, "ids"),
        ({"ids": ["a\x00"]}, "ids"),
        ({"user_id": ""}, "user_id"),
        ({"session_id": " "}, "session_id"),
    ],
)
def test_bad_criteria(anytenant: Memory, criteria: dict[str, Any], said: str) -> None:
    anytenant.add("x")
    with pytest.raises(ValueError, match=said):
        anytenant.purge(**criteria)
    assert anytenant.count() == 1


def test_more_than_a_batch(anymemory: Memory) -> None:
    anymemory.add_many([{"content": f"n {n}"} for n in range(1100)])
    assert anymemory.purge(before=datetime.now(UTC) + DAY)["entries"] == 1100
    assert anymemory.count() == 0


def test_delete(anytenant: Memory) -> None:
    anytenant.add("x", id="e")
    assert anytenant.delete("e") is True
    assert anytenant.delete("e") is False
    assert anytenant.get("e") is None
    assert anytenant.add("y", id="e").status == "created"
    for bad in ("", None, 5, "a\x00", "x" * 257):
        for call in (anytenant.delete, anytenant.discard, anytenant.restore, anytenant.get):
            with pytest.raises(ValueError, match="id"):
                call(bad)  # type: ignore[arg-type]


# ── forgetting ────────────────────────────────────────────────────────────────────────────────


def aged(id: str, days: float, **values: Any) -> MemoryEntry:
    now = datetime.now(UTC).timestamp()
    return MemoryEntry(f"note {id}", id=id, last_access=now - days * 86400, **values)


@pytest.fixture
def faded(anytenant: Memory) -> Memory:
    anytenant.add_many(
        [
            aged("new", 0),
            aged("old", 60),
            aged("used", 60, access_count=20),
            aged("pinned", 400, tags=["pinned"]),
            aged("top", 400, importance=1.0),
            aged("gone", 400, status=Status.DISCARDED),
        ]
    )
    return anytenant


def test_forgetting_discards_what_has_faded(faded: Memory) -> None:
    config = ForgettingConfig(deletion_threshold=0.1)
    dry = faded.forget(config, dry_run=True)
    assert dry == {
        "considered": 5, "forgotten": 2, "forgotten_ids": ["old", "used"], "dry_run": True
    }  # fmt: skip
    assert faded.count() == 5
    before = {e.id: e for e in faded.entries()}
    assert all(e.decay_factor == 1.0 for e in before.values())
    done = faded.forget(config)
    assert done | {"dry_run": True} == dry
    assert sorted(e.id for e in faded.entries()) == sorted({*before} - {*dry["forgotten_ids"]})
    after = {e.id: e for e in faded.get_many(list(before)) if e is not None}
    assert after["old"].status is Status.DISCARDED
    assert after["new"].decay_factor == pytest.approx(1.0, abs=0.01)
    # half-life of 24 / .15 hours, floor of the config; importance itself is left alone
    retention = 0.5 ** (60 * 24 / (24 / config.base_decay_rate))
    assert after["old"].decay_factor == pytest.approx(
        max(config.min_importance, retention), rel=0.01
    )
    assert {e.importance for e in after.values()} == {0.5, 1.0}
    again = faded.forget(config)  # the number of runs does not matter
    assert again["forgotten"] == 0
    assert after["new"].decay_factor == pytest.approx(
        next(e for e in faded.entries() if e.id == "new").decay_factor, abs=0.001
    )
    assert faded.restore("old") is True


def test_pinned_entries_are_never_forgotten(faded: Memory) -> None:
    report = faded.forget(ForgettingConfig(deletion_threshold=1.0))
    assert set(report["forgotten_ids"]) == {"new", "old", "used"}
    assert sorted(e.id for e in faded.entries()) == ["pinned", "top"]


def test_forgetting_in_many_batches(anymemory: Memory) -> None:
    anymemory.add_many([aged(f"n{n:04}", 100 if n % 2 else 0) for n in range(2100)])
    report = anymemory.forget(ForgettingConfig(deletion_threshold=0.1))
    assert (report["considered"], report["forgotten"]) == (2100, 1050)
    assert anymemory.count() == 1050


# ── access recording ──────────────────────────────────────────────────────────────────────────


def counts(memory: Memory, *ids: str) -> list[int]:
    return [-1 if e is None else e.access_count for e in memory.get_many(ids)]


def test_accesses_are_counted(anystore: MemoryStore) -> None:
    memory = anystore.tenant("acme")
    long_ago = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
    memory.add(MemoryEntry("The deploy failed", id="a", last_access=long_ago))
    memory.add(MemoryEntry("Prefers dark roast", id="b", last_access=long_ago))
    memory.search("deploy", k=1)
    anystore.flush()
    assert counts(memory, "a", "b") == [1, 0]
    memory.search("deploy", k=1, record_access=False)
    memory.get("a")
    memory.entries()
    memory.explain("deploy")
    anystore.flush()
    assert counts(memory, "a", "b") == [1, 0]
    memory.build_context("deploy", top_k=1)
    memory.search_many(["deploy", "dark roast"], k=1)
    anystore.flush()
    assert counts(memory, "a", "b") == [3, 1]
    entry = memory.get("a")
    assert entry is not None
    assert datetime.now(UTC).timestamp() - entry.last_access < 60
    assert (entry.importance, entry.version) == (0.5, 1)  # an access is no correction


def test_closing_writes_what_is_pending(database: str) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        store.tenant("acme").add("The deploy failed", id="a")
        for _ in range(20):
            store.tenant("acme").search("deploy")
    with MemoryStore.open(database) as store:
        assert counts(store.tenant("acme"), "a") == [20]


def test_what_a_session_touched(anystore: MemoryStore, rows: CountRows) -> None:
    memory = anystore.tenant("acme")
    memory.add("The deploy failed", id="a")
    memory.search("deploy")
    anystore.flush()
    assert "session_touches" not in rows()
    memory.search("deploy", current_session="s1")
    memory.search("deploy", current_session="s1")
    anystore.flush()
    assert rows()["session_touches"] == 1
