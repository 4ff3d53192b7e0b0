"""As whom an embedded server runs: PostgreSQL refuses to be root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerda_pg.db.embedded_binaries import SERVER_ENVIRONMENT, Binaries, copy_for_everyone
from zerda_pg.errors import ConfigError

__all__ = ["Account", "adopt", "choose_account"]

# `/proc/self/cwd` names the data directory for a server that was put into it: an account that may
# not look into the folders above (root's home) needs to look into none of them.
_WORKING_DIRECTORY = "/proc/self/cwd"


@dataclass(frozen=True, kw_only=True)
class Account:
    """As whom PostgreSQL runs; as root it refuses to."""

    #: The binaries that this account can run.
    binaries: Binaries
    #: What stands before a command.
    prefix: tuple[str, ...] = ()
    #: User and group to switch to, None to stay.
    uid: int | None = None
    gid: int | None = None

    @property
    def owner(self) -> int:
        """The user that owns the data directory, as seen from here."""
        return os.geteuid() if self.uid is None else self.uid

    def data_argument(self, directory: Path) -> str:
        """The data directory as a command of this account has to name it."""
        return str(directory) if self.uid is None else _WORKING_DIRECTORY

    def options(self, directory: Path) -> dict[str, Any]:
        """Arguments of `subprocess` for a command of this account in `directory`."""
        options: dict[str, Any] = {
            "cwd": directory,
            "env": SERVER_ENVIRONMENT,
            "stdin": subprocess.DEVNULL,
            "umask": 0o077,
            # Ctrl-C in a terminal must not reach the server.
            "start_new_session": True,
        }
        if self.uid is not None:
            options |= {"user": self.uid, "group": self.gid, "extra_groups": ()}
        return options


def choose_account(binaries: Binaries) -> Account:
    """As whom to run: ourselves; for root a user namespace, else the account `nobody`.

    In a user namespace the files stay root's and the server is an ordinary user to itself. Where
    such namespaces are forbidden (most containers), `nobody` owns the data directory and nothing
    else changes: the folders above keep their owner and mode.

    Raises:
        ConfigError: there is no way to run as another user here.
    """
    if os.geteuid() != 0:
        return Account(binaries=binaries)
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            "PostgreSQL does not run as root: run as an ordinary user, or set ZERDA_PG_URL to the "
            "address of a server"
        )
    unshare = shutil.which("unshare", path=os.defpath)
    if unshare is not None:
        user = _ordinary_uid()
        prefix = (unshare, "--user", f"--map-user={user}", f"--map-group={user}", "--")
        account = Account(binaries=binaries, prefix=prefix)
        if _runs(account):
            return account
    nobody = _nobody()
    account = Account(binaries=binaries, uid=nobody.pw_uid, gid=nobody.pw_gid)
    if _runs(account):
        return account
    account = Account(binaries=copy_for_everyone(binaries), uid=nobody.pw_uid, gid=nobody.pw_gid)
    if _runs(account):
        return account
    raise ConfigError(
        "PostgreSQL does not run as root, and it could be run neither in a user namespace nor as "
        f"the account {nobody.pw_name!r}: run as an ordinary user, or set ZERDA_PG_URL"
    )


def _ordinary_uid() -> int:
    """A user for the namespace: any but 0 that has a name, because initdb asks for its name."""
    try:
        return pwd.getpwuid(1).pw_uid
    except KeyError:
        return _nobody().pw_uid


def _nobody() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise ConfigError(
            "PostgreSQL does not run as root, and there is no account 'nobody' to run it as: run "
            "as an ordinary user, or set ZERDA_PG_URL"
        ) from None


def _runs(account: Account) -> bool:
    """Whether the account can be taken and can run the binaries."""
    command = [*account.prefix, str(account.binaries.postgres), "--version"]
    try:
        result = subprocess.run(
            command,
            **account.options(Path("/")),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return result.returncode == 0


def adopt(data_directory: Path, account: Account) -> None:
    """Give the data directory to the account, when root's way to run servers has changed.

    Raises:
        ConfigError: it belongs to someone else.
    """
    owner = data_directory.stat().st_uid
    if owner == account.owner:
        return
    if os.geteuid() != 0 or owner not in (0, _nobody().pw_uid):
        raise ConfigError(
            f"the data directory {data_directory} belongs to another user (id {owner}): "
            "run as that user, or set ZERDA_PG_HOME to another directory"
        )
    group = -1 if account.gid is None else account.gid
    # Bottom-up: the directory itself comes last, so that an interruption is noticed and repeated.
    for directory, _, files in os.walk(data_directory, topdown=False):
        for path in (*(os.path.join(directory, file) for file in files), directory):  # noqa: PTH118
            os.chown(path, account.owner, group, follow_symlinks=False)
