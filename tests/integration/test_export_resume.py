"""Exports that are interrupted, and go on: the file is that of one moment, whatever was left."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import dump, plain
from drivers import opened

from zerda_pg import ConflictError, Memory, MemoryStore


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
