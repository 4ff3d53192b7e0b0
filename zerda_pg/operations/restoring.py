"""Importing what was exported: every row as it was, what is there already left alone."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from zerda_pg.clock import instant, parse_time
from zerda_pg.core import Core
from zerda_pg.db import maintenance, models, portable
from zerda_pg.db.changes import begin_write, record_changes
from zerda_pg.db.facts import Model
from zerda_pg.db.failures import sqlstate
from zerda_pg.db.models import Unembedded
from zerda_pg.db.portable import SECTIONS
from zerda_pg.db.schema import LANGUAGES
from zerda_pg.entry import fraction
from zerda_pg.errors import AlreadyExistsError, InvalidContentError, ZerdaError
from zerda_pg.ids import check_id
from zerda_pg.operations.batches import BATCH_CHARACTERS, BATCH_ROWS
from zerda_pg.operations.exporting import FORMAT, Progress
from zerda_pg.operations.lines import BadLine
from zerda_pg.scope import Scope
from zerda_pg.steps import Steps, background, embed, read, write
from zerda_pg.text import body_of, check_json, check_text, is_blank

__all__ = ["is_header", "restore"]

ERRORS_KEPT = 100

_REFUSED = ("22", "23", "54")
"""Classes of SQLSTATE that tell of a value: malformed, against a constraint, too large."""


def is_header(value: object) -> bool:
    """Whether a line is the first of an export."""
    return isinstance(value, Mapping) and "zerda_pg" in value


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A row of the file that can be written."""

    number: int
    word: str
    row: Mapping[str, Any]
    vector: NDArray[np.float32] | None

    @property
    def characters(self) -> int:
        """What it takes of a batch."""
        return len(self.row.get("body") or "")


@dataclass(kw_only=True)
class Restore:
    """How an import goes, and what became of the lines so far."""

    scope: Scope
    if_exists: str
    keep_vectors: bool
    model: Model
    lines: int = 1
    written: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SECTIONS, 0))
    kept: int = 0
    embedded: int = 0
    failed: int = 0
    ended: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)

    def reject(self, number: int, error: object) -> None:
        """Count a bad line and say what is wrong with it."""
        self.failed += 1
        if len(self.errors) < ERRORS_KEPT:
            self.errors.append({"line": number, "error": str(error)})

    def report(self) -> dict[str, Any]:
        """As data, with the words of any import."""
        return {
            "lines": self.lines,
            "created": self.written["entry"],
            "replaced": 0,
            "kept": self.kept,
            "duplicate": 0,
            "failed": self.failed,
            "errors": sorted(self.errors, key=lambda error: int(error["line"])),
            **{s.table: self.written[s.word] for s in SECTIONS.values() if s.word != "entry"},
            "embedded": self.embedded,
        }


def restore(
    core: Core,
    scope: Scope,
    header: Mapping[str, Any],
    parsed: Iterator[tuple[int, object]],
    *,
    total: int | None,
    if_exists: str,
    dedupe: bool,
    progress: Progress | None,
) -> Steps[dict[str, Any]]:
    """Write the rows that are not there yet; report the lines that cannot be."""
    _check(scope, header, if_exists, dedupe)
    model = yield from core.model_for_writing()
    recorded = header.get("model") or {}
    same = (recorded.get("fingerprint"), recorded.get("dimensions")) == (
        model.fingerprint,
        model.dimensions,
    )
    run = Restore(scope=scope, if_exists=if_exists, keep_vectors=same, model=model)
    for batch in _batches(_good_lines(parsed, run)):
        yield from _store(core, batch, run)
        if progress is not None:
            progress(run.lines, total)
    if not run.ended:
        run.reject(run.lines + 1, "the file ends early: it was cut off")
    yield from background(
        lambda c: maintenance.after_bulk(
            c, scope.tenant_id, run.written["entry"], timeout=core.maintenance_timeout
        )
    )
    return run.report()


