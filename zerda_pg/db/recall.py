"""Gathering: the hot statement, run and turned into arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from zerda_pg.db.criteria import Criteria
from zerda_pg.db.direct import fetch
from zerda_pg.db.facts import DatabaseFacts
from zerda_pg.db.gather import ARM_BITS, GatherShape, gather_sql
from zerda_pg.db.gather_best import NUMBERS
from zerda_pg.db.models import require_active
from zerda_pg.db.vectors import HalfvecParam, parse_halfvec
from zerda_pg.scoring.signals import Signals

__all__ = ["Gathered", "Question", "Term", "gather", "gather_many"]

QUERY_CHARACTERS = 20_000
"""Part of a query whose words are looked up: thousands of words, of which the rarest count."""

_id_of = itemgetter(0)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of the store."""

    criteria: Criteria
    text: str
    vector: NDArray[np.float32] | None
    """(d,) unit norm; None: words only."""
    model_id: int | None
    language: str
    current_session: str | None
    phrases: Sequence[str] = ()
    """What the text quotes."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """A lexeme of the query."""

    lexeme: str
    entries: int
    """How many entries have it."""
    counted: int
    """How many had it when they were last counted."""
    looked_up: bool
    """Whether it drove the lexical arm; else it only scored what other arms found."""
    idf: float
    """ln(1 + (N - n + 0.5) / (n + 0.5)): what having it is worth."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathered:
    """Candidates: the signals that rankers see, and what packing and the report need."""

    signals: Signals
    versions: list[int]
    sessions: list[str | None]
    arms: NDArray[np.int64]
    """(n,) which arms found each row, as `ARM_BITS`."""
    terms: list[Term]
    whole: Mapping[str, str]
    """Entries by id, as JSON for `entries_from_json`; very long ones are missing."""
    exact: bool
    """Whether the nearest vectors were compared one by one, not by an HNSW index."""
    ann_model_id: int | None
    """The model for which the tenant has an HNSW index, as of now."""
    model_state: str | None
    """What the model is, as of now; None where nothing was found."""

    def arm_counts(self) -> dict[str, int]:
        """Candidates by arm; one that several arms found counts in each."""
        found = self.arms[:, None] & list(ARM_BITS.values()) > 0
        return dict(zip(ARM_BITS, found.sum(axis=0).tolist(), strict=True))


def gather(
    connection: Connection, facts: DatabaseFacts, question: Question, shape: GatherShape
) -> Gathered:
    """Every candidate with its raw signals, in one round trip."""
    sql = gather_sql(question.criteria, shape, facts.vector_schema)
    found = _gathered(fetch(connection, sql, _parameters(question, shape)), shape)
    _require_active(connection, question, found, shape)
    return found


def gather_many(
    connection: Connection,
    facts: DatabaseFacts,
    questions: Sequence[Question],
    shape: GatherShape,
) -> list[Gathered]:
    """The same for several questions of one shape, in one round trip."""
    sql = gather_sql(questions[0].criteria, shape, facts.vector_schema)
    parts: list[str] = []
    parameters = _parameters(questions[0], shape)
    for number, question in enumerate(questions):
        part = sql
        for name in _OWN & parameters.keys():
            part = part.replace(f"%({name})s", f"%({name}_{number})s")
            parameters[f"{name}_{number}"] = _parameters(question, shape)[name]
        parts.append(f"SELECT g.*, {number} AS question FROM ({part}) AS g")
    rows = fetch(connection, " UNION ALL ".join(parts), parameters)
    every = [
        _gathered([row for row in rows if row.question == number], shape)
        for number in range(len(questions))
    ]
    for question, found in zip(questions, every, strict=True):
        _require_active(connection, question, found, shape)
    return every


def _require_active(
    connection: Connection, question: Question, found: Gathered, shape: GatherShape
) -> None:
    """Refuse what was found by a model that is active no longer: newer entries have none of its
    vectors, so they would be missing."""
    if question.model_id is not None and shape.dense and found.model_state != "active":
        require_active(connection, question.model_id)


_OWN = {"phrases", "query_text", "query_vector"}
"""Parameters in which the questions of one call differ."""


def _parameters(question: Question, shape: GatherShape) -> dict[str, Any]:
    parameters = question.criteria.params() | {
        "query_text": question.text[:QUERY_CHARACTERS],
        "language": f"pg_catalog.{question.language}",
        "model": question.model_id,
        "current_session": question.current_session,
        "phrases": list(question.phrases),
    }
    if shape.isolated:
        parameters["criteria"] = question.criteria.data()
    if question.vector is not None:
        parameters["query_vector"] = HalfvecParam(question.vector)
    return parameters


