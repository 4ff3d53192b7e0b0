"""Memories as sections of a system prompt, packed under a budget on the rendered text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerda_pg.scoring.packing import Reason, pack_measured

__all__ = ["NOTHING_FITS", "NOTHING_RELEVANT", "Sections", "pack_sections", "render_sections"]

_HEADINGS = {
    "decision": "Key Decisions",
    "fact": "Known Facts",
    "preference": "Preferences",
    "failure": "Known Issues",
    "attempt": "Recent Attempts",
}
"""Heading by kind, in the order of the text."""

_OTHERS = "Other Memories"

NOTHING_RELEVANT = "No relevant memories were found for this task."
NOTHING_FITS = "Relevant memories were found, but none fits the token budget."


@dataclass(frozen=True, kw_only=True)
class Sections:
    """A rendered fragment and what is in it."""

    text: str
    chosen: list[int]
    """Row numbers in the order of the text."""
    rejected: dict[int, Reason]
    """Every other row, best first, with the reason."""
    tokens: int
    """Of `text`, ≤ the budget."""


def pack_sections(
    rows: Sequence[int],
    kinds: Sequence[str | None],
    bodies: Sequence[str],
    *,
    budget: int,
    count_tokens: Callable[[str], int],
    top_k: int | None = None,
) -> Sections:
    """Pack memories greedily, best first, skipping what does not fit, and render them.

    Everything that is packed is printed. Where nothing is, the text is a plain sentence that
    says why, or empty if not even that fits.

    Args:
        rows: Row numbers into `kinds` and `bodies`, best first.
        kinds: Decide the section.
        bodies: The memories' texts.
        budget: Greatest number of tokens of the whole text, headings included.
        count_tokens: Tokens of a text.
        top_k: Greatest number of memories; None: no limit.

    Raises:
        ValueError: If `budget` or `top_k` is out of range.
    """

    def measure(chosen: Sequence[int]) -> int:
        return count_tokens(render_sections(chosen, kinds, bodies))

    packed = pack_measured(rows, measure, budget=budget, top_k=top_k)
    text = render_sections(packed.chosen, kinds, bodies)
    if not packed.chosen:
        text = NOTHING_FITS if rows else NOTHING_RELEVANT
        if count_tokens(text) > budget:
            text = ""
    return Sections(
        text=text,
        chosen=[row for _, section in _sections(packed.chosen, kinds) for row in section],
        rejected=packed.rejected,
        tokens=count_tokens(text) if text else 0,
    )


def render_sections(rows: Sequence[int], kinds: Sequence[str | None], bodies: Sequence[str]) -> str:
    """Markdown: a heading per kind, a bullet per memory, further lines indented under it."""
    return "\n\n".join(
        "\n".join([f"## {heading}", *(_bullet(bodies[row]) for row in section)])
        for heading, section in _sections(rows, kinds)
    )


def _sections(rows: Sequence[int], kinds: Sequence[str | None]) -> list[tuple[str, list[int]]]:
    """The headings that have memories, in the order of the text, with their rows."""
    sections: dict[str, list[int]] = {heading: [] for heading in (*_HEADINGS.values(), _OTHERS)}
    for row in rows:
        sections[_HEADINGS.get(kinds[row] or "", _OTHERS)].append(row)
    return [(heading, section) for heading, section in sections.items() if section]


def _bullet(body: str) -> str:
    return "- " + body.strip().replace("\n", "\n  ")
