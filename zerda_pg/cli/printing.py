"""What people read: tables, bars and panels, at any width, with or without colours."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zerda_pg.text import body_of

if TYPE_CHECKING:
    from zerda_pg.entry import MemoryEntry
    from zerda_pg.results import Hit

__all__ = [
    "CHANNELS",
    "bar",
    "clean",
    "console",
    "emit",
    "entries_table",
    "entry_data",
    "hits_table",
    "legend",
    "pairs_table",
    "plural",
]

CHANNELS = {
    # channel: colour, and the sign that tells it from its neighbours without colours
    "similarity": ("cyan", "█"),
    "lexical": ("green", "▓"),
    "neighbours": ("magenta", "▒"),
    "speaker": ("bright_green", "▚"),
    "recency": ("yellow", "░"),
    "importance": ("blue", "▪"),
    "touched": ("red", "▫"),
    "newer": ("bright_yellow", "▞"),
}
OTHER_CHANNEL = ("white", "■")
ASCII_SIGNS = "#=+@:*o%"

BAR_WIDTH = 20
"""Columns of a score of 1."""

SHOWN_CHARACTERS = 280
"""Of a memory in a table; `show` has it whole."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with 1, which here means that nothing was found


def console(*, stderr: bool = False) -> Console:
    """A console: colours on a terminal only, and none with NO_COLOR."""
    return _Console(stderr=stderr, highlight=False, emoji=False, markup=False)


def emit(value: Any) -> None:
    """The one JSON document of `--json`."""
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(value, ensure_ascii=plain, default=_as_json, indent=2) + "\n")


def _as_json(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | set | frozenset):
        return list(value)
    if hasattr(value, "item"):  # a number of numpy's
        return value.item()
    return str(value)


def entry_data(entry: MemoryEntry) -> dict[str, Any]:
    """An entry for `--json`, without its vector."""
    data = entry.to_dict()
    del data["embedding"]
    return data


def plural(count: int, word: str, words: str | None = None) -> str:
    """`1 memory`, `2 memories`."""
    return f"{count} {word if count == 1 else words or word + 's'}"


def clean(text: str, limit: int | None = None) -> str:
    """Text that cannot move the cursor or change colours; cut at `limit` characters."""
    shown = "".join(
        c
        if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cs"}
        else "\N{REPLACEMENT CHARACTER}"
        for c in text[: limit + 1 if limit else None]
    )
    if limit and len(shown) > limit:
        shown = " ".join(shown.split())[:limit].rstrip() + " …"
    return shown


def _about(entry: MemoryEntry) -> Text:
    """The line below a memory: what it is, when it was, its id."""
    parts = [entry.kind or entry.memory_type.value, f"{entry.created_at:%Y-%m-%d %H:%M}"]
    if entry.status.value != "active":
        parts.append(entry.status.value)
    if entry.session_id:
        parts.append(f"session {entry.session_id}")
    if entry.user_id:
        parts.append(f"user {entry.user_id}")
    parts += [f"#{tag}" for tag in entry.tags]
    return Text(clean(" · ".join([*parts, entry.id])), style="dim", overflow="fold")


def _memory(entry: MemoryEntry, more: Sequence[Text] = ()) -> Text:
    body = clean(body_of(entry.content), SHOWN_CHARACTERS)
    return Text("\n").join([Text(body), _about(entry), *more])


def hits_table(hits: Sequence[Hit], *, bars: bool = True) -> Table:
    """Hits, best first, with the share of each signal."""
    table = _grid()
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for rank, hit in enumerate(hits, 1):
        more = [bar(hit.contributions)] if bars else []
        table.add_row(str(rank), f"{hit.score:.2f}", _memory(hit.entry, more))
    return table


def entries_table(entries: Sequence[MemoryEntry]) -> Table:
    """Entries with their importance."""
    table = _grid()
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for entry in entries:
        table.add_row(f"{entry.effective_importance:.2f}", _memory(entry))
    return table


def _grid() -> Table:
    return Table(box=None, show_header=False, padding=(0, 1, 1, 0), expand=True)


def bar(contributions: Mapping[str, float], width: int = BAR_WIDTH) -> Text:
    """What each channel gave to a score, end to end; a score of 1 is `width` columns."""
    line = Text()
    for channel, share in contributions.items():
        style, sign = _sign(channel)
        line.append(sign * round(share * width), style=style)
    for channel, share in contributions.items():
        if share >= 0.005:
            line.append(f" {channel} {share:.2f}".replace("0.", "."), style=_sign(channel)[0])
    return line


def legend(channels: Sequence[str]) -> Text:
    """Which sign is which channel."""
    line = Text()
    for channel in channels:
        style, sign = _sign(channel)
        line.append(f"{sign} {channel}  ", style=style)
    return line


def _sign(channel: str) -> tuple[str, str]:
    style, sign = CHANNELS.get(channel, OTHER_CHANNEL)
    try:
        sign.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        order = list(CHANNELS)
        sign = ASCII_SIGNS[order.index(channel)] if channel in order else "-"
    return style, sign


def pairs_table(pairs: Mapping[str, object]) -> Table:
    """Names and values."""
    table = Table(box=box.SIMPLE, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(name, value if isinstance(value, Text) else Text(clean(str(value))))
    return table
