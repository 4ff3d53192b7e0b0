"""What `search` takes beside the query, and the rankers it knows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from zerda_pg.clock import aware, instant
from zerda_pg.db.criteria import Criteria
from zerda_pg.entry import fraction
from zerda_pg.filters import Filter
from zerda_pg.ids import check_id
from zerda_pg.scope import Scope
from zerda_pg.scoring.hybrid import ChannelRanker, HybridRanker
from zerda_pg.scoring.rankers import CompositeRanker, FusionRanker, KindPriorRanker
from zerda_pg.scoring.rerank_config import memory_rerank_config
from zerda_pg.scoring.signals import Ranker

__all__ = ["SearchOptions", "options_of", "ranker_name", "ranker_of"]

MAX_K = 1000
"""Most hits of one search: a listing is `entries`."""

NO_FILTER = Filter()
"""Made once: most searches have none."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What `search` takes beside the query; checked at construction.

    Raises:
        ValueError: Naming the argument that is wrong.
    """

    k: int = 10
    mode: str = "hybrid"
    min_score: float = 0.0
    filter: Filter | Mapping[str, Any] | None = None
    valid_at: datetime | None = None
    known_at: datetime | None = None
    now: datetime | None = None
    current_session: str | None = None
    embedding: Sequence[float] | None = None
    record_access: bool = True
    ranker: Ranker | str = "default"

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or not 1 <= self.k <= MAX_K:
            raise ValueError(f"k must be a whole number from 1 to {MAX_K}, got {self.k!r}")
        if not isinstance(self.mode, str) or self.mode not in {"hybrid", "dense", "lexical"}:
            raise ValueError(f"mode must be 'hybrid', 'dense' or 'lexical', got {self.mode!r}")
        fraction(self.min_score, "min_score")
        for name in ("valid_at", "known_at"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, aware(getattr(self, name), name))
        if self.now is not None:
            object.__setattr__(self, "now", instant(self.now, "now"))
        if self.current_session is not None:
            check_id(self.current_session, "current_session")

    def criteria(self, scope: Scope) -> Criteria:
        """Scope, filter and clocks."""
        return Criteria(
            scope=scope,
            filter=NO_FILTER if self.filter is None else Filter.of(self.filter),
            valid_at=self.valid_at,
            known_at=self.known_at,
            now=self.now,
        )


def options_of(call: str, own: Sequence[str], given: Mapping[str, Any]) -> SearchOptions:
    """What a call was given for its search.

    Args:
        call: Its name.
        own: What it takes beside `search`'s arguments.
        given: The rest.

    Raises:
        TypeError: If it takes no argument of that name.
    """
    known = list(SearchOptions.__dataclass_fields__)
    if unknown := [name for name in given if name not in known]:
        raise TypeError(
            f"{call}() has no argument {unknown[0]!r}: it takes {', '.join([*own, *known])}"
        )
    return SearchOptions(**given)


def ranker_of(ranker: Ranker | str, mode: str) -> Ranker:
    """The ranker for a name, or the object given.

    Raises:
        ValueError: If there is none of that name, or a mode other than hybrid has a ranker.
    """
    if not isinstance(ranker, str):
        if isinstance(ranker, type) or not callable(getattr(ranker, "rank", None)):
            raise ValueError(
                "ranker must be a name or an object with a method `rank`, "
                f"got {ranker if isinstance(ranker, type) else type(ranker).__name__}"
            )
        return ranker
    if mode != "hybrid" and ranker == "default":
        return ChannelRanker("similarity" if mode == "dense" else "lexical")
    base = HybridRanker()
    named: dict[str, Callable[[], Ranker]] = {
        "default": lambda: base,
        "composite": lambda: CompositeRanker(base=base),
        "fusion": lambda: FusionRanker(memory_rerank_config(), base=base),
        "kind_prior": lambda: KindPriorRanker(base=base),
    }
    if ranker not in named:
        raise ValueError(f"ranker must be one of {', '.join(named)} or an object; got {ranker!r}")
    return named[ranker]()


def ranker_name(ranker: Ranker | str) -> str:
    """For a report."""
    return ranker if isinstance(ranker, str) else type(ranker).__name__
