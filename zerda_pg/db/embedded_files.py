"""The files of an embedded cluster: where they are, and the locks among them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from zerda_pg.errors import ConfigError, DatabaseUnavailableError

__all__ = [
    "DATABASE",
    "ROLE",
    "Cluster",
    "default_home",
    "lock",
    "lock_if_free",
    "private_descriptor",
    "translated",
    "try_lock",
]

ROLE = "zerda"
DATABASE = "zerda"

# Bytes of a Unix socket's path that every platform accepts: 104 on macOS with its end.
_LONGEST_SOCKET_PATH = 100
# Bytes after which the next start begins a new log. A start and a stop write some ten lines.
_LOG_LIMIT = 4 << 20
# What the system says of a disk, and of a path, that is of no use as it is.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_UNUSABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
# Seconds between two tries for a lock.
_LOCK_INTERVAL = 0.005

# Descriptors that a forked child must not keep: a lock lasts as long as any copy of it is open.
_private: set[int] = set()


def _close_private() -> None:
    while _private:
        os.close(_private.pop())


os.register_at_fork(after_in_child=_close_private)


def default_home() -> Path:
    """The folder for the user's data, in the way of the platform.

    Raises:
        ConfigError: the user has no home directory.
    """
    try:
        user = Path.home()
    except RuntimeError as error:
        raise ConfigError("there is no home directory: set ZERDA_PG_HOME") from error
    if sys.platform == "darwin":
        return user / "Library" / "Application Support" / "zerda_pg"
    return user / ".local" / "share" / "zerda_pg"


@contextlib.contextmanager
def private_descriptor(path: Path) -> Iterator[int]:
    """An open descriptor of a lock file that no forked child keeps."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _private.add(descriptor)
    try:
        yield descriptor
    finally:
        if descriptor in _private:
            _private.remove(descriptor)
            os.close(descriptor)


@contextlib.contextmanager
def lock(path: Path, *, timeout: float) -> Iterator[None]:
    """Hold the lock file exclusively; the kernel frees it when this process dies.

    Raises:
        TimeoutError: others held it all the time.
    """
    with private_descriptor(path) as descriptor:
        deadline = time.monotonic() + timeout
        while not try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is held by another process")
            time.sleep(_LOCK_INTERVAL)
        yield


