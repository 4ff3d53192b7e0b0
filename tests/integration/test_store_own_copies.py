"""What is stored is what was handed in, whatever the caller does with his objects afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest

from zerda_pg import InvalidContentError, Memory, MemoryEntry


def test_a_content_that_is_used_again(anymemory: Memory) -> None:
    def items() -> Iterator[dict[str, Any]]:
        turn, metadata = {"speaker": "Ann", "text": ""}, {"at": {"line": 0}}
        for n in range(600):
            turn["text"] = f"fact {n}"
            metadata["at"]["line"] = n
            yield {"content": turn, "metadata": metadata, "id": f"r{n}"}

    anymemory.add_many(items())
    for n in (0, 1, 300, 599):
        entry = anymemory.get(f"r{n}")
        assert entry is not None
        assert entry.content == {"speaker": "Ann", "text": f"fact {n}"}
        assert entry.metadata == {"at": {"line": n}}


def test_an_entry_that_is_changed_while_it_is_written(anymemory: Memory) -> None:
    items = [
        MemoryEntry({"text": f"fact {n}", "more": [n]}, id=f"r{n}", metadata={"deep": {"n": n}})
        for n in range(600)
    ]

    def change(done: int, total: int | None) -> None:
        for item in items:
            item.content["more"][0] = math.nan
            item.metadata["deep"]["n"] = "\0"

    anymemory.add_many(items[:256], progress=change)
    first = anymemory.get("r3")
    assert first is not None
    assert (first.content["more"], first.metadata) == ([3], {"deep": {"n": 3}})
    with pytest.raises(InvalidContentError, match=r"items\[0\].*content"):
        anymemory.add_many(items[300:])


class Kind(StrEnum):
    FACT = "fact"


class Text(str):
    """A string of the caller's own."""

    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


def test_a_string_of_the_callers_own_is_stored_as_text(anymemory: Memory) -> None:
    added = anymemory.add(
        Text("a text"), id=Text("e"), kind=Kind.FACT, tags=[Text("tag")], session_id=Text("s"),
        metadata={"kind": Kind.FACT},
    ).entry  # fmt: skip
    read = anymemory.get("e")
    assert read is not None
    assert (added.content, added.kind, added.tags) == ("a text", "fact", ["tag"])
    for name in ("content", "kind", "id", "session_id"):
        assert type(getattr(added, name)) is str
    assert repr(added.to_dict()) == repr(read.to_dict())
