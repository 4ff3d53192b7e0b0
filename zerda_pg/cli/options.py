"""Options that commands share, as groups: `application.command` spreads them out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Option

if TYPE_CHECKING:
    from zerda_pg.filters import Filter
    from zerda_pg.scoped import Memory
    from zerda_pg.store import MemoryStore

__all__ = [
    "Call",
    "Expires",
    "Filters",
    "Search",
    "Text",
    "Timestamp",
    "ValidFrom",
    "json_object",
    "lifetime",
    "moment",
    "text_of",
]

Text = Annotated[str, Argument(help="A text; - reads it from stdin.", show_default=False)]
Timestamp = Annotated[
    str | None, Option("--timestamp", metavar="TIME", help="When it happened (ISO 8601).")
]
ValidFrom = Annotated[
    str | None, Option("--valid-from", metavar="TIME", help="From when it is true.")
]
Expires = Annotated[
    str | None, Option("--expires", metavar="TIME", help="A time, or 30m, 12h, 7d from now.")
]

COMMON = "Common options"
FILTERS = "Which memories"
CLOCKS = "How to search"

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, kw_only=True)
class Call:
    """Where to look, and how to answer."""

    tenant: Annotated[
        str, Option("--tenant", metavar="NAME", help="Whose memories.", rich_help_panel=COMMON)
    ] = "default"
    user: Annotated[
        str | None,
        Option("--user", metavar="NAME", help="A user in the tenant.", rich_help_panel=COMMON),
    ] = None
    url: Annotated[
        str | None,
        Option(
            "--url",
            metavar="URL",
            help="postgresql://…; default: ZERDA_PG_URL, else the embedded server.",
            rich_help_panel=COMMON,
        ),
    ] = None
    embedder: Annotated[
        str,
        Option(
            "--embedder",
            metavar="NAME",
            help="auto, onnx, sentence-transformers[:MODEL], hashing, or package.module:factory.",
            rich_help_panel=COMMON,
        ),
    ] = "auto"
    json: Annotated[
        bool, Option("--json", help="Print one JSON document.", rich_help_panel=COMMON)
    ] = False

    def missing(self, id: str) -> str:
        """What is said of a memory that is not there."""
        from zerda_pg.scope import Scope

        return str(Scope(tenant_id=self.tenant, user_id=self.user).missing(id))

    @contextmanager
    def store(self, *, model: bool = False) -> Iterator[MemoryStore]:
        """The store, open; with `model` its embedding model loads meanwhile."""
        from zerda_pg.cli.opening import opened

        with opened(self.url, self.embedder, model=model) as store:
            yield store

    @contextmanager
    def memory(self, *, model: bool = False) -> Iterator[Memory]:
        """The tenant's memories."""
        with self.store(model=model) as store:
            yield store.tenant(self.tenant, user_id=self.user)


def _many(flag: str, what: str) -> Any:
    return Option(flag, metavar="WORD", help=f"{what}; may be repeated.", rich_help_panel=FILTERS)


