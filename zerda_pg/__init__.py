"""Persistent memory for AI agents on Postgres and pgvector."""

from __future__ import annotations

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
