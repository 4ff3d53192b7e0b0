from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from zerda_pg.embedding import (
    Embedder,
    HashingEmbedder,
    aembed_documents,
    aembed_query,
    boundary,
    embed_documents,
    embed_query,
)
from zerda_pg.embedding.protocol import Kind, Vectors
from zerda_pg.errors import EmbeddingModelError, InvalidContentError


class Recording:
    """Hashes, and notes what it was asked."""

    name = "recording"
    fingerprint = "0123"
    dimensions = 16
    max_tokens = 100

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self._hashing = HashingEmbedder(16)

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        self.calls.append((kind, list(texts)))
        return self._hashing.embed(texts)


class Cutting(Recording):
    def truncated(self, texts: Sequence[str]) -> list[bool]:
        return [len(text) > 100 for text in texts]


class Asynchronous(Recording):
    def __init__(self) -> None:
        super().__init__()
        self.awaited = 0

    async def aembed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        self.awaited += 1
        return self.embed(texts, kind=kind)


class Returning:
    """Returns what it was told to, whatever the texts."""

    name = "returning"
    fingerprint = "4567"
    dimensions = 3
    max_tokens = 100

    def __init__(self, vectors: Any) -> None:
        self._vectors = vectors

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Any:
        return self._vectors


def test_documents_come_back_in_order_though_batched_by_length() -> None:
    embedder = Recording()
    texts = [f"note {number} " + "word " * (number * 37 % 200) for number in range(150)]
    result = embed_documents(embedder, texts)
    np.testing.assert_array_equal(result.vectors, HashingEmbedder(16).embed(texts))
    assert result.vectors.dtype == np.float32
    assert len(embedder.calls) > 1
    assert {kind for kind, _ in embedder.calls} == {"document"}


@pytest.mark.parametrize(("length", "expected"), [(10, 64), (256, 64), (1_000, 40), (9_000, 40)])
def test_batches_are_bounded_by_their_characters(length: int, expected: int) -> None:
    embedder = Recording()
    embed_documents(embedder, ["x" * length] * 70)
    assert max(len(texts) for _, texts in embedder.calls) == expected


def test_a_batch_of_full_windows_is_small() -> None:
    embedder = Recording()
    embedder.max_tokens = 256
    embed_documents(embedder, ["x" * 5_000] * 40)
    assert {len(texts) for _, texts in embedder.calls} <= {16, 8}


def test_a_text_longer_than_any_batch_goes_alone() -> None:
    assert embed_documents(HashingEmbedder(), ["word " * 50_000, "short"]).vectors.shape == (2, 384)


def test_no_texts_no_vectors() -> None:
    embedder = Recording()
    result = embed_documents(embedder, [])
    assert result.vectors.shape == (0, 16)
    assert result.truncated == []
    assert embedder.calls == []


def test_truncated_tells_which_were_cut() -> None:
    texts = ["short", "long " * 50, "short too"]
    assert embed_documents(Cutting(), texts).truncated == [False, True, False]
    assert embed_documents(Recording(), texts).truncated == [False, False, False]


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000"])
def test_blank_text_is_refused(text: str) -> None:
    embedder = Recording()
    with pytest.raises(InvalidContentError, match=r"texts\[1\] is empty"):
        embed_documents(embedder, ["fine", text])
    with pytest.raises(ValueError, match="is empty"):
        embed_query(embedder, text)
    assert embedder.calls == []


def test_lone_surrogate_is_refused_with_its_position() -> None:
    with pytest.raises(
        InvalidContentError, match=r"texts\[0\] has a lone surrogate at character 3"
    ):
        embed_documents(HashingEmbedder(), ["abc\ud800"])


