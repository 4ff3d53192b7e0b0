"""A word that thousands of a tenant's memories have: the search stays in memory, and right."""

from __future__ import annotations

import psycopg
from conftest import plain

from zerda_pg import MemoryStore

MATCHES = 4000


def test_searches_of_thousands_of_matches_write_no_file(database: str) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("acme")
        memory.add_many({"content": f"deploy note {n}", "id": f"e{n}"} for n in range(MATCHES))
        memory.add_messages(
            [{"speaker": "ann", "text": f"the valve leaks, said {n}"} for n in range(5)],
            session_id="s1",
        )
        store.maintain()
        # from the sixth on by the plan that Postgres keeps
        for _ in range(8):
            hits = memory.search("deploy of the valve", record_access=False)
    # the rare word's memories come first, however many have the other one
    assert [hit.entry.session_id for hit in hits[:5]] == ["s1"] * 5
    with psycopg.connect(plain(database)) as connection:
        found = connection.execute(
            "SELECT temp_files FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert found == (0,)
