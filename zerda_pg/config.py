"""Settings: the only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zerda_pg.errors import ConfigError

__all__ = ["LONGEST_SECONDS", "MAINTENANCE_SECONDS", "Settings", "env_float"]

LONGEST_SECONDS = 2_000_000
"""Of a time-out: the server counts its milliseconds in 31 bits."""

MAINTENANCE_SECONDS = 21_600.0
"""An HNSW index takes 0.5 ms a vector on one core: in six hours that is 40 million."""

_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment says; an empty variable counts as absent."""

    url: str | None
    """`ZERDA_PG_URL`: the database; None: the embedded server."""
    test_url: str | None
    """`ZERDA_PG_TEST_URL`: the server for throw-away databases; None: an embedded one."""
    embedded: bool
    """`ZERDA_PG_EMBEDDED`: whether the embedded server may be started (default yes)."""
    home: Path | None
    """`ZERDA_PG_HOME`: the embedded server's data; None: the user's data folder."""
    bindir: Path | None
    """`ZERDA_PG_BINDIR`: a local PostgreSQL to run instead of the packaged one."""
    slow_seconds: float
    """`ZERDA_PG_SLOW_SECONDS`: from when on a statement is logged under `zerda_pg.slow`."""
    maintenance_timeout: float
    """`ZERDA_PG_MAINTENANCE_TIMEOUT`: seconds that a statement of an administrator's may run."""
    cache: Path
    """Where checked models are remembered (`XDG_CACHE_HOME`, else `~/.cache`, + `/zerda_pg`)."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the environment.

        Raises:
            ConfigError: Naming the variable that is malformed.
        """
        env = os.environ if environ is None else environ
        return cls(
            url=env.get("ZERDA_PG_URL") or None,
            test_url=env.get("ZERDA_PG_TEST_URL") or None,
            embedded=_env_bool(env, "ZERDA_PG_EMBEDDED", default=True),
            home=_env_path(env, "ZERDA_PG_HOME"),
            bindir=_env_path(env, "ZERDA_PG_BINDIR"),
            slow_seconds=env_float("ZERDA_PG_SLOW_SECONDS", 1.0, env),
            maintenance_timeout=_env_seconds(
                env, "ZERDA_PG_MAINTENANCE_TIMEOUT", MAINTENANCE_SECONDS
            ),
            cache=(_env_path(env, "XDG_CACHE_HOME") or Path.home() / ".cache") / "zerda_pg",
        )


def env_float(name: str, default: float, environ: Mapping[str, str] | None = None) -> float:
    """The number in the variable `name`; a malformed one is an error, since a default hides typos.

    Raises:
        ConfigError: If it is set and is not a finite number.
    """
    text = (os.environ if environ is None else environ).get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ConfigError(f"{name} must be a number, got {text!r}")
    return value


def _env_seconds(env: Mapping[str, str], name: str, default: float) -> float:
    value = env_float(name, default, env)
    if not 1 <= value <= LONGEST_SECONDS:
        raise ConfigError(f"{name} must be seconds from 1 to {LONGEST_SECONDS}, got {value:g}")
    return value


def _env_bool(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    if not text:
        return default
    if text in _YES | _NO:
        return text in _YES
    raise ConfigError(f"{name} must be 1 or 0, got {text!r}")


def _env_path(env: Mapping[str, str], name: str) -> Path | None:
    text = env.get(name, "")
    return Path(text).expanduser() if text else None
