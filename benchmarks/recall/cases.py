"""Cases from disk: `SUITE/CASE.json.gz` (or `.json`), one agent's memories and questions each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

__all__ = ["Case", "Memo", "Question", "load"]


@dataclass(frozen=True, kw_only=True)
class Memo:
    """One memory of a case."""

    id: str
    session: str
    timestamp: datetime
    speaker: str
    text: str

    @property
    def tokens(self) -> int:
        """What the metric counts for it: a quarter of its characters, rounded up."""
        return -(-len(self.text) // 4)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with the memories that answer it, or only the sessions that do."""

    id: str
    text: str
    category: str
    evidence: frozenset[str]
    sessions: frozenset[str] = frozenset()
    updated: frozenset[str] = frozenset()
    outdated: frozenset[str] = frozenset()
    asked_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One agent."""

    name: str
    suite: str
    memories: list[Memo]
    questions: list[Question]
    session_of: dict[str, str] = field(default_factory=dict)


def load(path: Path) -> Iterator[Case]:
    """Every case in a folder of suites, in a suite, or in a file.

    Raises:
        ValueError: If there is none, or one is malformed; names the file.
    """
    files = [path] if path.is_file() else sorted(path.rglob("*.json*"))
    found = [file for file in files if file.name.endswith((".json", ".json.gz"))]
    if not found:
        raise ValueError(f"there is no case (SUITE/CASE.json.gz) in {path}")
    for file in found:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8") as stream:
            document = json.load(stream)
        try:
            yield _case(document, file)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file} is no case: {error!r}") from error


def _case(document: dict[str, Any], file: Path) -> Case:
    memories = [
        Memo(
            id=m["id"],
            session=m["session"],
            timestamp=datetime.fromisoformat(m["timestamp"]),
            speaker=m["speaker"],
            text=m["text"],
        )
        for m in document["memories"]
    ]
    return Case(
        name=document.get("case", f"{file.parent.name}/{file.name.split('.')[0]}"),
        suite=file.parent.name,
        memories=memories,
        questions=[_question(q) for q in document["questions"]],
        session_of={m.id: m.session for m in memories},
    )


def _question(q: dict[str, Any]) -> Question:
    asked = q.get("asked_at")
    return Question(
        id=q["id"],
        text=q["text"],
        category=q.get("category", ""),
        evidence=frozenset(q.get("evidence", ())),
        sessions=frozenset(q.get("evidence_sessions", ())),
        updated=frozenset(q.get("updated", ())),
        outdated=frozenset(q.get("outdated", ())),
        asked_at=None if asked is None else datetime.fromisoformat(asked),
    )
