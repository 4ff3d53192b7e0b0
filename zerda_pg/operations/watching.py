"""The change feed: switching it, and following it."""

from __future__ import annotations

import logging
import time
from datetime import UTC

from sqlalchemy import Connection

from zerda_pg.db import changes
from zerda_pg.db.changes import Position
from zerda_pg.errors import DatabaseUnavailableError
from zerda_pg.results import Change
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, read, write

__all__ = ["Feed", "enable_changes"]

log = logging.getLogger("zerda_pg.watch")

PAGE = 500
"""Changes read at once."""

RECONNECT_SECONDS = 60.0
"""How long a follower waits for a server that is away, before it gives up."""

LONGEST_PAUSE = 3600.0


def enable_changes(scope: Scope, enabled: bool) -> Steps[str | None]:
    """Switch the tenant's feed; the position as of now, or None where it is off."""
    _require_tenant(scope)

    def work(connection: Connection) -> str | None:
        changes.set_changes(connection, scope.tenant_id, enabled)
        if not enabled:
            return None
        return changes.newest_position(connection, scope.tenant_id).encode()

    return (yield from write(work))


class Feed:
    """A follower's place in a feed; a driver looks and pauses for it.

    Raises:
        ValueError: Naming the argument that is wrong.
    """

    def __init__(
        self, scope: Scope, *, since: str | None, timeout: float | None, poll_interval: float
    ) -> None:
        _require_tenant(scope)
        for name, seconds in (("timeout", timeout), ("poll_interval", poll_interval)):
            number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if seconds is None and name == "timeout":
                continue
            if not number or not 0 <= float(seconds or 0) <= 1e9:
                raise ValueError(f"{name} must be seconds from 0, got {seconds!r}")
        self._tenant_id = scope.tenant_id
        self._position = None if since is None else Position.decode(since)
        self._timeout = timeout
        self._poll_interval = min(poll_interval, LONGEST_PAUSE)
        self._quiet_since: float | None = None
        self._away_since: float | None = None

    def look(self) -> Steps[list[Change]]:
        """The next changes, or none so far; waits for a server that is away."""
        if self._quiet_since is None:
            self._quiet_since = time.monotonic()
        position = self._position
        try:
            found, self._position = yield from read(
                lambda c: changes.read_changes(c, self._tenant_id, position, PAGE)
            )
        except DatabaseUnavailableError as error:
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > RECONNECT_SECONDS:
                raise
            log.warning("following the changes is interrupted: %s", error)
            return []
        self._away_since = None
        if found:
            self._quiet_since = None
        return [
            Change(
                position=row.position.encode(),
                entry_id=row.entry_id,
                operation=row.operation,
                changed_at=row.changed_at.astimezone(UTC),
            )
            for row in found
        ]

    def pause(self) -> float | None:
        """Seconds until the next look; None: the time without a change is over."""
        if self._quiet_since is None:
            return 0.0
        if self._timeout is None:
            return self._poll_interval
        left = self._timeout - (time.monotonic() - self._quiet_since)
        if left <= 0:
            return None
        return min(self._poll_interval, left)


def _require_tenant(scope: Scope) -> None:
    if scope.user_id is not None:
        raise ValueError("user_id: the change feed is the whole tenant's, use a scope without one")
