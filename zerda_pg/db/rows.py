"""Database rows to values; dicts and row objects go no further up than this."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Select, and_, select
from sqlalchemy.sql.selectable import FromClause

from zerda_pg.db.schema import entry_state
from zerda_pg.entry import MemoryEntry, MemoryType, Status
from zerda_pg.text import content_hash, dump_json

__all__ = [
    "LEAST_FRACTION",
    "RECORDED",
    "STATE",
    "dump_rows",
    "entries_from_json",
    "entry_from_row",
    "entry_to_json",
    "stored_content",
    "stored_fraction",
    "stored_metadata",
    "whole",
]

LEAST_FRACTION = 1e-100
"""A smaller importance or decay factor is stored as 0: Postgres refuses a product that underflows
(below 2^-1074), so that one such entry would make every search that meets it fail."""


STATE = ("importance", "original_importance", "decay_factor", "access_count", "last_access")

RECORDED = (
    "id", "version", "memory_type", "kind", "content", "session_id", "user_id", "agent_id",
    "tags", "metadata", "language", "status", "created_at", "recorded_at", "updated_at",
    "valid_from", "valid_to", "invalidated_at", "expires_at",
)  # fmt: skip


_TIMES = ("recorded_at", "updated_at", "valid_from", "valid_to", "invalidated_at", "expires_at")
_FRACTIONS = ("importance", "original_importance", "decay_factor")

_MEMORY_TYPES = {kind.value: kind for kind in MemoryType}
_STATUSES = {status.value: status for status in Status}


def whole(table: FromClause) -> Select[Any]:
    """Entries (or versions) with their state: what `entry_from_row` reads."""
    return select(*[table.c[name] for name in RECORDED], *[entry_state.c[n] for n in STATE]).join(
        entry_state,
        and_(entry_state.c.tenant_id == table.c.tenant_id, entry_state.c.entry_id == table.c.id),
    )


def entry_from_row(row: Any) -> MemoryEntry:
    """A fresh entry from a row of `entries` (or a version) joined to `entry_state`."""
    return _entry({name: getattr(row, name) for name in (*RECORDED, *STATE)})


def entries_from_json(lines: Iterable[str]) -> list[MemoryEntry]:
    """The same from such rows as `row_to_json` gives them, which are read only where wanted."""
    entries: list[MemoryEntry] = []
    for values in json.loads(f"[{','.join(lines)}]"):
        for name in ("created_at", "last_access", *_TIMES):
            if values[name] is not None:
                values[name] = datetime.fromisoformat(values[name])
        for name in _FRACTIONS:
            values[name] = float(values[name])
        entries.append(_entry(values))
    return entries


def _entry(values: dict[str, Any]) -> MemoryEntry:
    """The entry of these columns, without the constructor's checks: the database has made them."""
    values["timestamp"] = values.pop("created_at").timestamp()
    values["last_access"] = values["last_access"].timestamp()
    values["memory_type"] = _MEMORY_TYPES[values["memory_type"]]
    values["status"] = _STATUSES[values["status"]]
    values["embedding"] = None
    for name in _TIMES:
        if values[name] is not None:
            values[name] = values[name].astimezone(UTC)
    entry = MemoryEntry.__new__(MemoryEntry)
    entry.__dict__ = values
    return entry


def stored_fraction(value: float) -> float:
    """An importance or a factor as it is stored: 0 below `LEAST_FRACTION`."""
    return value if value >= LEAST_FRACTION else 0.0


def stored_content(content: Any) -> Any:
    """A content as it is read back: JSON text, whatever mapping or sequence it was made of."""
    return str.__str__(content) if isinstance(content, str) else json.loads(dump_json(content))


def stored_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as it is read back from `jsonb`."""
    if not metadata:
        return {}
    stored: dict[str, Any] = _as_jsonb(json.loads(dump_json(metadata)))
    return stored


def _as_jsonb(value: Any) -> Any:
    """JSON as `jsonb` gives it: keys by length, then by bytes; numbers without an exponent."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(raw := key.encode()), raw))
        return {key: _as_jsonb(value[key]) for key in keys}
    if isinstance(value, list):
        return [_as_jsonb(item) for item in value]
    if isinstance(value, float):
        digits = format(Decimal(repr(value)), "f")
        return float(digits) + 0.0 if "." in digits else int(digits)  # numeric has no -0
    return value


def entry_to_json(
    number: int,
    entry: MemoryEntry,
    *,
    body: str,
    language: str,
    truncated: bool,
    supersedes: Sequence[str],
) -> Mapping[str, Any]:
    """One element of `zerda.put_entries`' rows."""
    return {
        "n": number,
        "id": entry.id,
        "memory_type": entry.memory_type.value,
        "kind": entry.kind,
        "content": entry.content,
        "body": body,
        "session_id": entry.session_id,
        "user_id": entry.user_id,
        "agent_id": entry.agent_id,
        "tags": entry.tags,
        "metadata": entry.metadata,
        "language": entry.language or language,
        "status": entry.status.value,
        "created_at": entry.created_at.isoformat(),
        "valid_from": _iso(entry.valid_from),
        "valid_to": _iso(entry.valid_to),
        "expires_at": _iso(entry.expires_at),
        "content_hash": content_hash(body),
        "importance": entry.importance,
        "original_importance": entry.original_importance,
        "decay_factor": entry.decay_factor,
        "access_count": entry.access_count,
        "last_access": datetime.fromtimestamp(entry.last_access, UTC).isoformat(),
        "truncated": truncated,
        "supersedes": list(supersedes),
    }


def _iso(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def dump_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """JSON text for the `json` parameter; content keeps its form to the letter."""
    return dump_json(rows)
