"""What a `Memory` is bound to."""

from __future__ import annotations

from dataclasses import dataclass, fields

from zerda_pg.errors import AccessDeniedError, NotFoundError
from zerda_pg.ids import check_id

__all__ = ["Scope"]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """A tenant, and within it optionally a user, an agent and a session.

    The tenant and the user are enforced: reads see the user's entries and those without a
    user, which are everyone's and are not changed from here. Agent and session are what new
    entries are marked with.

    Raises:
        ValueError: Naming the part that is not a usable key.
    """

    tenant_id: str
    user_id: str | None = None
    agent_id: str | None = None
    session_id: str | None = None

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if value is not None or part.name == "tenant_id":
                check_id(value, part.name)

    def owns(self, user_id: str | None) -> bool:
        """Whether an entry of this user may be changed."""
        return self.user_id in (None, user_id)

    def refused(self, entry_id: str) -> AccessDeniedError:
        """The error for an entry that this scope sees and may not change."""
        return AccessDeniedError(
            f"memory {entry_id!r} belongs to all users of tenant {self.tenant_id!r}: a scope "
            "without user_id may change it"
        )

    def missing(self, entry_id: str) -> NotFoundError:
        """The error for an entry that this scope does not see."""
        where = f"tenant {self.tenant_id!r}"
        if self.user_id is not None:
            where += f" for user {self.user_id!r}"
        return NotFoundError(f"there is no memory {entry_id!r} in {where}")
