"""What short-term, long-term and semantic memory have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Literal, ParamSpec, TypeVar

from zerda_pg.core import Core
from zerda_pg.db.layers import Layer
from zerda_pg.ids import check_id
from zerda_pg.memory.default import default_store
from zerda_pg.operations import layers
from zerda_pg.scope import Scope
from zerda_pg.scoped import Memory
from zerda_pg.steps import Steps
from zerda_pg.store import MemoryStore

__all__ = ["LayerMemory"]

P = ParamSpec("P")
T = TypeVar("T")


class LayerMemory:
    """A layer of one tenant and session, in Postgres; thread-safe.

    Args:
        layer: Its name.
        tenant_id: Whose it is.
        store: None: the default store, opened at the first use.
        session_id: None: the tenant's own layer, of no session.
        user_id: Entries are written as this user's; seen are this user's and those without a
            user, and only this user's can be taken out.

    Raises:
        ValueError: Naming the argument that is no usable key.
    """

    def __init__(
        self,
        layer: Literal["short_term", "long_term", "semantic", "working"],
        *,
        tenant_id: str,
        store: MemoryStore | None,
        session_id: str | None,
        user_id: str | None = None,
    ) -> None:
        self._scope = Scope(tenant_id=tenant_id, user_id=user_id)
        if session_id is not None:
            check_id(session_id, "session_id")
        self.tenant_id = tenant_id
        self.session_id = session_id
        self._layer = Layer(name=layer, session_id=session_id or "")
        self._store = store

    def _opened(self) -> MemoryStore:
        if self._store is None:
            self._store = default_store()
        return self._store

    def memory(self) -> Memory:
        """The scope in use."""
        return self._opened().tenant(self.tenant_id, user_id=self._scope.user_id)

    def _perform(
        self, operation: Callable[Concatenate[Core, Scope, P], Steps[T]], /, *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:  # fmt: skip
        return self.memory().perform(operation, *args, **kwargs)

    def _leave(self, ids: list[str] | None = None) -> list[str]:
        return self._perform(layers.forget_members, self._layer, ids)

    def _count(self) -> int:
        return self._perform(layers.count, self._layer)

    def clear(self) -> None:
        """End every membership (with a user: of the user's entries); entries go with their last."""
        self._leave()
