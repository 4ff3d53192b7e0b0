"""Writing, recalling, looking and curating from the command line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from commandline import CommandLine

pytest_plugins = ["command_fixtures"]


def test_what_was_added_comes_back(run: CommandLine) -> None:
    added = run.data("add", "Prefers dark roast coffee", "--kind", "preference", "--tag", "taste",
                     "--importance", "0.7", "--metadata", '{"score": 10}')  # fmt: skip
    assert added["status"] == "created"
    from_stdin = run("add", "-", stdin="Der Zug nach Köln fährt um 7:10\n")
    assert from_stdin.out.startswith("created ")
    hits = run.data("search", "Which coffee roast?", "-k", "1")
    assert [hit["id"] for hit in hits] == [added["id"]]
    (hit,) = hits
    assert hit["content"] == "Prefers dark roast coffee"
    assert 0 < hit["score"] <= 1
    assert {"similarity", "lexical", "recency", "importance", "contributions"} <= hit.keys()
    assert hit["score"] == pytest.approx(sum(hit["contributions"].values()), abs=1e-4)
    assert (hit["kind"], hit["tags"], hit["metadata"]) == ("preference", ["taste"], {"score": 10})
    (hit,) = run.data("search", "-", "-k", "1", stdin="Zug Köln")
    assert hit["content"] == "Der Zug nach Köln fährt um 7:10"


def test_filters_reach_the_search(run: CommandLine) -> None:
    run("add", "coffee in the morning", "--kind", "fact", "--id", "a", "--session", "s1")
    run("add", "coffee at night", "--kind", "decision", "--id", "b", "--metadata", '{"n": 3}',
        "--timestamp", "2025-01-01T00:00:00Z")  # fmt: skip
    assert [h["id"] for h in run.data("search", "coffee", "--kind", "decision")] == ["b"]
    assert [h["id"] for h in run.data("search", "coffee", "--session", "s1")] == ["a"]
    assert [h["id"] for h in run.data("search", "coffee", "--until", "2025-06-01T00:00Z")] == ["b"]
    found = run.data("list", "--metadata", '{"n": {"$gte": 3}}')
    assert [item["id"] for item in found["items"]] == ["b"]
    assert run.data("search", "coffee", "--type", "episodic", code=1) == []


def test_a_context_keeps_its_budget(run: CommandLine, tmp_path: Path) -> None:
    lines = [json.dumps({"content": f"The deploy of service {n} needs a green build"})
             for n in range(40)]  # fmt: skip
    run("import", "-", stdin="\n".join(lines))
    packed = run.data("context", "deploy a service", "--budget", "60")
    assert 0 < packed["tokens"] <= 60
    assert packed["text"]
    assert packed["entries"]
    assert packed["report"]["token_budget"] == 60
    shown = run("context", "deploy a service", "--budget", "60")
    assert shown.out.strip() == packed["text"].strip(), "stdout has the text and nothing else"
    assert "of 60 tokens" in shown.err


def test_a_replaced_fact_and_why_it_stays_away(run: CommandLine) -> None:
    run("add", "The office is in Porto", "--id", "old")
    run("add", "The office is in Lisbon", "--id", "new", "--supersedes", "old")
    assert [h["id"] for h in run.data("search", "Where is the office?")] == ["new"]
    why = run.data("explain", "Where is the office?", "--id", "old")["entry"]
    assert why["fate"] == "not_a_candidate"
    assert "superseded" in " ".join(why["reasons"])
    assert "is no candidate" in run("explain", "Where is the office?", "--id", "old").out
    report = run.data("explain", "Where is the office?")
    assert [row["id"] for row in report["rows"]] == ["new"]
    assert run("explain", "Where is the office?", "--id", "none", code=1)
    shown = run.data("show", "new")
    assert shown["neighbours"] == [{"id": "old", "relation": "invalidated_by"}]


def test_curating(run: CommandLine) -> None:
    run("add", "first", "--id", "a")
    run("add", "second", "--id", "b")
    assert run.data("update", "a", "first, corrected", "--importance", "0.9")["version"] == 2
    run("update", "a", "x", "--if-version", "1", code=2)
    run("update", "a", code=2)
    assert run.data("show", "a")["content"] == "first, corrected"
    run("relate", "a", "b", "--relation", "led_to", "--weight", "2")
    assert run.data("show", "a")["neighbours"] == [{"id": "b", "relation": "led_to"}]
    run("relate", "a", "b", "--relation", "led_to", "--remove")
    run("relate", "a", "b", "--relation", "led_to", "--remove", code=1)
    run("invalidate", "b", "--by", "a")
    assert run.data("show", "b")["status"] == "superseded"
    run("discard", "a")
    assert run.data("list", code=1) == {"items": [], "next_cursor": None}
    run("restore", "a")
    run("delete", "b")
    assert "no memory 'b'" in run("show", "b", code=1).err
    assert "no memory 'b'" in run("delete", "b", code=1).err


def test_lists_go_on_where_they_ended(run: CommandLine) -> None:
    run("import", "-", stdin="\n".join(json.dumps({"content": f"memory {n}"}) for n in range(5)))
    first = run.data("list", "--limit", "3")
    rest = run.data("list", "--limit", "3", "--cursor", first["next_cursor"])
    ids = [item["id"] for item in first["items"] + rest["items"]]
    assert len(set(ids)) == 5
    assert rest["next_cursor"] is None
    stats = run.data("stats")
    assert (stats["entries"], stats["tenant_id"]) == (5, run.tenant)
    assert run.tenant in run.data("tenants")


def test_forgetting_and_purging(run: CommandLine) -> None:
    run("add", "kept", "--user", "ada")
    run("add", "stale", "--importance", "0.01", "--user", "bob")
    dry = run.data("forget", "--dry-run")
    assert (dry["considered"], dry["forgotten"], dry["dry_run"]) == (2, 1, True)
    assert run.data("forget")["forgotten"] == 1
    run("purge", code=2)
    assert run.data("purge", "--status", "discarded")["entries"] == 1
    assert run.data("purge", "--user", "ada")["entries"] == 1, "the user alone is a criterion"
    assert "erased 0" in run("purge", "--user", "ada", code=1).out


def test_import_reports_and_resumes(run: CommandLine, tmp_path: Path) -> None:
    lines = [
        json.dumps({"session": "s", "speaker": "A", "text": f"turn {n}"}) for n in range(4)
    ]  # fmt: skip
    path = tmp_path / "talk.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, "not json"]).encode()))
    first = run("import", str(path), "--json", code=2)
    assert first.json()["created"] == 4, "the good lines are written"
    assert first.err == "zerda-pg: line 5: is not JSON: Expecting value at column 1\n"
    again = run("import", str(path), code=2)
    assert again.out == "5 lines: 4 kept, 1 failed\n"
    assert run.data("stats")["by_type"] == {"episodic": 4}
    assert "No such file" in run("import", str(tmp_path / "none"), code=2).err
    run("import", "-", stdin="", code=1)
