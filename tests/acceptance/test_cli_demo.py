"""The demo and start-up, with the model that users have."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import CommandLine

from zerda_pg.db import embedded

pytestmark = pytest.mark.model

SAMPLE = Path(__file__).parents[2] / "zerda_pg" / "demo" / "agent-log.jsonl"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """The command with its defaults, on a home of its own."""
    place = tmp_path_factory.mktemp("demo") / "home"
    with embedded.acquire(place):
        yield CommandLine(home=place, tenant="default", embedder="auto")


def test_the_demo_shows_what_it_promises(real: CommandLine) -> None:
    lines = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    assert len(lines) >= 60
    assert len({line.get("session") or line["session_id"] for line in lines}) >= 5
    first = real.data("demo")
    assert first["tenant"] == "demo"
    assert first["import"]["created"] == len(lines)
    best = [answer["hits"][0]["id"] for answer in first["answers"]]
    assert best[:2] == ["demo-export-failure", "demo-pref-small-prs"]
    assert best[2].startswith(("demo-pool", "demo-s6"))
    replaced = first["superseded"]
    assert [hit["id"] for hit in replaced["today"]] == ["demo-db-host-2"]
    assert [hit["id"] for hit in replaced["earlier"]] == ["demo-db-host-1"]
    assert "superseded" in " ".join(replaced["replaced"]["reasons"])
    assert 0 < first["context"]["tokens"] <= 220
    assert "Maya wants pull requests under 300" in first["context"]["text"]

    again = real("demo")
    assert "0 new, the rest was there already" in again.out
    for word in ("similarity", "lexical", "220 tokens", "zerda-pg search", "demo --clean"):
        assert word in again.out

    commands = re.findall(r"^  (\S*zerda-pg .+)$", again.out, flags=re.MULTILINE)
    assert len(commands) >= 5
    done = subprocess.run(
        commands[0], shell=True, env=real.environment(), capture_output=True, text=True, check=True
    )
    assert "Tomas" in done.stdout, "what it says to type next works when pasted"

    real("demo", "--clean")
    assert real.data("list", "--tenant", "demo", code=1)["items"] == []
    real("demo", "--clean", code=1)


def test_cleaning_leaves_what_else_the_tenant_has(real: CommandLine) -> None:
    mine = replace(real, tenant="mine")
    mine("add", "not of the sample")
    mine("demo")
    mine("demo", "--clean")
    assert [item["content"] for item in mine.data("list")["items"]] == ["not of the sample"]


def test_meaning_is_found_without_shared_words(real: CommandLine) -> None:
    own = replace(real, tenant="meaning")
    own("add", "The kitten sleeps on the sofa", "--id", "cat")
    own("add", "Quarterly revenue grew by four percent", "--id", "money")
    (hit,) = own.data("search", "Where is the cat napping?", "-k", "1", "--mode", "dense")
    assert hit["id"] == "cat"
    assert own.data("doctor")["model"]["self_check"] == "passed"


def test_a_command_loads_no_more_than_it_needs(real: CommandLine) -> None:
    """What start-up takes is what it imports."""
    own = replace(real, tenant="fast")
    own("add", "The deploy key is rotated monthly")
    program = (
        "import sys; from zerda_pg.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )

    def heavy(*arguments: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True, env=own.environment(), timeout=120, check=True,
        )  # fmt: skip
        return set(done.stderr.decode().split()) & {
            "sqlalchemy", "sqlalchemy.orm", "alembic", "psycopg", "numpy", "onnxruntime", "torch",
        }  # fmt: skip

    assert heavy("--help") == set()
    assert heavy("search", "deploy key", "--tenant", "fast") == {
        "sqlalchemy", "psycopg", "numpy", "onnxruntime",
    }  # fmt: skip
