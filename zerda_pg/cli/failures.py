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
        say(str(error) or type(error).__name__)
    return code
