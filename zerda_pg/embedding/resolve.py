"""From what the user wrote to an embedder."""

from __future__ import annotations

from pathlib import Path

from zerda_pg.embedding.hashing import HashingEmbedder
from zerda_pg.embedding.onnx import OnnxEmbedder
from zerda_pg.embedding.protocol import Embedder
from zerda_pg.embedding.sentence_transformer import SentenceTransformerEmbedder
from zerda_pg.errors import ConfigError, MissingExtraError

__all__ = ["first_installed", "resolve", "resolve_recorded"]

_NAMES = (
    "'auto', 'onnx', 'sentence-transformers', 'sentence-transformers:MODEL', 'hashing',"
    " 'hashing:DIMENSIONS'"
)


def first_installed() -> str | None:
    """The name of the first real embedder whose packages are installed; imports none of them."""
    if OnnxEmbedder.installed():
        return "onnx"
    if SentenceTransformerEmbedder.installed():
        return "sentence-transformers"
    return None


def resolve(spec: str | Embedder, *, cache_dir: Path | None = None) -> Embedder:
    """The embedder that `spec` names; no model is loaded.

    Args:
        spec: A name, or an object with the `Embedder` protocol, which is checked for its parts.
            `"auto"` is the first installed.
        cache_dir: Where checked models are remembered; None: `~/.cache/zerda_pg`.

    Raises:
        ConfigError: There is no such name, or the object lacks a part.
        MissingExtraError: The embedder's packages are not installed.
    """
    if not isinstance(spec, str):
        return _checked_object(spec)
    name, _, argument = spec.partition(":")
    if name == "auto" and not argument:
        name = first_installed() or "none"
        if name == "none":
            raise MissingExtraError("onnx", "embedding text")
    if name == "onnx" and not argument:
        if not OnnxEmbedder.installed():
            raise MissingExtraError("onnx", "the embedder 'onnx'")
        return OnnxEmbedder(cache_dir=cache_dir)
    if name == "sentence-transformers":
        if not SentenceTransformerEmbedder.installed():
            raise MissingExtraError("sentence-transformers", f"the embedder {spec!r}")
        if not argument:
            return SentenceTransformerEmbedder(cache_dir=cache_dir)
        return SentenceTransformerEmbedder(argument, cache_dir=cache_dir)
    if name == "hashing":
        return _hashing(spec, argument)
    raise ConfigError(f"there is no embedder {spec!r}: use one of {_NAMES}, or an object")


def resolve_recorded(
    name: str, fingerprint: str, dimensions: int, *, cache_dir: Path | None = None
) -> Embedder:
    """The embedder that a database records, whether or not its packages are installed.

    Nothing is loaded, so entries can be listed without a model; the first text to embed raises
    what is missing. A model that the name alone cannot identify is one of sentence-transformers,
    whose fingerprint the caller has to compare.
    """
    if fingerprint == OnnxEmbedder.fingerprint:
        return OnnxEmbedder(cache_dir=cache_dir)
    if name == HashingEmbedder.name:
        return HashingEmbedder(dimensions)
    return SentenceTransformerEmbedder(name, cache_dir=cache_dir, recorded=True)


def _hashing(spec: str, argument: str) -> HashingEmbedder:
    if not argument:
        return HashingEmbedder()
    try:
        return HashingEmbedder(int(argument))
    except ValueError as error:
        raise ConfigError(f"the embedder {spec!r} is malformed: {error}") from error


def _checked_object(embedder: Embedder) -> Embedder:
    ours = (OnnxEmbedder, HashingEmbedder, SentenceTransformerEmbedder)
    if isinstance(embedder, ours):  # their parts are there; reading one might load a model
        return embedder
    if isinstance(embedder, type):
        raise ConfigError(f"the embedder is the class {embedder.__name__}: give an instance")
    kind = type(embedder).__name__
    for part, wanted in (("name", str), ("fingerprint", str)):
        value = getattr(embedder, part, None)
        if not isinstance(value, wanted) or not value:
            raise ConfigError(f"the embedder {kind} needs `{part}`, a string that is not empty")
    for part in ("dimensions", "max_tokens"):
        value = getattr(embedder, part, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"the embedder {kind} needs `{part}`, a positive int, has {value!r}")
    if not callable(getattr(embedder, "embed", None)):
        raise ConfigError(f"the embedder {kind} needs a method `embed(texts, *, kind)`")
    return embedder
