"""Edges and neighbours."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from zerda_pg import Memory, NotFoundError


@pytest.fixture
def chain(anytenant: Memory) -> Memory:
    """a – b – c – d, and b – e by another relation."""
    for id in "abcde":
        anytenant.add(f"text {id}", id=id)
    for source, target in ("ab", "bc", "cd"):
        anytenant.relate(source, target, "precedes")
    anytenant.relate("e", "b", "has_child", weight=2.5)
    return anytenant


def near(memory: Memory, id: str, **arguments: Any) -> list[tuple[str, int, str]]:
    return [(n.entry.id, n.distance, n.relation) for n in memory.neighbours(id, **arguments)]


def test_neighbours_both_ways_nearest_first(chain: Memory) -> None:
    assert near(chain, "b") == [("a", 1, "precedes"), ("c", 1, "precedes"), ("e", 1, "has_child")]
    assert near(chain, "a") == [("b", 1, "precedes")]
    assert near(chain, "a", depth=2) == [
        ("b", 1, "precedes"), ("c", 2, "precedes"), ("e", 2, "has_child")
    ]  # fmt: skip
    assert [n[0] for n in near(chain, "a", depth=10)] == ["b", "c", "e", "d"]


def test_only_some_relations(chain: Memory) -> None:
    assert near(chain, "b", relations=["has_child"]) == [("e", 1, "has_child")]
    assert near(chain, "b", relations="has_child") == [("e", 1, "has_child")]
    assert near(chain, "e", depth=3, relations=["precedes"]) == []
    assert near(chain, "b", relations=["has_", "%"]) == []
    assert near(chain, "b", relations=[]) == []


def test_circles_end(chain: Memory) -> None:
    chain.relate("d", "a", "precedes")
    assert sorted(n[:2] for n in near(chain, "a", depth=10, relations=["precedes"])) == [
        ("b", 1), ("c", 2), ("d", 1)
    ]  # fmt: skip


def test_relating_again_sets_the_weight(anymemory: Memory, admin: psycopg.Connection) -> None:
    def weights() -> list[tuple[float]]:
        return admin.execute("SELECT weight FROM zerda.edges WHERE source_id = 'e'").fetchall()

    for id in "eb":
        anymemory.add("x", id=id)
    anymemory.relate("e", "b", "has_child", weight=2.5)

    assert weights() == [(2.5,)]
    anymemory.relate("e", "b", "has_child", weight=0)
    assert weights() == [(0.0,)]


def test_unrelate(chain: Memory) -> None:
    assert chain.unrelate("b", "a", "precedes") is False  # the other way round
    assert chain.unrelate("a", "b") is False  # another relation
    assert chain.unrelate("a", "b", "precedes") is True
    assert chain.unrelate("a", "b", "precedes") is False
    assert near(chain, "a") == []


def test_what_is_hidden_is_no_neighbour(chain: Memory) -> None:
    chain.discard("c")
    assert [n[0] for n in near(chain, "b")] == ["a", "e"]
    chain.delete("e")
    assert [n[0] for n in near(chain, "b")] == ["a"]


def test_what_is_not_there(chain: Memory) -> None:
    for call in (
        lambda: chain.neighbours("missing"),
        lambda: chain.relate("a", "missing"),
        lambda: chain.relate("missing", "a"),
    ):
        with pytest.raises(NotFoundError, match="'missing'"):
            call()
    assert chain.unrelate("a", "missing") is False


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "1", None, True])
def test_bad_weights(chain: Memory, weight: Any) -> None:
    with pytest.raises(ValueError, match="weight"):
        chain.relate("a", "c", weight=weight)


@pytest.mark.parametrize("depth", [0, -1, 11, 1.0, True, "1", None])
def test_bad_depths(chain: Memory, depth: Any) -> None:
    with pytest.raises(ValueError, match="depth must be a whole number from 1 to 10"):
        chain.neighbours("a", depth=depth)


@pytest.mark.parametrize("bad", ["", " ", 5, None, "a\x00", "\udfff", "x" * 257])
def test_bad_keys(chain: Memory, bad: Any) -> None:
    for name, arguments in (
        ("source_id", (bad, "a", "r")),
        ("target_id", ("a", bad, "r")),
        ("relation", ("a", "b", bad)),
    ):
        with pytest.raises(ValueError, match=name):
            chain.relate(*arguments)
        with pytest.raises(ValueError, match=name):
            chain.unrelate(*arguments)


def test_no_edge_to_itself(chain: Memory) -> None:
    with pytest.raises(ValueError, match="target_id must be another entry"):
        chain.relate("a", "a")


@pytest.mark.parametrize("relation", ["%", "a_", "\\", "'; --", "ñ", "x" * 256])
def test_relations_are_literal(chain: Memory, relation: str) -> None:
    chain.relate("a", "c", relation)
    assert near(chain, "a", relations=[relation]) == [("c", 1, relation)]
    assert chain.unrelate("a", "c", relation) is True


def test_every_edge_has_its_direction(chain: Memory) -> None:
    chain.relate("b", "a", "related")
    (b,) = chain.neighbours("a")
    assert (b.entry.id, b.relation, b.direction) == ("b", "precedes", "out")
    assert [(e.source_id, e.relation, e.target_id) for e in b.edges] == [
        ("a", "precedes", "b"), ("b", "related", "a")
    ]  # fmt: skip
    directions = {n.entry.id: n.direction for n in chain.neighbours("b")}
    assert directions == {"a": "in", "c": "out", "e": "in"}
    far = {n.entry.id: n for n in chain.neighbours("a", depth=2)}
    assert (far["e"].direction, far["e"].edges[0].weight) == ("in", 2.5), "of the last edge"
