"""A first look that the parts hold together."""

from __future__ import annotations

from zerda_pg import Memory


def test_what_was_added_is_found(memory: Memory) -> None:
    memory.add("The deploy failed because the disk was full", kind="failure")
    added = memory.add("Prefers dark roast coffee", kind="preference", importance=0.7)
    hits = memory.search("Which coffee roast?", k=1)
    assert [hit.entry.id for hit in hits] == [added.id]
