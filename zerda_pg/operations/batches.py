"""One batch: embed what has no vector, write all in one transaction, say what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from zerda_pg.core import Core
from zerda_pg.db import reads, writes
from zerda_pg.db.facts import Model
from zerda_pg.db.rows import (
    entry_to_json,
)
from zerda_pg.db.transactions import LostAnswerError
from zerda_pg.entry import MemoryEntry, Status
from zerda_pg.operations.prepare import Draft
from zerda_pg.results import AddResult
from zerda_pg.scope import Scope
from zerda_pg.steps import Handle, Steps, embed, finish, read, start, write

__all__ = ["Batch", "batches", "write_batch", "write_batches"]

BATCH_ROWS = 256
BATCH_CHARACTERS = 4_000_000
"""Size of a batch, which is a transaction: bounds memory and what an error takes back."""

After = Callable[[Connection, Sequence[writes.Written]], Any]
"""More work of the same transaction."""

Done = Callable[[list[AddResult]], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """What was written."""

    results: list[AddResult]
    vectors: NDArray[np.float32]
    """(n, d) unit norm, in the order given."""


def batches(drafts: Iterable[Draft]) -> Iterator[list[Draft]]:
    """Batches bounded in rows and in characters."""
    batch: list[Draft] = []
    characters = 0
    for draft in drafts:
        if batch and (len(batch) >= BATCH_ROWS or characters > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(draft)
        characters += len(draft.body)
    if batch:
        yield batch


def write_batch(
    core: Core,
    scope: Scope,
    drafts: Sequence[Draft],
    *,
    if_exists: str,
    dedupe: bool,
    after: After | None = None,
    direct: bool = True,
) -> Steps[Batch]:
    """Embed and write; with `after`, in one transaction with it.

    Args:
        core: The store's.
        scope: Whose entries they are.
        drafts: Checked.
        if_exists: `replace`, `keep` or `error`.
        dedupe: Whether an earlier entry of the same content is kept instead.
        after: Called with the connection and what was written.
        direct: False for a layer's entries, which go with their last membership.
    """
    ready = yield from _prepared(core, drafts)
    work = _work(core, scope, ready, if_exists=if_exists, dedupe=dedupe, after=after, direct=direct)
    with core.model_in_use():
        try:
            written = yield from write(work, transaction=after is not None)
        except LostAnswerError:
            if after is not None or not _own(drafts):
                raise
            written = yield from _asked_again(core, scope, drafts, ready, dedupe)
    results = yield from _results(core, scope, drafts, written)
    return Batch(results=results, vectors=ready.vectors)


def write_batches(
    core: Core, scope: Scope, drafts: Iterable[Draft], *, if_exists: str, dedupe: bool, done: Done
) -> Steps[None]:
    """Embed and write many; while one batch is written, the next is prepared and embedded.

    Args:
        core: The store's.
        scope: Whose entries they are.
        drafts: Checked, made as they are taken.
        if_exists: `replace`, `keep` or `error`.
        dedupe: Whether an earlier entry of the same content is kept instead.
        done: Called with each batch's results, in order.

    Raises:
        ZerdaError, ValueError: Of a draft or a write; the batches before it are written.
    """
    under_way: tuple[list[Draft], _Prepared, Handle[list[writes.Written]]] | None = None

    def settle() -> Steps[None]:
        nonlocal under_way
        if under_way is not None:
            (batch, ready, handle), under_way = under_way, None
            with core.model_in_use():
                try:
                    written = yield from finish(handle)
                except LostAnswerError:
                    if not _own(batch):
                        raise
                    written = yield from _asked_again(core, scope, batch, ready, dedupe)
            done((yield from _results(core, scope, batch, written)))

    taken = batches(drafts)
    while True:
        try:
            batch = next(taken, None)
            ready = None if batch is None else (yield from _prepared(core, batch))
        except Exception:
            yield from settle()
            raise
        yield from settle()
        if batch is None or ready is None:
            return
        work = _work(core, scope, ready, if_exists=if_exists, dedupe=dedupe)
        under_way = (batch, ready, (yield from start(work)))


def _own(drafts: Sequence[Draft]) -> bool:
    """Whether an entry's being there tells that this write was done."""
    return all(draft.own_id for draft in drafts)


