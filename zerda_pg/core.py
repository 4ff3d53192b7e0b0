"""What a store knows, whether it is driven synchronously or not."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import URL

from zerda_pg.db.facts import DatabaseFacts, Model, active_model, register_model
from zerda_pg.db.schema import LANGUAGES
from zerda_pg.embedding.protocol import Embedder
from zerda_pg.embedding.resolve import resolve, resolve_recorded
from zerda_pg.errors import EmbeddingMismatchError
from zerda_pg.steps import Steps, read, write
from zerda_pg.tokens import TokenCounter, resolve_counter

__all__ = ["Core"]

LEAST, GREATEST = 1e-100, 1e100
"""Numbers between which the squares of a vector stay in the range of a float."""


class Core:
    """Settings, the database's facts, and the embedder with its recorded identity.

    Raises:
        ValueError: For an unknown language.
        ConfigError: For an unknown embedder or token counter.
        MissingExtraError: If what was asked for by name is not installed.
    """

    def __init__(
        self,
        url: URL,
        *,
        embedder: str | Embedder,
        language: str,
        count_tokens: str | TokenCounter,
        cache_dir: Path,
        maintenance_timeout: float,
    ) -> None:
        if language not in LANGUAGES:
            raise ValueError(f"language must be one of {', '.join(LANGUAGES)}; got {language!r}")
        self.url = url
        self.maintenance_timeout = maintenance_timeout
        self.language = language
        self.count_tokens = resolve_counter(count_tokens)
        self._cache_dir = cache_dir
        self._given = None if embedder == "auto" else resolve(embedder, cache_dir=cache_dir)
        self._embedder = self._given
        self._facts: DatabaseFacts | None = None
        self._model: Model | None = None
        self._stale = False
        self._lock = threading.Lock()
        self._ann: dict[str, int] = {}

    def learn(self, facts: DatabaseFacts, model: Model | None) -> None:
        """Take in what the database says of itself."""
        self._facts = facts
        self._set_model(model)

    def note_isolated(self) -> None:
        """Take in that row-level security was set up since."""
        self._facts = replace(self.facts, isolated=True)

    @property
    def facts(self) -> DatabaseFacts:
        """Asked at open."""
        if self._facts is None:
            raise RuntimeError("the store is not open")
        return self._facts

    @property
    def embedder(self) -> Embedder:
        """The embedder in use; it loads its model at its first text.

        Raises:
            MissingExtraError: If none is given, recorded or installed.
        """
        with self._lock:
            if self._embedder is None:
                self._embedder = resolve("auto", cache_dir=self._cache_dir)
            return self._embedder

    def _set_model(self, model: Model | None) -> None:
        with self._lock:
            if model is None:
                return
            if self._given is None and self._model is None:
                self._embedder = resolve_recorded(
                    model.name, model.fingerprint, model.dimensions, cache_dir=self._cache_dir
                )
            self._model = model
            self._stale = False

    @contextmanager
    def model_in_use(self) -> Iterator[None]:
        """Around what names the recorded model: once refused, it is asked for again next time."""
        try:
            yield
        except EmbeddingMismatchError:
            self._stale = True
            raise

    def model_for_writing(self) -> Steps[Model]:
        """The recorded model, recorded now if the store is empty; the embedder must be it."""
        embedder = self.embedder
        if (yield from self.model_for_listing()) is None:
            identity = (embedder.name, embedder.fingerprint, embedder.dimensions)
            found = yield from write(lambda connection: register_model(connection, *identity))
            self._set_model(found)
        return self._checked()

    def model_for_reading(self) -> Steps[Model | None]:
        """The recorded model, or None in an empty store."""
        model = yield from self.model_for_listing()
        return None if model is None else self._checked()

    def model_for_listing(self) -> Steps[Model | None]:
        """The recorded model, whether or not the embedder is it."""
        if self._model is None or self._stale:
            self._set_model((yield from read(active_model)))
        return self._model

    def _checked(self) -> Model:
        model, embedder = self._model, self.embedder
        assert model is not None
        if (model.fingerprint, model.dimensions) != (embedder.fingerprint, embedder.dimensions):
            self._stale = True
            raise EmbeddingMismatchError(
                f"the database holds vectors of {model.name!r} ({model.dimensions} dimensions, "
                f"fingerprint {model.fingerprint}), the embedder is {embedder.name!r} "
                f"({embedder.dimensions} dimensions, fingerprint {embedder.fingerprint}): open "
                'the store with embedder="auto", or change the model with zerda_pg.reembed'
            )
        return model

    def ann_dimensions(self, tenant_id: str, model_id: int | None) -> int | None:
        """Dimensions, where the tenant is known to have an HNSW index for the model."""
        if self._model is None or self._ann.get(tenant_id) != model_id:
            return None
        return self._model.dimensions

    def note_index(self, tenant_id: str, ann_model_id: int | None) -> None:
        """Take in what a search said of the tenant's index: it serves from the next one on."""
        if ann_model_id is None:
            self._ann.pop(tenant_id, None)
        else:
            self._ann[tenant_id] = ann_model_id

    def unit_vector(self, value: object, name: str) -> NDArray[np.float32]:
        """A given vector (d,), normalised.

        Raises:
            ValueError: If it has another length than the model's, is not finite, or is zero.
        """
        try:
            vector = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{name} must be a list of numbers") from error
        dimensions = self._model.dimensions if self._model else self.embedder.dimensions
        if vector.shape != (dimensions,):
            raise ValueError(
                f"{name} must have {dimensions} numbers, as the model's vectors have; "
                f"its shape is {vector.shape}"
            )
        greatest = float(np.abs(vector).max())  # NaN, if there is one
        if not math.isfinite(greatest):
            raise ValueError(f"{name} must be finite: it has NaN or infinity")
        if greatest == 0.0:
            raise ValueError(f"{name} must not be a zero vector: it has no direction")
        if not LEAST < greatest < GREATEST:
            vector = vector / greatest
        length = math.sqrt(vector @ vector)
        return (vector / length).astype(np.float32)
