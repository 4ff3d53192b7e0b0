"""Changing the embedding model: online, resumable, there and back, never mixed."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import psycopg
import pytest
from conftest import plain
from drivers import opened

import zerda_pg
from zerda_pg import ConfigError, EmbeddingMismatchError, MemoryEntry, MemoryStore
from zerda_pg.db.rows import entry_to_json
from zerda_pg.embedding import HashingEmbedder
from zerda_pg.embedding.protocol import Kind, Vectors

OLD, NEW = HashingEmbedder(64), HashingEmbedder(96)

TEXTS = [
    f"note {n}: the {word} is in order" for n, word in enumerate(["pump", "valve", "gate"] * 9)
]


class Counted(HashingEmbedder):
    """Counts what it embeds, slowly, and fails at a given text."""

    def __init__(self, dimensions: int, *, fail_after: int | None = None, pause: float = 0.0):
        super().__init__(dimensions)
        self.texts = 0
        self.fail_after = fail_after
        self.pause = pause

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        self.texts += len(texts)
        if self.fail_after is not None and self.texts > self.fail_after:
            raise RuntimeError("the power went off")
        time.sleep(self.pause)
        return super().embed(texts, kind=kind)


def lacking(admin: psycopg.Connection, dimensions: int) -> int:
    row = admin.execute(
        "SELECT count(*) FROM zerda.entries e WHERE NOT EXISTS (SELECT 1 FROM zerda.embeddings v "
        "JOIN zerda.embedding_models m ON m.id = v.model_id AND m.dimensions = %s "
        "WHERE v.tenant_id = e.tenant_id AND v.entry_id = e.id)",
        [dimensions],
    ).fetchone()
    assert row is not None
    return int(row[0])


def states(admin: psycopg.Connection) -> dict[int, str]:
    return dict(admin.execute("SELECT dimensions, state FROM zerda.embedding_models").fetchall())


@contextmanager
def filled(kind: str, url: str) -> Iterator[MemoryStore]:
    with opened(kind, url, embedder=OLD) as store:
        for tenant in ("acme", "umbrella"):
            store.tenant(tenant).add_many([{"content": text} for text in TEXTS])
        yield store


def test_the_model_is_changed(kind: str, database: str, admin: psycopg.Connection) -> None:
    with filled(kind, database) as old:
        seen: list[tuple[int, int | None]] = []
        discarded = old.tenant("acme").add("put aside").id
        old.tenant("acme").discard(discarded)
        report = zerda_pg.reembed(
            database, NEW, progress=lambda done, total: seen.append((done, total))
        )
        assert report["embedded"] == 2 * len(TEXTS) + 1
        assert report["switched"]
        assert (report["before"], report["dimensions"]) == ("hashing", 96)
        assert seen[-1] == (2 * len(TEXTS) + 1,) * 2
        assert states(admin) == {64: "retired", 96: "active"}
        assert lacking(admin, 96) == lacking(admin, 64) == 0

        memory = old.tenant("acme")
        with pytest.raises(EmbeddingMismatchError):
            memory.search("pump")
        with pytest.raises(EmbeddingMismatchError, match="reembed"):
            memory.search("pump")
        assert memory.search("pump", mode="lexical")
        assert memory.count() == len(TEXTS)
        with opened(kind, database, embedder=NEW) as new:
            assert "pump" in str(new.tenant("acme").search("pump", mode="dense")[0].entry.content)
            assert new.tenant("acme").restore(discarded)
            hits = new.tenant("acme").search("put aside", mode="dense", k=1)
            assert hits[0].entry.id == discarded
        with opened(kind, database, embedder="auto") as found:
            assert found.embedder.dimensions == 96


@pytest.mark.parametrize("call", ["search", "search_many", "add", "add_many", "update", "empty"])
def test_a_store_with_the_old_model_is_refused(
    kind: str, database: str, call: str, admin: psycopg.Connection
) -> None:
    """At its first operation after the switch, of whatever sort, and nothing is written."""
    with filled(kind, database) as old:
        memory = old.tenant("acme")
        known = next(iter(memory.entries(limit=1))).id
        calls: dict[str, Callable[[], object]] = {
            "search": lambda: memory.search("pump"),
            "search_many": lambda: memory.search_many(["pump", "valve"]),
            "add": lambda: memory.add("new"),
            "add_many": lambda: memory.add_many([{"content": f"new {n}"} for n in range(9)]),
            "update": lambda: memory.update(known, content="new"),
            "empty": lambda: old.tenant("nobody").search("pump"),
        }
        zerda_pg.reembed(database, NEW)
        for _ in range(2):
            with pytest.raises(EmbeddingMismatchError):
                calls[call]()
        assert lacking(admin, 96) == 0
        assert memory.count() == len(TEXTS)


def test_there_and_back(database: str, admin: psycopg.Connection) -> None:
    with filled("sync", database) as old:
        zerda_pg.reembed(database, NEW)
        with MemoryStore.open(database, embedder=NEW) as new:
            added = new.tenant("acme").add("the boiler was replaced").id
            changed = next(iter(new.tenant("acme").entries(limit=1, order="oldest"))).id
            new.tenant("acme").update(changed, content="the crane was repainted")
            assert lacking(admin, 64) == 2
            row = admin.execute(
                "SELECT id FROM zerda.embedding_models WHERE dimensions = 64"
            ).fetchone()
            assert row is not None
            with pytest.raises(psycopg.Error, match="lack a vector") as refused:
                admin.execute("SELECT zerda.activate_model(%s)", [row[0]])
            assert refused.value.sqlstate == "ZD005"
            assert states(admin) == {64: "retired", 96: "active"}

            report = zerda_pg.reembed(database, OLD)
            assert (report["embedded"], report["switched"]) == (2, True)
            assert states(admin) == {64: "active", 96: "retired"}
            with pytest.raises(EmbeddingMismatchError):
                new.tenant("acme").add("too late")
        # the store that was refused works again
        hits = old.tenant("acme").search("boiler replaced", mode="dense", k=1)
        assert hits[0].entry.id == added
        hits = old.tenant("acme").search("crane repainted", mode="dense", k=1)
        assert hits[0].entry.id == changed
        assert zerda_pg.reembed(database, OLD)["switched"] is False


def test_an_interrupted_run_goes_on(database: str, admin: psycopg.Connection) -> None:
    many = [{"content": f"text number {n}"} for n in range(700)]
    with MemoryStore.open(database, embedder=OLD) as store:
        store.tenant("acme").add_many(many)
        with pytest.raises(RuntimeError, match="power"):
            zerda_pg.reembed(database, Counted(96, fail_after=300))
        assert states(admin) == {64: "active", 96: "building"}
        left = lacking(admin, 96)
        assert 0 < left < 700
        assert store.tenant("acme").search("text number 7", mode="dense")[0].score > 0.9
        target = Counted(96)
        assert zerda_pg.reembed(database, target)["embedded"] == left
        assert target.texts == left + 1  # and the one that the model is tried with


def test_beside_writers(database: str, admin: psycopg.Connection) -> None:
    """No entry is without its vector afterwards, and none has that of an earlier text."""
    stop = threading.Event()
    refused: list[int] = []
    written: list[str] = []

    def work(number: int) -> None:
        with MemoryStore.open(database, embedder=OLD, pool_size=1) as store:
            memory = store.tenant(f"tenant {number % 2}")
            count = 0
            while not stop.is_set():
                count += 1
                time.sleep(0.005)
                try:
                    made = memory.add(f"writer {number} says {count}", id=f"w{number}-{count}")
                    written.append(made.id)
                    if count % 3 == 0:
                        memory.update(made.id, content=f"writer {number} corrects {count}")
                    if count % 5 == 0:
                        memory.add(f"writer {number} again {count}", id=f"w{number}-{count - 1}")
                    if count % 7 == 0:
                        memory.delete(made.id)
                        written.remove(made.id)
                except EmbeddingMismatchError:
                    refused.append(number)
                    return

    with filled("sync", database):
        writers = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for writer in writers:
            writer.start()
        try:
            time.sleep(0.3)
            zerda_pg.reembed(database, Counted(96, pause=0.05))
        finally:
            for writer in writers:
                writer.join(20)
            stop.set()
    assert sorted(refused) == [0, 1, 2]
    assert states(admin) == {64: "retired", 96: "active"}
    rows = admin.execute(
        "SELECT e.id, e.body, v.embedding::text FROM zerda.entries e LEFT JOIN ("
        "zerda.embeddings v JOIN zerda.embedding_models m ON m.id = v.model_id "
        "AND m.dimensions = 96) ON v.tenant_id = e.tenant_id AND v.entry_id = e.id"
    ).fetchall()
    assert {row[0] for row in rows} >= set(written)
    expected = NEW.embed([row[1] for row in rows])
    for (entry_id, _, vector), wanted in zip(rows, expected, strict=True):
        assert vector is not None, entry_id
        assert np.allclose(json.loads(vector), wanted, atol=1e-3), entry_id


def test_ids_that_grow_with_time(database: str, admin: psycopg.Connection) -> None:
    """A writer that is always one entry ahead keeps no pass from its end."""
    writes: list[threading.Thread] = []

    class Overtaken(Counted):
        def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
            if len(writes) < 300:
                write = threading.Thread(target=add, args=(len(writes),))
                writes.append(write)
                write.start()
                time.sleep(0.02)
            return super().embed(texts, kind=kind)

    def add(number: int) -> None:
        with contextlib.suppress(EmbeddingMismatchError):
            store.tenant("acme").add(f"note {number}", id=f"z{number:04}")

    with filled("sync", database) as store:
        zerda_pg.reembed(database, Overtaken(96))
        for write in writes:
            write.join(20)
    assert len(writes) < 20
    assert states(admin) == {64: "retired", 96: "active"}
    assert lacking(admin, 96) == 0


def test_a_write_under_way_is_waited_for(database: str, admin: psycopg.Connection) -> None:
    with filled("sync", database) as store, psycopg.connect(plain(database)) as writer:
        entry = MemoryEntry("written as the model was switched", id="late")
        row = entry_to_json(
            0, entry, body=str(entry.content), language="english", truncated=False, supersedes=[]
        )
        model = admin.execute("SELECT id FROM zerda.embedding_models").fetchone()
        assert model is not None
        vector = store.embedder.embed(["written as the model was switched"])[0].tolist()
        writer.execute(
            "SELECT * FROM zerda.put_entries('acme', NULL, %s, %s::json, "
            "ARRAY[%s]::public.halfvec[], 'replace', false, true)",
            [model[0], json.dumps([row]), str(vector)],
        )
        switch = threading.Thread(target=lambda: zerda_pg.reembed(database, NEW))
        switch.start()
        time.sleep(1.0)
        assert switch.is_alive()
        assert states(admin) == {64: "active", 96: "building"}
        writer.commit()
        switch.join(20)
        assert not switch.is_alive()
        assert states(admin) == {64: "retired", 96: "active"}
        assert lacking(admin, 96) == 0


def test_two_at_once(database: str, admin: psycopg.Connection) -> None:
    with filled("sync", database):
        reports: list[dict[str, object]] = []
        runs = [
            threading.Thread(target=lambda: reports.append(zerda_pg.reembed(database, NEW)))
            for _ in range(3)
        ]
        for run in runs:
            run.start()
        for run in runs:
            run.join(60)
        assert len(reports) == 3
        assert sum(int(str(report["embedded"])) for report in reports) == 2 * len(TEXTS)
        assert states(admin) == {64: "retired", 96: "active"}
        assert lacking(admin, 96) == 0


def test_an_empty_database_takes_the_model_at_once(
    database: str, admin: psycopg.Connection
) -> None:
    assert zerda_pg.reembed(database, NEW)["embedded"] == 0
    assert states(admin) == {96: "active"}


@pytest.mark.parametrize("dimensions", [384, 1536, 3072, 4000])
def test_dimensions(database: str, admin: psycopg.Connection, dimensions: int) -> None:
    """Exact search gives the cosines of the vectors, whatever their length."""
    embedder = HashingEmbedder(dimensions)
    with MemoryStore.open(database, embedder=OLD) as store:
        store.tenant("acme").add_many([{"content": text} for text in TEXTS])
    zerda_pg.reembed(database, embedder)
    with MemoryStore.open(database, embedder=embedder) as store:
        store.tenant("acme").add("the pump is new")
        hits = store.tenant("acme").search("pump in order", mode="dense", k=5)
        documents = embedder.embed([*TEXTS, "the pump is new"])
        cosines = np.sort(documents @ embedder.embed(["pump in order"])[0])[::-1]
        assert [hit.similarity for hit in hits] == pytest.approx(list(cosines[:5]), abs=2e-3)


def test_too_many_dimensions(database: str, admin: psycopg.Connection) -> None:
    wide = HashingEmbedder(4001)
    with pytest.raises(ConfigError, match="4000"):
        zerda_pg.reembed(database, wide)
    with (
        MemoryStore.open(database, embedder=wide) as store,
        pytest.raises(ConfigError, match="4000"),
    ):
        store.tenant("acme").add("text")
    assert states(admin) == {}


def test_retired_vectors_are_dropped(database: str, admin: psycopg.Connection) -> None:
    with filled("sync", database):
        zerda_pg.reembed(database, NEW)
        report = zerda_pg.drop_retired_models(database)
    assert report == {"models": ["hashing"], "vectors": 2 * len(TEXTS)}
    assert states(admin) == {96: "active"}
    row = admin.execute(
        "SELECT count(DISTINCT model_id), count(*) FROM zerda.embeddings"
    ).fetchone()
    assert row == (1, 2 * len(TEXTS))
    assert zerda_pg.drop_retired_models(database) == {"models": [], "vectors": 0}
    assert zerda_pg.reembed(database, OLD)["embedded"] == 2 * len(TEXTS)
