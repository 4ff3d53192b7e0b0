"""Drivers: what performs an operation's steps, synchronously or not."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import Engine

from zerda_pg.db.engine import single_and_whole
from zerda_pg.db.failures import translated
from zerda_pg.db.transactions import RETRIED, Attempts, TransactionStart
from zerda_pg.embedding import aembed_documents, aembed_query, embed_documents, embed_query
from zerda_pg.errors import ConfigError, ZerdaError
from zerda_pg.steps import (
    Background,
    Embed,
    EmbedQuery,
    Finish,
    Followed,
    Handle,
    OnConnection,
    Start,
    Step,
    Steps,
)

if TYPE_CHECKING:  # it brings SQLAlchemy's object mapper along, which nothing here uses
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

__all__ = ["AsyncDriver", "AsyncTenantDriver", "SyncDriver", "SyncTenantDriver"]

T = TypeVar("T")

log = logging.getLogger("zerda_pg.store")

THREADS = 2
"""Of a synchronous store, for what goes on beside its callers."""

CLOSED = "the store is closed: open another"

PENDING = 1000
"""Background tasks waiting at most; beyond, the caller does the work himself."""


class SyncDriver:
    """Performs steps on an engine, one after the other; disposes of the engine if it owns it."""

    def __init__(self, engine: Engine, *, owned: bool = True, settings: str = "") -> None:
        self.engine = engine
        self.beginning = TransactionStart(settings=settings)
        self._owned = owned
        # a statement by itself takes one round trip, not three
        self._single, self._whole = single_and_whole(engine)
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._process = 0
        self._pending: set[Future[None]] = set()
        self._closed = False

    def run(self, steps: Steps[T], tenant_id: str | None = None) -> T:
        """Perform an operation, of a tenant if one is named, and return its result."""
        if self._closed:
            raise ConfigError(CLOSED)
        try:
            step = next(steps)
            while True:
                try:
                    given = self._perform(step, tenant_id)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(given)
        except StopIteration as done:
            result: T = done.value
            return result

    def _perform(self, step: Step, tenant_id: str | None) -> Any:
        match step:
            case OnConnection():
                return self.on_connection(step, tenant_id)
            case Embed():
                return embed_documents(step.embedder, step.texts)
            case EmbedQuery():
                return embed_query(step.embedder, step.text)
            case Background():
                return self._later(step, tenant_id)
            case Start():
                return Handle(running=self._pool().submit(self.on_connection, step.step, tenant_id))
            case Finish():
                return step.handle.running.result()

    def follow(self, followed: Followed[T], tenant_id: str | None = None) -> Iterator[T]:
        """Look again and again; between looks no connection is held."""
        pause: float | None = 0.0
        while pause is not None:
            yield from self.run(followed.look(), tenant_id)
            pause = followed.pause()
            if pause:
                time.sleep(pause)

    def within(self, tenant_id: str) -> SyncTenantDriver:
        """The same for the operations of one tenant."""
        return SyncTenantDriver(self, tenant_id)

    def on_connection(self, step: OnConnection, tenant_id: str | None = None) -> Any:
        """Run work on a pooled connection; what is safe to repeat is tried again."""
        attempts = Attempts(writes=step.writes)
        while True:
            attempts.whole = _whole(self.beginning, step, tenant_id)
            try:
                with translated():
                    if attempts.whole:
                        with self._whole.begin() as connection:
                            self.beginning.enter(connection, tenant_id, snapshot=step.snapshot)
                            return attempts.run(step.call, connection)
                    with self._single.connect() as connection:
                        if not self.beginning.noticed(connection):
                            return attempts.run(step.call, connection)
            except RETRIED as error:
                time.sleep(attempts.pause(error))

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None or self._process != os.getpid():
                # a forked child has none of its parent's threads
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="zerda_pg")
                self._process = os.getpid()
                self._pending = set()
            return self._threads

    def _later(self, step: Background, tenant_id: str | None) -> None:
        pool = self._pool()
        if len(self._pending) >= PENDING:
            self._attempt(step, tenant_id)
            return
        task = pool.submit(self._attempt, step, tenant_id)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    def _attempt(self, step: Background, tenant_id: str | None) -> None:
        work = OnConnection(call=step.call, transaction=True, writes=True)
        with _tolerated():
            self.on_connection(work, tenant_id)

    def flush(self) -> None:
        """Wait for the work in the background."""
        for task in list(self._pending):
            task.result()

    def close(self) -> None:
        """Finish the work in the background, then close the connections."""
        self._closed = True
        if self._threads is not None and self._process == os.getpid():
            self._threads.shutdown(wait=True)
            self._threads = None
        if self._owned:
            self.engine.dispose()


class AsyncDriver:
    """The same on an async engine; the event loop keeps running."""

    def __init__(self, engine: AsyncEngine, *, owned: bool = True, settings: str = "") -> None:
        self.engine = engine
        self.beginning = TransactionStart(settings=settings)
        self._owned = owned
        self._single, self._whole = single_and_whole(engine)
        self._pending: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def run(self, steps: Steps[T], tenant_id: str | None = None) -> T:
        """Perform an operation, of a tenant if one is named, and return its result."""
        if self._closed:
            raise ConfigError(CLOSED)
        try:
            step = next(steps)
            while True:
                try:
                    given = await self._perform(step, tenant_id)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(given)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _perform(self, step: Step, tenant_id: str | None) -> Any:
        match step:
            case OnConnection():
                return await self.on_connection(step, tenant_id)
            case Embed():
                return await aembed_documents(step.embedder, step.texts)
            case EmbedQuery():
                return await aembed_query(step.embedder, step.text)
            case Background():
                return await self._later(step, tenant_id)
            case Start():
                return Handle(running=asyncio.create_task(self.on_connection(step.step, tenant_id)))
            case Finish():
                return await step.handle.running

    async def follow(self, followed: Followed[T], tenant_id: str | None = None) -> AsyncIterator[T]:
        """Look again and again; between looks no connection is held."""
        pause: float | None = 0.0
        while pause is not None:
            for item in await self.run(followed.look(), tenant_id):
                yield item
            pause = followed.pause()
            if pause:
                await asyncio.sleep(pause)

    def within(self, tenant_id: str) -> AsyncTenantDriver:
        """The same for the operations of one tenant."""
        return AsyncTenantDriver(self, tenant_id)

    async def on_connection(self, step: OnConnection, tenant_id: str | None = None) -> Any:
        """Run work on a pooled connection, in a task of its own.

        A caller that is cancelled stops waiting, but the work comes to its end, which the
        statement's time-out bounds: cut off in the middle, it would leave its connection to the
        garbage collector, out of the pool.
        """
        task = asyncio.ensure_future(self._on_connection(step, tenant_id))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, also where nobody waits for it any more

    async def _on_connection(self, step: OnConnection, tenant_id: str | None) -> Any:
        """What is safe to repeat is tried again."""
        attempts = Attempts(writes=step.writes)

        def work(connection: Connection) -> Any:
            if attempts.whole:
                self.beginning.enter(connection, tenant_id, snapshot=step.snapshot)
            return attempts.run(step.call, connection)

        while True:
            attempts.whole = _whole(self.beginning, step, tenant_id)
            try:
                with translated():
                    if attempts.whole:
                        async with self._whole.begin() as connection:
                            return await _run_sync(connection, work)
                    async with self._single.connect() as connection:
                        # the clock first: even to ask nothing, `run_sync` makes a greenlet
                        if not (
                            self.beginning.look_due
                            and await _run_sync(connection, self.beginning.noticed)
                        ):
                            return await _run_sync(connection, work)
            except RETRIED as error:
                await asyncio.sleep(attempts.pause(error))

    async def _later(self, step: Background, tenant_id: str | None) -> None:
        if len(self._pending) >= PENDING:
            await self._attempt(step, tenant_id)
            return
        task = asyncio.create_task(self._attempt(step, tenant_id))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _attempt(self, step: Background, tenant_id: str | None) -> None:
        work = OnConnection(call=step.call, transaction=True, writes=True)
        with _tolerated():
            await self.on_connection(work, tenant_id)

    async def flush(self) -> None:
        """Wait for the work in the background."""
        if self._pending:
            await asyncio.gather(*self._pending)

    async def close(self) -> None:
        """Finish the work in the background, then close the connections."""
        self._closed = True
        await self.flush()
        if self._running:
            await asyncio.wait(self._running)
        if self._owned:
            await self.engine.dispose()


class SyncTenantDriver:
    """Performs the operations of one tenant."""

    def __init__(self, driver: SyncDriver, tenant_id: str) -> None:
        self._driver = driver
        self._tenant_id = tenant_id

    def run(self, steps: Steps[T]) -> T:
        """Perform an operation and return its result."""
        return self._driver.run(steps, self._tenant_id)

    def flush(self) -> None:
        """Wait for the work in the background."""
        self._driver.flush()

    def follow(self, followed: Followed[T]) -> Iterator[T]:
        """Look again and again."""
        return self._driver.follow(followed, self._tenant_id)


class AsyncTenantDriver:
    """The same on an async driver."""

    def __init__(self, driver: AsyncDriver, tenant_id: str) -> None:
        self._driver = driver
        self._tenant_id = tenant_id

    async def run(self, steps: Steps[T]) -> T:
        """Perform an operation and return its result."""
        return await self._driver.run(steps, self._tenant_id)

    async def flush(self) -> None:
        """Wait for the work in the background."""
        await self._driver.flush()

    def follow(self, followed: Followed[T]) -> AsyncIterator[T]:
        """Look again and again."""
        return self._driver.follow(followed, self._tenant_id)


def _whole(beginning: TransactionStart, step: OnConnection, tenant_id: str | None) -> bool:
    """Whether a step's statements run in one transaction."""
    return step.transaction or (beginning.needed(tenant_id) and not step.outside)


async def _run_sync(connection: AsyncConnection, call: Callable[[Connection], T]) -> T:
    return await connection.run_sync(call)


@contextmanager
def _tolerated() -> Iterator[None]:
    """What fails in the background is logged: nobody waits for it, and no memory is lost."""
    try:
        yield
    except ZerdaError as error:
        log.info("background work was given up: %s", error)
