"""Any model of the sentence-transformers library."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from zerda_pg.embedding.checked import CheckedModels
from zerda_pg.embedding.model_files import fingerprint_files, identity_files, local_directory
from zerda_pg.embedding.protocol import UNLIMITED_TOKENS, Kind, Vectors, require_texts
from zerda_pg.embedding.selfcheck import MINILM_COSINES, check_model
from zerda_pg.errors import EmbeddingModelError, MissingExtraError

__all__ = ["SentenceTransformerEmbedder"]

_DEFAULT_MODEL = "all-MiniLM-L6-v2"
_LIBRARIES = ("sentence-transformers", "transformers", "torch")

_BATCH_TOKENS = 4096
"""Tokens in a batch, padding included: 16 texts of MiniLM's full window, 300 MB of activations."""

_MAX_BATCH = 32


class SentenceTransformerEmbedder:
    """A model of sentence-transformers, by name or from a directory.

    Making one imports nothing. What a model is (fingerprint, dimensions, window) is read from the
    notes of an earlier check where there are any, else the model is loaded.

    Args:
        model: A name as on the Hugging Face hub, or a directory. A name is looked up among the
            models on this machine first, and downloaded if it is not there.
        cache_dir: Where checked models are remembered; None: `~/.cache/zerda_pg`.
        device: As torch names it; None lets sentence-transformers choose.
        recorded: Whether the name is what a database records, and so perhaps that of an embedder
            of the caller's own; the error for a model that is not there says so.
    """

    def __init__(
        self,
        model: str = _DEFAULT_MODEL,
        *,
        cache_dir: Path | None = None,
        device: str | None = None,
        recorded: bool = False,
    ) -> None:
        self.name = model
        self._device = device
        self._recorded = recorded
        self._checked = CheckedModels(cache_dir)
        self._loaded: _Loaded | None = None
        self._facts: _Facts | None = None

    @staticmethod
    def installed() -> bool:
        """Whether the library is there; imports nothing."""
        return find_spec("sentence_transformers") is not None

    @property
    def fingerprint(self) -> str:
        """Identifies weights, tokenizer, pooling and prompts, by the contents of their files."""
        return self._known().fingerprint

    @property
    def dimensions(self) -> int:
        """Length of each vector."""
        return self._known().dimensions

    @property
    def max_tokens(self) -> int:
        """The model's window, in its own tokens."""
        return self._known().max_tokens

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """Embed texts, with the model's prompt for this kind if it has one.

        Returns:
            (n, d) float32, unit norm.

        Raises:
            MissingExtraError: The extra `sentence-transformers` is not installed.
            EmbeddingModelError: The model cannot be loaded, or fails its self-check.
        """
        require_texts(texts)
        return self._model().embed(texts, kind=kind)

    def truncated(self, texts: Sequence[str]) -> list[bool]:
        """Which texts are longer than the window."""
        return self._model().truncated(texts)

    def _known(self) -> _Facts:
        if self._facts is None:
            self._facts = self._recalled() or self._model().facts
        return self._facts

    def _recalled(self) -> _Facts | None:
        directory = self._directory(download=False)
        note = directory and self._checked.recall(identity_files(directory), _LIBRARIES)
        return _Facts.from_note(note) if note else None

    def _model(self) -> _Loaded:
        if self._loaded is None:
            directory = self._directory(download=True)
            if directory is None:
                raise EmbeddingModelError(f"there is no model {self.name!r}")
            with _loading:
                key = (directory, self._device)
                self._loaded = _models.get(key) or self._checked_model(directory)
                _models[key] = self._loaded
        return self._loaded

    def _checked_model(self, directory: Path) -> _Loaded:
        files = identity_files(directory)
        note = self._checked.recall(files, _LIBRARIES)
        if note:
            return _Loaded(self.name, directory, self._device, _Facts.from_note(note))
        model = _Loaded(self.name, directory, self._device, None)
        is_minilm = self.name.rpartition("/")[2] == _DEFAULT_MODEL
        check_model(
            model,
            f"the files in {directory} are not those of a working model: replace them",
            cosines=MINILM_COSINES if is_minilm else (),
        )
        self._checked.remember(files, _LIBRARIES, model.facts.to_note(self.name))
        return model

    def _directory(self, *, download: bool) -> Path | None:
        if not self.installed():
            raise MissingExtraError(
                "sentence-transformers",
                f"the embedder 'sentence-transformers:{self.name}'",
                message=self._remedy() if self._recorded else None,
            )
        try:
            return local_directory(self.name, download=download)
        except EmbeddingModelError as error:
            if not self._recorded:
                raise
            raise EmbeddingModelError(f"{error}; {self._remedy()}") from error

    def _remedy(self) -> str:
        return (
            f"the database holds vectors of {self.name!r}: if that is an embedder of yours, pass "
            "it (embedder=…, --embedder package.module:factory); if it is a model of "
            "sentence-transformers, install the extra: pip install "
            "'zerda-pg[sentence-transformers]'; or change the model: zerda-pg reembed --model NAME"
        )


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What is to be known of a model without loading it."""

    fingerprint: str
    dimensions: int
    max_tokens: int

    @classmethod
    def from_note(cls, note: dict[str, str | int]) -> _Facts:
        return cls(
            fingerprint=str(note["fingerprint"]),
            dimensions=int(note["dimensions"]),
            max_tokens=int(note["max_tokens"]),
        )

    def to_note(self, name: str) -> dict[str, str | int]:
        return {
            "name": name,
            "fingerprint": self.fingerprint,
            "dimensions": self.dimensions,
            "max_tokens": self.max_tokens,
        }


class _Loaded:
    """A model in memory; one call at a time."""

    def __init__(
        self, name: str, directory: Path, device: str | None, facts: _Facts | None
    ) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._model = _load_quietly(name, directory, device)
        window = self._model.max_seq_length
        self.facts = facts or _Facts(
            fingerprint=fingerprint_files(directory),
            dimensions=self._model.encode(["dimensions"], show_progress_bar=False).shape[1],
            max_tokens=int(window) if window else UNLIMITED_TOKENS,
        )
        self.fingerprint = self.facts.fingerprint
        self.dimensions = self.facts.dimensions
        self.max_tokens = self.facts.max_tokens

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        longest = min(self.max_tokens, max(map(len, texts)) // 3 + 2)
        with self._lock, _torch_threads(1 if len(texts) == 1 else None):
            vectors = encode(
                list(texts),
                batch_size=max(1, min(_MAX_BATCH, _BATCH_TOKENS // longest)),
                normalize_embeddings=True,
                show_progress_bar=False,
            )
        return np.asarray(vectors, dtype=np.float32)

    def truncated(self, texts: Sequence[str]) -> list[bool]:
        prompt = self._model.prompts.get("document", "")
        # The lock: a fast tokenizer is set anew at each call, and one in use refuses that.
        with self._lock:
            ids = self._model.tokenizer(
                [prompt + text for text in texts], truncation=False, padding=False, verbose=False
            )["input_ids"]
        return [len(each) > self.max_tokens for each in ids]


_loading = threading.Lock()
_models: dict[tuple[Path, str | None], _Loaded] = {}
"""One copy of a model in a process, whatever the number of embedders."""


def _load_quietly(name: str, directory: Path, device: str | None) -> Any:
    from sentence_transformers import SentenceTransformer

    logging = import_module("transformers.utils.logging")

    progress_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return SentenceTransformer(str(directory), device=device, local_files_only=True)
    except Exception as error:  # whatever a model's files make torch and transformers raise
        raise EmbeddingModelError(
            f"sentence-transformers cannot load {name!r} from {directory}: {error}"
        ) from error
    finally:
        if progress_bar:
            logging.enable_progress_bar()


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use `count` threads; None leaves its setting.

    For one short text a second thread is mostly waited for: on a busy machine the median query
    took 488 ms with two, 28 ms with one.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
