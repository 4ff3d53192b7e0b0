"""Memories that are equally near: the same ones, in the same order, whatever was asked."""

from __future__ import annotations

import random

from zerda_pg import MemoryStore


def test_equals_come_by_id_however_many_are_asked_for(store: MemoryStore) -> None:
    memory = store.tenant("acme")
    ids = [f"e{n:02}" for n in range(60)]
    for entry_id in random.Random(1).sample(ids, 60):
        memory.add("the same words here", id=entry_id)
    for k in (1, 9, 10, 11, 40, 60):
        hits = memory.search("same words", k=k, mode="dense", record_access=False)
        assert [hit.entry.id for hit in hits] == ids[:k]


def test_a_small_budget_is_filled_by_one_channel(store: MemoryStore) -> None:
    memory = store.tenant("acme")
    memory.add_many([{"content": f"the harbour log, page {n}"} for n in range(100)])
    for mode in ("dense", "lexical", "hybrid"):
        context = memory.build_context(
            "harbour log", token_budget=300, mode=mode, record_access=False
        )
        assert 240 < context.tokens <= 300
