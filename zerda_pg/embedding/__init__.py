"""Text to vectors.

Importing this imports no model and no library of one: they load at the first text.
"""

from __future__ import annotations

from zerda_pg.embedding.boundary import (
    EmbeddedTexts,
    aembed_documents,
    aembed_query,
    embed_documents,
    embed_query,
)
from zerda_pg.embedding.hashing import HashingEmbedder
from zerda_pg.embedding.onnx import OnnxEmbedder
from zerda_pg.embedding.protocol import Embedder, Kind
from zerda_pg.embedding.resolve import first_installed, resolve, resolve_recorded
from zerda_pg.embedding.sentence_transformer import SentenceTransformerEmbedder

__all__ = [
    "EmbeddedTexts",
    "Embedder",
    "HashingEmbedder",
    "Kind",
    "OnnxEmbedder",
    "SentenceTransformerEmbedder",
    "aembed_documents",
    "aembed_query",
    "embed_documents",
    "embed_query",
    "first_installed",
    "resolve",
    "resolve_recorded",
]
