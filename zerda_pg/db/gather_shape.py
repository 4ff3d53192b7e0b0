"""What the hot statement's text depends on."""

from __future__ import annotations

from dataclasses import dataclass, field

from zerda_pg.db.gather_arms import Arms

__all__ = ["GatherShape"]


@dataclass(frozen=True, kw_only=True)
class GatherShape:
    """What the statement's text depends on, besides the criteria."""

    dense: bool = True
    lexical: bool = True
    recent: bool = True
    graph: bool = True
    degree: bool = False
    session: bool = False
    """Whether a current session is given, whose touches are looked up."""
    phrases: bool = False
    """Whether the query quotes phrases, which are then looked for in the candidates."""
    ann: int | None = None
    """Dimensions, where the tenant has an HNSW index of its own; None: exact."""
    isolated: bool = False
    """Whether row-level security applies, under which `@@` alone uses no index."""
    vectors: bool = False
    """Whether the candidates' vectors are fetched, for diversity."""
    best: int | None = None
    """How many candidates come, those that look best; None: all."""
    arms: Arms = field(default_factory=Arms)
