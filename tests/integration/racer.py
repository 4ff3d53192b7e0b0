"""One of several processes that do everything to the same few memories; run by its test."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerda_pg import ConflictError, EmbeddingMismatchError, Memory, MemoryStore, NotFoundError
from zerda_pg.scoring.forgetting import ForgettingConfig

IDS = [f"e{n}" for n in range(6)]
ROUNDS = 40
COUNTED = 10
"""How often each process adds one to the same counter."""


def operations(memory: Memory, number: int, file: Path) -> list[Callable[[str, str], Any]]:
    """What is done to one memory, and to another one."""
    return [
        lambda a, b: memory.relate(a, b, weight=number),
        memory.unrelate,
        lambda a, b: memory.invalidate(a, by=b),
        lambda a, b: memory.add(f"replaced by {number}", id=a, supersedes=b),
        lambda a, b: memory.add_many([{"content": f"many {number}", "id": i} for i in (a, b)]),
        lambda a, _: memory.update(a, content=f"updated by {number}"),
        lambda a, _: memory.discard(a) and memory.restore(a),
        lambda a, _: memory.delete(a),
        lambda _, __: memory.import_file(file, if_exists="replace"),
        lambda _, __: memory.forget(ForgettingConfig(deletion_threshold=0.9)),
        lambda _, __: memory.add("the same text", dedupe=True),
        lambda _, __: memory.search("replaced updated many", current_session="s"),
    ]


def count_up(memory: Memory) -> None:
    """Add one, on the version that was read."""
    while True:
        entry = memory.get("counter")
        assert entry is not None
        try:
            memory.update(
                "counter", if_version=entry.version, metadata={"n": entry.metadata["n"] + 1}
            )
        except ConflictError as error:
            assert "read it again" in str(error), error
        else:
            return


def main(url: str, number: int, file: Path) -> None:
    chance = random.Random(number)
    done: Counter[str] = Counter()
    print("ready", flush=True)
    sys.stdin.readline()
    store = MemoryStore.open(url)
    for round_ in range(ROUNDS):
        memory = store.tenant("acme")
        a, b = chance.sample(IDS, 2)
        try:
            chance.choice(operations(memory, number, file))(a, b)
            if round_ % (ROUNDS // COUNTED) == 0:
                count_up(memory)
                done["counted"] += 1
        except NotFoundError:
            done["missing"] += 1  # another process has deleted it
        except ConflictError as error:
            assert "has itself replaced" in str(error), error
            done["circle"] += 1
        except EmbeddingMismatchError:
            done["switched"] += 1
            store.close()
            store = MemoryStore.open(url)
    store.close()
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
