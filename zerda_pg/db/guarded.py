"""Connections that wait for the server no longer than they were told.

`statement_timeout` is kept by the server: one that is stopped, or a network that swallows
packets, keeps no promise, and a Unix socket has no time-out of its own. Every exchange of psycopg
with the server is a generator that it also wakes at intervals; here the clock is looked at then.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import psycopg
from psycopg import pq
from sqlalchemy import Connection

from zerda_pg.db.slow import log_if_slow

__all__ = [
    "GRACE_SECONDS",
    "PREPARED_AT_ONCE",
    "AsyncPositionalCursor",
    "GuardedAsyncConnection",
    "GuardedConnection",
    "NoAnswerError",
    "PositionalCursor",
    "is_stale",
    "patient",
    "read_binary",
]

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""Beyond statement_timeout: for the server to cancel the statement and to say so."""

LOOK_SECONDS = 0.1
"""How often the clock is looked at while the server is silent."""


PREPARED_AT_ONCE = 30_000
"""Characters up to which; one search takes half of that, planning it as long as running it."""


class NoAnswerError(psycopg.OperationalError):
    """The server did not answer in time; the connection was given up."""


def _bounded(
    exchange: Generator[Any, Any, T], pgconn: pq.abc.PGconn, patience: float | None
) -> Generator[Any, Any, T]:
    """The exchange, given up when the server has been silent for too long."""
    if patience is None:
        return (yield from exchange)
    deadline = time.monotonic() + patience
    try:
        wanted = next(exchange)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                pgconn.finish()
                raise NoAnswerError(f"the server did not answer within {patience:g} s")
            wanted = exchange.send(ready)
    except StopIteration as done:
        result: T = done.value
        return result


def _asked(
    cursor: Any, query: str, params: Any, prepare: bool | None, binary: bool | None
) -> dict[str, Any]:
    """How a statement is sent where nobody said how: binary, and prepared at its first use.

    Binary results take half as long to read, on both sides. A statement without parameters may be
    several, which only the text protocol takes, unprepared. One of several searches, whose plan
    takes the server a megabyte for each, is prepared when it has been used five times, as psycopg
    does it.
    """
    single = bool(params)
    prepares = cursor.connection.prepare_threshold is not None
    if prepare is None and prepares and single and len(query) <= PREPARED_AT_ONCE:
        prepare = True
    return {"prepare": prepare, "binary": single if binary is None else binary}


class _Asking:
    """A cursor that asks in our way, and has what took long logged."""

    def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = None,
        binary: bool | None = None,
    ) -> Self:  # fmt: skip
        cursor: Any = super()
        started = time.perf_counter()
        try:
            cursor.execute(query, params, **_asked(self, query, params, prepare, binary))
        finally:
            log_if_slow(cursor.connection, query, started)
        return self


class _AsyncAsking:
    """The same for asyncio."""

    async def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = None,
        binary: bool | None = None,
    ) -> Self:  # fmt: skip
        cursor: Any = super()
        started = time.perf_counter()
        try:
            await cursor.execute(query, params, **_asked(self, query, params, prepare, binary))
        finally:
            log_if_slow(cursor.connection, query, started)
        return self


class NamedCursor(_Asking, psycopg.Cursor[Any]):
    """With parameters as `%(name)s`."""


class AsyncNamedCursor(_AsyncAsking, psycopg.AsyncCursor[Any]):
    """With parameters as `%(name)s`."""


class PositionalCursor(_Asking, psycopg.RawCursor[Any]):
    """With parameters as `$1`: the statement is sent as it stands."""


class AsyncPositionalCursor(_AsyncAsking, psycopg.AsyncRawCursor[Any]):
    """With parameters as `$1`: the statement is sent as it stands."""


class GuardedConnection(psycopg.Connection[Any]):
    """For a synchronous engine."""

    patience: float | None = None
    """Seconds for one exchange; None: without end."""
    slow_seconds: float | None = None
    """From which a statement is logged; None: never."""

    def wait(self, gen: Any, interval: float = LOOK_SECONDS, *args: Any, **kwargs: Any) -> Any:
        """As in psycopg, with an end."""
        if self.pgconn.status != pq.ConnStatus.OK:
            return super().wait(gen, interval, *args, **kwargs)
        bounded = _bounded(gen, self.pgconn, self.patience)
        return super().wait(bounded, interval, *args, **kwargs)


class GuardedAsyncConnection(psycopg.AsyncConnection[Any]):
    """For an asyncio engine."""

    patience: float | None = None
    """Seconds for one exchange; None: without end."""
    slow_seconds: float | None = None
    """From which a statement is logged; None: never."""

    async def wait(
        self, gen: Any, interval: float = LOOK_SECONDS, *args: Any, **kwargs: Any
    ) -> Any:
        """As in psycopg, with an end."""
        if self.pgconn.status != pq.ConnStatus.OK:
            return await super().wait(gen, interval, *args, **kwargs)
        bounded = _bounded(gen, self.pgconn, self.patience)
        return await super().wait(bounded, interval, *args, **kwargs)


def read_binary(raw: Any) -> None:
    """Have a connection's results come in binary form."""
    asynchronous = isinstance(raw, psycopg.AsyncConnection)
    raw.cursor_factory = AsyncNamedCursor if asynchronous else NamedCursor


_USABLE = (pq.TransactionStatus.IDLE, pq.TransactionStatus.INTRANS)


@contextmanager
def patient(connection: Connection, seconds: float) -> Iterator[None]:
    """Let each statement here take so long, as the upkeep of large tables may."""
    raw: Any = connection.connection.driver_connection
    setting = f"SET {'' if raw.autocommit else 'LOCAL '}statement_timeout ="
    before = connection.exec_driver_sql("SHOW statement_timeout").scalar_one()
    connection.exec_driver_sql(f"{setting} {round(seconds * 1000)}")
    guarded = isinstance(raw, GuardedConnection | GuardedAsyncConnection)
    patience = raw.patience if guarded else None
    if guarded:
        raw.patience = seconds + GRACE_SECONDS
    try:
        yield
    finally:
        if guarded:
            raw.patience = patience
        # a transaction that failed takes its settings with it, a connection that ended too
        if raw.pgconn.transaction_status in _USABLE:
            connection.exec_driver_sql(f"{setting} '{before}'")


def is_stale(raw: Any) -> bool:
    """Whether an idle connection has something to say: that its server has ended it.

    Looked at without a round trip. The server sends nothing else to an idle connection that we
    use; if it did, a new connection costs little.
    """
    if getattr(raw, "closed", False):
        return True
    descriptor = raw.fileno()
    if sys.platform == "win32":
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
