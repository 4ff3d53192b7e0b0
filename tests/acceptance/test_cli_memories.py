"""Writing, recalling, looking and curating from the command line."""

from __future__ import annotations

import gzip
import json
import re
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
    assert shown["neighbours"] == [{"id": "old", "relation": "invalidated_by", "direction": "in"}]
    assert "superseded by 'new' on 20" in " ".join(why["reasons"]), "what replaced it, and when"


def test_links_are_shown_with_their_direction(run: CommandLine) -> None:
    run("add", "The office is in Porto", "--id", "o1", "--tag", "a", "--tag", "b")
    run("add", "The office is in Lisbon", "--id", "o2", "--supersedes", "o1")
    run("relate", "o2", "o1")
    run("relate", "o1", "o2", "--relation", "led_to")
    new, old = run("show", "o2").out, run("show", "o1").out
    assert "\nsupersedes: The office is in Porto (o1)\n" in new
    assert "\n→ related: The office is in Porto (o1)\n" in new
    assert "\n← led_to: The office is in Porto (o1)\n" in new
    assert "\nsuperseded by: The office is in Lisbon (o2)\n" in old
    assert "\n→ led_to: The office is in Lisbon (o2)\n" in old
    assert re.search(r"^tags +a, b$", old, re.MULTILINE)
    assert re.search(r"^last access +20\d\d-.*T.*\+00:00$", old, re.MULTILINE)


def test_times_are_iso_8601_in_every_document(run: CommandLine) -> None:
    when = "2025-01-02T03:04:05+00:00"
    added = run.data("add", "coffee at noon", "--id", "a", "--timestamp", when)
    found = [
        added["entry"],
        run.data("show", "a"),
        *run.data("list")["items"],
        *run.data("search", "coffee"),
        *run.data("context", "coffee")["entries"],
    ]
    assert [entry["timestamp"] for entry in found] == [when] * 5


def test_a_long_line_is_whole_in_a_pipe(run: CommandLine) -> None:
    said = "the needle lies in a line " + "that is long " * 15 + "and ends here"
    run("add", said, "--id", "long")
    for arguments in (["search", "needle"], ["list"], ["show", "long"], ["context", "needle"]):
        out = run(*arguments).out
        assert any(said in line for line in out.splitlines()), out
        assert not [line for line in out.splitlines() if line.endswith(" ")]


def test_every_candidate_that_is_left_out_has_a_reason(run: CommandLine) -> None:
    for n in range(3):
        run("add", f"coffee number {n}", "--id", f"c{n}")
    rows = run.data("explain", "coffee", "-k", "1")["rows"]
    assert [row["reasons"] for row in rows] == [[], ["rank 2, k is 1"], ["rank 3, k is 1"]]
    row = run.data("explain", "coffee", "--min-score", "0.99", "--id", "c0")["entry"]
    assert (row["fate"], "min_score is 0.99" in row["reasons"][0]) == ("below_min_score", True)
    shown = run("explain", "coffee", "--id", rows[1]["id"], "-k", "1").out
    assert "rank 2, k is 1" in shown
    for channel in ("similarity", "lexical"):
        assert re.search(rf"^ +{channel} +0\.\d\d .+$", shown, re.MULTILINE), "a bar each"


def test_curating(run: CommandLine) -> None:
    run("add", "first", "--id", "a")
    run("add", "second", "--id", "b")
    assert run.data("update", "a", "first, corrected", "--importance", "0.9")["version"] == 2
    run("update", "a", "x", "--if-version", "1", code=2)
    run("update", "a", code=2)
    assert run.data("show", "a")["content"] == "first, corrected"
    run("relate", "a", "b", "--relation", "led_to", "--weight", "2")
    assert run.data("show", "a")["neighbours"] == [
        {"id": "b", "relation": "led_to", "direction": "out"}
    ]
    run("relate", "a", "b", "--relation", "led_to", "--remove")
    run("relate", "a", "b", "--relation", "led_to", "--remove", code=1)
    assert run("invalidate", "b", "--by", "a").out == "b superseded by a\n"
    assert run.data("show", "b")["status"] == "superseded"
    run("discard", "a")
    assert run.data("list", code=1) == {"items": [], "next_cursor": None}
    assert run("restore", "a").out == "restored a\n"
    assert run("restore", "a").out == "a was not discarded: it is active\n"
    assert run("invalidate", "a").out == "a marked as no longer true\n"
    run("delete", "b")
    for arguments in (["show", "b"], ["delete", "b"], ["invalidate", "b"]):
        told = run(*arguments, code=1).err
        assert f"there is no memory 'b' in tenant '{run.tenant}'" in told


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
    told = run("purge", code=2).err
    assert "--session" in told and "--all" in told
    assert run.data("purge", "--status", "discarded")["entries"] == 1
    assert run.data("purge", "--user", "ada")["entries"] == 1, "the user alone is a criterion"
    assert "erased 0" in run("purge", "--user", "ada", code=1).out
    run("add", "bob's", "--user", "bob")
    run("add", "everyone's")
    assert "--all" in run("purge", "--all", "--expired", code=2).err
    run("purge", "--all", "--user", "bob")
    assert [item["content"] for item in run.data("list")["items"]] == ["everyone's"]
    assert run("purge", "--all").out == f"erased all memories of tenant '{run.tenant}'\n"
    run("purge", "--all", code=1)


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
