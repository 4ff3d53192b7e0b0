"""What an embedder is, and what a text must be to be embedded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zerda_pg.errors import InvalidContentError

__all__ = [
    "UNLIMITED_TOKENS",
    "Embedder",
    "Kind",
    "Vectors",
    "fingerprint_of",
    "require_texts",
]

Kind: TypeAlias = Literal["document", "query"]
"""What a text is: some models put another prompt before a question than before a passage."""

Vectors: TypeAlias = NDArray[np.float32]

UNLIMITED_TOKENS = 2**31 - 1
"""`max_tokens` of an embedder that reads a text to its end, whatever its length."""


class Embedder(Protocol):
    """Text to vectors.

    An embedder may also have

    - `async aembed(texts, *, kind="document")`, awaited by the async store, which otherwise runs
      `embed` in a thread;
    - `truncated(texts) -> list[bool]`, which says whose end lies beyond the model's window. Without
      it a text is never marked as cut.

    Both stores call `embed` from several threads at once.
    """

    @property
    def name(self) -> str:
        """The model's name, for people."""

    @property
    def fingerprint(self) -> str:
        """Identifies the vector space: other weights, tokenizer or pooling, another fingerprint."""

    @property
    def dimensions(self) -> int:
        """Length of each vector."""

    @property
    def max_tokens(self) -> int:
        """How much of a text the model reads, in its own tokens."""

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """Embed texts.

        Returns:
            (n, d) float32, unit norm, in the order given.
        """


def fingerprint_of(*parts: object) -> str:
    """A short hexadecimal identity of what determines an embedder's vectors."""
    joined = "\x00".join(str(part) for part in parts)
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def require_texts(texts: Sequence[str]) -> None:
    """Refuse what no model embeds sensibly.

    MiniLM gives an empty text a unit vector too, at a cosine of 0.56 to "ok": it would be found.

    Raises:
        TypeError: A single string was given for a sequence of them.
        InvalidContentError: A text is empty or blank, or has a lone surrogate.
    """
    if isinstance(texts, str):
        raise TypeError("texts must be a sequence of strings, not one string")
    for position, text in enumerate(texts):
        if not text.strip():
            raise InvalidContentError(f"texts[{position}] is empty: there is nothing to embed")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidContentError(
                    f"texts[{position}] has a lone surrogate at character {error.start}"
                ) from None
