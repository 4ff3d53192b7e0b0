"""The part of a long text that answers a query."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["excerpt"]

_WORD = re.compile(r"\w+")
_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")


def excerpt(text: str, terms: Mapping[str, float], characters: int) -> str:
    """Neighbouring sentences around what matched most, within a number of characters.

    Args:
        text: The whole.
        terms: Lexemes of the query with their IDF.
        characters: Greatest length, the ellipses included; a longer sentence is cut.

    Returns:
        The text itself where it fits, else a part with `…` where something was left out.
    """
    if len(text) <= characters:
        return text
    room = max(1, characters - 4)
    pieces = [piece for piece in _BREAK.split(text) if piece.strip()] or [text]
    weights = [_weight(piece, terms) for piece in pieces]
    first = last = max(range(len(pieces)), key=lambda place: (weights[place], -place))
    used = len(pieces[first])
    while used < room:
        sides = [place for place in (first - 1, last + 1) if 0 <= place < len(pieces)]
        fitting = [place for place in sides if used + 1 + len(pieces[place]) <= room]
        if not fitting:
            break
        # what follows explains more often than what comes before
        best = max(fitting, key=lambda place: (weights[place], place))
        used += 1 + len(pieces[best])
        first, last = min(first, best), max(last, best)
    shown = " ".join(piece.strip() for piece in pieces[first : last + 1])
    cut = len(shown) > room
    if cut:
        shown = _around(shown, terms, room)
    before = "… " if first > 0 or (cut and not text.startswith(shown[:20])) else ""
    after = " …" if last < len(pieces) - 1 or cut else ""
    return f"{before}{shown}{after}"


def _weight(piece: str, terms: Mapping[str, float]) -> float:
    """The IDF mass that the piece covers."""
    words = {word.lower() for word in _WORD.findall(piece)}
    return sum(idf for lexeme, idf in terms.items() if any(_matches(w, lexeme) for w in words))


def _matches(word: str, lexeme: str) -> bool:
    # a lexeme is mostly the beginning of its words; the stemmer writes a final y as i
    return word.startswith(lexeme) or (lexeme.endswith("i") and word.startswith(lexeme[:-1] + "y"))


def _around(sentence: str, terms: Mapping[str, float], room: int) -> str:
    """The part of one long sentence that begins shortly before its rarest match."""
    found = [
        (idf, -match.start())
        for match in _WORD.finditer(sentence)
        for lexeme, idf in terms.items()
        if _matches(match.group().lower(), lexeme)
    ]
    start = max(0, -max(found)[1] - room // 3) if found else 0
    start = min(start, max(0, len(sentence) - room))
    return sentence[start : start + room].strip()
