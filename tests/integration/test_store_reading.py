"""Reading by id and page by page, counts and statistics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import CountRows

from zerda_pg import Memory, MemoryStore

START = datetime(2024, 1, 1, tzinfo=UTC)


def fill(memory: Memory, count: int) -> list[str]:
    """Entries `e000`, `e001`, …, one a minute, every fifth at the time of the one before."""
    moments = [START + timedelta(minutes=n - (n % 5 == 4)) for n in range(count)]
    memory.add_many(
        [{"content": f"note {n}", "id": f"e{n:03}", "timestamp": m} for n, m in enumerate(moments)]
    )
    return [f"e{n:03}" for n in sorted(range(count), key=lambda n: (moments[n], n))]


def walk(memory: Memory, **arguments: Any) -> list[list[str]]:
    pages: list[list[str]] = []
    cursor: str | None = None
    while True:
        page = memory.entries(cursor=cursor, **arguments)
        pages.append([entry.id for entry in page])
        cursor = page.next_cursor
        if cursor is None:
            return pages


def test_get_many_in_the_order_asked(anymemory: Memory) -> None:
    fill(anymemory, 5)
    found = anymemory.get_many(["e003", "missing", "e000", "e003"])
    assert [None if e is None else e.id for e in found] == ["e003", None, "e000", "e003"]
    assert anymemory.get("missing") is None
    assert anymemory.get_many([]) == []


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [1, 7, 22, 23, 50])
def test_pages_give_each_entry_once(anytenant: Memory, order: Any, limit: int) -> None:
    ids = fill(anytenant, 23)
    pages = walk(anytenant, order=order, limit=limit)
    assert [i for page in pages for i in page] == (ids[::-1] if order == "newest" else ids)
    assert {len(page) for page in pages[:-1]} <= {limit}
    assert pages[-1]


def test_pages_are_stable_while_others_write(anytenant: Memory) -> None:
    ids = fill(anytenant, 12)
    first = anytenant.entries(limit=5)
    anytenant.add("a newer one", timestamp=START + timedelta(days=1))
    anytenant.add("an older one", id="old", timestamp=START - timedelta(days=1))
    anytenant.delete(first.items[-1].id)  # the cursor's own entry
    rest = anytenant.entries(limit=50, cursor=first.next_cursor)
    assert [e.id for e in rest] == [*ids[::-1][5:], "old"]
    assert rest.next_cursor is None


def test_pages_over_the_edges_of_time(anymemory: Memory) -> None:
    """A float of seconds is coarse far from 1970; a cursor must neither skip nor repeat."""
    moments = [
        datetime(1, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        datetime(1, 1, 2, 3, 4, 5, 678911, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2999, 6, 7, 8, 9, 10, 123457, tzinfo=UTC),
        datetime(9999, 12, 29, 1, 2, 3, 123459, tzinfo=UTC),
        datetime(9999, 12, 29, 1, 2, 3, 123499, tzinfo=UTC),
    ]
    for n, moment in enumerate(moments):
        anymemory.add(f"note {n}", id=f"e{n}", timestamp=moment)
    for order, ids in (("oldest", range(6)), ("newest", reversed(range(6)))):
        assert walk(anymemory, order=order, limit=1) == [[f"e{n}"] for n in ids]


def test_a_filter_holds_on_every_page(anymemory: Memory) -> None:
    fill(anymemory, 20)
    for n in range(0, 20, 2):
        anymemory.update(f"e{n:03}", tags=["even"])
    pages = walk(anymemory, filter={"tags_any": ["even"]}, limit=3, order="oldest")
    assert [len(page) for page in pages] == [3, 3, 3, 1]
    assert anymemory.count({"tags_any": ["even"]}) == 10
    assert anymemory.count() == 20


def test_an_empty_tenant(anymemory: Memory) -> None:
    page = anymemory.entries()
    assert (page.items, page.next_cursor, len(page)) == ([], None, 0)
    assert anymemory.count() == 0
    assert list(anymemory.search("anything")) == []
    assert anymemory.search_many(["a", "b"])[1].report["candidates"] == 0
    context = anymemory.build_context("anything")
    assert (context.text, context.tokens, context.entries) == ("", 0, [])
    assert anymemory.explain("anything")["rows"] == []
    assert anymemory.stats()["entries"] == 0
    assert anymemory.clear() is False
    assert anymemory.forget()["considered"] == 0


@pytest.mark.parametrize("limit", [-1, 0, 1001, 2.0, True, "5", None])
def test_bad_limits(anytenant: Memory, limit: Any) -> None:
    with pytest.raises(ValueError, match="limit must be a whole number from 1 to 1000"):
        anytenant.entries(limit=limit)


@pytest.mark.parametrize("cursor", ["", "x", "e30=", "bnVsbA==", "é", 5, "WzEsMiwzXQ=="])
def test_bad_cursors(anytenant: Memory, cursor: Any) -> None:
    fill(anytenant, 3)
    with pytest.raises(ValueError, match="cursor"):
        anytenant.entries(cursor=cursor)


def test_a_cursor_of_the_other_order_is_refused(anytenant: Memory) -> None:
    fill(anytenant, 3)
    cursor = anytenant.entries(limit=1).next_cursor
    with pytest.raises(ValueError, match="cursor belongs to order='newest'"):
        anytenant.entries(cursor=cursor, order="oldest")
    with pytest.raises(ValueError, match="order"):
        anytenant.entries(order="best")  # type: ignore[arg-type]


def test_stats_of_a_tenant(anymemory: Memory) -> None:
    anymemory.add("a", kind="fact", id="a")
    anymemory.add("b", kind="fact", memory_type="episodic", id="b")
    anymemory.add("c", id="c")
    anymemory.discard("c")
    anymemory.relate("a", "b")
    found = anymemory.stats()
    assert found["entries"] == 3
    assert found["by_type"] == {"episodic": 1, "semantic": 2}
    assert found["by_kind"] == {"": 1, "fact": 2}
    assert found["by_status"] == {"active": 2, "discarded": 1}
    assert (found["edges"], found["vectors"], found["truncated"]) == (1, 3, 0)
    assert found["bytes"] > 3 * 384 * 2
    assert (found["model"], found["dimensions"], found["tenant_id"]) == ("hashing", 384, "acme")


def test_stats_and_tenants_of_a_store(anystore: MemoryStore) -> None:
    assert anystore.tenants() == []
    for name in ("b", "a", "%"):
        anystore.tenant(name).add("x")
    assert anystore.tenants() == ["%", "a", "b"]
    found = anystore.stats()
    assert (found["entries"], found["tenants"], found["model"]) == (3, 3, "hashing")
    assert found["bytes"] == sum(found["bytes_by_table"].values())
    anystore.tenant("a").clear()
    assert anystore.tenants() == ["%", "b"]


def test_reading_writes_nothing(anymemory: Memory, rows: CountRows) -> None:
    """Not even the model's row, on a store that has none."""
    anymemory.entries()
    anymemory.search("x")
    anymemory.build_context("x")
    anymemory.stats()
    assert rows() == {}


def test_a_page_is_indexed_like_a_list(anytenant: Memory) -> None:
    ids = fill(anytenant, 3)
    page = anytenant.entries(order="oldest")
    assert page[0].id == ids[0]
    assert [entry.id for entry in page[1:]] == ids[1:]
