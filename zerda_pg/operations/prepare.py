"""What callers hand in, checked and completed before anything is embedded or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerda_pg.clock import from_epoch, parse_time, to_epoch
from zerda_pg.core import Core
from zerda_pg.db.rows import stored_content, stored_fraction, stored_metadata
from zerda_pg.db.schema import LANGUAGES
from zerda_pg.entry import MemoryEntry
from zerda_pg.errors import InvalidContentError
from zerda_pg.ids import check_id
from zerda_pg.scope import Scope
from zerda_pg.text import body_of, check_json, check_text, is_blank

__all__ = [
    "ADD_FIELDS",
    "Draft",
    "check_entry",
    "check_ids",
    "check_interval",
    "draft_of",
    "expiry",
]

MAX_CHARACTERS = 20_000_000
"""Longest text of one memory: a row and its JSON stay far below what one message may hold."""

ADD_FIELDS = frozenset(
    "id kind memory_type importance tags metadata session_id user_id agent_id timestamp "
    "valid_from expires_at embedding supersedes language".split()
)
"""What `add` takes beside the content."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An entry ready to be embedded and written."""

    entry: MemoryEntry
    body: str
    vector: NDArray[np.float32] | None
    """Given by the caller, normalised; None: to be embedded."""
    supersedes: tuple[str, ...]
    own_id: bool = False
    """Whether its id was made for this write, so that nobody else can have written it."""


def draft_of(core: Core, scope: Scope, item: Any, given: Mapping[str, Any]) -> Draft:
    """A draft from a content and `add`'s arguments, from a mapping of them, or from an entry.

    Raises:
        InvalidContentError: If text or JSON cannot be stored.
        ValueError: Naming the argument that is wrong.
    """
    supersedes = check_ids(given.get("supersedes", ()), "supersedes")
    if isinstance(item, MemoryEntry):
        _refuse_beside_entry(given)
        entry = replace(item)
    else:
        entry = _entry_from(item, given)
    _set_scope(entry, scope)
    check_entry(entry)
    _freeze(entry)
    if entry.id in supersedes:
        raise ValueError(f"supersedes names the entry itself, {entry.id!r}")
    vector = None
    if entry.embedding is not None:
        vector = core.unit_vector(entry.embedding, "embedding")
        entry.embedding = None
    return Draft(
        entry=entry,
        body=body_of(entry.content),
        vector=vector,
        supersedes=supersedes,
        own_id=not isinstance(item, MemoryEntry) and given.get("id") is None,
    )


_DEFAULTS: dict[str, Any] = {
    "memory_type": "semantic", "importance": 0.5, "tags": (), "supersedes": ()
}  # fmt: skip


def _refuse_beside_entry(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name != "supersedes" and value not in (None, _DEFAULTS.get(name)):
            raise ValueError(f"{name} was given beside a MemoryEntry: set it on the entry")


def _entry_from(content: Any, given: Mapping[str, Any]) -> MemoryEntry:
    values = {
        name: value
        for name, value in given.items()
        if value is not None and name not in {"supersedes", "expires_at", "timestamp"}
    }
    metadata = values.pop("metadata", {})
    if not isinstance(metadata, Mapping):
        raise ValueError(f"metadata must be a mapping, got {type(metadata).__name__}")
    if given.get("timestamp") is not None:
        values["timestamp"] = to_epoch(parse_time(given["timestamp"], "timestamp"), "timestamp")
    for name in ("valid_from",):
        if name in values:
            values[name] = parse_time(values[name], name)
    if "id" in values:
        check_id(values["id"], "id")
    entry = MemoryEntry(content, expires_at=expiry(given.get("expires_at")), **values)
    # set afterwards: an `id` in a caller's metadata is data, not this entry's id
    entry.metadata = dict(metadata)
    return entry


def expiry(value: object) -> datetime | None:
    """A moment from one, from ISO 8601, or from a time to live."""
    if isinstance(value, timedelta):
        if value <= timedelta(0):
            raise ValueError(f"expires_at must lie ahead, got {value}")
        try:
            return datetime.now(UTC) + value
        except OverflowError as error:
            raise ValueError(f"expires_at lies beyond the year 9999: {value}") from error
    if isinstance(value, int | float):  # of what: an hour from now, or seconds since 1970?
        raise ValueError(
            f"expires_at must be a datetime, ISO text or a timedelta, got {value}: for so many "
            "seconds from now give timedelta(seconds=…)"
        )
    return None if value is None else parse_time(value, "expires_at")


def _set_scope(entry: MemoryEntry, scope: Scope) -> None:
    """Give it the scope's user, agent and session where it has none of its own."""
    if scope.user_id is not None and entry.user_id not in (None, scope.user_id):
        raise ValueError("user_id names another user than the scope's")
    for name in ("user_id", "agent_id", "session_id"):
        # an empty one is not absent: it is refused, not made everyone's
        if getattr(entry, name) is None:
            setattr(entry, name, getattr(scope, name))


def _freeze(entry: MemoryEntry) -> None:
    """Make it what will be read back, apart from what the caller goes on changing."""
    entry.timestamp = entry.created_at.timestamp()  # Postgres keeps microseconds
    entry.last_access = from_epoch(entry.last_access).timestamp()
    entry.content = stored_content(entry.content)
    entry.metadata = stored_metadata(entry.metadata)
    entry.tags = [str.__str__(tag) for tag in entry.tags]
    for name in ("id", "kind", "session_id", "user_id", "agent_id", "language"):
        value = getattr(entry, name)
        if value is not None:
            setattr(entry, name, str.__str__(value))  # of a subclass, such as StrEnum, the text
    for name in ("importance", "decay_factor"):
        setattr(entry, name, stored_fraction(getattr(entry, name)))


def check_entry(entry: MemoryEntry) -> None:
    """Refuse what Postgres cannot store or no one could find.

    Raises:
        InvalidContentError: Naming the field and the position.
        ValueError: Naming the field.
    """
    check_json(entry.content, "content")
    check_json(entry.metadata, "metadata")
    if is_blank(entry.content):
        raise InvalidContentError("content is empty: there is nothing to remember")
    body = body_of(entry.content)
    if len(body) > MAX_CHARACTERS:
        raise InvalidContentError(
            f"content is {len(body)} characters long, at most {MAX_CHARACTERS} are allowed"
        )
    for position, tag in enumerate(entry.tags):
        if not check_text(tag, f"tags[{position}]").strip():
            raise InvalidContentError(f"tags[{position}] is empty")
    for name in ("session_id", "user_id", "agent_id"):
        if getattr(entry, name) is not None:
            check_id(getattr(entry, name), name)
    if entry.kind is not None and not check_text(entry.kind, "kind").strip():
        raise InvalidContentError("kind is empty: leave it out, or name one")
    if entry.language is not None and entry.language not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(LANGUAGES)}; got {entry.language!r}")
    check_interval(entry)


def check_interval(entry: MemoryEntry) -> None:
    """Refuse an entry that ends before it begins."""
    if entry.valid_from and entry.valid_to and entry.valid_to < entry.valid_from:
        raise ValueError("valid_to must not lie before valid_from")


def check_ids(value: object, name: str) -> tuple[str, ...]:
    """Ids from one or several, each checked, in the order given, each once."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, Sequence | set | frozenset):
        raise ValueError(f"{name} must be an id or a list of ids, got {type(value).__name__}")
    return tuple(dict.fromkeys(check_id(item, name) for item in items))
