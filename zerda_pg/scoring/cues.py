"""What a query says of the memories it means: who spoke, and which words stand together."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from zerda_pg.scoring.signals import Floats

__all__ = ["phrases_of", "speaker_of", "spoken_by"]

NAME_CHARACTERS = 60
NAME_WORDS = 4
"""Longest name before the colon that is taken for a speaker: "the nightly export starts at 01"
is none."""

MOST_PHRASES = 4
LONGEST_PHRASE = 200
"""Of what a query quotes, in characters; more is a text, not a phrase."""

_OPEN, _CLOSE = '"\u201c\u201e\u00ab', '"\u201d\u201c\u00bb'
_QUOTED = re.compile(f"[{_OPEN}]([^{_OPEN}{_CLOSE}]+)[{_CLOSE}]")

_WORD = re.compile(r"\w+")
_FIRST_PERSON = frozenset("i me my mine myself we us our ours".split())
_SECOND_PERSON = frozenset("you your yours yourself".split())
_CHAT = {"user": _FIRST_PERSON, "human": _FIRST_PERSON, "assistant": _SECOND_PERSON,
         "ai": _SECOND_PERSON}  # fmt: skip
"""In a chat with an assistant, `I` is who asks, and `you` is who answers."""


def spoken_by(query: str, heads: Sequence[str], count: int) -> Floats:
    """(n,) 1 for what was said by someone whom the query names or means, else 0.

    Args:
        query: The question.
        heads: How each text begins; a message begins with its speaker and a colon.
        count: n, also where the heads are unknown.
    """
    words = set(_WORD.findall(query.lower()))

    def meant(speaker: str) -> bool:
        return any(words & _CHAT.get(name, {name}) for name in _WORD.findall(speaker))

    speakers = [speaker_of(head) for head in heads]
    named = {speaker for speaker in set(speakers) if meant(speaker)}
    spoken = np.zeros(count)
    if named:
        spoken[: len(speakers)] = [speaker in named for speaker in speakers]
    return spoken


def speaker_of(head: str) -> str:
    """What stands before the first colon of a text, in lower case; empty where nothing does."""
    colon = head.find(":", 0, NAME_CHARACTERS)
    name = head[:colon].strip().lower() if colon > 0 else ""
    return "" if "\n" in name or len(name.split()) > NAME_WORDS else name


def phrases_of(query: str) -> list[str]:
    """What the query quotes, of two words or more: those words, in that order."""
    quoted = [found.strip() for found in _QUOTED.findall(query)]
    phrases = [p for p in quoted if len(p) <= LONGEST_PHRASE and len(_WORD.findall(p)) > 1]
    return phrases[:MOST_PHRASES]
