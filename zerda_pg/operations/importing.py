"""Importing: JSON Lines in, entries and linked conversations out, in bounded memory."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import numpy as np
from sqlalchemy import Connection

from zerda_pg.core import Core
from zerda_pg.db import links, maintenance, reads, writes
from zerda_pg.db.failures import sqlstate
from zerda_pg.errors import AlreadyExistsError, NotFoundError, ZerdaError
from zerda_pg.ids import check_id
from zerda_pg.operations import restoring
from zerda_pg.operations.batches import BATCH_CHARACTERS, BATCH_ROWS, write_batch
from zerda_pg.operations.lines import BadLine, Source, count_lines, opened, parsed_lines
from zerda_pg.operations.prepare import ADD_FIELDS, Draft, draft_of
from zerda_pg.operations.writing import Progress, check_if_exists, message_id, message_parts
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, background, read, write

__all__ = ["import_file"]

ERRORS_KEPT = 100
"""Bad lines that the report describes; beyond, they are counted."""

SESSIONS_KEPT = 1000
"""Sessions whose last message is remembered; of others the database is asked."""

MESSAGE_FIELDS = frozenset({"speaker", "role", "session", "text"})
"""A line with one of these is a chat message."""

_SPOKEN = MESSAGE_FIELDS | {"content", "timestamp", "id", "session_id"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line that can be written."""

    number: int
    draft: Draft
    session: str | None
    """Of a chat message: the conversation whose messages are linked."""


@dataclass(kw_only=True)
class Import:
    """How an import goes, and what became of the lines so far."""

    if_exists: str
    dedupe: bool
    lines: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    last: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Session → its last message."""

    def reject(self, number: int, error: Exception) -> None:
        """Count a bad line and say what is wrong with it."""
        self.failed += 1
        if len(self.errors) < ERRORS_KEPT:
            self.errors.append({"line": number, "error": str(error)})

    def follow(self, session: str, message_id: str) -> None:
        """Remember the message as its session's last."""
        self.last[session] = message_id
        self.last.move_to_end(session)
        if len(self.last) > SESSIONS_KEPT:
            self.last.popitem(last=False)

    def report(self) -> dict[str, Any]:
        """As data."""
        known = {word: self.statuses[word] for word in ("created", "replaced", "kept", "duplicate")}
        errors = sorted(self.errors, key=lambda error: int(error["line"]))
        return {"lines": self.lines, **known, "failed": self.failed, "errors": errors}


class Occurrences:
    """How often a key came up so far, in 8 bytes for each that came up once.

    Keys are told apart by 64 bits. Two that share them count together, which only gives the
    second another number, the same one at every run.
    """

    RECENT = 1 << 16

    def __init__(self) -> None:
        self._sorted = np.empty(0, dtype=np.uint64)
        self._recent: set[int] = set()
        self._repeats: dict[int, int] = {}

    def count(self, key: str) -> int:
        """The number of this occurrence, from 1."""
        digest = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
        if digest in self._repeats or digest in self._recent or self._is_sorted_in(digest):
            self._repeats[digest] = self._repeats.get(digest, 1) + 1
            return self._repeats[digest]
        self._recent.add(digest)
        if len(self._recent) > self.RECENT:
            fresh = np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent))
            self._sorted = np.sort(np.concatenate([self._sorted, fresh]))
            self._recent = set()
        return 1

    def _is_sorted_in(self, digest: int) -> bool:
        place = int(np.searchsorted(self._sorted, np.uint64(digest)))
        return place < len(self._sorted) and int(self._sorted[place]) == digest


class Reader:
    """Turns parsed lines into drafts; ids that are not given follow from the line's content."""

    def __init__(self, core: Core, scope: Scope) -> None:
        self._core = core
        self._scope = scope
        self._occurrences = Occurrences()
        self._clock = datetime.now(UTC)

    def line(self, number: int, value: object) -> Line:
        """The line's draft.

        Raises:
            ValueError: Saying what is wrong with it.
        """
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a JSON object, got {type(value).__name__}")
        if MESSAGE_FIELDS & value.keys():
            return self._message(number, value)
        return Line(number=number, draft=self._entry(value), session=None)

    def _entry(self, value: Mapping[str, Any]) -> Draft:
        if unknown := sorted(value.keys() - ADD_FIELDS - {"content"}):
            raise ValueError(f"has an unknown field {unknown[0][:40]!r}")
        if "content" not in value:
            raise ValueError("has no content")
        given = {name: item for name, item in value.items() if name != "content"}
        given["id"] = _key(value.get("id"))
        draft = draft_of(self._core, self._scope, value["content"], given)
        if given["id"] is None:
            scope = self._scope
            marks = [scope.user_id, scope.agent_id, scope.session_id]
            text = json.dumps([marks, value], sort_keys=True, ensure_ascii=False)
            number = self._occurrences.count(text)
            draft.entry.id = "line-" + _digest(json.dumps([text, number], ensure_ascii=False))
        return draft

    def _message(self, number: int, value: Mapping[str, Any]) -> Line:
        speaker, said, when = message_parts(value, "the message")
        session = _key(value.get("session", value.get("session_id"))) or self._scope.session_id
        if session is None:
            raise ValueError("the message has no session")
        check_id(session, "session")
        stamp = "" if when is None else when.isoformat()
        key = json.dumps([session, stamp, speaker, said], ensure_ascii=False)
        occurrence = self._occurrences.count(key)
        given = {name: value[name] for name in value.keys() & (ADD_FIELDS - _SPOKEN)}
        if others := {name: value[name] for name in value.keys() - ADD_FIELDS - _SPOKEN}:
            given["metadata"] = {**others, **(given.get("metadata") or {})}
        user = given.get("user_id") or self._scope.user_id
        derived = message_id(session, stamp, speaker, said, occurrence, user_id=user)
        given = {"memory_type": "episodic"} | given | {
            "id": _key(value.get("id")) or derived,
            "session_id": session,
            # without a time of its own, a message happens now, in the order of the file
            "timestamp": when or self._clock + timedelta(microseconds=number),
        }  # fmt: skip
        content = {"speaker": speaker, "text": said}
        draft = draft_of(self._core, self._scope, content, given)
        return Line(number=number, draft=draft, session=session)


