"""A PostgreSQL server of one's own: started by the first client, stopped after the last.

    acquire ─ gate lock ─┬─ a server answers ──────────────────────────┬─ shared client lock held
                         └─ none: initdb if there is no data, start ───┘
    release ─ gate lock ─── no other client holds the lock: stop

No process of ours watches over the server. Locks are the kernel's (`flock`), so that a killed
client frees its own; whether a server lives is found out by connecting; and a start that was
interrupted at any point is completed by the next.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shlex
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg import pq

from zerda_pg.db.embedded_account import choose_account
from zerda_pg.db.embedded_binaries import Binaries, Known, installed, locate, major
from zerda_pg.db.embedded_database import prepare_database
from zerda_pg.db.embedded_files import (
    Cluster,
    default_home,
    lock,
    lock_if_free,
    translated,
)
from zerda_pg.db.embedded_process import (
    answers,
    create_cluster,
    start_server,
    stop_server,
)
from zerda_pg.db.embedded_settings import server_settings, shared_memory_free, usable_memory
from zerda_pg.errors import ConfigError

__all__ = ["EmbeddedServer", "ServerInfo", "acquire", "available", "inspect"]

logger = logging.getLogger("zerda_pg.embedded")

# Seconds to wait for another process that creates, starts or stops the server: a start that has to
# recover from a crash takes longest.
_GATE_TIMEOUT = 300.0
# Seconds to wait at the end of a program, where giving up only leaves the server running.
_LEAVE_TIMEOUT = 30.0


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """Where an embedded server is, and whether it runs."""

    #: Address for libpq, over a Unix socket.
    url: str
    #: PostgreSQL's data directory; its parent is the data home.
    data_directory: Path
    #: Directory of the PostgreSQL programs.
    bindir: Path
    #: Version of these programs, such as `18.6`.
    server_version: str
    #: The server's log.
    log_file: Path
    #: Whether a server answered.
    running: bool

    @property
    def psql_command(self) -> str:
        """A shell command that opens the database in psql."""
        psql = self.bindir / "psql"
        return shlex.join([str(psql) if psql.exists() else "psql", self.url])


class EmbeddedServer:
    """A hold on a running server, until `release`."""

    def __init__(self, client: _Client) -> None:
        self._client: _Client | None = client
        self.info = client.info(running=True)

    @property
    def url(self) -> str:
        """Address for libpq, over a Unix socket."""
        return self.info.url

    @property
    def psql_command(self) -> str:
        """A shell command that opens the database in psql."""
        return self.info.psql_command

    def release(self) -> None:
        """Let go: the last hold of the last process stops the server. Again: does nothing."""
        with _registry_lock:
            client, self._client = self._client, None
            if client is not None:
                client.holds -= 1
                if client.holds == 0:
                    _clients.pop((client.cluster.home, client.binaries.bindir), None)
                    client.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def available(bindir: Path | None = None) -> bool:
    """Whether an embedded server could be started; imports and runs nothing."""
    return os.name == "posix" and installed(bindir)


def acquire(home: Path | None = None, *, bindir: Path | None = None) -> EmbeddedServer:
    """Start the server, or join it where it runs already.

    Calls from one process share one hold on the server. A forked child may release what it
    inherited, which never stops the server of a living parent. A process that is killed leaves the
    server running, until another client leaves as the last.

    Args:
        home: the data home, created if absent; None for the platform's place for user data.
        bindir: a directory with the programs of PostgreSQL 16 or newer and pgvector; None for
            those of the extra `embedded`.

    Raises:
        ConfigError: the data home cannot be used, belongs to another user or another major
            version, or `bindir` has no usable server.
        MissingExtraError: there is no `bindir` and the extra `embedded` is not installed.
        DatabaseUnavailableError: the server cannot be created or started, or does not run on this
            processor.
    """
    place = _resolve(home)
    binaries = locate(bindir)
    with _registry_lock, translated(place):
        key = (place, binaries.bindir)
        client = _clients.get(key)
        if client is None:
            client = _Client(place, binaries)
        client.join()
        client.holds += 1
        _clients[key] = client
        return EmbeddedServer(client)


def inspect(home: Path | None = None, bindir: Path | None = None) -> ServerInfo:
    """Where the server would be, and whether it runs; starts and writes nothing.

    Raises:
        ConfigError: `bindir` has no usable server.
        MissingExtraError: there is no `bindir` and the extra `embedded` is not installed.
    """
    place = _resolve(home)
    binaries = locate(bindir)
    version = Known(place).version(binaries) or binaries.read_version()
    cluster = Cluster(home=place, major=major(version))
    with translated(place):
        running = cluster.ping() is not pq.Ping.NO_RESPONSE
    return _info(cluster, binaries, version, running=running)


def _resolve(home: Path | None) -> Path:
    if os.name != "posix":
        raise ConfigError(
            "the embedded server needs Linux or macOS: set ZERDA_PG_URL to the address of a server"
        )
    return (default_home() if home is None else home.expanduser()).resolve()


def _info(cluster: Cluster, binaries: Binaries, version: str, *, running: bool) -> ServerInfo:
    return ServerInfo(
        url=cluster.url,
        data_directory=cluster.data_directory,
        bindir=binaries.bindir,
        server_version=version,
        log_file=cluster.log_file,
        running=running,
    )


class _Client:
    """This process as a client of one data home; guarded by `_registry_lock`."""

    def __init__(self, home: Path, binaries: Binaries) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.binaries = binaries
        self.known = Known(home)
        self.holds = 0
        self._descriptor: int | None = None
        self._gate = home / "gate.lock"
        with lock(self._gate, timeout=_GATE_TIMEOUT):
            self.version = self.known.version(binaries) or self.known.learn(binaries)
        self.cluster = Cluster(home=home, major=major(self.version))

    def info(self, *, running: bool) -> ServerInfo:
        return _info(self.cluster, self.binaries, self.version, running=running)

    def join(self) -> None:
        """Make sure that the server runs and that this process is counted among its clients."""
        with lock(self._gate, timeout=_GATE_TIMEOUT):
            counted = self._descriptor is not None
            if not counted:
                self._enter()
            try:
                if answers(self.cluster):
                    level = logging.DEBUG if counted else logging.INFO
                    logger.log(level, "joining the server, data in %s", self.cluster.data_directory)
                else:
                    self._start()
                prepare_database(self.cluster, self.binaries, self.known)
            except BaseException:
                if not counted:
                    self._leave_locked()
                raise

    def _start(self) -> None:
        _check_data(self.cluster)
        account = choose_account(self.binaries)
        settings = server_settings(memory=usable_memory(), shared_memory=shared_memory_free())
        if self.cluster.recorded_major() is None:
            logger.info("creating a database in %s", self.cluster.data_directory)
            create_cluster(self.cluster, account, settings)
        start_server(self.cluster, account, settings)
        logger.info(
            "embedded PostgreSQL %s started, data in %s",
            self.version,
            self.cluster.data_directory,
        )

    def _enter(self) -> None:
        """Take the shared lock. A forked child keeps it, and so keeps the server running."""
        descriptor = os.open(self.cluster.clients_lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def leave(self) -> None:
        """Stop being a client; stops the server after the last one."""
        try:
            with lock(self._gate, timeout=_LEAVE_TIMEOUT):
                self._leave_locked()
        except OSError as error:
            # The home is gone, or another process has held the gate all the time.
            logger.warning("left %s without stopping its server: %s", self.cluster.home, error)
            self._let_go()

    def _leave_locked(self) -> None:
        self._let_go()
        with lock_if_free(self.cluster.clients_lock) as last:
            if last and stop_server(self.cluster):
                logger.debug("stopped the server on %s", self.cluster.data_directory)

    def _let_go(self) -> None:
        # Only closed, never unlocked: that would unlock the copy of a forked child or parent too.
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _check_data(cluster: Cluster) -> None:
    """Refuse to start an empty database beside the data of another version.

    Raises:
        ConfigError: the data here needs other binaries.
    """
    recorded = cluster.recorded_major()
    if recorded is not None:
        found = {recorded}
    elif cluster.data_directory.is_dir() and any(cluster.data_directory.iterdir()):
        raise ConfigError(
            f"{cluster.data_directory} is not a PostgreSQL data directory, and not empty: move it "
            "away, or set ZERDA_PG_HOME to another directory"
        )
    else:
        found = cluster.other_majors()
    if found and cluster.major not in found:
        versions = " and ".join(str(version) for version in sorted(found))
        raise ConfigError(
            f"the data in {cluster.home} was written by PostgreSQL {versions}, and the server at "
            f"hand is {cluster.major}: set ZERDA_PG_BINDIR to the bin directory of version "
            f"{versions} to read it (`zerda-pg export` moves it on), or set ZERDA_PG_HOME to "
            "another directory to begin anew"
        )


_clients: dict[tuple[Path, Path], _Client] = {}
_registry_lock = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may have held the lock."""
    global _registry_lock  # noqa: PLW0603
    _registry_lock = threading.RLock()


@atexit.register
def _leave_all() -> None:
    with _registry_lock:
        while _clients:
            _clients.popitem()[1].leave()


os.register_at_fork(after_in_child=_renew_lock)