@contextlib.contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock file exclusively if nobody holds it; gives whether that is so."""
    with private_descriptor(path) as descriptor:
        yield try_lock(descriptor, fcntl.LOCK_EX)


@contextlib.contextmanager
def translated(home: Path) -> Iterator[None]:
    """Turn what the operating system or the driver says into an error that says what to do."""
    try:
        yield
    except TimeoutError as error:
        raise DatabaseUnavailableError(
            f"another process has been starting or stopping the server on {home} for minutes "
            f"({error}): end it"
        ) from error
    except OSError as error:
        reason = f"{error.filename or home}: {error.strerror or error}"
        if error.errno in _NO_ROOM:
            raise DatabaseUnavailableError(
                f"no room for the data home {home} ({reason}): make room, or set ZERDA_PG_HOME to "
                "a directory on another disk"
            ) from error
        if error.errno in _UNUSABLE:
            raise ConfigError(
                f"the data home {home} cannot be used ({reason}): make it a directory that you "
                "can write, or set ZERDA_PG_HOME to another"
            ) from error
        raise DatabaseUnavailableError(
            f"the embedded server on {home} cannot be used ({reason}): try again, or set "
            "ZERDA_PG_URL to the address of another server"
        ) from error
    except psycopg.Error as error:
        raise DatabaseUnavailableError(
            f"the embedded server on {home} stopped answering: {error}"
        ) from error


def try_lock(descriptor: int, kind: int) -> bool:
    """Take a lock if that is possible now."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The files of one cluster: one home and one major version of PostgreSQL."""

    #: The data home; absolute.
    home: Path
    #: The major version of PostgreSQL.
    major: int
    #: The number in the socket's name; no network port.
    port: int = 5432

    @property
    def data_directory(self) -> Path:
        """PostgreSQL's data directory. Its major version is in the name: another cannot read it."""
        return self.home / f"pg{self.major}"

    @property
    def log_file(self) -> Path:
        """The server's log."""
        return self.home / f"pg{self.major}.log"

    @property
    def clients_lock(self) -> Path:
        """Locked in shared mode by each client process."""
        return self.home / f"pg{self.major}.clients.lock"

    @property
    def server_lock(self) -> Path:
        """Locked by the processes of the server."""
        return self.home / f"pg{self.major}.server.lock"

    @property
    def socket_directory(self) -> Path:
        """Where the server's socket is: in the data directory, unless that path is too long."""
        name = os.fsencode(self.data_directory / self._socket_name)
        if len(name) <= _LONGEST_SOCKET_PATH:
            return self.data_directory
        # Always the same place, so that every client finds it; not the temporary folder of the
        # environment, which differs between them.
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        return Path("/tmp", f"zerda_pg-{os.geteuid()}-{digest}-{self.major}")

    @property
    def _socket_name(self) -> str:
        return f".s.PGSQL.{self.port}"

    @property
    def socket_path(self) -> Path:
        """The server's socket."""
        return self.socket_directory / self._socket_name

    @property
    def url(self) -> str:
        """The address for libpq and, with a driver's name in the scheme, for SQLAlchemy."""
        host = quote(str(self.socket_directory), safe="/")
        return f"postgresql://{ROLE}@/{DATABASE}?host={host}&port={self.port}"

    def connection(self, database: str = DATABASE) -> dict[str, Any]:
        """Arguments for `psycopg.connect`."""
        return {
            "host": str(self.socket_directory),
            "port": self.port,
            "user": ROLE,
            "dbname": database,
            "connect_timeout": 10,
            "application_name": "zerda_pg",
        }

    def ping(self) -> pq.Ping:
        """Whether a server answers, by connecting: a process id says nothing."""
        if not self.socket_path.exists() or not self._socket_is_ours():
            return pq.Ping.NO_RESPONSE
        return pq.Ping(pq.PGconn.ping(make_conninfo(**self.connection("postgres")).encode()))

    def recorded_major(self) -> int | None:
        """The major version that the data directory says it is of, None if it is none."""
        try:
            return int((self.data_directory / "PG_VERSION").read_text())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def other_majors(self) -> set[int]:
        """Major versions of which the home has data."""
        versions = (
            re.fullmatch(r"pg(\d+)", path.parent.name) for path in self.home.glob("pg*/PG_VERSION")
        )
        return {int(version[1]) for version in versions if version} - {self.major}

    def recorded_pid(self) -> int | None:
        """The process id in `postmaster.pid`, which may be anybody's by now."""
        try:
            return int((self.data_directory / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None

    def server_lock_is_held(self) -> bool:
        """Whether a process of a server that we started lives."""
        with private_descriptor(self.server_lock) as descriptor:
            return not try_lock(descriptor, fcntl.LOCK_SH)

    def make_socket_directory(self, owner: int, group: int | None) -> None:
        """Create the short folder for the socket, or make sure that it is ours.

        Raises:
            ConfigError: someone else has made it.
        """
        path = self.socket_directory
        path.mkdir(mode=0o700, exist_ok=True)
        if not self._socket_is_ours():
            raise ConfigError(
                f"the path of {self.data_directory} is too long for a socket, and {path} belongs "
                "to someone else: set ZERDA_PG_HOME to a shorter path"
            )
        path.chmod(0o700)
        os.chown(path, owner, -1 if group is None else group)

    def remove_socket_directory(self) -> None:
        """Remove the short folder of a server that has stopped."""
        if self.socket_directory != self.data_directory:
            with contextlib.suppress(OSError):
                if self._socket_is_ours():
                    self.socket_directory.rmdir()

    def _socket_is_ours(self) -> bool:
        """Whether the socket's folder was made by us: anyone may make one in /tmp."""
        status = self.socket_directory.lstat()
        owners = (os.geteuid(), self.data_directory.stat().st_uid)
        is_folder = stat.S_ISDIR(status.st_mode) or self.socket_directory == self.data_directory
        return is_folder and status.st_uid in owners

    def open_log(self) -> IO[bytes]:
        """The log, open at its end; a long one is put aside first."""
        with contextlib.suppress(FileNotFoundError):
            if self.log_file.stat().st_size > _LOG_LIMIT:
                self.log_file.replace(self.log_file.with_suffix(".log.1"))
        log = self.log_file.open("ab")
        log.seek(0, os.SEEK_END)
        return log

    def read_log(self, start: int) -> list[str]:
        """The lines of the log from a position on."""
        with self.log_file.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace").splitlines()
