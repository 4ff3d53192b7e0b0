"""How a failure is told: one line on stderr, and an exit code."""

from __future__ import annotations

import sys

from zerda_pg.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidContentError,
    NotFoundError,
    ZerdaError,
)

__all__ = [
    "ENVIRONMENT",
    "FOUND",
    "INTERRUPTED",
    "NOTHING",
    "PIPE_CLOSED",
    "USAGE",
    "expected",
    "say",
]

FOUND = 0
NOTHING = 1
USAGE = 2
ENVIRONMENT = 3
INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""
PIPE_CLOSED = 141
"""128 + SIGPIPE."""


def say(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"zerda-pg: {' '.join(message.split())}\n")


def expected(error: Exception) -> int:
    """Say what went wrong, and how the command ends; what is no one's mistake is raised again."""
    match error:
        case NotFoundError():
            code = NOTHING
        case InvalidContentError() | AlreadyExistsError() | ConflictError():
            code = USAGE
        case ZerdaError() | ImportError():
            code = ENVIRONMENT
        case ValueError() | FileNotFoundError() | IsADirectoryError():
            code = USAGE
        case OSError():
            code = ENVIRONMENT
        case _:
            raise error
    if isinstance(error, OSError) and error.filename is not None:
        say(f"{error.filename}: {error.strerror}")
    else:
        say(_as_typed(str(error)) or type(error).__name__)
    return code


_OPTIONS = {
    "tenant_id": "--tenant", "user_id": "--user", "session_id": "--session",
    "agent_id": "--agent", "k": "-k", "token_budget": "--budget", "top_k": "--top-k",
    "min_score": "--min-score", "importance": "--importance", "memory_type": "--type",
    "min_importance": "--min-importance", "if_exists": "--if-exists", "packing": "--packing",
    "render": "--render", "count_tokens": "--tokens", "mode": "--mode", "ranker": "--ranker",
    "valid_from": "--valid-from", "valid_to": "--valid-to", "expires_at": "--expires",
    "weight": "--weight", "relation": "--relation", "limit": "--limit", "cursor": "--cursor",
    "status": "--status", "language": "--language", "current_session": "--current-session",
    "if_version": "--if-version", "by": "--by", "base_decay_rate": "--decay-rate",
    "deletion_threshold": "--threshold", "supersedes": "--supersedes", "id": "ID",
}  # fmt: skip
"""Argument of the store → what is typed for it."""


def _as_typed(message: str) -> str:
    """A message whose first word, the argument that is wrong, is the option's name."""
    name, space, rest = message.partition(" ")
    return _OPTIONS.get(name, name) + space + rest