def _check(scope: Scope, header: Mapping[str, Any], if_exists: str, dedupe: bool) -> None:
    if header["zerda_pg"] != FORMAT:
        raise ValueError(
            f"path is an export of format {str(header['zerda_pg'])[:20]}, this version of "
            f"zerda_pg reads format {FORMAT}"
        )
    if scope.user_id is not None:
        raise ValueError("path is an export, which goes into a whole tenant: use a scope without "
                         "user_id")  # fmt: skip
    if if_exists == "replace":
        raise ValueError(
            "if_exists must be 'keep' or 'error' for an export, which adds what is missing: to go "
            "back to its state, clear() the tenant first"
        )
    if dedupe:
        raise ValueError("dedupe is not for an export, which is restored as it was")


def _good_lines(parsed: Iterator[tuple[int, object]], run: Restore) -> Iterator[Line]:
    for number, value in parsed:
        run.lines += 1
        try:
            if isinstance(value, BadLine):
                raise value
            if isinstance(value, Mapping) and value.keys() == {"end"}:
                run.ended = True
                continue
            line = _line(number, value, run)
        except ValueError as error:
            run.reject(number, error)
        else:
            yield line


MOST_VERSIONS = 2**31 - 2
MOST_COUNTED = 2**63 - 1

_FRACTIONS = ("importance", "original_importance", "decay_factor")
_TIMES = (
    "created_at", "recorded_at", "updated_at", "valid_from", "valid_to", "invalidated_at",
    "expires_at", "discarded_at", "last_access", "recorded_to", "touched_at",
)  # fmt: skip

_COUNTED = ("created_at", "last_access")
"""Those that entries have in seconds since the epoch."""


def _check_row(row: Mapping[str, Any]) -> None:
    """What `add` would refuse is refused here: a file may have been edited.

    Raises:
        ValueError: Naming the column.
    """
    for name in _TIMES:
        if row.get(name) is not None:
            moment = parse_time(row[name], name)
            if name in _COUNTED:
                instant(moment, name)
    for name in _FRACTIONS:
        if name in row:
            fraction(row[name], name)
    for name, most in (("version", MOST_VERSIONS), ("access_count", MOST_COUNTED)):
        value = row.get(name, 1)
        if type(value) is not int or not 0 <= value <= most:
            raise ValueError(f"{name} must be a whole number from 0 to {most}")
    if not isinstance(row.get("metadata", {}), Mapping):
        raise ValueError("metadata must be an object")
    tags = row.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag.strip() for tag in tags):
        raise ValueError("tags must be a list of texts")
    if row.get("language", "simple") not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(LANGUAGES)}")
    if row.get("kind") is not None and not str(row["kind"]).strip():
        raise ValueError("kind is empty")
    weight = row.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or weight < 0:
        raise ValueError("weight must be a number from 0")


def _line(number: int, value: object, run: Restore) -> Line:
    """The row of a line.

    Raises:
        ValueError: Saying what is wrong with it.
    """
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError("is not a line of an export: one object in an object")
    word, row = next(iter(value.items()))
    if word not in SECTIONS or not isinstance(row, Mapping):
        raise ValueError(f"is not a line of an export: unknown {word[:40]!r}")
    for name, item in row.items():
        check_text(name, f"a key of {word}")
        check_json(item, name)  # each by itself: as deep as a write may have it
    for name in SECTIONS[word].names:
        check_id(row.get(name), name)
    vector = None
    _check_row(row)
    kept = {name: item for name, item in row.items() if name != "vector"}
    if "content" in SECTIONS[word].columns:
        derived = _derived(row)
        if row.get("vector") is not None and run.keep_vectors:
            vector = _vector(row["vector"], run.model.dimensions)
            if row.get("content_hash") != derived["content_hash"]:
                vector = None  # it is of the text that stood here before: made again
        kept |= derived
    return Line(number=number, word=word, row=kept, vector=vector)


def _derived(row: Mapping[str, Any]) -> Mapping[str, str]:
    """What follows from the content, made anew: a file may have been edited.

    Raises:
        InvalidContentError: If there is no content.
    """
    content = row.get("content")
    if is_blank(content):
        raise InvalidContentError("content is empty: there is nothing to remember")
    body = body_of(content)
    return {"body": body, "content_hash": portable.stored_hash(body)}


