"""The short form of `python -m benchmarks.soak`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.soak.check import Replay
from benchmarks.soak.history import Done, History, read
from benchmarks.soak.run import soak


def put(version: int | None, text: str = "t") -> Done:
    acknowledged = version is not None
    return Done("put", "red", {"items": {"e": text}}, acknowledged, {"e": version})


def one(operation: str, result: object = None, *, acknowledged: bool = True) -> Done:
    return Done(operation, "red", {"id": "e", "text": "changed"}, acknowledged, result)


def states(*operations: Done) -> tuple[set[object], list[str]]:
    replay = Replay("e")
    for done in operations:
        replay.take(done)
    return set(replay.possible), replay.wrong


def test_the_checker_knows_what_an_entry_may_be() -> None:
    assert states(put(1)) == ({(1, "t", "active")}, [])
    assert states(put(1), put(2, "u")) == ({(2, "u", "active")}, [])
    assert states(put(1), one("change", 2), one("hide")) == ({(2, "changed", "discarded")}, [])
    assert states(put(1), one("delete"), one("change")) == ({None}, [])
    maybe = put(1), one("change", acknowledged=False)
    assert states(*maybe)[0] == {(1, "t", "active"), (2, "changed", "active")}
    # what came later tells whether it was done
    assert states(*maybe, put(3, "u")) == ({(3, "u", "active")}, [])
    assert states(*maybe, put(2, "u")) == ({(2, "u", "active")}, [])


def test_the_checker_sees_what_is_wrong() -> None:
    assert states(put(1), put(1))[1]
    assert states(put(1), one("change", None))[1]
    assert states(put(1), one("change", 3))[1]
    assert states(one("change", 1))[1]


def test_a_history_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    history = History(path)
    history.intend("add", "red", {"text": "a"})
    history.acknowledge("created")
    history.intend("add", "red", {"text": "b"})
    history.unknown("gone")
    history.intend("add", "red", {"text": "c"})
    with path.open("a") as file:
        file.write('{"done": "crea')
    done, surfaced = read(path)
    assert [d.acknowledged for d in done] == [True, False, False]
    assert surfaced == []


@pytest.mark.slow
def test_nothing_is_lost_in_a_short_soak() -> None:
    """30 seconds of four processes, five killed clients and a server that is restarted."""
    found = soak(30, 4, kill_every=5)
    assert vars(found.findings) == {name: [] for name in vars(found.findings)}
    assert found.figures["clients killed"] == 5
    assert found.figures["server restarts"] == 1
    assert found.figures["writes acknowledged"] > 100
