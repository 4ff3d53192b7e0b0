"""What people read: tables, bars and panels, at any width, with or without colours."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from zerda_pg.clock import from_epoch

if TYPE_CHECKING:
    from zerda_pg.entry import MemoryEntry
    from zerda_pg.results import Hit

__all__ = [
    "CHANNELS",
    "bar",
    "bars",
    "clean",
    "console",
    "emit",
    "entries_table",
    "entry_data",
    "hits_table",
    "on_terminal",
    "pairs_table",
    "plain",
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
    "quoted": ("bright_magenta", "▣"),
    "time": ("bright_cyan", "▤"),
}
OTHER_CHANNEL = ("white", "■")
ASCII_SIGNS = "#=+@:*o%&~"

BAR_WIDTH = 20
"""Columns of a score of 1."""

SHOWN_CHARACTERS = 280
"""Of a memory in a table; `show` has it whole."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with 1, which here means that nothing was found


UNBOUNDED = 10**6
"""Columns where nobody looks: a line that is read by a program is never wrapped."""


def console(*, stderr: bool = False) -> Console:
    """A console: as wide as the terminal, and coloured there unless NO_COLOR forbids it."""
    return _Console(
        stderr=stderr,
        highlight=False,
        emoji=False,
        markup=False,
        width=None if on_terminal(sys.stderr if stderr else sys.stdout) else UNBOUNDED,
    )


def on_terminal(stream: TextIO | None = None) -> bool:
    """Whether a stream, else stdout, is read by a person; what is not is not laid out."""
    return (stream or sys.stdout).isatty()


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
    """An entry for `--json`, without its vector; every time is ISO 8601."""
    data = entry.to_dict()
    del data["embedding"]
    data["timestamp"] = entry.created_at.isoformat()
    data["last_access"] = from_epoch(entry.last_access).isoformat()
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


def _about(entry: MemoryEntry, *, importance: bool = False) -> Text:
    """The line below a memory: what it is, when it was, its id."""
    parts = [entry.kind or entry.memory_type.value, f"{entry.created_at:%Y-%m-%d %H:%M}"]
    if importance:
        parts.append(f"importance {entry.effective_importance:.2f}")
    if entry.status.value != "active":
        parts.append(entry.status.value)
    if entry.session_id:
        parts.append(f"session {entry.session_id}")
    if entry.user_id:
        parts.append(f"user {entry.user_id}")
    parts += [f"#{tag}" for tag in entry.tags]
    return Text(clean(" · ".join([*parts, entry.id])), style="dim", overflow="fold")


def _memory(entry: MemoryEntry, about: Text, more: Sequence[Text] = ()) -> Text:
    body = clean(entry.text, SHOWN_CHARACTERS)
    return Text("\n").join([Text(body), about, *more])


def hits_table(hits: Sequence[Hit], *, bars: bool = True) -> RenderableType:
    """Hits, best first, with the share of each signal."""
    rows = []
    for rank, hit in enumerate(hits, 1):
        more = [bar(hit.contributions)] if bars else []
        rows.append((str(rank), f"{hit.score:.2f}", _memory(hit.entry, _about(hit.entry), more)))
    return _laid_out(rows)


def entries_table(entries: Sequence[MemoryEntry]) -> RenderableType:
    """Entries with their importance."""
    return _laid_out([(_memory(entry, _about(entry, importance=True)),) for entry in entries])


def _laid_out(rows: Sequence[tuple[str | Text, ...]]) -> RenderableType:
    """A row a memory, its text last: in columns on a terminal, else in lines of any length."""
    if not on_terminal():
        lines: list[RenderableType] = []
        for *numbers, text in rows:
            before = "".join(f"{number} " for number in numbers)
            first, *rest = Text(before).append(text).split("\n", allow_blank=True)
            lines += [first, *(Text("  ").append_text(line) for line in rest), Text()]
        return Group(*lines)
    table = Table(box=None, show_header=False, padding=(0, 1, 1, 0), expand=True)
    for style in ("dim", "bold")[: len(rows[0]) - 1] if rows else ():
        table.add_column(justify="right", style=style, no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for row in rows:
        table.add_row(*row)
    return table


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


def bars(contributions: Mapping[str, float], width: int = 2 * BAR_WIDTH) -> list[Text]:
    """A line and a bar for each channel that gave or took something."""
    shown = {name: share for name, share in contributions.items() if abs(share) >= 0.005}
    longest = max(map(len, shown), default=0)
    lines = []
    for channel, share in shown.items():
        style, sign = _sign(channel)
        line = Text(f"{channel:<{longest}} {share:5.2f} ")
        line.append(sign * round(abs(share) * width), style=style)
        lines.append(line)
    return lines


def _sign(channel: str) -> tuple[str, str]:
    style, sign = CHANNELS.get(channel, OTHER_CHANNEL)
    try:
        sign.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        order = list(CHANNELS)
        sign = ASCII_SIGNS[order.index(channel)] if channel in order else "-"
    return style, sign


def pairs_table(pairs: Mapping[str, object]) -> RenderableType:
    """Names and values."""
    shown = {
        name: value if isinstance(value, Text) else Text(clean(plain(value)))
        for name, value in pairs.items()
    }
    if not on_terminal():
        width = max(map(len, shown), default=0)
        return Group(*(Text(f"{name:<{width}}  ").append_text(v) for name, v in shown.items()))
    table = Table(box=box.SIMPLE, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in shown.items():
        table.add_row(name, value)
    return table


def plain(value: object) -> str:
    """A value as a person writes it: a list with commas, an object as JSON, never a repr."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case float():
            return f"{value:.4g}"
        case datetime():
            return value.isoformat()
        case Mapping():
            return json.dumps(dict(value), ensure_ascii=False, default=_as_json)
        case Sequence():
            return ", ".join(map(plain, value)) or "none"
        case _:
            return str(value)
