"""Does a model embed? Asked once for each model file, before its vectors are trusted.

Weights whose names do not match the architecture load with a warning only, and yield random
vectors of norm 1 that even rank the similar above the dissimilar. A window set too short changes
nothing that a short text would show. So known values are compared where they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from zerda_pg.embedding.boundary import check_vectors
from zerda_pg.embedding.protocol import Embedder
from zerda_pg.errors import EmbeddingModelError

__all__ = ["MINILM_COSINES", "check_model"]

MINILM_COSINES = (
    ("cat", "kitten", 0.7882),
    ("cat", "revenue", 0.3163),
    ("password", "credentials", 0.5832),
    ("The cat sat on the mat.", "Quarterly revenue grew.", -0.0514),
)
"""Of all-MiniLM-L6-v2 in float32, by sentence-transformers 6.2 on torch 2.13."""

_COSINE_TOLERANCE = 0.02
"""Int8 weights move a cosine by up to 0.006."""

_RELATED = ("The deployment failed with an error.", "An error made the release fail.")
_UNRELATED = "My grandmother grows roses and tulips."

_LONG = "the quick brown fox jumps over the lazy dog again and again " * 14
"""168 words, each one word piece of MiniLM."""

_PROBED_WORD = 150
"""Beyond 128, the window to which MiniLM's tokenizer file is set."""


def check_model(
    embedder: Embedder,
    remedy: str,
    *,
    cosines: Sequence[tuple[str, str, float]] = (),
) -> None:
    """Check a model.

    Args:
        embedder: Its `embed` must not run this check in turn.
        remedy: What the user is to do if it fails.
        cosines: Pairs of texts and their known cosines.

    Raises:
        EmbeddingModelError: Naming what is wrong, and the remedy.
    """

    def fail(what: str) -> EmbeddingModelError:
        return EmbeddingModelError(
            f"the model {embedder.name!r} fails its self-check: {what}; {remedy}"
        )

    def embed(*texts: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        vectors = embedder.embed(texts)
        if vectors.dtype != np.float32:
            raise fail(f"its vectors are {vectors.dtype}, not float32")
        try:
            return check_vectors(embedder, vectors, len(texts))
        except EmbeddingModelError as error:
            raise fail(str(error)) from error

    _check_sense(embed, fail)
    for left, right, expected in cosines:
        first, second = embed(left, right)
        cosine = float(first @ second)
        if abs(cosine - expected) > _COSINE_TOLERANCE:
            raise fail(f"cosine({left!r}, {right!r}) is {cosine:.4f}, expected {expected:.4f}")
    if embedder.max_tokens > _PROBED_WORD + 50:
        words = _LONG.split()
        changed = [*words[:_PROBED_WORD], "strawberry", *words[_PROBED_WORD + 1 :]]
        first, second = embed(" ".join(words), " ".join(changed))
        if float(first @ second) > 0.99999:
            raise fail(f"word {_PROBED_WORD} of a text changes nothing: it is cut too early")


def _check_sense(
    embed: Callable[..., np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
    fail: Callable[[str], EmbeddingModelError],
) -> None:
    base, related, unrelated = embed(*_RELATED, _UNRELATED)
    (again,) = embed(_RELATED[0])
    if float(base @ again) < 0.9999:
        raise fail("the same text twice gives different vectors")
    if float(base @ related) <= float(base @ unrelated):
        raise fail("an unrelated text is as near as a related one")
