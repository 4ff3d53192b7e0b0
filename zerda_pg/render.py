"""Memories as text for a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from zerda_pg.entry import MemoryEntry, MemoryType, Status
from zerda_pg.scoring.sections import render_sections
from zerda_pg.text import body_of

__all__ = ["Renderer", "renderer_of"]

Renderer: TypeAlias = Callable[[Sequence[MemoryEntry]], tuple[str, list[MemoryEntry]]]
"""Entries, best first → the text, and the entries in the order of the text."""


def renderer_of(render: str | Callable[[Sequence[MemoryEntry]], str]) -> Renderer:
    """The renderer for a name, or for a function from entries to text.

    Raises:
        ValueError: If there is none of that name.
    """
    if callable(render):
        own = render
        return lambda entries: (own(entries), list(entries))
    named = {"transcript": _transcript, "sections": _sections, "plain": _plain}
    if not isinstance(render, str) or render not in named:
        raise ValueError(f"render must be one of {', '.join(named)} or a function, got {render!r}")
    return named[render]


def _plain(entries: Sequence[MemoryEntry]) -> tuple[str, list[MemoryEntry]]:
    return "\n\n".join(body_of(entry.content) for entry in entries), list(entries)


def _sections(entries: Sequence[MemoryEntry]) -> tuple[str, list[MemoryEntry]]:
    rows = range(len(entries))
    kinds = [entry.kind for entry in entries]
    return (
        render_sections(rows, kinds, [body_of(entry.content) for entry in entries]),
        list(entries),
    )


def _transcript(entries: Sequence[MemoryEntry]) -> tuple[str, list[MemoryEntry]]:
    """What was said, by session and day in order of time; then the rest, best first.

    Each memory is told with when it was: of a fact the date matters, within a session the time.
    """
    episodes = [e for e in entries if e.memory_type is MemoryType.EPISODIC]
    facts = [e for e in entries if e.memory_type is not MemoryType.EPISODIC]
    blocks: list[str] = []
    if facts:
        blocks.append("\n".join(_fact(entry) for entry in facts))
    ordered = list(facts)
    for (day, _), group in _by_session(episodes).items():
        blocks.append("\n".join([f"[{day}]", *(body_of(entry.content) for entry in group)]))
        ordered += group
    return "\n\n".join(blocks), ordered


def _fact(entry: MemoryEntry) -> str:
    label = f"{entry.kind}, " if entry.kind else ""
    state = " (superseded)" if entry.status is Status.SUPERSEDED else ""
    body = body_of(entry.content).strip().replace("\n", "\n  ")
    return f"- [{label}{entry.created_at:%Y-%m-%d}]{state} {body}"


def _by_session(
    entries: Sequence[MemoryEntry],
) -> Mapping[tuple[str, str | None], list[MemoryEntry]]:
    """Sessions in order of their first memory, each split by day, each day in order of time."""
    groups: dict[tuple[str, str | None], list[MemoryEntry]] = {}
    for entry in sorted(entries, key=lambda e: (e.timestamp, e.id)):
        groups.setdefault((f"{entry.created_at:%Y-%m-%d}", entry.session_id), []).append(entry)
    return groups
