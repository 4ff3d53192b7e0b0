"""A store after its end."""

from __future__ import annotations

import pytest

from zerda_pg import ConfigError, MemoryStore
from zerda_pg.testing import temporary_database


def test_a_closed_store_says_so(server: None) -> None:
    with temporary_database() as url:
        store = MemoryStore.open(url, embedder="hashing")
        memory = store.tenant("acme")
        store.close()
        with pytest.raises(ConfigError, match="closed"):
            memory.count()
        store.close()
