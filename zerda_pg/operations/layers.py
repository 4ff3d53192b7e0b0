"""What the layers do, each in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from sqlalchemy import Connection

from zerda_pg.core import Core
from zerda_pg.db import layers
from zerda_pg.db.layers import Layer
from zerda_pg.db.models import require_active
from zerda_pg.db.writes import Written
from zerda_pg.entry import MemoryEntry
from zerda_pg.errors import InvalidContentError
from zerda_pg.ids import check_id
from zerda_pg.operations.batches import Batch, batches, write_batch
from zerda_pg.operations.prepare import draft_of
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, embed_query, read, write
from zerda_pg.text import check_text

__all__ = [
    "count",
    "evict_below",
    "fade",
    "forget_members",
    "nearest",
    "recall_members",
    "remember",
    "touch_member",
]


def remember(
    core: Core,
    scope: Scope,
    entries: Sequence[MemoryEntry],
    *,
    into: Sequence[Layer],
    if_exists: Literal["replace", "keep"] = "replace",
    window: int | None = None,
    afresh: bool = False,
) -> Steps[list[Batch]]:
    """Write entries as members of layers.

    Args:
        core: The store's.
        scope: Whose they are.
        entries: In the order in which they join.
        into: The layers.
        if_exists: What to do with those that are in the store.
        window: How many members the first of the layers keeps.
        afresh: Whether all earlier members leave the layers first.
    """
    yield from core.model_for_reading()
    drafts = [draft_of(core, scope, replace(entry, embedding=None), {}) for entry in entries]
    staying = {draft.entry.id for draft in drafts}
    first = True

    def after(connection: Connection, written: Sequence[Written]) -> None:
        for layer in into:
            if afresh and first:
                old = layers.members(connection, scope, layer)
                leaving = [entry.id for entry in old if entry.id not in staying]
                layers.leave(connection, scope, layer, leaving)
            layers.join(connection, scope, layer, written)
        if window is not None:
            layers.trim(connection, scope, into[0], window)

    done: list[Batch] = []
    for batch in batches(drafts):
        written = yield from write_batch(
            core, scope, batch, if_exists=if_exists, dedupe=False, after=after, direct=False
        )
        first = False
        done.append(written)
    if afresh and not drafts:
        for layer in into:
            yield from forget_members(core, scope, layer)
    return done


def forget_members(
    core: Core, scope: Scope, layer: Layer, ids: Sequence[str] | None = None
) -> Steps[list[str]]:
    """End memberships, of all without `ids`; the ids that left."""
    return (yield from write(lambda c: layers.leave(c, scope, layer, ids)))


def recall_members(
    core: Core,
    scope: Scope,
    layer: Layer,
    *,
    order: Literal["arrival", "newest", "importance"] = "arrival",
    limit: int | None = None,
    min_importance: float = 0.0,
) -> Steps[list[MemoryEntry]]:
    """A layer's entries."""
    return (
        yield from read(
            lambda c: layers.members(
                c, scope, layer, order=order, limit=limit, min_importance=min_importance
            )
        )
    )


def touch_member(
    core: Core, scope: Scope, layer: Layer, entry_id: str
) -> Steps[MemoryEntry | None]:
    """One member, its access counted; None if it is no member."""
    check_id(entry_id, "entry_id")

    def work(connection: Connection) -> MemoryEntry | None:
        if not layers.members(connection, scope, layer, ids=[entry_id]):
            return None
        layers.access(connection, scope, [entry_id])
        return next(iter(layers.members(connection, scope, layer, ids=[entry_id])), None)

    return (yield from write(work))


def count(core: Core, scope: Scope, layer: Layer) -> Steps[int]:
    """How many entries a layer has."""
    return (yield from read(lambda c: layers.size(c, scope, layer)))


def nearest(
    core: Core,
    scope: Scope,
    layer: Layer,
    query: str,
    *,
    k: int,
    min_score: float,
    touch: bool,
) -> Steps[list[tuple[MemoryEntry, float]]]:
    """The members nearest to a query by cosine, from `min_score`; fresh entries."""
    if not check_text(query, "query").strip():
        raise InvalidContentError("query is empty: say what to look for")
    model = yield from core.model_for_reading()
    if model is None:
        return []
    vector = yield from embed_query(core.embedder, query)

    def work(connection: Connection) -> list[tuple[MemoryEntry, float]]:
        near = layers.nearest(connection, core.facts, scope, layer, model.id, vector, k)
        require_active(connection, model.id)
        close = {entry_id: score for entry_id, score in near if score >= min_score}
        if touch and close:
            layers.access(connection, scope, list(close))
        members = layers.members(connection, scope, layer, ids=list(close))
        found = {entry.id: entry for entry in members}
        return [(found[i], score) for i, score in close.items() if i in found]

    with core.model_in_use():
        return (yield from (write(work) if touch else read(work)))


def fade(core: Core, scope: Scope, layer: Layer, rate: float, floor: float) -> Steps[None]:
    """Fade a layer's entries linearly with the time since their last access."""
    yield from write(lambda c: layers.fade_linearly(c, scope, layer, rate, floor))


def evict_below(
    core: Core, scope: Scope, layer: Layer, min_importance: float
) -> Steps[list[MemoryEntry]]:
    """End the memberships of entries less important than that; what left, in order."""

    def work(connection: Connection) -> list[MemoryEntry]:
        weak = [
            entry
            for entry in layers.members(connection, scope, layer)
            if entry.effective_importance < min_importance
        ]
        left = set(layers.leave(connection, scope, layer, [entry.id for entry in weak]))
        return [entry for entry in weak if entry.id in left]

    return (yield from write(work))
