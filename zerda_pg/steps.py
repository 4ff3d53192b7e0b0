"""An operation is written once, as a generator of steps; a sync or an async driver performs them.

A step is either work on a connection (`read`, `write`) or a call to an embedder (`embed`,
`embed_query`). The generator is sent what the step gave, and returns the operation's result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection

from zerda_pg.embedding.boundary import EmbeddedTexts
from zerda_pg.embedding.protocol import Embedder, Vectors

__all__ = [
    "Background",
    "Embed",
    "EmbedQuery",
    "Finish",
    "Followed",
    "Handle",
    "OnConnection",
    "Start",
    "Step",
    "Steps",
    "background",
    "embed",
    "embed_query",
    "finish",
    "outside",
    "read",
    "read_snapshot",
    "start",
    "within",
    "write",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class OnConnection:
    """Work on a connection."""

    call: Callable[[Connection], Any]
    transaction: bool
    """False: each statement commits by itself, which saves round trips, unless the driver needs a
    transaction to set the tenant in."""
    writes: bool
    """Whether it changes something, so that it is repeated only if it cannot have happened."""
    snapshot: bool = False
    """Whether all its reads see one moment; in a transaction."""
    outside: bool = False
    """Whether it must not run in a transaction, as CREATE INDEX CONCURRENTLY must not."""


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Texts to be stored → vectors."""

    embedder: Embedder
    texts: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class EmbedQuery:
    """A question → its vector."""

    embedder: Embedder
    text: str


@dataclass(frozen=True, kw_only=True)
class Background:
    """Work in a transaction of its own that the caller does not wait for."""

    call: Callable[[Connection], Any]


@dataclass(frozen=True, kw_only=True)
class Start:
    """Work that goes on while the operation does something else → its handle."""

    step: OnConnection


@dataclass(frozen=True, kw_only=True)
class Finish:
    """A handle → what its work gave."""

    handle: Handle[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Handle(Generic[T]):
    """Work that was started."""

    running: Any
    """A future, or a task of asyncio."""


Step: TypeAlias = OnConnection | Embed | EmbedQuery | Background | Start | Finish
Steps: TypeAlias = Generator[Step, Any, T]


def read(call: Callable[[Connection], T]) -> Steps[T]:
    """Read; every statement sees the newest committed state."""
    result: T = yield OnConnection(call=call, transaction=False, writes=False)
    return result


def write(call: Callable[[Connection], T], *, transaction: bool = True) -> Steps[T]:
    """Write; `transaction=False` for a single statement, which then takes one round trip."""
    result: T = yield OnConnection(call=call, transaction=transaction, writes=True)
    return result


def within(call: Callable[[Connection], T]) -> Steps[T]:
    """Read in a transaction, whatever the driver needs one for."""
    result: T = yield OnConnection(call=call, transaction=True, writes=False)
    return result


def read_snapshot(call: Callable[[Connection], T]) -> Steps[T]:
    """Read; all statements see the state of one moment."""
    result: T = yield OnConnection(call=call, transaction=True, writes=False, snapshot=True)
    return result


def outside(call: Callable[[Connection], T]) -> Steps[T]:
    """Do what Postgres refuses in a transaction; of no tenant, by the tables' owner."""
    result: T = yield OnConnection(call=call, transaction=False, writes=False, outside=True)
    return result


def start(call: Callable[[Connection], T]) -> Steps[Handle[T]]:
    """Start a write of a single statement."""
    step = OnConnection(call=call, transaction=False, writes=True)
    handle: Handle[T] = yield Start(step=step)
    return handle


def finish(handle: Handle[T]) -> Steps[T]:
    """Wait for what was started."""
    result: T = yield Finish(handle=handle)
    return result


def embed(embedder: Embedder, texts: Sequence[str]) -> Steps[EmbeddedTexts]:
    """Embed texts to be stored."""
    result: EmbeddedTexts = yield Embed(embedder=embedder, texts=texts)
    return result


def embed_query(embedder: Embedder, text: str) -> Steps[Vectors]:
    """Embed a question."""
    result: Vectors = yield EmbedQuery(embedder=embedder, text=text)
    return result


def background(call: Callable[[Connection], Any]) -> Steps[None]:
    """Start work whose result nobody waits for."""
    yield Background(call=call)


class Followed(Protocol[T_co]):
    """What a driver follows: it looks, yields what it found, and pauses."""

    def look(self) -> Steps[Sequence[T_co]]:
        """What there is by now."""
        ...

    def pause(self) -> float | None:
        """Seconds until the next look; None: the end."""
        ...
