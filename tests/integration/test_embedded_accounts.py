"""As whom the embedded server runs, and which folders it can live in."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_client import (
    AS_ORDINARY_USER,
    ATTEMPT,
    CLIENT,
    ENVIRONMENT,
    NOBODY,
    count_rows,
    is_running,
    postmaster,
    python,
    wait_for,
    write_rows,
)
from psycopg.conninfo import conninfo_to_dict

from zerda_pg.db import embedded, embedded_binaries
from zerda_pg.errors import ConfigError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="is about root")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of nobody's in a place that everybody reaches."""
    with tempfile.TemporaryDirectory(prefix="zerda-", dir="/tmp") as name:
        yield Path(name)


def owner_of_server(home: Path) -> int:
    return Path(f"/proc/{postmaster(home)}").stat().st_uid


def socket_directory(url: str) -> Path:
    return Path(str(conninfo_to_dict(url)["host"]))


def modes(path: Path) -> list[tuple[int, int]]:
    return [(folder.stat().st_mode, folder.stat().st_uid) for folder in (path, *path.parents)]


@pytest.mark.parametrize("way", ["namespace", "nobody"])
@needs_root
def test_as_root_below_a_private_folder(
    folder: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = folder / "root's own"
    home = private / "home"
    home.mkdir(parents=True, mode=0o700)
    private.chmod(0o700)
    before = modes(home)
    if way == "nobody":
        monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with embedded.acquire(home) as server:
        assert owner_of_server(home) == (NOBODY if way == "nobody" else 0)
        write_rows(server.url, 7)
    assert modes(home) == before
    with embedded.acquire(home) as server:
        assert count_rows(server.url) == 7


BLOCKED = (
    "read _; exec sh -c 'echo 0 >/proc/sys/user/max_user_namespaces; "
    'unshare --user true 2>/dev/null && exit 9; exec "$@"\' sh "$@"'
)


@needs_root
def test_as_root_where_user_namespaces_are_blocked(folder: Path) -> None:
    """The kernel refuses: a limit of zero namespaces, set in a namespace around the client."""
    home = folder / "home"
    folder.chmod(0o700)
    command = ["unshare", "--user", "sh", "-c", BLOCKED, "sh", sys.executable, "-c", CLIENT]
    with subprocess.Popen(
        [*command, str(home)],
        env=ENVIRONMENT,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        own = Path("/proc/self/ns/user").readlink()
        wait_for(lambda: Path(f"/proc/{process.pid}/ns/user").readlink() != own)
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{process.pid}/{kind}").write_text("0 0 65536")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("postgresql://")
        assert owner_of_server(home) == NOBODY
        process.stdin.close()
        assert process.wait(30) == 0
    assert not is_running(home)


@needs_root
def test_root_may_change_its_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = folder / "home"
    owners = []
    for number in range(3):
        with monkeypatch.context() as patch:
            if number == 1:
                patch.setattr("shutil.which", lambda *_, **__: None)
            with embedded.acquire(home) as server:
                write_rows(server.url, 1)
                assert count_rows(server.url) == number + 1
                owners.append(owner_of_server(home))
    assert owners == [0, NOBODY, 0]


@needs_root
def test_binaries_that_only_root_can_read_are_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = embedded.inspect(folder).bindir.parents[1]
    site = folder / "private"
    site.mkdir(mode=0o700)
    for package in (original, original.with_name(f"{original.name}.libs")):
        subprocess.run(["cp", "-r", package, site], check=True)
    copies = folder / "copies"
    folder.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(embedded_binaries, "_SHARED_COPIES", (copies,))
    home = folder / "home"
    for _ in range(2):
        with embedded.acquire(home) as server:
            assert server.info.bindir.is_relative_to(site)
            write_rows(server.url, 1)
            program = Path(f"/proc/{postmaster(home)}/exe").readlink()
            assert program.is_relative_to(copies)
    assert len(list(copies.iterdir())) == 1
    copies.chmod(0o777)
    with pytest.raises(ConfigError, match=r"not this user's own folder.*ordinary user"):
        embedded.acquire(home)


def test_as_an_ordinary_user(folder: Path) -> None:
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    home = folder / "home"
    code = (
        "home = Path(sys.argv[1])\n"
        "with embedded.acquire(home) as server, psycopg.connect(server.url) as connection:\n"
        "    connection.execute('CREATE TABLE kept AS SELECT generate_series(1, 7)')\n"
        "attempt(home)\n"
    )
    assert python(ATTEMPT + AS_ORDINARY_USER + code, home)[-1] == "running 7"
    assert home.stat().st_uid == (NOBODY if os.geteuid() == 0 else os.geteuid())
    assert (home / "pg18").stat().st_uid == home.stat().st_uid
    assert home.stat().st_mode & 0o777 == 0o700


@needs_root
def test_data_of_another_user(folder: Path) -> None:
    home = folder / "home"
    embedded.acquire(home).release()
    os.chown(home / "pg18", 12345, 12345)
    with pytest.raises(ConfigError, match=r"another user \(id 12345\).*ZERDA_PG_HOME"):
        embedded.acquire(home)


@pytest.mark.parametrize(
    "name",
    [
        "a space",
        "d" * 120,
        "both a space and length " + "x" * 120,
        'quo\'te "double" $HOME `x`, 100% \\ é 狐+&?#=',
    ],
)
def test_odd_paths(tmp_path: Path, name: str) -> None:
    home = tmp_path / name / "home"
    with embedded.acquire(home) as server:
        write_rows(server.url, 7)
        result = subprocess.run(
            f"{server.psql_command} -Atc 'SELECT count(*) FROM kept'",
            shell=True,
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout == "7\n"
        sockets = socket_directory(server.url)
        assert sockets.stat().st_mode & 0o777 == 0o700
    with embedded.acquire(home) as server:
        assert count_rows(server.url) == 7
    if not sockets.is_relative_to(home):
        assert not sockets.exists()


@needs_root
def test_a_folder_for_the_socket_that_is_not_ours(tmp_path: Path) -> None:
    home = tmp_path / ("d" * 120)
    with embedded.acquire(home) as server:
        sockets = socket_directory(server.url)
    sockets.mkdir()
    try:
        os.chown(sockets, 12345, 12345)
        with pytest.raises(ConfigError, match=r"belongs to someone else.*shorter path"):
            embedded.acquire(home)
    finally:
        sockets.rmdir()
