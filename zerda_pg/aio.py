"""The async store: the same operations, awaited, with the same names and signatures."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from sqlalchemy.ext.asyncio import AsyncEngine

from zerda_pg.core import Core
from zerda_pg.db import reads
from zerda_pg.db.embedded import EmbeddedServer
from zerda_pg.db.engine import async_engine, local_settings, shown_url
from zerda_pg.driver import AsyncDriver
from zerda_pg.embedding.protocol import Embedder
from zerda_pg.errors import ConfigError
from zerda_pg.opening import Opening, url_of
from zerda_pg.operations import listing, maintaining
from zerda_pg.scope import Scope
from zerda_pg.scoped import Memory
from zerda_pg.steps import Steps, read
from zerda_pg.tokens import TokenCounter

__all__ = ["AsyncMemory", "AsyncMemoryStore"]

P = ParamSpec("P")
T = TypeVar("T")


class _Twin(Generic[P, T]):
    """The type of an async twin: the method's arguments, its result awaited."""

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(
        self, instance: object, owner: type[Any]
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: object, owner: type[Any]) -> Any:
        raise NotImplementedError  # typing only: `_twin` returns a function


def _twin(method: Callable[Concatenate[Memory, P], T]) -> _Twin[P, T]:
    """The method, on an async driver: what it returns there is a coroutine."""

    @functools.wraps(method)
    async def awaited(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        return await cast(Coroutine[Any, Any, T], method(self, *args, **kwargs))

    return cast("_Twin[P, T]", awaited)


class _IteratingTwin(Generic[P, T]):
    """The type of the async twin of a method that returns an iterator."""

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, instance: object, owner: type[Any]) -> Any:
        raise NotImplementedError  # typing only: `_iterating_twin` returns a function


