"""The processes of an embedded cluster: creating it, starting and stopping its server.

Nothing here decides whether to start or stop; that is `embedded.py`, and it holds the gate lock
around every call.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from psycopg import pq

from zerda_pg.db.embedded_account import Account, adopt
from zerda_pg.db.embedded_files import ROLE, Cluster, private_descriptor
from zerda_pg.errors import DatabaseUnavailableError

__all__ = [
    "answers",
    "create_cluster",
    "start_server",
    "stop_server",
]

logger = logging.getLogger("zerda_pg.embedded")

# Seconds for a server to open its socket; recovering after a crash comes later and takes as long
# as it takes. A loaded CI machine needed 3.
_START_TIMEOUT = 60.0
# Seconds for creating a cluster: 0.6 here, 6 where the disk is slow.
_INITDB_TIMEOUT = 300.0
# Seconds for recovery after a crash: bounded by max_wal_size, a minute on a slow disk.
_RECOVERY_TIMEOUT = 600.0
# Seconds to wait for a server that restarts itself before it is told to stop.
_RESTART_TIMEOUT = 10.0
# Seconds for the checkpoint of a fast shutdown, then for an immediate one (which loses nothing,
# the next start recovers).
_FAST_STOP_TIMEOUT = 30.0
_IMMEDIATE_STOP_TIMEOUT = 5.0
# Seconds between two looks at what comes soon, and at most: each look at a server that is not ready
# costs it 1 ms and a line in its log.
_POLL_INTERVAL = 0.005
_LONGEST_POLL_INTERVAL = 0.2

# What PostgreSQL's programs write before the reason for which they give up.
_COMPLAINT = re.compile(r"(?<![\w-])(?:PANIC|FATAL|ERROR|error|sh|unshare): +(.*)")


def create_cluster(cluster: Cluster, account: Account, settings: Mapping[str, str]) -> None:
    """Run initdb beside the data directory, then move the result there: all of it or nothing.

    initdb holds the server lock: when its client is killed, the next one waits until it is gone.

    Raises:
        DatabaseUnavailableError: initdb failed; nothing of it is left.
    """
    for leftover in cluster.home.glob(f"{cluster.data_directory.name}.initdb-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial = Path(
        tempfile.mkdtemp(prefix=f"{cluster.data_directory.name}.initdb-", dir=cluster.home)
    )
    try:
        if account.uid is not None:
            os.chown(partial, account.uid, -1 if account.gid is None else account.gid)
        with _server_lock(cluster) as lock:
            _run_initdb(partial, account, cluster.major, settings, lock)
        # An empty directory may stand there; one with something in it makes this fail.
        partial.rename(cluster.data_directory)
        _sync_directory(cluster.home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run_initdb(
    directory: Path, account: Account, major: int, settings: Mapping[str, str], lock: int
) -> None:
    command = [
        *account.prefix,
        str(account.binaries.initdb),
        f"--pgdata={account.data_argument(directory)}",
        f"--username={ROLE}",
        "--auth=trust",
        "--encoding=UTF8",
        "--no-instructions",
        # The one setting that matters here: /dev/shm may be too small even for this.
        f"--set=dynamic_shared_memory_type={settings['dynamic_shared_memory_type']}",
        *_locale_options(major),
    ]
    try:
        result = subprocess.run(
            command,
            **account.options(directory),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_INITDB_TIMEOUT,
            pass_fds=(lock,),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DatabaseUnavailableError(
            f"creating the database in {directory.parent} took more than {_INITDB_TIMEOUT:.0f} s"
        ) from error
    if result.returncode != 0:
        raise DatabaseUnavailableError(
            f"the database could not be created in {directory.parent}: "
            f"{_reason(result.stdout.splitlines())}. Make room or access there, or set "
            "ZERDA_PG_HOME to another directory"
        )


@contextlib.contextmanager
def _server_lock(cluster: Cluster) -> Iterator[int]:
    """Take the server lock to pass it on: closed here but not unlocked, it is a child's then."""
    with private_descriptor(cluster.server_lock) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock


