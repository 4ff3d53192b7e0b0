"""The async store as a synchronous one, so that each case is written once for both."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

from zerda_pg import AsyncMemory, AsyncMemoryStore, MemoryStore
from zerda_pg.embedding.protocol import Embedder

__all__ = ["KINDS", "opened"]

KINDS = ("sync", "async")

PATIENCE = 120.0
"""Seconds until a coroutine that does not end fails its test."""


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """An async object whose coroutines are waited for."""

    def __init__(self, target: Any, loop: Loop) -> None:
        self._target = target
        self._run = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = self._run.run(result)
            return Blocking(result, self._run) if isinstance(result, AsyncMemory) else result

        return call


@contextmanager
def opened(
    kind: str, url: str, *, embedder: str | Embedder = "hashing", **options: Any
) -> Iterator[MemoryStore]:
    """A store of either kind, to be used synchronously."""
    if kind != "async":
        with MemoryStore.open(url, embedder=embedder, **options) as store:
            yield store
        return
    loop = Loop()
    try:
        store_of_loop = AsyncMemoryStore.open(url, embedder=embedder, **options)
        entered = loop.run(store_of_loop.__aenter__())
        try:
            yield cast(MemoryStore, Blocking(entered, loop))
        finally:
            loop.run(store_of_loop.close())
    finally:
        loop.close()
