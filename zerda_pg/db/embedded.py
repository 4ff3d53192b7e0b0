"""A PostgreSQL server of one's own: started by the first client, stopped after the last.

    acquire ─ gate lock ─┬─ a server answers ──────────────────────────┬─ shared client lock held
                         └─ none: initdb if there is no data, start ───┘
    release ─ gate lock ─── no other client holds the lock: stop

No process of ours watches over the server. Locks are the kernel's (`flock`), so that a killed
client frees its own; whether a server lives is found out by connecting; and a start that was
interrupted at any point is completed by the next.
"""

from __future__ import annotations

import os
import shlex
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from zerda_pg.db.embedded_binaries import Binaries, Known, installed, locate, major
from zerda_pg.errors import ConfigError

# What follows needs a POSIX system. This module must be importable on any: with a URL there is no
# need for an embedded server.
if TYPE_CHECKING:
    from zerda_pg.db.embedded_clients import Client
    from zerda_pg.db.embedded_files import Cluster

__all__ = ["EmbeddedServer", "ServerInfo", "acquire", "available", "inspect"]


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

    def __init__(self, client: Client) -> None:
        self._client: Client | None = client
        self._lock = threading.Lock()
        self.info = _info(client.cluster, client.binaries, client.version, running=True)

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
        from zerda_pg.db import embedded_clients

        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            embedded_clients.leave(client)

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
    from zerda_pg.db import embedded_clients

    return EmbeddedServer(embedded_clients.enter(place, binaries))


def inspect(home: Path | None = None, bindir: Path | None = None) -> ServerInfo:
    """Where the server would be, and whether it runs; starts and writes nothing.

    Raises:
        ConfigError: `bindir` has no usable server.
        MissingExtraError: there is no `bindir` and the extra `embedded` is not installed.
    """
    place = _resolve(home)
    binaries = locate(bindir)
    from psycopg import pq

    from zerda_pg.db.embedded_files import Cluster, translated

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
    from zerda_pg.db.embedded_files import default_home

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
