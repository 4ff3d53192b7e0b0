"""The store that the layers use when none is given."""

from __future__ import annotations

import atexit
import os
import threading

from zerda_pg.store import MemoryStore

__all__ = ["default_store"]

_lock = threading.Lock()
_store: MemoryStore | None = None
_process = 0


def default_store() -> MemoryStore:
    """`MemoryStore.open()`, opened at the first call and closed when the process ends."""
    global _store, _process
    with _lock:
        if _store is None or _process != os.getpid():
            _store, _process = MemoryStore.open(), os.getpid()
            atexit.register(_store.close)
        return _store
