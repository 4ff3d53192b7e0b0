"""What the store's calls return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, overload

from zerda_pg.entry import Edge, MemoryEntry

__all__ = ["AddResult", "Change", "Context", "Hit", "Hits", "Neighbour", "Page"]


@dataclass(frozen=True, kw_only=True)
class AddResult:
    """What a write found."""

    id: str
    """Of the entry that is in the store now: for a duplicate, the earlier one's."""
    entry: MemoryEntry
    status: Literal["created", "replaced", "kept", "duplicate"]
    version: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """One committed change of an entry, as `watch` yields it."""

    position: str
    """The place after it: opaque, to be stored and given to `watch` as `since`."""
    entry_id: str
    operation: str
    """`created`, `replaced`, `updated`, `superseded`, `discarded`, `restored`, `deleted`, or of
    its outgoing edges `related`, `unrelated`."""
    changed_at: datetime
    """By the server's clock."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One recalled memory with its signals."""

    entry: MemoryEntry
    score: float
    """In [0, 1]; what the order goes by."""
    similarity: float | None
    """Cosine of the embeddings; None: not computed."""
    lexical: float
    """Share of the query's IDF mass that the entry's lexemes cover, in [0, 1]."""
    recency: float
    """0.5 at an age of one half-life, 1 now."""
    importance: float
    """Effective importance."""
    contributions: Mapping[str, float] = field(default_factory=dict)
    """What each channel gave to the score."""


class Hits(Sequence[Hit]):
    """Hits, best first, with a report of how they were found."""

    def __init__(self, hits: Sequence[Hit], report: Mapping[str, Any]) -> None:
        self._hits = tuple(hits)
        self.report = report

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, index: int | slice) -> Hit | tuple[Hit, ...]:
        return self._hits[index]

    def __len__(self) -> int:
        return len(self._hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self._hits)

    def __repr__(self) -> str:
        return f"Hits({len(self)}: {[(h.entry.id, round(h.score, 3)) for h in self._hits[:5]]})"


@dataclass(frozen=True, kw_only=True)
class Context:
    """Memories packed for a prompt."""

    text: str
    """The rendered memories."""
    entries: list[MemoryEntry]
    """In the order of the text."""
    tokens: int
    """Of `text`, by the counter in use; never more than the budget."""
    report: Mapping[str, Any]
    excerpts: list[MemoryEntry] = field(default_factory=list)
    """Long memories of which only a part is in the text, marked with `[part of ID]`; whole here."""

    @property
    def full_text(self) -> str:
        """`text`, by the seed's name."""
        return self.text

    @property
    def token_estimate(self) -> int:
        """`tokens`, by the seed's name."""
        return self.tokens

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of a listing."""

    items: list[MemoryEntry]
    next_cursor: str | None
    """For the next call; None: this was the last page."""

    @overload
    def __getitem__(self, index: int) -> MemoryEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[MemoryEntry]: ...
    def __getitem__(self, index: int | slice) -> MemoryEntry | list[MemoryEntry]:
        return self.items[index]

    def __iter__(self) -> Iterator[MemoryEntry]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """An entry reached over edges."""

    entry: MemoryEntry
    distance: int
    """Edges on the shortest way."""
    relation: str
    """Of the last edge of that way; where several are as short, of the first of `edges`."""
    direction: Literal["out", "in"] = "out"
    """Of that edge: `out` leads to this entry, `in` comes from it."""
    edges: tuple[Edge, ...] = ()
    """Every edge that ends a shortest way to it: between a nearer entry and this one."""