def _key(value: object) -> Any:
    """A key as text: exports often have numbers."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]


def import_file(
    core: Core,
    scope: Scope,
    source: Source,
    *,
    if_exists: str,
    dedupe: bool,
    progress: Progress | None,
) -> Steps[dict[str, Any]]:
    """Write every good line; report the bad ones. An export is restored as it was."""
    check_if_exists(if_exists)
    yield from core.model_for_reading()
    run = Import(if_exists=if_exists, dedupe=dedupe)
    reader = Reader(core, scope)
    with opened(source) as file:
        total = count_lines(source)
        parsed = parsed_lines(file)
        first = next(parsed, None)
        if first is not None and isinstance(first[1], Mapping) and restoring.is_header(first[1]):
            return (
                yield from restoring.restore(
                    core, scope, first[1], parsed,
                    total=total, if_exists=if_exists, dedupe=dedupe, progress=progress,
                )
            )  # fmt: skip
        lines = chain([] if first is None else [first], parsed)
        for batch in _batches(_good_lines(reader, lines, run)):
            yield from _write(core, scope, batch, run)
            if progress is not None:
                progress(run.lines, total)
    yield from background(
        lambda connection: maintenance.after_bulk(
            connection,
            scope.tenant_id,
            run.statuses["created"],
            timeout=core.maintenance_timeout,
        )
    )
    return run.report()


def _good_lines(
    reader: Reader, parsed: Iterable[tuple[int, object]], run: Import
) -> Iterator[Line]:
    for number, value in parsed:
        run.lines += 1
        if isinstance(value, BadLine):
            run.reject(number, value)
            continue
        try:
            line = reader.line(number, value)
        except ValueError as error:
            run.reject(number, error)
        else:
            yield line


def _batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Batches bounded in rows and characters; a line comes after what it supersedes."""
    batch: list[Line] = []
    ids: set[str] = set()
    characters = 0
    for line in lines:
        full = len(batch) >= BATCH_ROWS or characters > BATCH_CHARACTERS
        if batch and (full or not ids.isdisjoint(line.draft.supersedes)):
            yield batch
            batch, ids, characters = [], set(), 0
        batch.append(line)
        ids.add(line.draft.entry.id)
        characters += len(line.draft.body)
    if batch:
        yield batch


_OF_A_LINE = (ValueError, NotFoundError, AlreadyExistsError)
_SUPERSEDING = ("ZD006", "ZD007")
"""SQLSTATEs of `zerda.put_entries` for what an entry may not supersede."""


def _write(core: Core, scope: Scope, lines: Sequence[Line], run: Import) -> Steps[None]:
    """Write a batch; where the database refuses one of its lines, write the others without it."""
    try:
        yield from _write_together(core, scope, lines, run)
    except (ValueError, ZerdaError) as error:
        if not (isinstance(error, _OF_A_LINE) or sqlstate(error) in _SUPERSEDING):
            raise
        if len(lines) == 1:
            run.reject(lines[0].number, error)
            return
        middle = len(lines) // 2
        yield from _write(core, scope, lines[:middle], run)
        yield from _write(core, scope, lines[middle:], run)


def _write_together(core: Core, scope: Scope, lines: Sequence[Line], run: Import) -> Steps[None]:
    """One transaction: the entries, and the links of each conversation."""
    known: set[str] = set()
    if run.if_exists == "keep":  # what is there, and supersedes nothing, need not be embedded again
        ids = [line.draft.entry.id for line in lines]
        known = set((yield from read(lambda c: reads.fetch_entries(c, scope, ids))))
    fresh = [line for line in lines if line.draft.supersedes or line.draft.entry.id not in known]
    before = yield from _last_messages(scope, lines, run)
    stored = {line.number: line.draft.entry.id for line in lines}

    def link(connection: Connection, written: Sequence[writes.Written]) -> None:
        stored.update((fresh[w.n].number, w.id) for w in written)
        for session, previous in before.items():
            talk = [stored[line.number] for line in lines if line.session == session]
            links.insert_sequence(connection, scope, [*previous, *talk])

    if fresh:
        done = yield from write_batch(
            core, scope, [line.draft for line in fresh],
            if_exists=run.if_exists, dedupe=run.dedupe, after=link if before else None,
        )  # fmt: skip
        run.statuses.update(result.status for result in done.results)
    elif before:
        yield from write(lambda connection: link(connection, []))
    run.statuses["kept"] += len(lines) - len(fresh)
    for line in lines:
        if line.session is not None:
            run.follow(line.session, stored[line.number])


def _last_messages(scope: Scope, lines: Sequence[Line], run: Import) -> Steps[dict[str, list[str]]]:
    """By session of a batch: the message before its first one here, or none."""
    before: dict[str, list[str]] = {}
    for line in lines:
        if line.session is None or line.session in before:
            continue
        previous = run.last.get(line.session)
        if previous is None:
            previous = yield from _asked(scope, line.session, line.draft)
        before[line.session] = [] if previous is None else [previous]
    return before


def _asked(scope: Scope, session: str, draft: Draft) -> Steps[str | None]:
    return (yield from read(lambda c: reads.last_before(c, scope, session, draft.entry)))
