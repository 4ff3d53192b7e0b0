"""Deterministic vectors without a model: words and their parts, hashed."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from zerda_pg.embedding.protocol import (
    UNLIMITED_TOKENS,
    Kind,
    Vectors,
    fingerprint_of,
    require_texts,
)

__all__ = ["HashingEmbedder"]

_VERSION = 1
"""Part of the fingerprint: to be raised with any change of the vectors."""

_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u2e80-\ua4cf\uac00-\ud7ff\uf900-\ufaff]")
"""Scripts written without spaces, and Hangul, whose particles stick to the word."""

_PARTS_WEIGHT = 0.6
"""Length of the n-grams' share of a word's vector, next to 1 for the word itself: enough that
"deployed" resembles "deployment", little enough that whole words decide."""

_SHORT_WORD_WEIGHT = 0.3
"""Weight of a word of up to three letters: most of them are function words."""

_LONGEST_WORD = 64
"""Characters of a word that are taken apart: a word of a megabyte is a blob, not a word."""


class HashingEmbedder:
    """Feature hashing over words and character n-grams: texts that share words are similar.

    For tests and for trying things out: it knows spelling, not meaning. It has to be asked for by
    name, and the database records it as what it is.
    """

    name = "hashing"
    max_tokens = UNLIMITED_TOKENS

    def __init__(self, dimensions: int = 384) -> None:
        """Make an embedder.

        Raises:
            ValueError: `dimensions` is not from 8 to 16,000.
        """
        if not 8 <= dimensions <= 16_000:
            raise ValueError(f"dimensions must be from 8 to 16000, got {dimensions}")
        self.dimensions = dimensions
        self.fingerprint = fingerprint_of("hashing", _VERSION, dimensions)

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """Embed texts; documents and queries alike.

        Returns:
            (n, d) float32, unit norm.
        """
        require_texts(texts)
        result = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(result, texts, strict=True):
            row[:] = self._vector(text)
        return result

    def _vector(self, text: str) -> NDArray[np.float64]:
        folded = unicodedata.normalize("NFKC", text).casefold()
        counts = Counter(_words(folded))
        features = [_features(word) for word in counts]
        repeats = np.repeat(
            1.0 + np.log(np.fromiter(counts.values(), float, len(counts))),
            [len(hashes) for hashes, _ in features],
        )
        hashes = np.concatenate([hashes for hashes, _ in features])
        weights = np.concatenate([weights for _, weights in features]) * repeats
        vector = np.bincount(hashes % self.dimensions, weights, minlength=self.dimensions)
        norm = float(np.linalg.norm(vector))
        if norm < 1e-9:  # features of opposite sign met in the same places
            vector[zlib.crc32(folded.encode()) % self.dimensions] = norm = 1.0
        return vector / norm


def _words(folded: str) -> Iterator[str]:
    """Words; pairs of characters where words are not spaced; any sign where there are no words."""
    found = False
    for run in _WORD.findall(folded):
        found = True
        if _UNSPACED.search(run) and len(run) > 2:
            yield from (run[i : i + 2] for i in range(len(run) - 1))
        else:
            yield run
    if not found:
        yield from (sign for sign in folded if not sign.isspace())


@lru_cache(maxsize=32_768)
def _features(word: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The hashes of a word and its n-grams, and their signed weights."""
    if _UNSPACED.search(word):
        parts = list(word)
    else:
        marked = f"<{word[:_LONGEST_WORD]}>"
        parts = [marked[i : i + n] for n in (3, 4) for i in range(len(marked) - n + 1)]
    scale = _SHORT_WORD_WEIGHT if len(word) <= 3 and word.isascii() and word.isalpha() else 1.0
    # CRC-32 and not hash(): the same in every process. Its top bit is the sign, the rest the place.
    crcs = np.array([zlib.crc32(f"w {word}".encode()), *(zlib.crc32(p.encode()) for p in parts)])
    weights = np.full(len(crcs), scale * _PARTS_WEIGHT / max(1, len(parts)) ** 0.5)
    weights[0] = scale
    return (crcs & 0x7FFFFFFF).astype(np.int64), np.where(crcs >> 31, -weights, weights)
