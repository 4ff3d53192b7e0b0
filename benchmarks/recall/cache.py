"""An embedder that remembers its vectors on disk, so that a second run embeds nothing."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zerda_pg.embedding.protocol import Embedder, Kind, Vectors

__all__ = ["CachedEmbedder"]


class CachedEmbedder:
    """Another embedder's vectors, by model, kind and text; to the store it is that embedder.

    Args:
        inner: The model.
        folder: Where the vectors are kept.
    """

    def __init__(self, inner: Embedder, folder: Path) -> None:
        self._inner = inner
        self.name = inner.name
        self.fingerprint = inner.fingerprint
        self.dimensions = inner.dimensions
        self.max_tokens = inner.max_tokens
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._database = sqlite3.connect(folder / "vectors.sqlite", check_same_thread=False)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, vector BLOB NOT NULL)"
        )

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """(n, d) float32, unit norm."""
        keys = [self._key(text, kind) for text in texts]
        result = np.empty((len(texts), self.dimensions), dtype=np.float32)
        missing: list[int] = []
        with self._lock:
            for row, key in enumerate(keys):
                found = self._database.execute(
                    "SELECT vector FROM vectors WHERE key = ?", [key]
                ).fetchone()
                if found is None:
                    missing.append(row)
                else:
                    result[row] = np.frombuffer(found[0], dtype=np.float32)
        if missing:
            result[missing] = self._inner.embed([texts[row] for row in missing], kind=kind)
            with self._lock, self._database:
                self._database.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?)",
                    [(keys[row], result[row].tobytes()) for row in missing],
                )
        return result

    def _key(self, text: str, kind: Kind) -> str:
        parts = "\x00".join((self.fingerprint, kind, text))
        return hashlib.sha256(parts.encode()).hexdigest()
