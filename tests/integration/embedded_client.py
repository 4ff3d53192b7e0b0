"""Programs that use an embedded server, run as processes of their own to be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from zerda_pg.db import embedded

ROOT = Path(embedded.__file__).parents[2]
ENVIRONMENT = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
NOBODY = 65534

# Joins the server, says where it is, leaves when its input ends.
CLIENT = """
import sys
from pathlib import Path
from zerda_pg.db import embedded
with embedded.acquire(Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""

# Says which error comes, or "running" with the number of rows in the table of `write_rows`.
ATTEMPT = """
import sys
from pathlib import Path
import psycopg
from zerda_pg.db import embedded
from zerda_pg.errors import ZerdaError
def attempt(home):
    try:
        with embedded.acquire(Path(home)) as server, psycopg.connect(server.url) as connection:
            found = connection.execute("SELECT to_regclass('kept') IS NOT NULL").fetchone()
            rows = connection.execute("SELECT count(*) FROM kept").fetchone()[0] if found[0] else 0
            print("running", rows, flush=True)
    except ZerdaError as error:
        print(type(error).__name__, error, flush=True)
"""

# What follows runs as an ordinary user. Where that is not so already, everything is imported and
# used once before root becomes nobody, who may be unable to read root's Python.
AS_ORDINARY_USER = """
import os, tempfile
if os.geteuid() == 0:
    with tempfile.TemporaryDirectory() as name:
        attempt(name)
        attempt("/dev/null")
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""


def python(code: str, *arguments: object, prefix: Sequence[str] = ()) -> list[str]:
    """Run a program to its end; the lines of its output."""
    result: subprocess.CompletedProcess[str] = subprocess.run(
        [*prefix, sys.executable, "-c", code, *map(str, arguments)],
        env=ENVIRONMENT,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@contextlib.contextmanager
def client(home: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A client process that has joined the server; it leaves at the end unless it was killed."""
    with start_client(home, **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("postgresql://")
        yield process


@contextlib.contextmanager
def start_client(home: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A client process that is on its way."""
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(home)],
        env=ENVIRONMENT,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def write_rows(url: str, count: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (i int)")
        connection.execute("INSERT INTO kept SELECT generate_series(1, %s)", [count])


def count_rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def postmaster(home: Path) -> int:
    """The id of the server that runs on this home, as it wrote it down itself."""
    pid = int((home / "pg18" / "postmaster.pid").read_text().split()[0])
    assert Path(f"/proc/{pid}/cwd").samefile(home / "pg18")
    return pid


def kill_postmaster(home: Path) -> None:
    os.kill(postmaster(home), signal.SIGKILL)


def is_running(home: Path) -> bool:
    return embedded.inspect(home).running


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