def _when(flag: str, what: str, panel: str = FILTERS) -> Any:
    return Option(flag, metavar="TIME", help=what, rich_help_panel=panel)


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which memories are considered."""

    kinds: Annotated[list[str] | None, _many("--kind", "Of this kind")] = None
    types: Annotated[list[str] | None, _many("--type", "Of this memory type")] = None
    tags: Annotated[list[str] | None, _many("--tag", "With this tag (all, if several)")] = None
    statuses: Annotated[
        list[str] | None, _many("--status", "active (default), superseded or discarded")
    ] = None
    session: Annotated[
        str | None,
        Option("--session", metavar="NAME", help="Of this session.", rich_help_panel=FILTERS),
    ] = None
    agent: Annotated[
        str | None,
        Option("--agent", metavar="NAME", help="By this agent.", rich_help_panel=FILTERS),
    ] = None
    since: Annotated[str | None, _when("--since", "Happened at or after (ISO 8601).")] = None
    until: Annotated[str | None, _when("--until", "Happened before (ISO 8601).")] = None
    min_importance: Annotated[
        float | None,
        Option("--min-importance", help="At least this important.", rich_help_panel=FILTERS),
    ] = None
    metadata: Annotated[
        str | None,
        Option(
            "--metadata",
            metavar="JSON",
            help='Conditions such as {"score": {"$gte": 10}}.',
            rich_help_panel=FILTERS,
        ),
    ] = None

    def filter(self) -> Filter:
        """As the store takes it."""
        from zerda_pg.filters import Filter

        return Filter(
            memory_types=self.types or None,
            kinds=self.kinds or None,
            tags_all=self.tags or (),
            status=self.statuses or None,
            session_id=self.session,
            agent_id=self.agent,
            created_from=moment(self.since, "--since"),
            created_to=moment(self.until, "--until"),
            min_importance=self.min_importance,
            metadata=json_object(self.metadata, "--metadata") or {},
        )


@dataclass(frozen=True, kw_only=True)
class Search:
    """How a search goes about it."""

    mode: Annotated[
        str, Option("--mode", help="hybrid, dense or lexical.", rich_help_panel=CLOCKS)
    ] = "hybrid"
    ranker: Annotated[
        str,
        Option(
            "--ranker",
            help="default, composite, fusion or kind_prior.",
            rich_help_panel=CLOCKS,
        ),
    ] = "default"
    min_score: Annotated[
        float, Option("--min-score", help="Least score, from 0 to 1.", rich_help_panel=CLOCKS)
    ] = 0.0
    valid_at: Annotated[
        str | None, _when("--valid-at", "What was true then (ISO 8601).", CLOCKS)
    ] = None
    known_at: Annotated[
        str | None, _when("--known-at", "What was known then (ISO 8601).", CLOCKS)
    ] = None
    now: Annotated[str | None, _when("--now", "The clock (ISO 8601).", CLOCKS)] = None
    current_session: Annotated[
        str | None,
        Option(
            "--current-session",
            metavar="NAME",
            help="What this session touched ranks higher.",
            rich_help_panel=CLOCKS,
        ),
    ] = None
    no_record: Annotated[
        bool,
        Option("--no-record", help="Do not count this as an access.", rich_help_panel=CLOCKS),
    ] = False

    def arguments(self, filters: Filters) -> dict[str, Any]:
        """`search`'s arguments."""
        return {
            "mode": self.mode,
            "ranker": self.ranker,
            "min_score": self.min_score,
            "filter": filters.filter(),
            "valid_at": moment(self.valid_at, "--valid-at"),
            "known_at": moment(self.known_at, "--known-at"),
            "now": moment(self.now, "--now"),
            "current_session": self.current_session,
            "record_access": not self.no_record,
        }

    @property
    def needs_model(self) -> bool:
        """Whether the query will be embedded."""
        return self.mode != "lexical"


def text_of(given: str) -> str:
    """The text, read from stdin where it is `-`."""
    if given != "-":
        return given
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise BadParameter(f"stdin is not UTF-8 (byte {error.start})") from None


def json_object(text: str | None, name: str) -> dict[str, Any] | None:
    """The JSON object of an option."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadParameter(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadParameter(f"{name} must be a JSON object, such as '{{\"key\": 1}}'")
    return value


def moment(text: str | None, name: str) -> datetime | None:
    """The time of an option."""
    from zerda_pg.clock import parse_time

    return None if text is None else parse_time(text, name)


def lifetime(text: str | None, name: str) -> datetime | timedelta | None:
    """A time, or a time from now such as `7d`, `12h`, `30m`."""
    if text and text[:-1].isdigit() and text[-1] in _UNITS:
        try:
            return timedelta(**{_UNITS[text[-1]]: int(text[:-1])})
        except OverflowError:
            raise BadParameter(f"{name} is too far off: {text}") from None
    try:
        return moment(text, name)
    except ValueError as error:
        raise BadParameter(f"{error}; or a time from now such as 30m, 12h, 7d") from None
