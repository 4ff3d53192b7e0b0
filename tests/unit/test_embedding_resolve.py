from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zerda_pg.embedding import (
    HashingEmbedder,
    OnnxEmbedder,
    SentenceTransformerEmbedder,
    first_installed,
    resolve,
    resolve_recorded,
)
from zerda_pg.embedding.protocol import Kind, Vectors
from zerda_pg.errors import ConfigError, MissingExtraError

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Pretends that just these embedders' packages are installed."""

    def pretend(*, onnx: bool = False, sentence_transformers: bool = False) -> None:
        monkeypatch.setattr(OnnxEmbedder, "installed", staticmethod(lambda: onnx))
        monkeypatch.setattr(
            SentenceTransformerEmbedder, "installed", staticmethod(lambda: sentence_transformers)
        )

    return pretend


class Own:
    name = "own"
    fingerprint = "abc"
    dimensions = 2
    max_tokens = 10

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        return np.eye(2, dtype=np.float32)[: len(texts)]


def test_names(install: Install) -> None:
    install(onnx=True, sentence_transformers=True)
    assert isinstance(resolve("onnx"), OnnxEmbedder)
    assert isinstance(resolve("sentence-transformers"), SentenceTransformerEmbedder)
    assert resolve("sentence-transformers").name == "all-MiniLM-L6-v2"
    assert resolve("sentence-transformers:BAAI/bge-m3").name == "BAAI/bge-m3"
    assert resolve("sentence-transformers:C:\\models\\mine").name == "C:\\models\\mine"
    assert resolve("hashing").dimensions == 384
    assert resolve("hashing:64").dimensions == 64


@pytest.mark.parametrize("name", ["", "stub", "onnx:other", "Onnx", "hash", "auto:x"])
def test_an_unknown_name_lists_the_known(name: str, install: Install) -> None:
    install(onnx=True, sentence_transformers=True)
    with pytest.raises(ConfigError, match=r"'onnx', 'sentence-transformers', .*'hashing'"):
        resolve(name)


@pytest.mark.parametrize("name", ["hashing:many", "hashing:0", "hashing:-3"])
def test_malformed_dimensions(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is malformed"):
        resolve(name)


def test_a_missing_extra_is_named(install: Install) -> None:
    install()
    with pytest.raises(MissingExtraError, match=r"zerda-pg\[onnx\]"):
        resolve("onnx")
    with pytest.raises(MissingExtraError, match=r"zerda-pg\[sentence-transformers\]"):
        resolve("sentence-transformers:any")
    with pytest.raises(MissingExtraError, match=r"zerda-pg\[onnx\]"):
        resolve("auto")


def test_first_installed_prefers_onnx(install: Install) -> None:
    install(onnx=True, sentence_transformers=True)
    assert first_installed() == "onnx"
    install(sentence_transformers=True)
    assert first_installed() == "sentence-transformers"
    assert isinstance(resolve("auto"), SentenceTransformerEmbedder)
    install()
    assert first_installed() is None


def test_an_object_passes_as_it_is() -> None:
    own = Own()
    assert resolve(own) is own


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("name", ""),
        ("fingerprint", None),
        ("dimensions", 0),
        ("dimensions", "384"),
        ("dimensions", True),
        ("max_tokens", None),
        ("embed", "not callable"),
    ],
)
def test_an_object_that_lacks_a_part(part: str, value: object) -> None:
    parts: dict[str, Any] = {"name": "x", "fingerprint": "y", "dimensions": 3, "max_tokens": 5}
    broken: Any = SimpleNamespace(**{**parts, "embed": print, part: value})
    with pytest.raises(ConfigError, match=f"needs .*`{part}"):
        resolve(broken)


def test_a_class_is_not_an_embedder() -> None:
    with pytest.raises(ConfigError, match="give an instance"):
        resolve(Own)  # type: ignore[arg-type]


def test_recorded_models_are_found_without_their_packages(install: Install) -> None:
    install()
    onnx = OnnxEmbedder()
    assert isinstance(resolve_recorded(onnx.name, onnx.fingerprint, onnx.dimensions), OnnxEmbedder)
    hashing = HashingEmbedder(48)
    found = resolve_recorded(hashing.name, hashing.fingerprint, hashing.dimensions)
    assert found.fingerprint == hashing.fingerprint
    other = resolve_recorded("all-MiniLM-L6-v2", "of torch", 384)
    assert isinstance(other, SentenceTransformerEmbedder)
    with pytest.raises(MissingExtraError, match=r"vectors of 'all-MiniLM-L6-v2'.*--embedder"):
        other.embed(["text"])