def test_one_string_is_not_a_sequence_of_texts() -> None:
    with pytest.raises(TypeError, match="not one string"):
        embed_documents(HashingEmbedder(), "abc")


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.eye(3, dtype=np.float32)[:1], r"shape \(1, 3\), expected \(2, 3\)"),
        (np.eye(4, dtype=np.float32)[:2], r"shape \(2, 4\)"),
        (np.ones(3, dtype=np.float32), r"shape \(3,\)"),
        (np.eye(3, dtype=np.int64)[:2], "int64"),
        (np.array([[1, 0, 0], [np.nan, 0, 0]]), "NaN"),
        (np.array([[1, 0, 0], [0, 1.01, 0]]), r"norm 1\.0100"),
        (np.zeros((2, 3)), r"norm 0\.0000"),
        (None, "shape"),
    ],
)
def test_what_is_no_unit_vector_is_refused(vectors: Any, message: str) -> None:
    with pytest.raises(EmbeddingModelError, match=message):
        embed_documents(Returning(vectors), ["one", "two"])


def test_float64_and_lists_are_converted() -> None:
    result = embed_documents(Returning([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), ["one", "two"])
    assert result.vectors.dtype == np.float32


def test_a_repeated_query_is_embedded_once() -> None:
    embedder = Recording()
    first = embed_query(embedder, "what coffee?")
    assert embed_query(embedder, "what coffee?") is first
    assert embedder.calls == [("query", ["what coffee?"])]
    assert first.shape == (16,)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1.0


def test_each_embedder_has_its_own_cache() -> None:
    assert embed_query(HashingEmbedder(16), "x y").shape == (16,)
    assert embed_query(HashingEmbedder(32), "x y").shape == (32,)


def test_the_cache_forgets_the_oldest_and_ends_with_its_embedder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boundary, "_CACHED_QUERIES", 2)
    embedder = Recording()
    for text in ("a", "b", "a", "c", "a", "b"):
        embed_query(embedder, text)
    assert [texts for _, texts in embedder.calls] == [["a"], ["b"], ["c"], ["b"]]
    before = len(boundary._caches)
    del embedder
    gc.collect()
    assert len(boundary._caches) < before


def test_an_embedder_that_cannot_be_hashed_goes_without_cache() -> None:
    class Unhashable(Recording):
        __hash__ = None  # type: ignore[assignment]

    embedder = Unhashable()
    np.testing.assert_array_equal(embed_query(embedder, "a"), embed_query(embedder, "a"))
    assert len(embedder.calls) == 2


def test_queries_from_many_threads() -> None:
    embedder = HashingEmbedder()
    expected = {f"query {n}": embed_query(HashingEmbedder(), f"query {n}") for n in range(20)}
    failures: list[str] = []

    def work() -> None:
        for text, vector in expected.items():
            if not np.array_equal(embed_query(embedder, text), vector):
                failures.append(text)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("make", [Recording, Asynchronous, Cutting])
async def test_async_functions_equal_the_others(make: type[Recording]) -> None:
    texts = [f"note {number} " * (number + 1) for number in range(100)]
    expected = embed_documents(make(), texts)
    result = await aembed_documents(make(), texts)
    np.testing.assert_array_equal(result.vectors, expected.vectors)
    assert result.truncated == expected.truncated
    np.testing.assert_array_equal(await aembed_query(make(), "a b"), embed_query(make(), "a b"))


async def test_aembed_is_awaited_and_its_queries_are_cached() -> None:
    embedder = Asynchronous()
    await aembed_query(embedder, "a")
    await aembed_query(embedder, "a")
    await aembed_documents(embedder, ["b"])
    assert embedder.awaited == 2


async def test_embedding_does_not_hold_up_the_event_loop() -> None:
    release = threading.Event()

    class Waiting(Recording):
        def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
            assert release.wait(10)
            return super().embed(texts, kind=kind)

    task = asyncio.create_task(aembed_documents(Waiting(), ["a"]))
    await asyncio.sleep(0.05)
    assert not task.done()
    release.set()
    assert (await task).vectors.shape == (1, 16)


def test_our_embedders_have_the_protocol() -> None:
    embedders: list[Embedder] = [HashingEmbedder(), Recording()]
    assert all(embedder.name for embedder in embedders)


def test_import_is_cheap() -> None:
    code = (
        "import sys, zerda_pg.embedding, zerda_pg.tokens\n"
        "heavy = {'onnxruntime', 'torch', 'tokenizers', 'transformers', 'huggingface_hub',"
        " 'sentence_transformers', 'quicktok', 'alembic'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == "[]"
