"""Export, a change of the model and upkeep from the command line."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

from commandline import CommandLine

from zerda_pg.testing import temporary_database

pytest_plugins = ["command_fixtures"]


def test_what_is_exported_can_be_imported(run: CommandLine, tmp_path: Path) -> None:
    run("add", "The office is in Porto", "--id", "office")
    run("add", "Lunch is at one", "--id", "lunch")
    run("relate", "office", "lunch")
    path = tmp_path / "all.jsonl.gz"
    told = run("export", str(path), "--vectors")
    assert told.out == f"2 memories, 1 link in {path}\n"
    assert run.data("export", str(path))["entries"] == 2
    run("delete", "office")
    run("delete", "lunch")
    assert run.data("import", str(path))["created"] == 2
    assert run.data("show", "office")["content"] == "The office is in Porto"
    assert "name one" in run("export", "-", code=2).err
    # what a kill has left is gone on from
    written = gzip.decompress(path.read_bytes())
    whole = tmp_path / "resumed.jsonl"
    whole.with_name("resumed.jsonl.partial").write_bytes(written[: written.index(b'{"edge"') + 5])
    path.unlink()
    report = run.data("export", str(whole), "--resume")
    assert (report["entries"], report["edges"], report["resumed"]) == (2, 1, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["resumed.jsonl"]


def test_the_model_is_changed(run: CommandLine) -> None:
    with temporary_database() as url:
        run("add", "The office is in Porto", "--url", url)
        assert "--model" in run("reembed", "--url", url, code=2).err
        told = run("reembed", "--model", "hashing:96", "--url", url)
        assert told.out == "1 text embedded; the database uses hashing\n"
        assert "reembed" in run("search", "office", "--url", url, code=3).err
        found = replace(run, embedder="auto").data("search", "office", "--url", url)
        assert len(found) == 1
        told = run("reembed", "--drop-retired", "--url", url, "--json")
        assert told.json() == {"dropped": {"models": ["hashing"], "vectors": 1}}


def test_upkeep(run: CommandLine) -> None:
    run("add", "gone soon", "--expires", "1s")
    report = run.data("maintain")
    assert report["tenants"] >= 1
    assert report["analyzed"] == [], "the tables are too small for statistics to help"
    told = run("maintain").out
    assert re.search(r"^expired, erased +\d+$", told, re.MULTILINE)
    assert re.search(r"^tables analyzed +none$", told, re.MULTILINE)
    told = run("maintain", "--cluster").out
    assert re.search(r"^tables put in order +none$", told, re.MULTILINE)
