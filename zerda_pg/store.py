"""The synchronous store and its scopes: each method hands an operation to the driver."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Self

from sqlalchemy.engine import Engine

from zerda_pg.core import Core
from zerda_pg.db import reads
from zerda_pg.db.embedded import EmbeddedServer
from zerda_pg.db.engine import local_settings, shown_url, sync_engine
from zerda_pg.driver import SyncDriver
from zerda_pg.embedding.protocol import Embedder
from zerda_pg.opening import Opening, url_of
from zerda_pg.operations import listing, maintaining
from zerda_pg.scope import Scope
from zerda_pg.scoped import Memory
from zerda_pg.steps import read
from zerda_pg.tokens import TokenCounter

__all__ = ["MemoryStore"]

log = logging.getLogger("zerda_pg.store")


class MemoryStore:
    """Agents' memories in one Postgres database; thread-safe.

    Open it with `MemoryStore.open`, use it as a context manager or `close` it. After a fork,
    open a new one in the child.
    """

    _core: Core
    _driver: SyncDriver
    _server: EmbeddedServer | None

    def __init__(self, *_given: object, **_named: object) -> None:
        raise TypeError("a store is opened: MemoryStore.open(url), or open() for the default one")

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        embedder: str | Embedder = "auto",
        engine: Engine | None = None,
        migrate: bool | None = None,
        language: str = "english",
        count_tokens: str | TokenCounter = "auto",
        pool_size: int = 5,
        pool_timeout: float = 10,
        connect_timeout: float = 10,
        statement_timeout: float = 30,
        maintenance_timeout: float | None = None,
        prepare: bool = True,
    ) -> Self:
        """Open a store.

        Args:
            url: `postgresql://…`; None: `ZERDA_PG_URL`, else the embedded server.
            embedder: `"auto"` (the model that the database records, on an empty store the first
                installed), a name, or an object with the `Embedder` protocol.
            engine: A SQLAlchemy engine of yours for psycopg, not in AUTOCOMMIT, in place of a
                URL; it is not disposed of at `close`.
            migrate: Whether to bring the schema up to date; None: for the embedded server only.
            language: Text-search configuration of new entries.
            count_tokens: `"auto"`, `"exact"`, `"estimate"` or a function.
            pool_size: Most connections.
            pool_timeout: Seconds to wait for a free one.
            connect_timeout: Seconds to wait for the server.
            statement_timeout: Seconds that a statement may run; a server that then says nothing
                for 5 more is given up. 0: without end.
            maintenance_timeout: Seconds that a statement of a migration, of `maintain` or of the
                upkeep after a bulk write may run; None: `ZERDA_PG_MAINTENANCE_TIMEOUT`, else six
                hours.
            prepare: False for poolers without prepared statements.

        Raises:
            ConfigError: If there is no usable database or a setting is malformed.
            DatabaseUnavailableError: If the server cannot be reached.
            SchemaOutdatedError: If the schema must be migrated first.
            SchemaTooNewError: If it is of a later major version.
            EmbeddingMismatchError: If the database records another model.
        """
        opening = Opening(
            url=url,
            engine_url=url_of(engine, asynchronous=False),
            embedder=embedder,
            migrate=migrate,
            language=language,
            count_tokens=count_tokens,
            maintenance_timeout=maintenance_timeout,
        )
        with opening.undone_on_error():
            own = engine or sync_engine(
                opening.url,
                pool_size=pool_size,
                pool_timeout=pool_timeout,
                connect_timeout=connect_timeout,
                statement_timeout=statement_timeout,
                prepare=prepare,
                slow=opening.slow_seconds,
            )
            settings = local_settings(statement_timeout, prepare=prepare or engine is not None)
            driver = SyncDriver(own, owned=engine is None, settings=settings)
            try:
                opening.core.learn(*driver.run(opening.questions()))
                driver.beginning.learn(opening.core.facts, opening.core.note_isolated)
            except BaseException:
                driver.close()
                raise
        store = cls.__new__(cls)
        store._core, store._driver, store._server = opening.core, driver, opening.server
        return store

    @property
    def url(self) -> str:
        """The database, without its password."""
        return shown_url(self._core.url)

    @property
    def embedder(self) -> Embedder:
        """The embedder in use; it loads its model at its first text."""
        return self._core.embedder

    def tenant(
        self,
        tenant_id: str,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        session_id: str | None = None,
    ) -> Memory:
        """The memories of one tenant; cheap, holds no connection.

        Args:
            tenant_id: Nothing crosses it.
            user_id: Reads see this user's entries and those without a user.
            agent_id: New entries are marked with it.
            session_id: New entries are marked with it, and what it touched ranks higher.

        Raises:
            ValueError: Naming the argument that is no usable key.
        """
        scope = Scope(
            tenant_id=tenant_id, user_id=user_id, agent_id=agent_id, session_id=session_id
        )
        return Memory(self._core, self._driver, scope)

    def tenants(self) -> list[str]:
        """Every tenant that has an entry.

        Raises:
            AccessDeniedError: If row-level security shows the role one tenant at a time.
        """
        self._driver.beginning.check_owner()
        return self._driver.run(read(reads.list_tenants))

    def stats(self) -> dict[str, Any]:
        """What the database holds, and what runs.

        Raises:
            AccessDeniedError: If row-level security shows the role one tenant at a time.
        """
        self._driver.beginning.check_owner()
        return self._driver.run(listing.store_stats(self._core))

    def maintain(self, *, cluster: bool = False) -> dict[str, Any]:
        """Keep the database in shape: to be run from time to time, by the tables' owner.

        Erases what has expired, what sessions touched and changes that were recorded more than 7
        days ago; counts words anew where a tenant has grown; renews the planner's statistics.
        Readers and writers go on meanwhile.

        Args:
            cluster: Whether to rewrite tables in which tenants' rows lie scattered, so that each
                tenant's come to lie side by side: worth it in a store larger than
                `shared_buffers`. Each table is locked meanwhile, against readers too, and needs
                its size again on the disk.

        Returns:
            How much of each, and which tables were analyzed and clustered.

        Raises:
            AccessDeniedError: If row-level security shows the role one tenant at a time.
            ConflictError: If others held a table that was to be clustered.
        """
        self._driver.beginning.check_owner()
        return self._driver.run(maintaining.maintain(self._core, cluster=cluster))

    def flush(self) -> None:
        """Wait until what goes on in the background (access counts) is written."""
        self._driver.flush()

    def close(self) -> None:
        """Write what is pending, close the connections, leave the embedded server."""
        self._driver.close()
        if self._server is not None:
            self._server.release()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"