def _locale_options(major: int) -> list[str]:
    """One collation everywhere, whatever the machine's locales: a cluster may move."""
    if major < 17:
        return ["--locale=C", "--lc-ctype=C.UTF-8"]
    options = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    if sys.platform.startswith("linux"):
        # As durable as flushing file by file, in 0.6 s instead of 3.7.
        options.append("--sync-method=syncfs")
    return options


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def start_server(cluster: Cluster, account: Account, settings: Mapping[str, str]) -> None:
    """Start the server and wait until it answers.

    The server holds the cluster's server lock, inherited by all of its processes: the kernel frees
    it when the last of them has gone, however that happened.

    Raises:
        DatabaseUnavailableError: it did not start; the message has its last words.
    """
    adopt(cluster.data_directory, account)
    _remove_stale_files(cluster)
    command = [
        *account.prefix,
        str(account.binaries.postgres),
        "-D",
        account.data_argument(cluster.data_directory),
    ]
    for name, value in {**settings, **_socket_settings(cluster, account)}.items():
        command += ["-c", f"{name}={value}"]
    with cluster.open_log() as log:
        start = log.tell()
        with _launch(cluster, account, command, log) as pipe:
            _wait_until_ready(cluster, pipe, start)


def _socket_settings(cluster: Cluster, account: Account) -> dict[str, str]:
    """A Unix socket that only the owner reaches, and no network."""
    directory = str(cluster.socket_directory)
    if cluster.socket_directory == cluster.data_directory:
        directory = account.data_argument(cluster.data_directory)
    else:
        cluster.make_socket_directory(account.owner, account.gid)
    return {
        "listen_addresses": "",
        "port": str(cluster.port),
        # A quoted name may hold commas and spaces.
        "unix_socket_directories": '"' + directory.replace('"', '""') + '"',
        "unix_socket_permissions": "0700",
    }


@contextlib.contextmanager
def _launch(
    cluster: Cluster, account: Account, command: list[str], log: IO[bytes]
) -> Iterator[int]:
    """Start a server that is no child of this process; gives a pipe that ends when it dies.

    A shell in between starts it in the background and exits: the server's parent is then the init
    process, so that a client which leaves earlier than others need not wait for it.
    """
    with _server_lock(cluster) as lock:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            **account.options(cluster.data_directory),
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(lock,),
        )
    with shell:
        assert shell.stdout is not None
        os.set_blocking(shell.stdout.fileno(), False)
        yield shell.stdout.fileno()


def _intervals() -> Iterator[float]:
    interval = _POLL_INTERVAL
    while True:
        yield interval
        interval = min(interval * 1.1, _LONGEST_POLL_INTERVAL)


def _wait_until_ready(cluster: Cluster, pipe: int, log_start: int) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    for interval in _intervals():
        match cluster.ping():
            case pq.Ping.OK:
                return
            case pq.Ping.REJECT:  # it is recovering from a crash
                deadline = max(deadline, time.monotonic() + 1)
        try:
            died = os.read(pipe, 1) == b""
        except BlockingIOError:
            died = False
        if died or time.monotonic() > deadline:
            lines = cluster.read_log(log_start)
            raise DatabaseUnavailableError(
                f"the embedded server did not start on {cluster.data_directory}: "
                f"{_reason(lines)}. Its log is {cluster.log_file}"
            )
        time.sleep(interval)


def _reason(lines: list[str]) -> str:
    """The line of an output that says what went wrong: the first, others follow from it."""
    for line in lines:
        found = _COMPLAINT.search(line)
        # Our own question whether it is ready leaves a complaint too.
        if found is not None and not found[1].startswith("the database system is"):
            return found[1].strip()
    return lines[-1].strip() if lines else "it said nothing"


def answers(cluster: Cluster) -> bool:
    """Wait for a server that may be starting, recovering or stopping; whether there is one.

    Raises:
        DatabaseUnavailableError: there is one, but it does not answer.
    """
    deadline = time.monotonic() + _START_TIMEOUT
    last = time.monotonic() + _RECOVERY_TIMEOUT
    for interval in _intervals():
        state = cluster.ping()
        if state is pq.Ping.OK:
            break
        now = time.monotonic()
        if state is pq.Ping.REJECT:
            deadline = now + _START_TIMEOUT
        elif not _is_alive(cluster):
            return False
        elif _postmaster(cluster) is None:
            _end_orphans(cluster)
        if now > min(deadline, last):
            raise DatabaseUnavailableError(
                f"a PostgreSQL server runs on {cluster.data_directory} but does not answer at "
                f"{cluster.socket_directory}: stop it, or look into {cluster.log_file}"
            )
        time.sleep(interval)
    return True


