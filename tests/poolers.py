"""PgBouncer in transaction mode, in front of a test server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

SETTINGS = """\
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
query_wait_timeout = 20
logfile = {log}
"""


@cache
def program() -> str:
    """Where PgBouncer is, installed if that can be done; else the test is skipped."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "pgbouncer"]):
            subprocess.run(command, capture_output=True, check=False, timeout=300)
        found = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")
    if found is None:
        pytest.skip("pgbouncer is not installed, and only root can install it")
    return found


class Pooler:
    """A running PgBouncer."""

    def __init__(self, url: str, folder: Path, size: int) -> None:
        self._server = make_url(url)
        self._folder = folder
        self._size = size
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, of: str) -> str:
        """The URL of a database of the server, through the pooler."""
        given = make_url(of)
        changed = given.set(host="127.0.0.1", port=self._port, query={})
        return changed.render_as_string(hide_password=False)

    def start(self) -> None:
        settings = self._folder / "pgbouncer.ini"
        users = self._folder / "users.txt"
        users.write_text(
            "".join(f'"{u}" "for-tests-only"\n' for u in (self._server.username, *ROLES))
        )
        query = self._server.query
        settings.write_text(
            SETTINGS.format(
                host=query.get("host", self._server.host),
                port=query.get("port", self._server.port or 5432),
                listen=self._port, users=users, size=self._size,
                log=self._folder / "pgbouncer.log",
            )
        )  # fmt: skip
        command = [program(), "-q", str(settings)]
        if os.geteuid() == 0:
            # it refuses to be root, but must reach the server's socket in root's home
            capability = "--ambient-caps=+dac_override", "--inh-caps=+dac_override"
            command = ["setpriv", "--reuid=65534", "--clear-groups", *capability, *command]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self._folder
        )
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError:
                log = self._folder / "pgbouncer.log"
                assert time.monotonic() < deadline, log.read_text() if log.exists() else "no log"
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


ROLES = ("zerda_test_owner", "zerda_test_agent", "zerda_test_reader")


@contextmanager
def pooler(url: str, folder: Path, *, size: int) -> Iterator[Pooler]:
    """In front of the server of `url`, with so many server connections for a user and database."""
    made = Pooler(url, folder, size)
    made.start()
    try:
        with psycopg.connect(made.url(url), prepare_threshold=None) as connection:
            connection.execute("SELECT 1")
        yield made
    finally:
        made.stop()