def _iterating_twin(method: Callable[Concatenate[Memory, P], Iterator[T]]) -> _IteratingTwin[P, T]:
    """The method, on an async driver: what it returns there is an async iterator."""

    @functools.wraps(method)
    def iterating(self: Any, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return cast("AsyncIterator[T]", method(self, *args, **kwargs))

    return cast("_IteratingTwin[P, T]", iterating)


class AsyncMemory:
    """The memories of a scope, for asyncio; as `Memory`."""

    def __init__(self, core: Core, driver: AsyncDriver, scope: Scope) -> None:
        self._core = core
        self._driver = driver.within(scope.tenant_id)
        self.scope = scope

    @property
    def count_tokens(self) -> TokenCounter:
        """The store's token counter."""
        return self._core.count_tokens

    async def perform(
        self,
        operation: Callable[Concatenate[Core, Scope, P], Steps[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Perform an operation in this scope, as `Memory.perform`."""
        return await self._driver.run(operation(self._core, self.scope, *args, **kwargs))

    add = _twin(Memory.add)
    add_many = _twin(Memory.add_many)
    add_messages = _twin(Memory.add_messages)
    export = _twin(Memory.export)
    import_file = _twin(Memory.import_file)
    get = _twin(Memory.get)
    get_many = _twin(Memory.get_many)
    update = _twin(Memory.update)
    delete = _twin(Memory.delete)
    discard = _twin(Memory.discard)
    restore = _twin(Memory.restore)
    clear = _twin(Memory.clear)
    purge = _twin(Memory.purge)
    relate = _twin(Memory.relate)
    unrelate = _twin(Memory.unrelate)
    neighbours = _twin(Memory.neighbours)
    invalidate = _twin(Memory.invalidate)
    search = _twin(Memory.search)
    search_many = _twin(Memory.search_many)
    build_context = _twin(Memory.build_context)
    explain = _twin(Memory.explain)
    entries = _twin(Memory.entries)
    count = _twin(Memory.count)
    forget = _twin(Memory.forget)
    enable_changes = _twin(Memory.enable_changes)
    watch = _iterating_twin(Memory.watch)
    stats = _twin(Memory.stats)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scope})"


class AsyncMemoryStore:
    """Agents' memories in one Postgres database, for asyncio.

    `async with AsyncMemoryStore.open() as store:`; in a server, in its lifespan, after a fork.
    """

    _open_core: Callable[[], Opening]
    _engine_of: Callable[[Opening], AsyncEngine]
    _owned: bool
    _settings: str
    _opened: tuple[Core, AsyncDriver, EmbeddedServer | None] | None

    def __init__(self, *_given: object, **_named: object) -> None:
        raise TypeError("a store is opened: async with AsyncMemoryStore.open(url) as store")

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        embedder: str | Embedder = "auto",
        engine: AsyncEngine | None = None,
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
        """A store to be opened by `async with`; the arguments are those of `MemoryStore.open`."""

        def open_core() -> Opening:
            return Opening(
                url=url,
                engine_url=url_of(engine, asynchronous=True),
                embedder=embedder,
                migrate=migrate,
                language=language,
                count_tokens=count_tokens,
                maintenance_timeout=maintenance_timeout,
            )

        def engine_of(opening: Opening) -> AsyncEngine:
            return engine or async_engine(
                opening.url,
                pool_size=pool_size,
                pool_timeout=pool_timeout,
                connect_timeout=connect_timeout,
                statement_timeout=statement_timeout,
                prepare=prepare,
                slow=opening.slow_seconds,
            )

        settings = local_settings(statement_timeout, prepare=prepare or engine is not None)
        store = cls.__new__(cls)
        store._open_core, store._engine_of = open_core, engine_of
        store._owned, store._settings, store._opened = engine is None, settings, None
        return store

    async def __aenter__(self) -> Self:
        # starting a server and migrating block, so they run in a thread
        opening = await asyncio.to_thread(self._open_core)
        with opening.undone_on_error():
            driver = AsyncDriver(
                self._engine_of(opening), owned=self._owned, settings=self._settings
            )
            try:
                opening.core.learn(*await driver.run(opening.questions()))
                driver.beginning.learn(opening.core.facts, opening.core.note_isolated)
            except BaseException:
                await driver.close()
                raise
        self._opened = (opening.core, driver, opening.server)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _parts(self) -> tuple[Core, AsyncDriver, EmbeddedServer | None]:
        if self._opened is None:
            raise ConfigError("the store is not open: use `async with AsyncMemoryStore.open(…)`")
        return self._opened

    @property
    def url(self) -> str:
        """The database, without its password."""
        return shown_url(self._parts()[0].url)

    @property
    def embedder(self) -> Embedder:
        """The embedder in use; it loads its model at its first text."""
        return self._parts()[0].embedder

    def tenant(
        self,
        tenant_id: str,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        session_id: str | None = None,
    ) -> AsyncMemory:
        """The memories of one tenant; as `MemoryStore.tenant`."""
        core, driver, _ = self._parts()
        scope = Scope(
            tenant_id=tenant_id, user_id=user_id, agent_id=agent_id, session_id=session_id
        )
        return AsyncMemory(core, driver, scope)

    async def tenants(self) -> list[str]:
        """Every tenant that has an entry."""
        driver = self._parts()[1]
        driver.beginning.check_owner()
        return await driver.run(read(reads.list_tenants))

    async def stats(self) -> dict[str, Any]:
        """What the database holds, and what runs."""
        core, driver, _ = self._parts()
        driver.beginning.check_owner()
        return await driver.run(listing.store_stats(core))

    async def maintain(self, *, cluster: bool = False) -> dict[str, Any]:
        """Keep the database in shape, as `MemoryStore.maintain`."""
        core, driver, _ = self._parts()
        driver.beginning.check_owner()
        return await driver.run(maintaining.maintain(core, cluster=cluster))

    async def flush(self) -> None:
        """Wait until what goes on in the background (access counts) is written."""
        await self._parts()[1].flush()

    async def close(self) -> None:
        """Write what is pending, close the connections, leave the embedded server."""
        if self._opened is None:
            return
        _, driver, server = self._opened
        self._opened = None
        await driver.close()
        if server is not None:
            await asyncio.to_thread(server.release)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'open' if self._opened else 'closed'})"