def _is_alive(cluster: Cluster) -> bool:
    """Whether any process of a server is left, the one we started or another."""
    return cluster.server_lock_is_held() or bool(_server_processes(cluster))


def _server_processes(cluster: Cluster) -> list[int]:
    """Ids of processes named `postgres` that run in the data directory.

    Beside the server lock, because someone may have started a server by hand. Where there is no
    /proc, the process in `postmaster.pid` counts if it is a `postgres`.
    """
    found = []
    if not Path("/proc/self/cwd").exists():
        pid = cluster.recorded_pid()
        if pid is not None and _name_of(pid) == "postgres":
            found.append(pid)
        return found
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                process = Path(entry.path)
                if (process / "comm").read_text() == "postgres\n" and (process / "cwd").samefile(
                    cluster.data_directory
                ):
                    found.append(int(entry.name))
    return found


def _name_of(pid: int) -> str:
    command = ["ps", "-p", str(pid), "-o", "comm="]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return Path(result.stdout.strip()).name


def _postmaster(cluster: Cluster) -> int | None:
    """The id of the process that listens on the socket, or that is about to.

    Asked of the kernel where it can be: `postmaster.pid` may hold the id of a stranger.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        pid = cluster.recorded_pid()
        return pid if pid is not None and _name_of(pid) == "postgres" else None
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2)
        probe.connect(str(cluster.socket_path))
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, _, _ = struct.unpack("3i", credentials)
        if pid:
            return int(pid)
    pid = cluster.recorded_pid()
    return pid if pid in _server_processes(cluster) else None


def _end_orphans(cluster: Cluster) -> None:
    """End what a killed postmaster left behind; most such processes notice and go by themselves.

    A long computation does not notice. It works on memory that the next server must not share, and
    its transaction is lost anyway.
    """
    for number, patience in ((signal.SIGQUIT, 1.0), (signal.SIGKILL, 2.0)):
        if _wait_until_gone(cluster, patience) or _postmaster(cluster) is not None:
            return
        for pid in _server_processes(cluster):
            logger.warning("ending process %d, left behind by a killed server", pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    _wait_until_gone(cluster, 2.0)


def _wait_until_gone(cluster: Cluster, seconds: float) -> bool:
    """Wait until no process of the server is left; whether that came true in time."""
    deadline = time.monotonic() + seconds
    while cluster.server_lock_is_held() or _server_processes(cluster):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL)
    return True


def _remove_stale_files(cluster: Cluster) -> None:
    """Remove what a killed server left; the caller made sure that none of its processes lives.

    PostgreSQL removes these itself unless their process id was given to another process since.
    """
    lock = cluster.socket_path.with_name(f"{cluster.socket_path.name}.lock")
    for path in (cluster.data_directory / "postmaster.pid", lock, cluster.socket_path):
        path.unlink(missing_ok=True)


def _await_recovery(cluster: Cluster) -> None:
    """Wait for a server that restarts itself after the crash of one of its processes.

    PostgreSQL 18 asked to shut down early in such a restart, when it does not even refuse
    connections, never does.
    """
    deadline = time.monotonic() + _RESTART_TIMEOUT
    for interval in _intervals():
        if cluster.ping() is pq.Ping.OK or time.monotonic() > deadline:
            return
        if not cluster.server_lock_is_held():
            return
        time.sleep(interval)


def stop_server(cluster: Cluster) -> bool:
    """Stop the server that a client started: fast, then immediate. Whether it is gone."""
    if not cluster.server_lock_is_held():
        return False  # there is none, or someone started it by hand
    _await_recovery(cluster)
    pid = _postmaster(cluster)
    steps = ((signal.SIGINT, _FAST_STOP_TIMEOUT), (signal.SIGQUIT, _IMMEDIATE_STOP_TIMEOUT))
    for number, patience in steps:
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if _wait_until_gone(cluster, patience if pid is not None else 0):
            cluster.remove_socket_directory()
            return True
    logger.warning("the embedded server on %s did not stop", cluster.data_directory)
    return False
