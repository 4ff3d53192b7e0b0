"""Persistent memory for AI agents on Postgres and pgvector.

The names below are imported at their first use: the command shows its help, and loads its model,
without waiting for SQLAlchemy (0.1 s in place of 0.5 s).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerda_pg.admin import check_schema, drop_retired_models, migrate, reembed
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
    from zerda_pg.memory.long_term import LongTermMemory
    from zerda_pg.memory.manager import AIMemoryManager, ManagerConfig
    from zerda_pg.memory.sections import pack_memories
    from zerda_pg.memory.semantic import SemanticMemory
    from zerda_pg.memory.short_term import ShortTermMemory
    from zerda_pg.memory.working import WorkingMemory
    from zerda_pg.results import AddResult, Change, Context, Hit, Hits, Neighbour, Page
    from zerda_pg.scoped import Memory
    from zerda_pg.scoring.forgetting import ForgettingConfig, ForgettingMechanism
    from zerda_pg.scoring.kind_prior import KindPriorWeights, score_memory
    from zerda_pg.scoring.rerank import Candidate, rerank, rerank_entries
    from zerda_pg.scoring.rerank_config import RerankConfig, memory_rerank_config, rerank_disabled
    from zerda_pg.scoring.rerank_maps import (
        build_get_vector,
        build_importance_map,
        build_recency_map,
    )
    from zerda_pg.scoring.selector import MemorySelector, ScoredMemory, SelectionConfig
    from zerda_pg.store import MemoryStore

__all__ = [
    "AIMemoryManager",
    "AccessDeniedError",
    "AddResult",
    "AlreadyExistsError",
    "AsyncMemory",
    "AsyncMemoryStore",
    "Candidate",
    "Change",
    "ConfigError",
    "ConflictError",
    "Context",
    "DatabaseUnavailableError",
    "Edge",
    "EmbeddingMismatchError",
    "EmbeddingModelError",
    "Filter",
    "ForgettingConfig",
    "ForgettingMechanism",
    "Hit",
    "Hits",
    "InvalidContentError",
    "KindPriorWeights",
    "LongTermMemory",
    "ManagerConfig",
    "Memory",
    "MemoryEntry",
    "MemoryPriority",
    "MemorySelector",
    "MemoryStore",
    "MemoryType",
    "MissingExtraError",
    "Neighbour",
    "NotFoundError",
    "Page",
    "RerankConfig",
    "SchemaOutdatedError",
    "SchemaTooNewError",
    "ScoredMemory",
    "SelectionConfig",
    "SemanticMemory",
    "ShortTermMemory",
    "Status",
    "WorkingMemory",
    "ZerdaError",
    "build_get_vector",
    "build_importance_map",
    "build_recency_map",
    "check_schema",
    "drop_retired_models",
    "memory_rerank_config",
    "migrate",
    "pack_memories",
    "reembed",
    "rerank",
    "rerank_disabled",
    "rerank_entries",
    "score_memory",
]

_MODULES = {
    "admin": "check_schema drop_retired_models migrate reembed",
    "aio": "AsyncMemory AsyncMemoryStore",
    "entry": "Edge MemoryEntry MemoryPriority MemoryType Status",
    "filters": "Filter",
    "memory.long_term": "LongTermMemory",
    "memory.manager": "AIMemoryManager ManagerConfig",
    "memory.sections": "pack_memories",
    "memory.semantic": "SemanticMemory",
    "memory.short_term": "ShortTermMemory",
    "memory.working": "WorkingMemory",
    "results": "AddResult Change Context Hit Hits Neighbour Page",
    "scoped": "Memory",
    "scoring.forgetting": "ForgettingConfig ForgettingMechanism",
    "scoring.kind_prior": "KindPriorWeights score_memory",
    "scoring.rerank": "Candidate rerank rerank_entries",
    "scoring.rerank_config": "RerankConfig memory_rerank_config rerank_disabled",
    "scoring.rerank_maps": "build_get_vector build_importance_map build_recency_map",
    "scoring.selector": "MemorySelector ScoredMemory SelectionConfig",
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
