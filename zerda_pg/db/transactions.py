"""How work on a connection begins, and when it is tried again."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from zerda_pg.db.engine import PLAIN_FORMS
from zerda_pg.db.facts import DatabaseFacts
from zerda_pg.db.failures import BrokenConnectionError, CollisionError, is_stale_plan
from zerda_pg.db.isolation import BOUND, LOOK_SECONDS
from zerda_pg.errors import AccessDeniedError, DatabaseUnavailableError, ZerdaError

__all__ = ["RETRIED", "Attempts", "LostAnswerError", "TransactionStart"]

ATTEMPTS = 6
"""Tries of what collides with others (deadlock, serialization failure)."""

FIRST_PAUSE_SECONDS = 0.01
"""Doubled with every further try."""


class LostAnswerError(DatabaseUnavailableError):
    """The connection broke after a write was sent and before its answer came."""


@dataclass(kw_only=True)
class TransactionStart:
    """What a store's transactions begin with."""

    settings: str = ""
    """Statements for settings that last for the transaction; empty: the connection has them."""
    isolated: bool = False
    """Whether row-level security applies to the role: then the database must know the tenant."""
    _look_at: float = math.inf
    """When to ask again whether it does, by the monotonic clock."""
    _tell: Callable[[], None] = lambda: None

    def learn(self, facts: DatabaseFacts, found_isolated: Callable[[], None]) -> None:
        """Take in what the database says of the role and its sessions.

        Args:
            facts: What it said at open.
            found_isolated: Called once row-level security is set up, if that comes later.
        """
        self.isolated, self._tell = facts.isolated, found_isolated
        if not facts.exempt:
            self._look_at = time.monotonic() + LOOK_SECONDS
        if not facts.plain_forms:
            self.settings = PLAIN_FORMS

    @property
    def look_due(self) -> bool:
        """Whether it is time to ask again if row-level security was set up since."""
        return not self.isolated and time.monotonic() >= self._look_at

    def noticed(self, connection: Connection) -> bool:
        """Whether row-level security was set up since the last look."""
        if not self.look_due:
            return False
        self._look_at = time.monotonic() + LOOK_SECONDS
        self.isolated = bool(connection.exec_driver_sql(BOUND).scalar_one())
        if self.isolated:
            self._tell()
        return self.isolated

    def needed(self, tenant_id: str | None) -> bool:
        """Whether even a single statement runs in a transaction."""
        return bool(self.settings) or (self.isolated and tenant_id is not None)

    def enter(self, connection: Connection, tenant_id: str | None, *, snapshot: bool) -> None:
        """Begin: settings that may not come later, then the others, then the tenant."""
        if snapshot:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if self.settings:
            connection.exec_driver_sql(self.settings)
        self.noticed(connection)
        if self.isolated and tenant_id is not None:
            connection.exec_driver_sql("SELECT zerda.use_tenant(%(tenant)s)", {"tenant": tenant_id})

    def check_owner(self) -> None:
        """Refuse what looks at all tenants where the role would see none of them.

        Raises:
            AccessDeniedError: If row-level security applies to the role.
        """
        if self.isolated:
            raise AccessDeniedError(
                "this looks at all tenants, of which row-level security shows none to this role: "
                "open the store as the role that owns the tables"
            )


def _pauses() -> Iterator[float]:
    for attempt in range(ATTEMPTS - 1):
        yield random.uniform(0.5, 1.5) * FIRST_PAUSE_SECONDS * 2**attempt


@dataclass(kw_only=True)
class Attempts:
    """One piece of work and how far it has come, so that only what is safe is tried again.

    A read may be repeated. A write may be where it cannot have happened: it collided, or its
    connection broke before the commit, or before its only statement, was sent.
    """

    writes: bool
    whole: bool = True
    """Whether it runs in a transaction."""
    _begun: bool = False
    _done: bool = False
    _broken: bool = False
    _pauses: Iterator[float] = field(default_factory=_pauses)

    def run(self, call: Callable[[Connection], Any], connection: Connection) -> Any:
        """Do the work, noting how far it has come."""
        self._begun, self._done = True, False
        try:
            result = call(connection)
        except DBAPIError as error:
            if is_stale_plan(error):
                connection.invalidate()  # the others that it has prepared may be as old
            raise
        self._done = True
        return result

    def pause(self, error: ZerdaError) -> float:
        """Seconds until the next try.

        Raises:
            ZerdaError: The error, if there is to be none.
        """
        sent = self._done if self.whole else self._begun
        self._begun = self._done = False
        if isinstance(error, CollisionError):
            pause = next(self._pauses, None)
            if pause is None:
                raise error
            return pause
        if self.writes and sent:
            raise LostAnswerError(
                f"{error}; whether the write was done is not known: repeat it with the same id, "
                "which writes nothing twice"
            ) from error
        if self._broken:
            raise error
        self._broken = True
        return next(_pauses())


RETRIED = (CollisionError, BrokenConnectionError)
"""Errors after which another try may be made."""
