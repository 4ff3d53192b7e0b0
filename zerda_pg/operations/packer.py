"""Filling a budget: which memories, as what text, in how many tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zerda_pg.entry import MemoryEntry
from zerda_pg.operations.recalling import Recalled
from zerda_pg.render import renderer_of
from zerda_pg.scoring.excerpt import excerpt
from zerda_pg.scoring.packing import Policy, check_policy, pack, value_order
from zerda_pg.scoring.signals import Floats, Ranking
from zerda_pg.text import body_of
from zerda_pg.tokens import TokenCounter

__all__ = ["Packer", "PackingOptions", "worth_by_rank"]

FAIR_SHARE = 0.5
"""Of the budget: a longer memory that was not packed is shown in part."""

PART = 0.125
"""Of the budget: what a part may take."""

PARTS = 1
"""Most memories shown in part, out of the `PARTS_FROM` best."""

PARTS_FROM = 3

TRIALS = 24
"""Memories that are tried one by one in what is left of the budget."""

LEAST_PART_TOKENS = 24
"""A shorter part says nothing."""


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """What `build_context` takes beside the options of a search.

    Raises:
        ValueError: Naming the argument that is wrong.
    """

    token_budget: int = 3000
    top_k: int | None = None
    packing: Policy = "value"
    render: str | Callable[[Sequence[MemoryEntry]], str] = "transcript"
    count_tokens: str | TokenCounter | None = None

    def __post_init__(self) -> None:
        for name in ("token_budget", "top_k"):
            value = getattr(self, name)
            if name == "top_k" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        check_policy(self.packing, "packing")
        renderer_of(self.render)


def worth_by_rank(ranking: Ranking) -> Floats:
    """(n,) scores that fall along the order: the highest score belongs to the first.

    A ranker that diversifies puts rows elsewhere than their scores say, and packing must weigh
    what the ranker decided.
    """
    worth = ranking.scores.copy()
    worth[ranking.order] = np.sort(ranking.scores[ranking.order])[::-1]
    return worth


def _checked(counter: TokenCounter) -> TokenCounter:
    """The counter, refused where it gives anything but a number of tokens."""

    def count(text: str) -> int:
        if not isinstance(text, str):
            raise ValueError(f"render must give text, it gave {type(text).__name__}")
        tokens = counter(text)
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            raise ValueError(f"count_tokens must give a whole number from 0, it gave {tokens!r}")
        return tokens

    return count


class Packer:
    """Packs by each memory's own tokens, then holds the rendered whole to the budget.

    Headings and separators cost tokens too, which only the whole tells: what it is over by is
    taken off the budget and packed again, and what is then left is filled one by one.
    """

    def __init__(self, found: Recalled, packing: PackingOptions, counter: TokenCounter) -> None:
        self._found = found
        self._packing = packing
        self._counter = _checked(counter)
        self._render = renderer_of(packing.render)
        self._ids = found.gathered.signals.ids
        self._rows = [row for row in found.ranking.order if self._ids[row] in found.entries]
        self._worth = worth_by_rank(found.ranking)
        self._lengths = np.ones(len(self._ids), dtype=np.int64)
        self._rejected: dict[int, str] = {}
        self.chosen: list[int] = []
        self.parts: list[int] = []
        """Rows of which only a part is shown."""
        self.text = ""
        self.entries: list[MemoryEntry] = []
        self.tokens = 0
        self.exact = True

    def fill(self) -> None:
        """Choose, render and count."""
        self._measure()
        self._pack(self._packing.token_budget)
        if self._packing.packing == "value" and not callable(self._packing.render):
            self._show_parts()
        if self._packing.packing != "stop":
            self._fill_up()
        self._drop_superseded()

    def _drop_superseded(self) -> None:
        """No superseded memory without what replaced it; what that leaves is filled once more."""
        successors = self._found.gathered.signals.successors
        while True:
            shown = {*self.chosen, *self.parts}
            alone = {old for old, new in successors if old in shown and new not in shown}
            if not alone:
                return
            self._rejected |= dict.fromkeys(alone, "successor_not_packed")
            self._rows = [row for row in self._rows if row not in alone]
            self.parts = [row for row in self.parts if row not in alone]
            self._take([row for row in self.chosen if row not in alone])
            if self._packing.packing != "stop":
                self._fill_up()

    def reason(self, row: int, min_score: float) -> str:
        """Why a row was not packed."""
        score = self._found.ranking.scores[row]
        if score <= 0.0:
            return "not_relevant"
        if score < min_score:
            return "below_min_score"
        return "excerpt" if row in self.parts else self._rejected.get(row, "over_budget")

    def _measure(self) -> None:
        entries, own = self._found.entries, callable(self._packing.render)
        for row in self._rows:
            entry = entries[self._ids[row]]
            # a heading is shared by the memories under it, so it is not counted for each
            text = self._render([entry])[0] if own else body_of(entry.content) + "\n"
            self._lengths[row] = max(1, self._counter(text))

    def _pack(self, budget: int, without: int = 0) -> None:
        """Pack into the budget less what is reserved."""
        room = budget - without
        for _ in range(6):
            outcome = pack(
                self._worth, self._lengths, budget=max(0, room),
                top_k=self._packing.top_k, policy=self._packing.packing, order=self._rows,
            )  # fmt: skip
            self._take(outcome.chosen)
            if self.tokens <= budget - without:
                break
            room -= self.tokens - (budget - without)
        self.exact = outcome.exact
        self._rejected = dict(outcome.rejected)
        while self.tokens > budget - without:
            self._take(self.chosen[:-1])

    def _fill_up(self) -> None:
        """Try what the estimate left out, most worth for its length first."""
        budget, top_k = self._packing.token_budget, self._packing.top_k
        order = self._rows
        if self._packing.packing == "value":
            order = value_order(self._worth, self._lengths, self._rows)
        trials = 0
        for row in order:
            if trials >= TRIALS or (top_k is not None and len(self.chosen) >= top_k):
                break
            # half: tokens at seams merge, and a heading may be there already
            if row in self.chosen or self.tokens + self._lengths[row] // 2 > budget:
                continue
            trials += 1
            kept = (self.chosen, self.text, self.entries, self.tokens, self.parts)
            self.parts = [part for part in self.parts if part != row]
            self._take([*self.chosen, row])
            if self.tokens > budget:
                self.chosen, self.text, self.entries, self.tokens, self.parts = kept

    def _show_parts(self) -> None:
        """Show a part of what is among the best but too long for a fair share of the budget."""
        budget = self._packing.token_budget
        long = [
            row
            for row in self._found.ranking.order[:PARTS_FROM]
            if row in self._rows
            and row not in self.chosen
            and self._lengths[row] > FAIR_SHARE * budget
        ][:PARTS]
        if not long or int(budget * PART) < LEAST_PART_TOKENS:
            return
        self._pack(budget, without=int(budget * PART) * len(long))
        for row in long:
            if row not in self.chosen:
                self.parts = [*self.parts, row]
                self._take(self.chosen)
                if self.tokens > budget:
                    self.parts = self.parts[:-1]
                    self._take(self.chosen)

    def _take(self, rows: Sequence[int]) -> None:
        """Make these rows, and the parts, the text."""
        entries = self._found.entries
        self.chosen = list(rows)
        shown = [entries[self._ids[row]] for row in rows] + [self._part(row) for row in self.parts]
        if not shown:
            self.text, self.entries, self.tokens = "", [], 0
            return
        partial = {self._ids[row] for row in self.parts}
        self.text, ordered = self._render(shown)
        self.entries = [entry for entry in ordered if entry.id not in partial]
        self.tokens = self._counter(self.text)

    def _part(self, row: int) -> MemoryEntry:
        """A memory with the part of its text that matched, marked with the id of the whole."""
        entry = self._found.entries[self._ids[row]]
        terms = {term.lexeme: term.idf for term in self._found.gathered.terms}
        body = body_of(entry.content)
        # in characters, by what this text's tokens measure
        each = len(body) / max(1, int(self._lengths[row]))
        mark = f" [part of {entry.id}]"
        room = int(self._packing.token_budget * PART * each) - len(mark) - 20
        return replace(entry, content=excerpt(body, terms, max(1, room)) + mark)
