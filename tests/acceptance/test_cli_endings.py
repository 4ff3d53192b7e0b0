"""How commands end: codes, one line on stderr, quiet on interruption; how they look."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commandline import CommandLine

from zerda_pg import MemoryStore
from zerda_pg.embedding import HashingEmbedder

pytest_plugins = ["command_fixtures"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["search"], "Missing argument"),
        (["search", "x", "--nope"], "No such option"),
        (["nope"], "No such command"),
        (["search", "x", "-k", "many"], "'-k'"),
        (["search", "x", "-k", "0"], "k must be"),
        (["search", "x", "--since", "2025-01-01T00:00:00"], "--since"),
        (["search", "x", "--metadata", "{"], "--metadata"),
        (["search", "x", "--embedder", "no_such_module:make"], "no_such_module"),
        (["search", "x", "--tenant", ""], "--tenant must"),
        (["add", ""], "content is empty"),
        (["add", "x", "--importance", "7"], "--importance must"),
        (["add", "x", "--expires", "soon"], "30m, 12h, 7d"),
        (["export", "/nowhere/x.jsonl"], "/nowhere: there is no such directory"),
        (["migrate", "--check", "--sql"], "--check"),
    ],
)
def test_wrong_use_ends_with_2(run: CommandLine, arguments: list[str], words: str) -> None:
    told = run.plain(*arguments, code=2)
    assert words in told.err
    assert told.err.count("\n") == 1, "one line says what is wrong"
    assert told.out == ""


def test_no_arguments_show_the_help(run: CommandLine) -> None:
    assert "Usage" in run.plain(code=2).out
    assert run.plain("--version").out.startswith("zerda-pg ")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"ZERDA_PG_URL": "postgresql://u:secret@127.0.0.1:1/x"}, "cannot be reached"),
        ({"ZERDA_PG_URL": "mysql://x"}, "PostgreSQL"),
        ({"ZERDA_PG_EMBEDDED": "0"}, "ZERDA_PG_URL"),
        ({"ZERDA_PG_EMBEDDED": "perhaps"}, "ZERDA_PG_EMBEDDED"),
    ],
)
def test_an_unusable_environment_ends_with_3(
    run: CommandLine, environment: dict[str, str], words: str
) -> None:
    broken = run.on(**environment)
    told = broken.plain("list", "--json", code=3)
    assert words in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert "secret" not in told.err
    seen = broken.plain("doctor", "--json", "--embedder", "hashing", code=3)
    assert not seen.json()["usable"]
    assert words in " ".join(seen.json()["problems"])
    assert "secret" not in seen.out


def test_another_model_than_the_recorded_ends_with_3(run: CommandLine) -> None:
    run("add", "x")
    told = run.plain("search", "x", "--embedder", "hashing:64", "--tenant", run.tenant, code=3)
    assert "hashing" in told.err


def test_an_embedder_of_ones_own(run: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "own_embedder.py").write_text(
        "from zerda_pg.embedding import HashingEmbedder\n\ndef make():\n"
        "    return HashingEmbedder()\n"
    )
    arguments = ["add", "y", "--embedder", "own_embedder:make", "--tenant", run.tenant]
    run.on(PYTHONPATH=str(tmp_path)).plain(*arguments)
    assert (
        "own_embedder:nope" in run.plain("add", "y", "--embedder", "own_embedder:nope", code=2).err
    )


def test_a_database_of_anothers_embedder_says_so(run: CommandLine, database: str) -> None:
    letters = HashingEmbedder()
    letters.name, letters.fingerprint = "letters", "letters-1"
    with MemoryStore.open(database, embedder=letters) as store:
        store.tenant("t").add("x")
    told = run.plain("search", "x", "--tenant", "t", "--url", database, code=3).err
    assert "holds vectors of 'letters'" in told
    assert "--embedder package.module:factory" in told
    assert "reembed" in told
    assert run.plain("list", "--tenant", "t", "--url", database).out, "no model is needed here"


def test_migrating_from_the_command_line(run: CommandLine, empty_database: str) -> None:
    there = run.on(ZERDA_PG_URL=empty_database)
    assert "zerda-pg migrate" in there.plain("migrate", "--check", code=3).err
    assert "zerda-pg migrate" in there.plain("list", code=3).err
    seen = there.plain("doctor", "--embedder", "hashing", code=3)
    assert "run `zerda-pg migrate`" in " ".join(seen.out.split())
    assert "created the schema (v1_" in there.plain("migrate").out
    assert "is up to date" in there.plain("migrate").out
    assert there.plain("migrate", "--json").json()["status"] == "fits"
    there.plain("migrate", "--check")
    there.plain("list", code=1)
    script = run.plain("migrate", "--sql").out
    assert "CREATE TABLE zerda.entries" in script


def test_doctor_sees_what_runs(run: CommandLine) -> None:
    run("add", "x")
    seen = run.data("doctor")
    assert seen["usable"], seen
    assert seen["server"]["kind"] == "embedded"
    assert seen["server"]["data_directory"].startswith(str(run.home))
    assert seen["server"]["schema"] == seen["server"]["schema_needed"]
    assert {"vector", "btree_gin"} <= seen["server"]["extensions"].keys()
    assert seen["model"]["recorded"] == seen["model"]["name"]
    assert "python" in seen["packages"]
    psql = f"{seen['server']['psql']} -Atc 'select count(*) > 0 from zerda.entries'"
    answer = subprocess.run(psql, shell=True, capture_output=True, text=True, check=True)
    assert answer.stdout == "t\n"
    # whole on a line of its own, to be copied
    assert f"  {seen['server']['psql']}\n" in run("doctor").out


def test_an_interrupted_command_is_quiet(run: CommandLine) -> None:
    with subprocess.Popen(
        run.arguments("import", "-"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=run.environment(),
    ) as process:
        time.sleep(2)  # until it waits for its input
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (out, err) == (b"", b"")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_closed_pipe_is_quiet(run: CommandLine, more: list[str]) -> None:
    run("add", "x")
    with subprocess.Popen(
        run.arguments("tenants", *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=run.environment(),
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_colours_on_a_terminal_only(run: CommandLine) -> None:
    run("add", "coffee \x1b[31mred")
    piped = run("search", "coffee")
    assert "\x1b" not in piped.out, "neither ours nor the memory's"
    assert "similarity" in piped.out
    for more, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        shown = _on_terminal(run.arguments("search", "coffee"), run.on(**more).environment())
        assert ("\x1b[36m" in shown) == coloured, "the bar's cyan"
        assert "\x1b[31mred" not in shown
        explained = _on_terminal(run.arguments("explain", "coffee"), run.on(**more).environment())
        assert "similarity" in explained and "█" in explained, "a bar tells without colours"
        for line in re.sub(r"\x1b\[[0-9;]*m", "", shown + explained).splitlines():
            assert len(line) <= 80


def test_everything_is_erased_when_it_is_confirmed(run: CommandLine) -> None:
    run("add", "x")
    for answer, left in ((b"n\n", 1), (b"y\n", 0)):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        subprocess.run(
            run.arguments("purge", "--all"), stdin=theirs, capture_output=True,
            env=run.environment(), timeout=60, check=False,
        )  # fmt: skip
        os.close(theirs)
        os.close(ours)
        assert run.data("stats")["entries"] == left


def test_the_help_shows_no_type_of_a_switch(run: CommandLine) -> None:
    told = run.plain("search", "--help").out
    assert "bool" not in told
    assert "<int>" in told


def _on_terminal(arguments: object, environment: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    environment = environment | {"TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(  # type: ignore[call-overload]
        arguments, stdout=theirs, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # what Linux says at the end
                break
            if not chunk:
                break
            seen += chunk
        process.wait(timeout=30)
    os.close(ours)
    return seen.decode()
