"""Changing the embedding model beside readers and writers.

The vectors of the new model are back-filled next to the old ones, batch by batch, until so few
entries lack one that the rest is made while writes wait; in the same transaction the model is
switched. What was written is kept: a second run goes on where the first one stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection

from zerda_pg.db import models, reads
from zerda_pg.db.facts import DatabaseFacts, Model, active_model
from zerda_pg.db.models import PAGE_BYTES, Unembedded
from zerda_pg.embedding import embed_documents
from zerda_pg.embedding.protocol import Embedder
from zerda_pg.steps import Steps, embed, outside, read, write

__all__ = ["drop_retired", "reembed"]

BATCH_ROWS = 256

FINAL_ROWS = 64
"""Entries embedded while writes wait: about a second with a small model."""

DROP_ROWS = 5000

Progress = Callable[[int, int | None], None]


def reembed(
    facts: DatabaseFacts, embedder: Embedder, progress: Progress | None
) -> Steps[dict[str, Any]]:
    """Back-fill the embedder's vectors and switch to it."""
    # tried first: a model that cannot embed is not recorded
    yield from embed(embedder, ["a text to try the model with"])
    identity = (embedder.name, embedder.fingerprint, embedder.dimensions)
    before = yield from read(active_model)
    model, state = yield from write(lambda c: models.prepare_model(c, *identity))
    total = yield from read(models.count_entries)
    run = _Backfill(facts, embedder, model, total, progress)
    limit, previous = FINAL_ROWS, total
    while state != "active":
        added = yield from run.one_pass()
        if added <= limit and (yield from write(partial(run.finish, limit=limit))):
            break
        if 2 * added > previous:  # writers keep pace with the passes: let them wait longer
            limit *= 2
        previous = added
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "dimensions": model.dimensions,
        "embedded": run.embedded,
        "switched": state != "active",
        "before": None if before is None else before.name,
    }


class _Backfill:
    """The vectors of one model, on their way."""

    def __init__(
        self,
        facts: DatabaseFacts,
        embedder: Embedder,
        model: Model,
        total: int,
        progress: Progress | None,
    ) -> None:
        self._facts = facts
        self._embedder = embedder
        self._model = model
        self._total = total
        self._progress = progress
        self.embedded = 0

    def one_pass(self) -> Steps[int]:
        """Embed what lacks a vector by now, tenant by tenant; how many were written."""
        before = self.embedded
        model_id = self._model.id
        for tenant_id in (yield from read(lambda c: models.tenants_lacking(c, model_id))):
            after: str | None = ""
            while after is not None:
                after = yield from self._batch(tenant_id, after)
        return self.embedded - before

    def _batch(self, tenant_id: str, after: str) -> Steps[str | None]:
        texts = yield from read(
            lambda c: models.lacking(c, tenant_id, self._model.id, after=after, limit=BATCH_ROWS)
        )
        if not texts:
            return None
        more = len(texts) == BATCH_ROWS or sum(len(t.body.encode()) for t in texts) >= PAGE_BYTES
        made = yield from embed(self._embedder, [t.body for t in texts])
        self._add(
            (
                yield from write(
                    lambda c: models.add_vectors(
                        c, self._facts, self._model.id, texts, made.vectors, made.truncated
                    )
                )
            )
        )
        # what writers add behind the last row, as ids that grow with time do, is the next pass's
        return texts[-1].id if more else None

    def _add(self, count: int) -> None:
        self.embedded += count
        if self._progress is not None:
            self._progress(self.embedded, self._total)

    def finish(self, connection: Connection, *, limit: int) -> bool:
        """Hold writes, embed the last few and switch; False if there are more than `limit`."""
        models.hold_writes(connection)
        last: list[list[Unembedded]] = []
        for tenant_id in models.tenants_lacking(connection, self._model.id):
            last.append(
                models.lacking(connection, tenant_id, self._model.id, after="", limit=limit + 1)
            )
            if sum(map(len, last)) > limit:
                return False
        added = 0
        for texts in last:
            made = embed_documents(self._embedder, [t.body for t in texts])
            added += models.add_vectors(
                connection, self._facts, self._model.id, texts, made.vectors, made.truncated
            )
        models.activate(connection, self._model.id)
        self._add(added)
        return True


def drop_retired(progress: Progress | None) -> Steps[dict[str, Any]]:
    """Erase the vectors of retired models, their indexes, and their records."""
    names: list[str] = []
    erased = 0
    for model in (yield from read(models.retired_models)):
        yield from outside(lambda c, m=model: models.drop_indexes(c, m.id))  # type: ignore[misc]
        for tenant_id in (yield from read(reads.list_tenants)):
            after: str | None = ""
            while after is not None:
                gone, after = yield from _drop(model, tenant_id, after)
                erased += gone
                if progress is not None:
                    progress(erased, None)
        if (yield from write(lambda c, m=model: models.drop_model(c, m.id))):  # type: ignore[misc]
            names.append(model.name)
    return {"models": names, "vectors": erased}


def _drop(model: Model, tenant_id: str, after: str) -> Steps[tuple[int, str | None]]:
    return (
        yield from write(
            lambda c: models.drop_vectors(c, model.id, tenant_id, after=after, limit=DROP_ROWS)
        )
    )