def _asked_again(
    core: Core, scope: Scope, drafts: Sequence[Draft], ready: _Prepared, dedupe: bool
) -> Steps[list[writes.Written]]:
    """Write once more what may be written already: an id of our own that is there was created."""
    work = _work(core, scope, ready, if_exists="keep", dedupe=dedupe)
    again = yield from write(work, transaction=False)
    return [
        replace(written, status="created") if written.status == "kept" else written
        for written in again
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Prepared:
    model: Model
    rows: list[Mapping[str, Any]]
    vectors: NDArray[np.float32]


def _prepared(core: Core, drafts: Sequence[Draft]) -> Steps[_Prepared]:
    vectors, cut = yield from _vectors(core, drafts)
    # recorded afterwards: a model that cannot embed must not become the store's
    model = yield from core.model_for_writing()
    rows = [
        entry_to_json(
            n, d.entry, body=d.body, language=core.language, truncated=cut[n],
            supersedes=d.supersedes,
        )
        for n, d in enumerate(drafts)
    ]  # fmt: skip
    return _Prepared(model=model, rows=rows, vectors=vectors)


def _work(
    core: Core,
    scope: Scope,
    ready: _Prepared,
    *,
    if_exists: str,
    dedupe: bool,
    after: After | None = None,
    direct: bool = True,
) -> Callable[[Connection], list[writes.Written]]:
    def work(connection: Connection) -> list[writes.Written]:
        written = writes.put_entries(
            connection, core.facts, scope, ready.model.id, ready.rows, ready.vectors,
            if_exists=if_exists, dedupe=dedupe, direct=direct,
        )  # fmt: skip
        if after is not None:
            after(connection, written)
        return written

    return work


def _vectors(core: Core, drafts: Sequence[Draft]) -> Steps[tuple[NDArray[np.float32], list[bool]]]:
    """(n, d) vectors and which texts were cut, embedding those that came without."""
    vectors = np.zeros((len(drafts), core.embedder.dimensions), dtype=np.float32)
    cut = [False] * len(drafts)
    missing = [n for n, draft in enumerate(drafts) if draft.vector is None]
    if missing:
        made = yield from embed(core.embedder, [drafts[n].body for n in missing])
        for place, n in enumerate(missing):
            vectors[n] = made.vectors[place]
            cut[n] = made.truncated[place]
    for n, draft in enumerate(drafts):
        if draft.vector is not None:
            vectors[n] = draft.vector
    return vectors, cut


def _results(
    core: Core, scope: Scope, drafts: Sequence[Draft], written: Sequence[writes.Written]
) -> Steps[list[AddResult]]:
    """The entries as they are in the store now.

    Those of earlier writes are fetched, and those that were superseded by others of the batch.
    """
    ended = {name for draft in drafts for name in draft.supersedes}
    earlier = [w.id for w in written if w.status in {"kept", "duplicate"} or w.id in ended]
    fetched: dict[str, MemoryEntry] = {}
    if earlier:
        fetched = yield from read(lambda c: reads.fetch_entries(c, scope, earlier))
    results: list[AddResult] = []
    for w in written:
        entry = fetched.get(w.id)
        if entry is None:
            entry = _as_stored(core, drafts[w.n].entry, w)
        status = cast(Any, w.status)
        results.append(AddResult(id=w.id, entry=entry, status=status, version=w.version))
    return results


def _as_stored(core: Core, entry: MemoryEntry, w: writes.Written) -> MemoryEntry:
    """What reading it would give."""
    # a copy as it is: what a constructor would check was checked
    stored = copy(entry)
    stored.version = w.version
    stored.recorded_at = stored.updated_at = w.recorded_at
    stored.invalidated_at = w.recorded_at if entry.status is Status.SUPERSEDED else None
    stored.language = entry.language or core.language
    if w.access_count is not None and w.last_access is not None:
        stored.access_count, stored.last_access = w.access_count, w.last_access.timestamp()
    return stored
