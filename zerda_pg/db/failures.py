"""The driver's errors, translated into the tree of `zerda_pg.errors`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    InvalidRequestError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from zerda_pg.db.guarded import GRACE_SECONDS, NoAnswerError
from zerda_pg.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConfigError,
    ConflictError,
    DatabaseUnavailableError,
    EmbeddingMismatchError,
    NotFoundError,
    SchemaOutdatedError,
    ZerdaError,
)

__all__ = ["BrokenConnectionError", "CollisionError", "is_stale_plan", "sqlstate", "translated"]

_UNAVAILABLE = {"57P01", "57P02", "57P03", "57P05", "53300", "08000", "08001", "08003", "08006"}
_FULL = {"53100", "53200"}
_COLLISION = {"40001", "40P01", "55P03"}


class CollisionError(ConflictError):
    """A deadlock or a serialization failure: nothing was written, and a retry is safe."""


class BrokenConnectionError(DatabaseUnavailableError):
    """The connection ended in the middle of something, by no fault of the statement."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of our tree in place of SQLAlchemy's and the driver's.

    The driver's message is passed on only where it holds no value of a row, and is taken out of
    the errors below ours, which a traceback shows too.
    """
    try:
        yield
    except DBAPIError as error:
        translation = _translate(error)
        _hush(error)
        raise translation from error
    except PoolTimeoutError as error:
        raise DatabaseUnavailableError(
            "no connection became free in time: raise pool_size or pool_timeout, "
            "or close what holds one"
        ) from error
    except InvalidRequestError as error:
        # the pool's words where each connection that it made was ended before it was handed out
        if "connection is closed" not in str(error):
            raise
        raise BrokenConnectionError(
            "the server ends connections as they are made: see its log"
        ) from error
    except psycopg.OperationalError as error:
        raise DatabaseUnavailableError(f"the database connection failed: {error}") from error


_SPEAKING = re.compile("0[8A]|25|28|3[DF]|40|42|5[357]|55|ZD")
"""Classes of SQLSTATE whose message names objects of the database and no value of a row."""


def _hush(error: DBAPIError) -> None:
    """Take out what a driver's message may quote of a row: its detail, context, and hint."""
    error.hide_parameters = True  # also for an engine that somebody else has made
    original = error.orig
    if not isinstance(original, psycopg.Error) or original.sqlstate is None:
        return  # a message of the client's own
    words = (original.diag.message_primary or "").strip()
    if not _SPEAKING.match(original.sqlstate):
        words = "see the server's log: its words may quote what was written"
    words = f"SQLSTATE {original.sqlstate}: {words}"
    original.args = (words,)
    error.args = (f"({type(original).__name__}) {words}",)


def sqlstate(error: ZerdaError) -> str:
    """The SQLSTATE behind an error of ours; empty where there is none."""
    return getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) or ""


def is_stale_plan(error: DBAPIError) -> bool:
    """Whether what was prepared fits the tables no more; then nothing was done."""
    words = getattr(getattr(error.orig, "diag", None), "message_primary", None) or ""
    return getattr(error.orig, "sqlstate", None) == "0A000" and "cached plan" in words


def _translate(error: DBAPIError) -> ZerdaError | DBAPIError:
    original = error.orig
    if isinstance(original, NoAnswerError):
        return DatabaseUnavailableError(
            f"{original} (statement_timeout and {GRACE_SECONDS:g} s): it hangs, or the network "
            "does; whether a write was done is not known"
        )
    state = getattr(original, "sqlstate", None) or ""
    message = (getattr(getattr(original, "diag", None), "message_primary", None) or "").strip()
    if state == "ZD001":
        return AlreadyExistsError(f"{message}: nothing was written")
    if state in {"ZD002", "23503"}:
        return NotFoundError(
            message if state == "ZD002" else "an entry named here does not exist: nothing written"
        )
    if state == "ZD003":
        return EmbeddingMismatchError(f"{message}: open the store again; nothing was written")
    if state == "ZD004":
        return ConfigError(message)
    if state == "ZD005":
        return ConflictError(f"{message}: back-fill them first, by zerda_pg.reembed")
    if state == "ZD006":
        return ConflictError(
            f"{message}: write that one again by if_exists='replace', or invalidate it"
        )
    if state == "ZD007":
        return AccessDeniedError(f"{message}: a scope without user_id may change it")
    if is_stale_plan(error):
        return CollisionError("the schema was changed meanwhile: try again")
    if state in _COLLISION:
        return CollisionError(f"concurrent writes kept colliding ({message}): try again")
    if state == "57014":
        return DatabaseUnavailableError(
            "the statement took longer than statement_timeout (of upkeep: maintenance_timeout) "
            "and was cancelled"
        )
    if state in _FULL:
        return DatabaseUnavailableError(f"the database has no room left ({message})")
    if state == "42501":
        return AccessDeniedError(f"{message}: grant the role what zerda_pg needs")
    if state == "25006":
        return AccessDeniedError(
            "the database is read-only here (a replica?): write to the primary"
        )
    if state in {"3F000", "42P01", "42883", "42703"}:
        return SchemaOutdatedError(f"{message}: run `zerda-pg migrate`")
    if state in {"28P01", "28000"}:
        return AccessDeniedError(f"the database refused the login: {message}")
    if state == "3D000":
        return ConfigError(f"{message}: create it, or correct the database URL")
    if (
        state in _UNAVAILABLE
        or state.startswith("08")
        or error.connection_invalidated
        or (not state and isinstance(error, OperationalError | InterfaceError))
    ):
        lines = [message or line for line in str(original).strip().splitlines()]
        kind = BrokenConnectionError if error.connection_invalidated else DatabaseUnavailableError
        detail = lines[0] if lines else "no answer"
        if "startup parameter" in detail:  # PgBouncer's words: it gives no SQLSTATE
            detail += " (a pooler? open the store with prepare=False)"
        return kind(
            f"the database cannot be reached ({detail}): see that it runs, and that the URL is "
            "right (url=, --url or ZERDA_PG_URL)"
        )
    if not state and isinstance(error, ProgrammingError):
        return ConfigError(f"the database URL has an {original}")  # names the option, not its value
    if state:
        # the server's own words may quote what was written
        return ZerdaError(f"the database refused the statement (SQLSTATE {state})")
    return error
