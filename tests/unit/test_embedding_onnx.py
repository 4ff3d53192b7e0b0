from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from zerda_pg.embedding import OnnxEmbedder, embed_documents, embed_query, onnx
from zerda_pg.errors import EmbeddingModelError, InvalidContentError, MissingExtraError

needs_model = [
    pytest.mark.model,
    pytest.mark.skipif(not OnnxEmbedder.installed(), reason="needs the extra 'onnx'"),
]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def embedder(cache_dir: Path) -> OnnxEmbedder:
    return OnnxEmbedder(cache_dir=cache_dir, threads=2)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Path, object]]:
    """A process in which no model is loaded yet."""
    models: dict[Path, object] = {}
    monkeypatch.setattr(onnx, "_models", models)
    yield models


def test_what_it_is_is_known_without_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "find_spec", lambda name: None)
    embedder = OnnxEmbedder()
    assert (embedder.name, embedder.dimensions, embedder.max_tokens) == (
        "all-MiniLM-L6-v2",
        384,
        256,
    )
    # Recorded in databases: it changes only with the model.
    assert embedder.fingerprint == "d020b3d8fbdad67e"
    with pytest.raises(MissingExtraError, match=r"zerda-pg\[onnx\]"):
        embedder.embed(["text"])


class TestModel:
    pytestmark = needs_model

    def test_vectors(self, embedder: OnnxEmbedder) -> None:
        vectors = embedder.embed(["cat", "kitten", "revenue"])
        assert vectors.shape == (3, 384)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
        assert vectors[0] @ vectors[1] > 0.75
        assert vectors[0] @ vectors[2] < 0.35

    def test_a_vector_does_not_depend_on_its_neighbours(self, embedder: OnnxEmbedder) -> None:
        texts = ["short", "a rather longer text about deployments " * 5, "short", "other"]
        together = embed_documents(embedder, texts).vectors
        for text, vector in zip(texts, together, strict=True):
            np.testing.assert_array_equal(embed_query(embedder, text), vector)

    def test_what_lies_beyond_the_window_is_marked(self, embedder: OnnxEmbedder) -> None:
        fits, cut = "word " * 254, "word " * 255
        assert embed_documents(embedder, [cut, fits, "word"]).truncated == [True, False, False]
        first, second = embedder.embed([fits, cut])
        np.testing.assert_allclose(first, second, atol=1e-6)

    def test_words_up_to_the_window_count(self, embedder: OnnxEmbedder) -> None:
        words = ["word"] * 254
        changed = [*words[:250], "strawberry", *words[251:]]
        first, second = embedder.embed([" ".join(words), " ".join(changed)])
        assert first @ second < 0.9999

    def test_a_huge_text_is_cut_and_marked(self, embedder: OnnxEmbedder) -> None:
        result = embed_documents(embedder, ["x" * 3_000_000, "word " * 100_000])
        assert result.truncated == [True, True]

    @pytest.mark.parametrize("text", ["\x00", "\u200b", "中文", "🙂", "[MASK]", "a\ud7ffb"])
    def test_odd_texts(self, embedder: OnnxEmbedder, text: str) -> None:
        assert embed_documents(embedder, [text]).vectors.shape == (1, 384)

    @pytest.mark.parametrize("text", ["", "  \n", "\ud800"])
    def test_what_is_no_text_is_refused(self, embedder: OnnxEmbedder, text: str) -> None:
        with pytest.raises(InvalidContentError):
            embedder.embed([text])

    def test_no_texts(self, embedder: OnnxEmbedder) -> None:
        assert embedder.embed([]).shape == (0, 384)

    def test_many_threads_agree(self, embedder: OnnxEmbedder) -> None:
        texts = [f"the number {n} in a text" for n in range(12)]
        expected = embedder.embed(texts)
        results: list[bool] = []

        def work() -> None:
            results.append(np.array_equal(embedder.embed(texts), expected))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 4

    def test_concurrent_first_use_loads_once(
        self,
        cache_dir: Path,
        fresh: dict[Path, object],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        loads: list[Path] = []
        make = onnx._Model

        def counted(path: Path) -> onnx._Model:
            loads.append(path)
            return make(path)

        monkeypatch.setattr(onnx, "_Model", counted)
        threads = [
            threading.Thread(target=OnnxEmbedder(cache_dir=cache_dir).embed, args=(["text"],))
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(loads) == len(fresh) == 1

    def test_the_check_runs_once_for_a_file(
        self,
        tmp_path: Path,
        fresh: dict[Path, object],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        checks: list[object] = []
        monkeypatch.setattr(onnx, "check_model", lambda *args, **options: checks.append(args))
        for _ in range(2):
            OnnxEmbedder(cache_dir=tmp_path).embed(["text"])
            fresh.clear()
        assert len(checks) == 1

    def test_a_damaged_model_is_refused(
        self, tmp_path: Path, fresh: dict[Path, object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damaged = tmp_path / "model.onnx"
        shutil.copy(onnx._model_path(), damaged)
        with damaged.open("r+b") as file:
            file.seek(10_000_000)
            file.write(b"\x55")
        monkeypatch.setattr(onnx, "_model_path", lambda: damaged)
        with pytest.raises(EmbeddingModelError, match=r"not the model .* pip install"):
            OnnxEmbedder(cache_dir=tmp_path).embed(["text"])
        assert fresh == {}

    def test_a_missing_model_is_named(
        self, tmp_path: Path, fresh: dict[Path, object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onnx, "_model_path", lambda: tmp_path / "model.onnx")
        with pytest.raises(EmbeddingModelError, match=r"there is no .*model\.onnx; reinstall"):
            OnnxEmbedder(cache_dir=tmp_path).embed(["text"])

    def test_a_damaged_tokenizer_is_refused(
        self, tmp_path: Path, fresh: dict[Path, object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damaged = tmp_path / "tokenizer.json"
        damaged.write_bytes(onnx._TOKENIZER.read_bytes().replace(b'"cat"', b'"cot"'))
        monkeypatch.setattr(onnx, "_TOKENIZER", damaged)
        with pytest.raises(EmbeddingModelError, match="reinstall zerda-pg"):
            OnnxEmbedder(cache_dir=tmp_path).embed(["text"])

    def test_what_onnxruntime_cannot_load_is_an_embedding_model_error(self, tmp_path: Path) -> None:
        broken = tmp_path / "model.onnx"
        broken.write_bytes(b"no model")
        with pytest.raises(EmbeddingModelError, match="onnxruntime cannot load"):
            onnx._Model(broken)
