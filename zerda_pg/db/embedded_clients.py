"""The processes that use an embedded server: who starts it, who is the last to leave."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import threading
from pathlib import Path

from zerda_pg.db.embedded_account import choose_account
from zerda_pg.db.embedded_binaries import Binaries, Known, major
from zerda_pg.db.embedded_database import prepare_database
from zerda_pg.db.embedded_files import Cluster, lock, lock_if_free, translated
from zerda_pg.db.embedded_process import answers, create_cluster, start_server, stop_server
from zerda_pg.db.embedded_settings import server_settings, shared_memory_free, usable_memory
from zerda_pg.errors import ConfigError

__all__ = ["Client", "enter", "leave"]

logger = logging.getLogger("zerda_pg.embedded")

# Seconds to wait for another process that creates, starts or stops the server: a start that has to
# recover from a crash takes longest.
_GATE_TIMEOUT = 300.0
# Seconds to wait at the end of a program, where giving up only leaves the server running.
_LEAVE_TIMEOUT = 30.0


class Client:
    """This process as a client of one data home; used under `_registry_lock` only."""

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


def enter(home: Path, binaries: Binaries) -> Client:
    """Hold the server of `home`, which is started unless it runs; see `embedded.acquire`."""
    with _registry_lock, translated(home):
        key = (home, binaries.bindir)
        client = _clients.get(key)
        if client is None:
            client = Client(home, binaries)
        client.join()
        client.holds += 1
        _clients[key] = client
        return client


def leave(client: Client) -> None:
    """Give up one hold; the last one of the last process stops the server."""
    with _registry_lock:
        client.holds -= 1
        if client.holds == 0:
            _clients.pop((client.cluster.home, client.binaries.bindir), None)
            client.leave()


_clients: dict[tuple[Path, Path], Client] = {}
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