def _gathered(found: Sequence[Any], shape: GatherShape) -> Gathered:
    # one order of rows, so that nothing after depends on the plan; by columns at once: an
    # attribute of a row costs 0.3 µs
    rows = sorted(found, key=_id_of)
    columns: defaultdict[str, Sequence[Any]] = defaultdict(tuple)
    if rows:
        columns.update(zip(rows[0]._fields, zip(*rows, strict=True), strict=True))
    told: dict[str, Any] = next((once for once in columns["once"] if once), {})
    table = np.array(columns["numbers"], dtype=np.float64).reshape(len(rows), len(NUMBERS))
    numbers = dict(zip(NUMBERS, table.T, strict=True))
    ids: list[str] = list(columns["id"])
    row_of = {entry_id: row for row, entry_id in enumerate(ids)}
    terms: list[Any] = told.get("terms") or []
    tested = terms[: shape.arms.drivers + shape.arms.common]
    signals = Signals(
        ids=ids,
        kinds=list(columns["kind"]),
        similarity=numbers["similarity"],
        lexical=numbers["lexical"],
        lexical_total=float(told.get("lexical_total", 0.0)),
        age_seconds=numbers["age"],
        updated_age_seconds=numbers["updated_age"],
        accessed_age_seconds=numbers["accessed_age"],
        importance=numbers["effective"],
        access_count=numbers["access_count"].astype(np.int64),
        degree=numbers["degree"].astype(np.int64),
        touched=numbers["touched"] > 0.0,
        quoted=numbers["quoted"],
        now=float(told.get("now", 0.0)),
        sizes=numbers["bytes"].astype(np.int64),
        heads=list(columns["head"]),
        term_idf=np.array([term[4] for term in tested], dtype=np.float64),
        matched=_bits(columns["matched"], len(tested), len(rows)),
        links=_links(columns["seeds"], columns["steps"], row_of),
        successors=_successors(told.get("replacements") or [], row_of),
        vectors=_Vectors(
            {
                entry_id: vector
                for entry_id, vector in zip(ids, columns["vector"], strict=False)
                if vector is not None
            }
        ),
    )
    return Gathered(
        signals=signals,
        versions=numbers["version"].astype(np.int64).tolist(),
        sessions=list(columns["session_id"]),
        arms=numbers["arms"].astype(np.int64),
        terms=[
            Term(lexeme=lexeme, entries=entries, counted=counted, looked_up=drives, idf=idf)
            for lexeme, entries, counted, drives, idf in terms
        ],
        whole={i: line for i, line in zip(ids, columns["entry"], strict=False) if line is not None},
        exact=told.get("exact") is not False,
        ann_model_id=told.get("ann_model_id"),
        model_state=told.get("model_state"),
    )


class _Vectors(Mapping[str, NDArray[np.float32]]):
    """Vectors by id, read where one is asked for: few rankings compare any."""

    def __init__(self, sent: dict[str, bytes]) -> None:
        self._sent = sent

    def __getitem__(self, entry_id: str) -> NDArray[np.float32]:
        return parse_halfvec(self._sent[entry_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent)

    def __len__(self) -> int:
        return len(self._sent)


def _successors(links: Sequence[tuple[str, str]], row_of: dict[str, int]) -> list[tuple[int, int]]:
    """Each candidate with the next candidates that replaced it, past what is no candidate."""
    then: defaultdict[str, list[str]] = defaultdict(list)
    for old, new in links:
        then[old].append(new)
    pairs: list[tuple[int, int]] = []
    for start in [name for name in then if name in row_of]:
        seen, ahead = {start}, list(then[start])
        while ahead:
            name = ahead.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in row_of:
                pairs.append((row_of[start], row_of[name]))
            else:
                ahead += then.get(name, [])
    return pairs


def _bits(sets: Sequence[int], terms: int, count: int) -> NDArray[np.bool_]:
    """(t, n) from a set of terms for each of n rows, as bits in the order of the terms."""
    if not terms:
        return np.zeros((0, count), dtype=np.bool_)
    places = np.arange(terms, dtype=np.int64)[:, None]
    return (np.array(sets, dtype=np.int64)[None, :] >> places & 1).astype(np.bool_)


def _links(
    seeds: Sequence[Sequence[str] | None],
    steps: Sequence[Sequence[int] | None],
    row_of: dict[str, int],
) -> NDArray[np.int64]:
    """(m, 3) rows side by side, each pair both ways and once."""
    pairs: set[tuple[int, int, int]] = set()
    for row, near in enumerate(seeds):
        if not near:
            continue
        for seed, step in zip(near, steps[row] or (), strict=True):
            other = row_of.get(seed)
            if other is not None and other != row:
                pairs.add((row, other, -step))
                pairs.add((other, row, step))
    if not pairs:
        return np.zeros((0, 3), dtype=np.int64)
    return np.array(sorted(pairs), dtype=np.int64)
