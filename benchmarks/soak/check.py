"""What must hold of the database, given what the processes were told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg

from benchmarks.soak.history import Done
from benchmarks.soak.worker import TENANTS

State: TypeAlias = "tuple[int, str, str] | None"
"""Version, content and status of an entry; None: it is not there."""


@dataclass(kw_only=True)
class Findings:
    """What is wrong, by kind; all empty is what must be."""

    lost: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    half_written: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    deadlocks: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """How many of each."""
        return {
            "lost acknowledged writes": len(self.lost),
            "duplicates": len(self.duplicates),
            "half-written entries": len(self.half_written),
            "cross-tenant rows": len(self.foreign),
            "deadlocks surfaced": len(self.deadlocks),
            "other errors surfaced": len(self.errors),
            "leaked connections": len(self.leaked),
        }


class Replay:
    """In which states an entry of one process may be, after each of its operations in turn."""

    def __init__(self, entry_id: str) -> None:
        self.entry_id = entry_id
        self.possible: set[State] = {None}
        self.wrong: list[str] = []

    def take(self, done: Done) -> None:
        """One operation: what it did if it was acknowledged, else what it may have done."""
        after = {self._after(state, done) for state in self.possible}
        if not done.acknowledged:
            self.possible |= after
            return
        said = self._said(done)
        fitting = {state for state in after if said is _ANY or _version(state) == said}
        if not fitting:
            self.wrong.append(
                f"{self.entry_id}: {done.operation} said {said}, possible was {self.possible}"
            )
        self.possible = fitting or after

    def _after(self, state: State, done: Done) -> State:
        if done.operation == "put":
            return (_version(state) or 0) + 1, done.given["items"][self.entry_id], "active"
        if state is None or done.operation == "delete":
            return None
        version, content, status = state
        if done.operation == "change":
            return version + 1, done.given["text"], status
        return version, content, "discarded" if done.operation == "hide" else "active"

    def _said(self, done: Done) -> Any:
        if done.operation == "put":
            return done.result[self.entry_id]
        return done.result if done.operation == "change" else _ANY


_ANY = object()


def _version(state: State) -> int | None:
    return None if state is None else state[0]


def _ids(done: Done) -> Iterable[str]:
    if done.operation == "put":
        return list(done.given["items"])
    return [done.given["id"]] if done.operation in {"change", "delete", "hide", "show"} else []


def check(url: str, histories: Sequence[tuple[list[Done], list[tuple[str, str]]]]) -> Findings:
    """Compare the histories with what is in the database."""
    found = Findings()
    kinds = {"deadlock": found.deadlocks, "foreign": found.foreign, "error": found.errors}
    for _, surfaced in histories:
        for kind, error in surfaced:
            kinds[kind].append(error)
    with psycopg.connect(url) as connection:
        for tenant in TENANTS:
            operations = [
                [done for done in history if done.tenant == tenant] for history, _ in histories
            ]
            _check_tenant(connection, tenant, operations, found)
        _check_tables(connection, found)
    return found


def _check_tenant(
    connection: psycopg.Connection, tenant: str, histories: list[list[Done]], found: Findings
) -> None:
    rows = connection.execute(
        "SELECT id, version, coalesce(content->>'text', content#>>'{}'), status, metadata "
        "FROM zerda.entries WHERE tenant_id = %s",
        [tenant],
    ).fetchall()
    there = {row[0]: (row[1], row[2], row[3]) for row in rows}
    texts = Counter(row[2] for row in rows)
    for row in rows:
        if row[0] != "counter" and not row[2].startswith(tenant):
            found.foreign.append(f"{row[0]} is in {tenant}")
    shared = Counter(row[2] for row in rows if " shared fact " in row[2] and row[3] == "active")
    found.duplicates += [f"{text}: {n} times" for text, n in shared.items() if n > 1]
    counted = [0, 0]
    for history in histories:
        _check_process(history, there, texts, found)
        for done in history:
            if done.operation == "count_up":
                counted[0] += done.acknowledged and done.result
                counted[1] += not done.acknowledged
    total = next(row[4]["n"] for row in rows if row[0] == "counter")
    if not counted[0] <= total <= sum(counted):
        found.lost.append(f"the counter of {tenant} is {total}, {counted} were added")


def _check_process(
    history: list[Done], there: dict[str, tuple[int, str, str]], texts: Counter[str],
    found: Findings,
) -> None:  # fmt: skip
    replays: dict[str, Replay] = {}
    for done in history:
        for entry_id in _ids(done):
            replays.setdefault(entry_id, Replay(entry_id)).take(done)
        if done.operation == "share" and done.acknowledged:
            state = there.get(done.result)
            if state is None or state[1:] != (done.given["text"], "active"):
                found.lost.append(f"{done.given['text']} was said to be {done.result}")
        new = {
            "add": [done.given.get("text", "")], "add_old": [done.given.get("text", "")],
            "talk": done.given.get("texts", []),
        }.get(done.operation, [])  # fmt: skip
        for text in new:
            if texts[text] > 1:
                found.duplicates.append(f"{text}: {texts[text]} times")
            if done.acknowledged and texts[text] == 0:
                found.lost.append(text)
    for entry_id, replay in replays.items():
        found.lost += replay.wrong
        if there.get(entry_id) not in replay.possible:
            found.lost.append(
                f"{entry_id} is {there.get(entry_id)}, possible are {replay.possible}"
            )


def _check_tables(connection: psycopg.Connection, found: Findings) -> None:
    for query, what in (
        ("SELECT tenant_id, id FROM zerda.entries e WHERE NOT EXISTS (SELECT 1 FROM "
         "zerda.entry_state s WHERE s.tenant_id = e.tenant_id AND s.entry_id = e.id)", "state"),
        ("SELECT tenant_id, id FROM zerda.entries e WHERE NOT EXISTS (SELECT 1 FROM "
         "zerda.embeddings s WHERE s.tenant_id = e.tenant_id AND s.entry_id = e.id "
         "AND s.status = e.status)", "vector"),
    ):  # fmt: skip
        for tenant, entry_id in connection.execute(query.encode()):
            found.half_written.append(f"{tenant} {entry_id} has no {what}")
