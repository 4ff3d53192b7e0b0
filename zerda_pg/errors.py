"""Every error that zerda_pg raises on purpose.

A wrong argument is a plain `ValueError` that names it. Everything else is in this tree:

    ZerdaError
     ├─ ConfigError                 a setting is missing or malformed
     ├─ DatabaseUnavailableError    the server cannot be reached, stopped answering, or is full
     ├─ SchemaOutdatedError         the schema is older than this package: migrate
     ├─ SchemaTooNewError           the schema is newer than this package: upgrade the package
     ├─ AccessDeniedError           the role lacks a privilege
     ├─ EmbeddingModelError         a model cannot be loaded or fails its self-check
     ├─ EmbeddingMismatchError      another model than the one the database records
     ├─ InvalidContentError         (also a ValueError) text or JSON that cannot be stored
     ├─ NotFoundError               no such entry
     ├─ AlreadyExistsError          an entry with this id exists and `if_exists="error"`
     ├─ ConflictError               the entry changed since it was read, or a race was lost
     └─ MissingExtraError           an optional dependency is not installed

The text of an error never holds an entry's content or a password.
"""

from __future__ import annotations

__all__ = [
    "AccessDeniedError",
    "AlreadyExistsError",
    "ConfigError",
    "ConflictError",
    "DatabaseUnavailableError",
    "EmbeddingMismatchError",
    "EmbeddingModelError",
    "InvalidContentError",
    "MissingExtraError",
    "NotFoundError",
    "SchemaOutdatedError",
    "SchemaTooNewError",
    "ZerdaError",
]


class ZerdaError(Exception):
    """The root of the tree: catch it to catch everything raised on purpose."""


class ConfigError(ZerdaError):
    """A setting is missing or malformed."""


class DatabaseUnavailableError(ZerdaError):
    """The database cannot be reached, stopped answering, or has no room left."""


class SchemaOutdatedError(ZerdaError):
    """The schema is older than this package needs; the message names the command."""


class SchemaTooNewError(ZerdaError):
    """The schema belongs to a later major version of this package."""


class AccessDeniedError(ZerdaError):
    """The database role lacks a privilege; the message names the statement that grants it."""


class EmbeddingModelError(ZerdaError):
    """An embedding model cannot be loaded, or does not behave as it should."""


class EmbeddingMismatchError(ZerdaError):
    """The embedder at hand is not the one whose vectors the database holds."""


class InvalidContentError(ZerdaError, ValueError):
    """Text or JSON that cannot be stored; the message names the field and the position."""


class NotFoundError(ZerdaError):
    """There is no such entry in this scope."""


class AlreadyExistsError(ZerdaError):
    """An entry with this id exists, and `if_exists="error"` was asked for."""


class ConflictError(ZerdaError):
    """The entry is not at the version the caller read, or concurrent writes kept colliding."""


class MissingExtraError(ZerdaError, ImportError):
    """An optional dependency is not installed; the message names the pip extra."""

    def __init__(self, extra: str, purpose: str, *, message: str | None = None) -> None:
        super().__init__(message or f"{purpose} needs an extra: pip install 'zerda-pg[{extra}]'")
        self.extra = extra
