"""An entry that very many others are joined to: what it brings along is bounded."""

from __future__ import annotations

from zerda_pg import MemoryStore

JOINED = 150


def test_the_edges_of_a_hub_are_followed_up_to_a_limit(store: MemoryStore) -> None:
    memory = store.tenant("acme")
    memory.add("the harbour office keeps the log", id="hub")
    memory.add_many([{"content": f"note {n}", "id": f"e{n:03}"} for n in range(JOINED)])
    memory.add_many([{"content": f"page {n}"} for n in range(200)])  # newer than what is joined
    for n in range(JOINED):
        memory.relate("hub", f"e{n:03}", "related")
    hits = memory.search("harbour log", k=5, ranker="composite", record_access=False)
    assert hits[0].entry.id == "hub"
    assert hits.report["arms"]["graph"] in {100, 101}  # the hub itself may stand beside them
    # the same ones each time
    again = memory.search("harbour log", k=200, ranker="composite", record_access=False)
    joined = [hit.entry.id for hit in again if hit.entry.id.startswith("e")]
    assert {f"e{n:03}" for n in range(100)} <= set(joined)
