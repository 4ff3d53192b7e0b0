"""Adding: one entry, many, or a conversation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import Connection

from zerda_pg.clock import parse_time
from zerda_pg.core import Core
from zerda_pg.db import links, maintenance, reads, writes
from zerda_pg.entry import MemoryEntry
from zerda_pg.errors import InvalidContentError, ZerdaError
from zerda_pg.ids import check_id
from zerda_pg.operations.batches import BATCH_ROWS, After, write_batch, write_batches
from zerda_pg.operations.prepare import ADD_FIELDS, Draft, draft_of
from zerda_pg.results import AddResult
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, background, read
from zerda_pg.text import check_text

__all__ = [
    "Progress",
    "add",
    "add_many",
    "add_messages",
    "check_if_exists",
    "message_id",
    "message_parts",
]

Progress = Callable[[int, int | None], None]
"""Called with how many are done, and how many there are if that is known."""


def add(
    core: Core,
    scope: Scope,
    content: Any,
    *,
    if_exists: str,
    dedupe: bool,
    given: Mapping[str, Any],
) -> Steps[AddResult]:
    """Embed and write one entry."""
    check_if_exists(if_exists)
    check_flag(dedupe, "dedupe")
    yield from core.model_for_reading()
    draft = draft_of(core, scope, content, given)
    done = yield from write_batch(core, scope, [draft], if_exists=if_exists, dedupe=dedupe)
    return done.results[0]


def add_many(
    core: Core,
    scope: Scope,
    items: Iterable[Any],
    *,
    if_exists: str,
    dedupe: bool,
    progress: Progress | None,
) -> Steps[list[AddResult]]:
    """Embed and write in batches; each is all or nothing."""
    check_if_exists(if_exists)
    check_flag(dedupe, "dedupe")
    check_progress(progress)
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise ValueError(f"items must be a list of entries, got one {type(items).__name__}")
    yield from core.model_for_reading()
    total = len(items) if isinstance(items, Sequence) else None
    results: list[AddResult] = []

    def done(batch: list[AddResult]) -> None:
        results.extend(batch)
        if progress is not None:
            progress(len(results), total)

    drafts = (_draft_item(core, scope, n, item) for n, item in enumerate(items))
    yield from write_batches(core, scope, drafts, if_exists=if_exists, dedupe=dedupe, done=done)
    yield from background(
        lambda connection: maintenance.after_bulk(
            connection, scope.tenant_id, len(results), timeout=core.maintenance_timeout
        )
    )
    return results


def check_flag(value: object, name: str) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {type(value).__name__}")


def check_progress(progress: object) -> None:
    """Refuse what cannot be called, before anything is written."""
    if progress is not None and not callable(progress):
        raise ValueError(f"progress must be a function, got {type(progress).__name__}")


def check_if_exists(if_exists: str) -> None:
    """Refuse another word than the three."""
    if not isinstance(if_exists, str) or if_exists not in {"replace", "keep", "error"}:
        raise ValueError(f"if_exists must be 'replace', 'keep' or 'error', got {if_exists!r}")


def _draft_item(core: Core, scope: Scope, number: int, item: Any) -> Draft:
    """One item of many; an error says which."""
    try:
        if isinstance(item, MemoryEntry):
            return draft_of(core, scope, item, {})
        if not isinstance(item, Mapping):
            raise ValueError(
                f"must be a MemoryEntry or a mapping with `content`, got {type(item).__name__}"
            )
        if unknown := sorted(map(str, item.keys() - ADD_FIELDS - {"content"})):
            raise ValueError(f"has an unknown field {unknown[0]!r}")
        if "content" not in item:
            raise ValueError("has no content")
        given = {name: value for name, value in item.items() if name != "content"}
        return draft_of(core, scope, item["content"], given)
    except ValueError as error:
        message = f"items[{number}]: {error}"
        kind = InvalidContentError if isinstance(error, InvalidContentError) else ValueError
        raise kind(message) from error


def add_messages(
    core: Core,
    scope: Scope,
    messages: Iterable[Mapping[str, Any]],
    *,
    session_id: str,
    user_id: str | None,
    progress: Progress | None = None,
) -> Steps[list[AddResult]]:
    """Write a conversation as episodic entries, each linked to the next."""
    check_id(session_id, "session_id")
    if user_id is not None:
        check_id(user_id, "user_id")
    check_progress(progress)
    yield from core.model_for_reading()
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise ValueError(f"messages must be a list of messages, got one {type(messages).__name__}")
    drafts = iter(_message_drafts(core, scope, messages, session_id=session_id, user_id=user_id))
    results: list[AddResult] = []
    last: str | None = None
    while batch := list(islice(drafts, BATCH_ROWS)):
        if last is None:
            last = yield from _last_before(scope, session_id, batch[0].entry)
        done = yield from write_batch(
            core, scope, batch, if_exists="keep", dedupe=False, after=_linked(scope, last)
        )
        last = done.results[-1].id
        results += done.results
        if progress is not None:
            progress(len(results), len(messages) if isinstance(messages, Sequence) else None)
    yield from background(
        lambda connection: maintenance.after_bulk(
            connection, scope.tenant_id, len(results), timeout=core.maintenance_timeout
        )
    )
    return results


def _linked(scope: Scope, last: str | None) -> After:
    """Link each message of a batch to the next, and the first to the last one before."""

    def after(connection: Connection, written: Sequence[writes.Written]) -> None:
        before = [] if last is None else [last]
        links.insert_sequence(connection, scope, [*before, *(w.id for w in written)])

    return after


def _last_before(scope: Scope, session_id: str, entry: MemoryEntry) -> Steps[str | None]:
    return (yield from read(lambda c: reads.last_before(c, scope, session_id, entry)))


def _message_drafts(
    core: Core,
    scope: Scope,
    messages: Iterable[Mapping[str, Any]],
    *,
    session_id: str,
    user_id: str | None,
) -> Iterator[Draft]:
    """A draft a message; its id is the same whenever the same conversation is written again."""
    occurrences: dict[tuple[str, str, str], int] = {}
    clock = datetime.now(UTC)
    user = user_id or scope.user_id
    for number, message in enumerate(messages):
        name = f"messages[{number}]"
        speaker, said, when = message_parts(message, name)
        stamp = "" if when is None else when.isoformat()
        key = (stamp, speaker, said)
        occurrences[key] = occurrences.get(key, 0) + 1
        given: dict[str, Any] = {
            "id": message.get("id") or message_id(session_id, *key, occurrences[key], user_id=user),
            "memory_type": "episodic",
            "session_id": session_id,
            "user_id": user_id,
            # without a time of its own, a message happens now, in the order given
            "timestamp": when or clock + timedelta(microseconds=number),
        }
        try:
            yield draft_of(core, scope, {"speaker": speaker, "text": said}, given)
        except ZerdaError as error:
            raise InvalidContentError(f"{name}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


def message_parts(message: object, name: str) -> tuple[str, str, datetime | None]:
    """Speaker, text and time of a chat message."""
    if not isinstance(message, Mapping):
        raise ValueError(f"{name} must be a mapping, got {type(message).__name__}")
    speaker = message.get("speaker", message.get("role"))
    said = message.get("text", message.get("content"))
    for value, words in ((speaker, "speaker (or role)"), (said, "text (or content)")):
        if value is None:
            raise ValueError(f"{name} has no {words}")
        if not check_text(value, f"{name}: {words}").strip():
            raise InvalidContentError(f"{name}: {words} is empty")
    when = message.get("timestamp")
    return str(speaker), str(said), None if when is None else parse_time(when, f"{name}: timestamp")


def message_id(
    session_id: str, stamp: str, speaker: str, said: str, occurrence: int, *, user_id: str | None
) -> str:
    """128 bits over what makes a message itself; a repeated "ok" differs by its occurrence.

    A user's session is his own: two users may have one of the same name.
    """
    owner = [] if user_id is None else [user_id]
    parts = json.dumps([session_id, stamp, speaker, said, occurrence, *owner], ensure_ascii=False)
    return "msg-" + hashlib.sha256(parts.encode("utf-8")).hexdigest()[:32]
