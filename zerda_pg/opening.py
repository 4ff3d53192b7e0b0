"""What both stores do to open: find the database, migrate it, ask it what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL

from zerda_pg.config import Settings
from zerda_pg.core import Core
from zerda_pg.db.embedded import EmbeddedServer
from zerda_pg.db.engine import check_maintenance_timeout, check_transactions, parse_url
from zerda_pg.db.facts import DatabaseFacts, Model, active_model, read_facts
from zerda_pg.db.location import locate
from zerda_pg.db.migrations import upgrade
from zerda_pg.embedding.protocol import Embedder
from zerda_pg.steps import Steps, read, within
from zerda_pg.tokens import TokenCounter

__all__ = ["Opening", "url_of"]

_DRIVERS = {("postgresql", "psycopg"), ("postgresql", "psycopg_async")}


def url_of(engine: object, *, asynchronous: bool) -> URL | None:
    """The database of a caller's engine; None: there is no engine.

    Raises:
        ValueError: If it is something else, of the other kind, or for another driver.
    """
    if engine is None:
        return None
    url = getattr(engine, "url", None)
    if not isinstance(url, URL):
        raise ValueError(
            f"engine must be a SQLAlchemy engine, got {type(engine).__name__}: a URL is given "
            "without a name, open(url)"
        )
    if hasattr(engine, "sync_engine") != asynchronous:
        raise ValueError(
            f"engine must be made by {'create_async_engine' if asynchronous else 'create_engine'} "
            f"for {'an AsyncMemoryStore' if asynchronous else 'a MemoryStore'}, "
            f"got {type(engine).__name__}"
        )
    dialect = getattr(engine, "dialect", None)
    if (getattr(dialect, "name", ""), getattr(dialect, "driver", "")) not in _DRIVERS:
        raise ValueError(
            f"engine must be for PostgreSQL by psycopg 3 (postgresql+psycopg://…), "
            f"got {url.drivername}"
        )
    return url


class Opening:
    """A located, migrated database with the settings to use it; blocks while it starts."""

    def __init__(
        self,
        *,
        url: str | None,
        engine_url: URL | None,
        embedder: str | Embedder,
        migrate: bool | None,
        language: str,
        count_tokens: str | TokenCounter,
        maintenance_timeout: float | None,
    ) -> None:
        settings = Settings.from_env()
        bound = settings.maintenance_timeout
        if maintenance_timeout is not None:
            bound = check_maintenance_timeout(maintenance_timeout)
        self.server: EmbeddedServer | None = None
        self._own_engine = engine_url is not None
        self.slow_seconds = settings.slow_seconds
        if engine_url is None:
            found, self.server = locate(url, settings)
            self.url = parse_url(found)
        else:
            self.url = engine_url
        with self.undone_on_error():
            if migrate or (migrate is None and self.server is not None):
                upgrade(self.url.render_as_string(hide_password=False), timeout=bound)
            self.core = Core(
                self.url,
                embedder=embedder,
                language=language,
                count_tokens=count_tokens,
                cache_dir=settings.cache,
                maintenance_timeout=bound,
            )

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Leave the embedded server again if opening fails."""
        try:
            yield
        except BaseException:
            if self.server is not None:
                self.server.release()
            raise

    def questions(self) -> Steps[tuple[DatabaseFacts, Model | None]]:
        """What the database says of itself.

        Raises:
            ConfigError: If it, or an engine of the caller's, cannot be used.
        """
        if self._own_engine:
            yield from within(check_transactions)
        return (yield from read(lambda c: (read_facts(c), active_model(c))))
