"""Lexical overlap: the share of a task's words that a text has. The only word matcher in Python.

The store ranks with the share of IDF mass that SQL reports instead (`Signals.lexical`).
"""

from __future__ import annotations

import re
from typing import Literal, get_args

__all__ = ["Matching", "overlap"]

Matching = Literal["substring", "word"]

MIN_WORD_BYTES = 3
"""Shortest word that can be a hit, in UTF-8 bytes (the original's `len` counts bytes, so that
one Chinese character is long enough and `ä` is not)."""

_WORD = re.compile(r"\w+")


def overlap(task: str, text: str, matching: Matching = "substring") -> float:
    """The share of the task's words found in `text`, case folded to lower.

    Args:
        task: What the memories are wanted for; a word that repeats counts each time.
        text: The memory.
        matching: `substring`: words split at white space, found anywhere in the text, so that
            `log` matches `dialog`; `word`: runs of letters, digits and `_`, compared whole.

    Returns:
        In [0, 1]; every word is in the denominator, also those too short to be a hit. 0 for a
        task without words.

    Raises:
        ValueError: If `matching` is unknown.
    """
    lowered = text.lower()
    words: list[str]
    if matching == "substring":
        words = task.lower().split()
        hits = sum(_counts(word) and word in lowered for word in words)
    elif matching == "word":
        words = _WORD.findall(task.lower())
        known = set(_WORD.findall(lowered))
        hits = sum(_counts(word) and word in known for word in words)
    else:
        raise ValueError(f"matching must be one of {get_args(Matching)}, got {matching!r}")
    return hits / len(words) if words else 0.0


def _counts(word: str) -> bool:
    # a lone surrogate can reach here from a caller's string and must not raise
    return len(word.encode("utf-8", "surrogatepass")) >= MIN_WORD_BYTES
