"""The vocabulary: what a memory is, and how two of them are linked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Any, Self

from zerda_pg.clock import aware, parse_time, to_epoch
from zerda_pg.ids import check_id, new_id
from zerda_pg.text import body_of

__all__ = ["Edge", "MemoryEntry", "MemoryPriority", "MemoryType", "Status"]

ACCESS_BOOST = 0.05
"""Share of the distance to 1 by which an access raises importance (the seed's figure)."""

_TYPE_WORDS = {
    "short": "short_term",
    "st": "short_term",
    "stm": "short_term",
    "long": "long_term",
    "lt": "long_term",
    "ltm": "long_term",
    "work": "working",
    "wm": "working",
    "episode": "episodic",
    "ep": "episodic",
    "sem": "semantic",
    "proc": "procedural",
}


class MemoryType(StrEnum):
    """What sort of memory an entry is."""

    SHORT_TERM = "short_term"
    LONG_TERM = "long_term"
    WORKING = "working"
    EPISODIC = "episodic"
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"

    @classmethod
    def from_string(cls, word: str) -> MemoryType:
        """The type for a name or a usual short form (`st`, `short`, `lt`, `wm`, `ep`, …).

        Raises:
            ValueError: If the word is unknown.
        """
        if isinstance(word, str):
            name = word.strip().lower().replace("-", "_")
            try:
                return cls(_TYPE_WORDS.get(name, name))
            except ValueError:
                pass
        known = ", ".join(member.value for member in cls)
        raise ValueError(f"memory_type must be one of {known}; got {str(word)[:40]!r}")


class MemoryPriority(Enum):
    """Importance in five steps."""

    CRITICAL = 1.0
    HIGH = 0.8
    MEDIUM = 0.5
    LOW = 0.3
    MINIMAL = 0.1

    @classmethod
    def from_importance(cls, importance: float) -> MemoryPriority:
        """The step for an importance: from 0.9 critical, 0.7 high, 0.5 medium, 0.3 low."""
        for least, priority in (
            (0.9, cls.CRITICAL),
            (0.7, cls.HIGH),
            (0.5, cls.MEDIUM),
            (0.3, cls.LOW),
        ):
            if importance >= least:
                return priority
        return cls.MINIMAL


class Status(StrEnum):
    """Whether a memory is in use, replaced by a later one, or put aside."""

    ACTIVE = "active"
    SUPERSEDED = "superseded"
    DISCARDED = "discarded"


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A directed, typed link between two entries."""

    source_id: str
    target_id: str
    relation: str = "related"
    weight: float = 1.0
    metadata: Mapping[str, Any] = field(default_factory=dict)


_TIMES = ("valid_from", "valid_to", "expires_at", "updated_at", "recorded_at", "invalidated_at")


@dataclass(eq=False, repr=False)
class MemoryEntry:
    """One memory.

    Positional arguments stand in the order of the seed; what zerda_pg adds comes last.
    Equality and hash go by id, `<` by effective importance. The caller's `tags` and
    `metadata` are copied, never changed.

    Args:
        content: Any JSON value; a chat turn is `{"input": …, "output": …}`.
        timestamp: When it happened: seconds since the epoch, or an aware datetime.
        memory_type: A `MemoryType`, its name or a short form.
        importance: In [0, 1].
        access_count: How often it was recalled.
        tags: Labels to filter by.
        metadata: Any JSON object; `metadata["id"]` is used as the id where none is given.
        embedding: (d,) vector, or None until the store has made one.
        last_access: Seconds since the epoch, or an aware datetime; default now.
        decay_factor: In [0, 1]; what forgetting has left of the importance.
        original_importance: Default: `importance`.
        id: Default: a new UUIDv7.
        kind: `decision`, `fact`, `preference`, `failure`, `attempt` or any other word.
        session_id: One run of an agent, or one conversation.
        user_id: Whose memory it is; None: everyone's in the tenant.
        agent_id: Which agent wrote it.
        status: `active`, `superseded` or `discarded`.
        valid_from: From when it is true; None: always.
        valid_to: Until when it is true; None: still.
        expires_at: From when it is hidden; None: never.
        updated_at: When the store last changed it.
        recorded_at: When the store learned this version of it.
        invalidated_at: When the store learned that it had ended.
        version: Counts from 1; each correction adds one.
        language: Text-search configuration; None: the store's.

    Raises:
        ValueError: Naming the field, for a number outside its range, a naive datetime or an
            unknown word.
    """

    content: Any
    timestamp: float = field(default_factory=time.time)
    memory_type: MemoryType = MemoryType.SEMANTIC
    importance: float = 0.5
    access_count: int = 0
    tags: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    embedding: Sequence[float] | None = None
    last_access: float = field(default_factory=time.time)
    decay_factor: float = 1.0
    original_importance: float | None = None
    id: str = ""
    kind: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    status: Status = Status.ACTIVE
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    expires_at: datetime | None = None
    updated_at: datetime | None = None
    recorded_at: datetime | None = None
    invalidated_at: datetime | None = None
    version: int = 1
    language: str | None = None

    def __post_init__(self) -> None:
        self.memory_type = MemoryType.from_string(self.memory_type)
        self.status = Status(self.status)
        self.timestamp = to_epoch(self.timestamp, "timestamp")
        self.last_access = to_epoch(self.last_access, "last_access")
        if self.original_importance is None:
            self.original_importance = self.importance
        for name in ("importance", "decay_factor", "original_importance"):
            setattr(self, name, fraction(getattr(self, name), name))
        if isinstance(self.access_count, bool) or not isinstance(self.access_count, int):
            raise ValueError(f"access_count must be a whole number, got {self.access_count!r}")
        if not 0 <= self.access_count < 2**63:
            raise ValueError(
                f"access_count must not be negative, nor beyond 63 bits, got {self.access_count}"
            )
        self.tags = list_of_strings(self.tags, "tags")
        self.metadata = mapping_of(self.metadata, "metadata")
        for name in _TIMES:
            if getattr(self, name) is not None:
                setattr(self, name, aware(getattr(self, name), name))
        if not self.id:
            given = self.metadata.get("id")
            self.id = new_id() if given is None else check_id(given, "metadata['id']")
        else:
            check_id(self.id, "id")

    @property
    def text(self) -> str:
        """The text of the content that is searched and shown: of a chat message `speaker: text`."""
        return body_of(self.content)

    @property
    def effective_importance(self) -> float:
        """Importance × decay factor."""
        return self.importance * self.decay_factor

    @property
    def priority(self) -> MemoryPriority:
        """The step of the effective importance."""
        return MemoryPriority.from_importance(self.effective_importance)

    @property
    def created_at(self) -> datetime:
        """When it happened, as an aware datetime."""
        return datetime.fromtimestamp(self.timestamp, UTC)

    def access(self) -> None:
        """Record an access: count + 1, last access now, importance 5 % of the way to 1."""
        self.access_count += 1
        self.last_access = time.time()
        self.importance = min(1.0, self.importance + ACCESS_BOOST * (1.0 - self.importance))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict of every field, and the derived `effective_importance`, `priority`."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["memory_type"] = self.memory_type.value
        values["status"] = self.status.value
        values["tags"] = list(self.tags)
        values["metadata"] = dict(self.metadata)
        if self.embedding is not None:
            values["embedding"] = [float(x) for x in self.embedding]
        for name in _TIMES:
            if values[name] is not None:
                values[name] = values[name].isoformat()
        values["effective_importance"] = self.effective_importance
        values["priority"] = self.priority.name.lower()
        return values

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The entry that `to_dict` described; derived and unknown keys are passed over.

        Raises:
            ValueError: If `content` is missing or a field is invalid.
        """
        if "content" not in data:
            raise ValueError("content is missing")
        values = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        for name in ("timestamp", "last_access", *_TIMES):
            if isinstance(values.get(name), str):
                values[name] = parse_time(values[name], name)
        if values.get("id") is None:
            values.pop("id", None)
        return cls(**values)

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The entry that `to_json` described."""
        return cls.from_dict(json.loads(text))

    def __repr__(self) -> str:
        return (
            f"MemoryEntry(id={self.id!r}, memory_type={self.memory_type.value!r}, "
            f"kind={self.kind!r}, importance={self.importance:.2f})"
        )

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, MemoryEntry) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __lt__(self, other: MemoryEntry) -> bool:
        if not isinstance(other, MemoryEntry):
            return NotImplemented
        return self.effective_importance < other.effective_importance


def list_of_strings(value: object, name: str) -> list[str]:
    """A new list of the strings given; none for None.

    Raises:
        ValueError: Naming `name`, for one string, whose letters nobody means.
    """
    if value is None:
        return []
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"{name} must be a list of strings, got {type(value).__name__}")
    return list(value)


def mapping_of(value: object, name: str) -> dict[str, Any]:
    """A new dict of the mapping given; an empty one for None.

    Raises:
        ValueError: Naming `name`.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping, got {type(value).__name__}")
    return dict(value)


def fraction(value: object, name: str) -> float:
    """`value` as a float in [0, 1].

    Raises:
        ValueError: Naming `name`; NaN is outside.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        # numpy scalars are numbers too, and are not registered as int or float
        try:
            if isinstance(value, bool | str | bytes):
                raise TypeError
            value = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be a number, got {type(value).__name__}") from None
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")
    return float(value)
