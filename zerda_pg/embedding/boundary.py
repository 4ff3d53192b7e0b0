"""The one place where the store meets an embedder: batches, checks, and a cache for queries."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Generator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from zerda_pg.embedding.protocol import Embedder, Vectors, require_texts
from zerda_pg.errors import EmbeddingModelError

__all__ = [
    "EmbeddedTexts",
    "aembed_documents",
    "aembed_query",
    "check_vectors",
    "embed_documents",
    "embed_query",
]

NORM_TOLERANCE = 1e-3
"""How far from 1 a norm may be: float16 arithmetic stays within it, a missing step does not."""

_BATCH_CHARS = 16_384
"""Characters in a batch, padding included: 16 texts of a window of 256 tokens. 32 such texts take
a transformer to 1 GB."""

_MAX_BATCH = 64
"""Texts in a batch, however short: what a thread pool or a GPU needs to be busy."""

_CHARS_PER_TOKEN = 4
"""In English: what a window holds of a text, beyond which it is cut and takes no more memory."""

_CACHED_QUERIES = 512
"""Per embedder; of 384 dimensions they take 0.8 MB."""

_CACHED_QUERY_CHARS = 2_000
"""Longer queries are not kept: they rarely repeat."""


class EmbeddedTexts(NamedTuple):
    """The vectors of some texts, and which of the texts the model did not read to the end."""

    vectors: Vectors
    """(n, d) float32, unit norm."""
    truncated: list[bool]
    """n flags: True where the model's window ended before the text did."""


def embed_documents(embedder: Embedder, texts: Sequence[str]) -> EmbeddedTexts:
    """Embed texts to be stored.

    A text longer than the model's window is cut there and marked, not split: dense recall at 10
    was 70.6 % on BEAM-100K (70.2 % on LongMemEval-mini) for the first window alone, 63.8 (69.6)
    for the mean over all windows, 68.9 (69.3) with 0.85 of the weight on the first, 61.9 (67.4)
    for the best window.

    Raises:
        InvalidContentError: A text is empty or blank, or has a lone surrogate.
        EmbeddingModelError: The embedder fails its checks or returns anything but unit vectors.
    """
    batches = _batches(embedder, texts)
    try:
        batch = next(batches)
        while True:
            batch = batches.send(embedder.embed(batch, kind="document"))
    except StopIteration as done:
        vectors: Vectors = done.value
    return EmbeddedTexts(vectors, _truncated(embedder, texts))


async def aembed_documents(embedder: Embedder, texts: Sequence[str]) -> EmbeddedTexts:
    """Embed texts to be stored without holding up the event loop; as `embed_documents`."""
    if not hasattr(embedder, "aembed"):
        return await asyncio.to_thread(embed_documents, embedder, texts)
    batches = _batches(embedder, texts)
    try:
        batch = next(batches)
        while True:
            batch = batches.send(await embedder.aembed(batch, kind="document"))
    except StopIteration as done:
        vectors: Vectors = done.value
    return EmbeddedTexts(vectors, await asyncio.to_thread(_truncated, embedder, texts))


def embed_query(embedder: Embedder, text: str) -> Vectors:
    """Embed a question; a repeated one costs nothing.

    Returns:
        (d,) float32, unit norm, read-only since it may be shared.

    Raises:
        InvalidContentError: The text is empty or blank, or has a lone surrogate.
        EmbeddingModelError: The embedder fails its checks or returns anything but a unit vector.
    """
    cache = _cache_of(embedder)
    known = cache.get(text)
    if known is not None:
        return known
    require_texts([text])
    return cache.put(text, check_vectors(embedder, embedder.embed([text], kind="query"), 1))


async def aembed_query(embedder: Embedder, text: str) -> Vectors:
    """Embed a question without holding up the event loop; as `embed_query`."""
    cache = _cache_of(embedder)
    known = cache.get(text)
    if known is not None:
        return known
    if not hasattr(embedder, "aembed"):
        return await asyncio.to_thread(embed_query, embedder, text)
    require_texts([text])
    return cache.put(text, check_vectors(embedder, await embedder.aembed([text], kind="query"), 1))


def check_vectors(embedder: Embedder, vectors: object, n: int) -> Vectors:
    """What an embedder returned, as (n, d) float32.

    Raises:
        EmbeddingModelError: It is not n finite unit vectors of the embedder's dimensions.
    """
    array = np.asarray(vectors)
    expected = (n, embedder.dimensions)
    if array.shape != expected:
        raise EmbeddingModelError(
            f"the embedder {embedder.name!r} returned shape {array.shape}, expected {expected}"
        )
    if not np.issubdtype(array.dtype, np.floating):
        raise EmbeddingModelError(
            f"the embedder {embedder.name!r} returned {array.dtype}, expected float32"
        )
    array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise EmbeddingModelError(f"the embedder {embedder.name!r} returned NaN or infinity")
    norms = np.linalg.norm(array, axis=1)
    if n and float(np.abs(norms - 1.0).max()) > NORM_TOLERANCE:
        worst = float(norms[np.abs(norms - 1.0).argmax()])
        raise EmbeddingModelError(
            f"the embedder {embedder.name!r} returned a vector of norm {worst:.4f}, expected 1:"
            " divide each vector by its norm"
        )
    return array


def _batches(embedder: Embedder, texts: Sequence[str]) -> Generator[list[str], object, Vectors]:
    """Yields batches of texts of like length, takes their vectors, returns all in order.

    A generator, so that the sync and the async function share it.
    """
    require_texts(texts)
    result = np.empty((len(texts), embedder.dimensions), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
    window = embedder.max_tokens * _CHARS_PER_TOKEN
    start = 0
    while start < len(order):
        longest = min(len(texts[order[start]]), window)
        size = max(1, min(_MAX_BATCH, _BATCH_CHARS // longest))
        chosen = order[start : start + size]
        vectors = yield [texts[i] for i in chosen]
        result[chosen] = check_vectors(embedder, vectors, len(chosen))
        start += len(chosen)
    return result


def _truncated(embedder: Embedder, texts: Sequence[str]) -> list[bool]:
    if not hasattr(embedder, "truncated"):
        return [False] * len(texts)
    return [bool(flag) for flag in embedder.truncated(texts)]


class _QueryCache:
    """The vectors of the latest queries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vectors: OrderedDict[str, Vectors] = OrderedDict()

    def get(self, text: str) -> Vectors | None:
        with self._lock:
            vector = self._vectors.get(text)
            if vector is not None:
                self._vectors.move_to_end(text)
            return vector

    def put(self, text: str, vectors: Vectors) -> Vectors:
        vector: Vectors = vectors[0].copy()
        vector.setflags(write=False)
        if len(text) <= _CACHED_QUERY_CHARS:
            with self._lock:
                self._vectors[text] = vector
                if len(self._vectors) > _CACHED_QUERIES:
                    self._vectors.popitem(last=False)
        return vector


_caches: WeakKeyDictionary[Embedder, _QueryCache] = WeakKeyDictionary()
_caches_lock = threading.Lock()


def _cache_of(embedder: Embedder) -> _QueryCache:
    with _caches_lock:
        try:
            return _caches.setdefault(embedder, _QueryCache())
        except TypeError:  # neither hashable nor weakly referable: no cache for this one
            return _QueryCache()