def _vector(value: object, dimensions: int) -> NDArray[np.float32]:
    try:
        data = base64.b64decode(str(value), validate=True)
    except binascii.Error as error:
        raise ValueError("vector is not base64") from error
    if len(data) != 2 * dimensions:
        raise ValueError(f"vector has {len(data) // 2} numbers, the model {dimensions}")
    vector = np.frombuffer(data, dtype=">f2").astype(np.float32)
    if not np.isfinite(vector).all() or not vector.any():
        raise ValueError("vector must be finite, and not zero")
    return vector


def _batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Batches of one section each, bounded in rows and characters."""
    batch: list[Line] = []
    characters = 0
    for line in lines:
        full = len(batch) >= BATCH_ROWS or characters > BATCH_CHARACTERS
        if batch and (full or line.word != batch[0].word):
            yield batch
            batch, characters = [], 0
        batch.append(line)
        characters += line.characters
    if batch:
        yield batch


def _store(core: Core, lines: Sequence[Line], run: Restore) -> Steps[None]:
    """Write a batch; where the database refuses one of its lines, write the others without it."""
    try:
        if lines[0].word == "entry":
            yield from _store_entries(core, lines, run)
        else:
            yield from _store_rows(lines, run)
    except (ValueError, ZerdaError) as error:
        if not (isinstance(error, ValueError | AlreadyExistsError) or _tells_of_a_value(error)):
            raise
        if len(lines) == 1:
            run.reject(lines[0].number, error)
            return
        middle = len(lines) // 2
        yield from _store(core, lines[:middle], run)
        yield from _store(core, lines[middle:], run)


def _tells_of_a_value(error: ZerdaError) -> bool:
    """Whether the database refused a row, and not the work as such."""
    return sqlstate(error)[:2] in _REFUSED


def _store_rows(lines: Sequence[Line], run: Restore) -> Steps[None]:
    tenant_id, word = run.scope.tenant_id, lines[0].word

    def work(connection: Connection) -> int:
        begin_write(connection, tenant_id)
        return portable.insert_rows(
            connection, tenant_id, SECTIONS[word], [line.row for line in lines]
        )

    run.written[word] += yield from write(work)


def _store_entries(core: Core, lines: Sequence[Line], run: Restore) -> Steps[None]:
    tenant_id = run.scope.tenant_id
    ids = [str(line.row["id"]) for line in lines]
    there = yield from read(lambda c: portable.existing(c, tenant_id, ids))
    if there and run.if_exists == "error":
        raise AlreadyExistsError("an entry with this id exists")
    fresh = [line for line in lines if line.row["id"] not in there]
    if not fresh:
        run.kept += len(lines)
        return
    vectors, cut = yield from _vectors(core, fresh, run)

    def work(connection: Connection) -> int:
        recorded = begin_write(connection, tenant_id, run.model.id)
        written = portable.insert_entries(connection, tenant_id, [line.row for line in fresh])
        chosen = [n for n, line in enumerate(fresh) if line.row["id"] in written]
        if chosen:
            texts = [
                Unembedded(
                    tenant_id=tenant_id, id=fresh[n].row["id"], recorded_at=None, body=""
                )
                for n in chosen
            ]  # fmt: skip
            models.add_vectors(
                connection, core.facts, run.model.id, texts,
                vectors[chosen], [cut[n] for n in chosen],
            )  # fmt: skip
        if recorded:
            record_changes(connection, tenant_id, sorted(written), "created")
        return len(written)

    with core.model_in_use():
        written = yield from write(work)
    run.written["entry"] += written
    run.kept += len(lines) - written


def _vectors(
    core: Core, lines: Sequence[Line], run: Restore
) -> Steps[tuple[NDArray[np.float32], list[bool]]]:
    """(n, d) vectors as they came, or made where there is none of this model."""
    vectors = np.zeros((len(lines), run.model.dimensions), dtype=np.float32)
    cut = [bool(line.row.get("truncated")) for line in lines]
    missing = [n for n, line in enumerate(lines) if line.vector is None]
    if missing:
        made = yield from embed(core.embedder, [lines[n].row["body"] for n in missing])
        for place, n in enumerate(missing):
            vectors[n], cut[n] = made.vectors[place], made.truncated[place]
        run.embedded += len(missing)
    for n, line in enumerate(lines):
        if line.vector is not None:
            vectors[n] = line.vector
    return vectors, cut
