"""Starts the processes, kills some, restarts the server, and checks."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

import zerda_pg
from benchmarks.soak import history
from benchmarks.soak.check import Findings, check
from benchmarks.soak.worker import POOL, TENANTS
from zerda_pg import MemoryStore, ZerdaError
from zerda_pg.db import embedded
from zerda_pg.db.isolation import roles_script

ROOT = Path(__file__).parents[2]
AGENT = "zerda_agent"


@dataclass(frozen=True, kw_only=True)
class Soaked:
    """How it went."""

    findings: Findings
    figures: dict[str, Any]


class Workers:
    """The processes; every other one by a role that row-level security binds."""

    def __init__(self, urls: tuple[str, str], folder: Path, count: int) -> None:
        self._urls = urls
        self.folder = folder
        self.started = 0
        self.running = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        name = f"p{self.started}"
        arguments = [self._urls[self.started % 2], str(self.folder / f"{name}.jsonl"), name]
        self.started += 1
        with (self.folder / f"{name}.err").open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "benchmarks.soak.worker", *arguments],
                cwd=ROOT,
                stderr=errors,
            )

    def kill_one(self, chance: random.Random) -> None:
        place = chance.randrange(len(self.running))
        self.running[place].kill()
        self.running[place].wait()
        self.running[place] = self._start()

    def stop(self) -> list[str]:
        """End them in an orderly way; which did not."""
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        wrong: list[str] = []
        for process in self.running:
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            # by the signal itself: it was just started, and had not begun to listen to it
            if code not in {0, -signal.SIGTERM}:
                wrong.append(f"process {process.pid} ended with {code}")
        wrong += [
            f"{path.name}: {path.read_text().splitlines()[-1]}"
            for path in self.folder.glob("*.err")
            if path.stat().st_size
        ]
        return wrong


@contextlib.contextmanager
def _server() -> Iterator[tuple[Path, str]]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with embedded.acquire(home) as server:
            yield home, server.url


def _prepare(url: str) -> tuple[str, str]:
    zerda_pg.migrate(url, rls=True)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(roles_script().encode())
        connection.execute(f"ALTER ROLE {AGENT} LOGIN".encode())
    with MemoryStore.open(url, embedder="hashing") as store:
        for tenant in TENANTS:
            memory = store.tenant(tenant)
            memory.add(f"{tenant} counter", id="counter", metadata={"n": 0})
        store.tenant(TENANTS[0]).enable_changes()
    agent = make_url(url).set(username=AGENT).render_as_string(hide_password=False)
    return url, agent


def _restart(home: Path) -> None:
    """An immediate end, as of a machine that loses its power, and a start."""
    (file,) = home.glob("pg*/postmaster.pid")
    os.kill(int(file.read_text().split()[0]), signal.SIGQUIT)


def soak(seconds: float, processes: int, *, kill_every: float = 10.0) -> Soaked:
    """Run it for so long, with so many processes."""
    chance = random.Random(processes)
    with (
        _server() as (home, url),
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        urls = _prepare(url)
        workers = Workers(urls, Path(folder), processes)
        begun = time.monotonic()
        kills = 0
        restarted = maintained = False
        most = 0
        while (now := time.monotonic() - begun) < seconds:
            if now > (kills + 1) * kill_every:
                kills += 1
                workers.kill_one(chance)
            if not restarted and now > seconds / 2:
                restarted = True
                _restart(home)
                stack.enter_context(embedded.acquire(home))
            if not maintained and now > seconds * 0.75:
                maintained = True
                with contextlib.suppress(ZerdaError), MemoryStore.open(url) as store:
                    store.maintain()
            most = max(most, _connections(url))
            time.sleep(0.25)
        wrong = workers.stop()
        histories = [history.read(path) for path in sorted(Path(folder).glob("*.jsonl"))]
        findings = check(url, histories)
        findings.errors += wrong
        findings.leaked += _leaked(url)
        if most > (processes + 3) * POOL:
            findings.leaked.append(f"{most} connections at once")
        figures = {
            "seconds": seconds, "processes": processes, "clients killed": kills,
            "server restarts": int(restarted), "connections at most": most,
            **_operations(histories),
        }  # fmt: skip
        return Soaked(findings=findings, figures=figures)


def _operations(
    histories: list[tuple[list[history.Done], list[tuple[str, str]]]],
) -> dict[str, int]:
    done = [one for operations, _ in histories for one in operations]
    acknowledged = sum(one.acknowledged for one in done)
    return {"writes acknowledged": acknowledged, "writes unknown": len(done) - acknowledged}


_COUNT = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'zerda_pg' "
    "AND backend_type = 'client backend'"
)


def _connections(url: str) -> int:
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            row = connection.execute(_COUNT).fetchone()
    except psycopg.OperationalError:
        return 0
    return int(row[0]) if row else 0


def _leaked(url: str) -> list[str]:
    deadline = time.monotonic() + 10
    while (left := _connections(url)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [f"{left} connections are left"] if left else []
