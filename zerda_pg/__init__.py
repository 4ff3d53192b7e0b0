"""Persistent memory for AI agents on Postgres and pgvector.

The names below are imported at their first use: the command shows its help, and loads its model,
without waiting for SQLAlchemy (0.1 s in place of 0.5 s).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerda_pg.admin import check_schema, migrate
    from zerda_pg.aio import AsyncMemory, AsyncMemoryStore
    from zerda_pg.entry import Edge, MemoryEntry, MemoryPriority, MemoryType, Status
    from zerda_pg.errors import (
        AccessDeniedError,
        AlreadyExistsError,
        ConfigError,
        ConflictError,
        DatabaseUnavailableError,
        EmbeddingMismatchError,
        EmbeddingModelError,
        InvalidContentError,
        MissingExtraError,
        NotFoundError,
        SchemaOutdatedError,
        SchemaTooNewError,
        ZerdaError,
    )
    from zerda_pg.filters import Filter
    from zerda_pg.results import AddResult, Context, Hit, Hits, Neighbour, Page
    from zerda_pg.scoped import Memory
    from zerda_pg.store import MemoryStore

__all__ = [
    "AccessDeniedError",
    "AddResult",
    "AlreadyExistsError",
    "AsyncMemory",
    "AsyncMemoryStore",
    "ConfigError",
    "ConflictError",
    "Context",
    "DatabaseUnavailableError",
    "Edge",
    "EmbeddingMismatchError",
    "EmbeddingModelError",
    "Filter",
    "Hit",
    "Hits",
    "InvalidContentError",
    "Memory",
    "MemoryEntry",
    "MemoryPriority",
    "MemoryStore",
    "MemoryType",
    "MissingExtraError",
    "Neighbour",
    "NotFoundError",
    "Page",
    "SchemaOutdatedError",
    "SchemaTooNewError",
    "Status",
    "ZerdaError",
    "check_schema",
    "migrate",
]

_MODULES = {
    "admin": "check_schema migrate",
    "aio": "AsyncMemory AsyncMemoryStore",
    "entry": "Edge MemoryEntry MemoryPriority MemoryType Status",
    "filters": "Filter",
    "results": "AddResult Context Hit Hits Neighbour Page",
    "scoped": "Memory",
    "store": "MemoryStore",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
