"""What an administrator or a deployment calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from zerda_pg.config import Settings
from zerda_pg.db.engine import (
    admin_engine,
    check_maintenance_timeout,
    local_settings,
    parse_url,
)
from zerda_pg.db.facts import read_facts
from zerda_pg.db.migrations import isolate, upgrade
from zerda_pg.driver import SyncDriver
from zerda_pg.embedding import Embedder, resolve
from zerda_pg.operations import reembedding
from zerda_pg.steps import read

__all__ = ["check_schema", "drop_retired_models", "migrate", "reembed"]


def migrate(url: str, *, rls: bool = False, maintenance_timeout: float | None = None) -> None:
    """Bring a database's schema to this package's version; safe from many processes at once.

    Args:
        url: The database.
        rls: Whether row-level security is set up too, by which the database shows every role but
            the tables' owner one tenant at a time. Once set up it stays. It takes some seconds,
            in which stores that are open notice.
        maintenance_timeout: Seconds that a statement may run; None:
            `ZERDA_PG_MAINTENANCE_TIMEOUT`, else six hours.

    Raises:
        AccessDeniedError: If the role may not create the schema or an extension; the message
            has the statement that an administrator runs.
        ConfigError: If PostgreSQL is older than 16 or has no pgvector.
        DatabaseUnavailableError: If the server cannot be reached.
    """
    timeout = _bound(maintenance_timeout)
    upgrade(url, timeout=timeout)
    if rls:
        isolate(url, timeout=timeout)


def check_schema(url: str) -> None:
    """Return if the schema fits this package.

    Raises:
        SchemaOutdatedError: If it is missing or older; the message names the command.
        SchemaTooNewError: If it is of a later major version.
        ConfigError: If PostgreSQL or pgvector is too old.
        DatabaseUnavailableError: If the server cannot be reached.
    """
    with _driver(url, None) as driver:
        driver.run(read(read_facts))


def reembed(
    url: str,
    embedder: str | Embedder,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    maintenance_timeout: float | None = None,
) -> dict[str, Any]:
    """Change the embedding model of a database, beside its readers and writers.

    Vectors of the new model are back-filled, then the database switches to it; at the very end
    writes wait for a moment. The old vectors stay: calling it with the old embedder switches
    back, after a back-fill of what was written since. A run that was interrupted goes on where
    it stopped. Stores that are open with the old embedder get `EmbeddingMismatchError` from
    then on: open them again.

    Args:
        url: The database.
        embedder: A name, or an object with the `Embedder` protocol.
        progress: Called with how many entries were embedded, and how many there are.
        maintenance_timeout: Seconds that a statement may run; None:
            `ZERDA_PG_MAINTENANCE_TIMEOUT`, else six hours.

    Returns:
        `model`, `fingerprint`, `dimensions`, `embedded`, `switched`, and `before`: the model
        that was active.

    Raises:
        ConflictError: If the writes under way did not end in time to switch: call it again.
        EmbeddingModelError: If the model cannot be loaded.
        SchemaOutdatedError: If the schema must be migrated first.
    """
    target = resolve(embedder, cache_dir=Settings.from_env().cache)
    with _driver(url, maintenance_timeout) as driver:
        facts = driver.run(read(read_facts))
        return driver.run(reembedding.reembed(facts, target, progress))


def drop_retired_models(
    url: str,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    maintenance_timeout: float | None = None,
) -> dict[str, Any]:
    """Erase the vectors of models that are in use no longer; there is no way back to them then.

    Args:
        url: The database.
        progress: Called with how many vectors were erased.
        maintenance_timeout: Seconds that a statement may run; None:
            `ZERDA_PG_MAINTENANCE_TIMEOUT`, else six hours.

    Returns:
        `models`, their names, and `vectors`, how many were erased.
    """
    with _driver(url, maintenance_timeout) as driver:
        driver.run(read(read_facts))
        return driver.run(reembedding.drop_retired(progress))


def _bound(maintenance_timeout: float | None) -> float:
    if maintenance_timeout is None:
        return Settings.from_env().maintenance_timeout
    return check_maintenance_timeout(maintenance_timeout)


@contextmanager
def _driver(url: str, maintenance_timeout: float | None) -> Iterator[SyncDriver]:
    timeout = _bound(maintenance_timeout)
    settings = local_settings(timeout, prepare=False)
    driver = SyncDriver(admin_engine(parse_url(url), timeout), settings=settings)
    try:
        yield driver
    finally:
        driver.close()
