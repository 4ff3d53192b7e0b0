"""Tenants and users: what one writes, another neither sees nor changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import CountRows

from zerda_pg import AccessDeniedError, AlreadyExistsError, Memory, MemoryStore, NotFoundError

NAMES = ["%", "a_", "a", "ab", "abc", "A", "\\", "a%", "_", "'", '"', " a", "a ", "ä", "a\u0308",
         "{a}", "NULL", "--", "a.b", "$1", "%(tenant)s", ":t", "x" * 256]  # fmt: skip


def seen(memory: Memory, query: str = "shared secret words") -> set[str]:
    """Contents by every kind of read, which must agree."""
    listed = {e.content for e in memory.entries()}
    assert memory.count() == len(listed)
    for mode in ("hybrid", "dense", "lexical"):
        found = memory.search(query, mode=mode, k=100)
        assert {h.entry.content for h in found} == listed, mode
    assert {h.entry.content for h in memory.search_many([query], k=100)[0]} == listed
    assert {e.content for e in memory.build_context(query).entries} == listed
    return listed


def test_tenants_with_names_like_patterns_are_apart(anystore: MemoryStore) -> None:
    for name in NAMES:
        anystore.tenant(name).add(f"shared secret words of {name!r}", id="e")
    assert anystore.tenants() == sorted(NAMES, key=lambda n: n.encode())
    for name in NAMES:
        assert seen(anystore.tenant(name)) == {f"shared secret words of {name!r}"}
    assert anystore.tenant("%").clear() is True
    assert len(anystore.tenants()) == len(NAMES) - 1
    assert anystore.tenant("a_").purge(before=datetime.now(UTC) + timedelta(days=1))["entries"] == 1
    for name in set(NAMES) - {"%", "a_"}:
        assert anystore.tenant(name).count() == 1


def test_prefix_of_a_tenant_sees_nothing(anystore: MemoryStore) -> None:
    anystore.tenant("tenant/ab").add("shared secret words", id="e")
    for other in ("tenant/a", "tenant/", "tenant/abc", "tenant", "TENANT/AB", "tenant/ab "):
        memory = anystore.tenant(other)
        assert seen(memory) == set()
        assert memory.get("e") is None


def test_prefix_of_a_user_sees_nothing(anystore: MemoryStore) -> None:
    anystore.tenant("acme", user_id="ab").add("shared secret words", id="e")
    for other in ("a", "abc", "AB", "%", "a_", "_b"):
        assert seen(anystore.tenant("acme", user_id=other)) == set()
    assert seen(anystore.tenant("acme", user_id="ab")) == {"shared secret words"}


def test_nothing_reaches_into_another_tenant(anystore: MemoryStore, rows: CountRows) -> None:
    ours, theirs = anystore.tenant("ours"), anystore.tenant("theirs")
    theirs.add("shared secret words", id="e")
    theirs.add("more words", id="f")
    theirs.relate("e", "f")
    ours.add("mine", id="m")
    before = rows()
    assert ours.get("e") is None
    assert ours.get_many(["e", "f"]) == [None, None]
    assert (ours.delete("e"), ours.discard("e"), ours.restore("e")) == (False, False, False)
    assert ours.unrelate("e", "f") is False
    assert ours.purge(ids=["e", "f"]) == {}
    for call in (
        lambda: ours.update("e", content="x"),
        lambda: ours.invalidate("e"),
        lambda: ours.invalidate("m", by="e"),
        lambda: ours.relate("m", "e"),
        lambda: ours.relate("e", "f"),
        lambda: ours.neighbours("e"),
        lambda: ours.add("x", supersedes="e"),
    ):
        with pytest.raises(NotFoundError):
            call()
    assert ours.explain("shared secret", id="e")["entry"]["fate"] == "absent"
    assert rows() == before
    assert ours.add("my own e", id="e").status == "created"  # an id belongs to a tenant
    assert seen(theirs, "shared words") == {"shared secret words", "more words"}


def test_a_user_sees_own_entries_and_those_without_a_user(anystore: MemoryStore) -> None:
    tenant = anystore.tenant("acme")
    tenant.add("shared secret words of all", id="all")
    one, two = (anystore.tenant("acme", user_id=u) for u in ("u1", "u2"))
    one.add("shared secret words of one", id="one")
    two.add("shared secret words of two", id="two")
    assert seen(one) == {"shared secret words of all", "shared secret words of one"}
    assert seen(two) == {"shared secret words of all", "shared secret words of two"}
    assert len(seen(tenant)) == 3
    assert [e.user_id for e in tenant.get_many(["all", "one", "two"]) if e] == [None, "u1", "u2"]
    assert one.get("two") is None
    assert one.count({"user_id": "u1"}) == 1
    for call in (one.search, one.build_context, one.explain):
        with pytest.raises(ValueError, match=r"filter\.user_id"):
            call("x", filter={"user_id": "u2"})


def test_a_user_changes_nothing_of_another(anystore: MemoryStore, rows: CountRows) -> None:
    one, two = (anystore.tenant("acme", user_id=u) for u in ("u1", "u2"))
    two.add("shared secret words of two", id="two")
    one.add("mine", id="one")
    before = rows()
    with pytest.raises(AlreadyExistsError, match=r"'two' .*scope"):
        one.add("overwritten", id="two")
    with pytest.raises(AlreadyExistsError):
        one.add("overwritten", id="two", if_exists="keep")
    with pytest.raises(ValueError, match="user_id names another user"):
        one.add("x", user_id="u2")
    with pytest.raises(ValueError, match="user_id names another user"):
        one.add_many([{"content": "x", "user_id": "u2"}])
    for call in (
        lambda: one.update("two", content="x"),
        lambda: one.invalidate("two"),
        lambda: one.invalidate("one", by="two"),
        lambda: one.relate("one", "two"),
        lambda: one.neighbours("two"),
        lambda: one.add("x", supersedes=["two"]),
    ):
        with pytest.raises(NotFoundError):
            call()
    assert (one.delete("two"), one.discard("two"), one.restore("two")) == (False, False, False)
    assert one.purge(user_id="u2") == {}
    assert one.purge(ids="two") == {}
    assert rows() == before
    assert one.clear() is True
    assert two.count() == 1


def test_dedupe_does_not_name_another_users_entry(anystore: MemoryStore) -> None:
    one, two = (anystore.tenant("acme", user_id=u) for u in ("u1", "u2"))
    first = one.add("the same", dedupe=True)
    second = two.add("the same", dedupe=True)
    assert (first.status, second.status) == ("created", "created")


def test_neighbours_lead_through_no_other_users_entry(anystore: MemoryStore) -> None:
    tenant = anystore.tenant("acme")
    for id, user in (("a", "u1"), ("b", "u2"), ("c", "u1")):
        tenant.add(f"text {id}", id=id, user_id=user)
    tenant.relate("a", "b")
    tenant.relate("b", "c")
    one = anystore.tenant("acme", user_id="u1")
    assert [n.entry.id for n in tenant.neighbours("a", depth=2)] == ["b", "c"]
    assert one.neighbours("a", depth=2) == []


def test_clear_and_forget_keep_to_the_user(anystore: MemoryStore) -> None:
    tenant = anystore.tenant("acme")
    tenant.add("of all", id="all")
    tenant.add("of one", id="one", user_id="u1")
    tenant.add("of two", id="two", user_id="u2")
    one = anystore.tenant("acme", user_id="u1")
    assert one.forget()["considered"] == 1
    assert one.clear() is True
    assert sorted(e.id for e in tenant.entries()) == ["all", "two"]
    assert one.clear() is False


def test_agent_and_session_mark_but_do_not_filter(anystore: MemoryStore) -> None:
    one = anystore.tenant("acme", agent_id="a1", session_id="s1")
    entry = one.add("shared secret words").entry
    assert (entry.agent_id, entry.session_id) == ("a1", "s1")
    other = one.add("shared words, secret too", agent_id="a2", session_id="s2").entry
    assert (other.agent_id, other.session_id) == ("a2", "s2")
    assert len(seen(anystore.tenant("acme", agent_id="a9", session_id="s9"))) == 2


def test_a_small_tenant_beside_a_large_one_gets_its_rows(anystore: MemoryStore) -> None:
    """Whatever a large tenant holds, a small one's k best are found, in every mode."""
    large, small = anystore.tenant("large"), anystore.tenant("small")
    large.add_many([{"content": f"shared secret words number {n}"} for n in range(1500)])
    small.add_many([{"content": f"shared secret words of small {n}"} for n in range(12)])
    for mode in ("hybrid", "dense", "lexical"):
        hits = small.search("shared secret words", k=10, mode=mode)
        assert len(hits) == 10
        assert all("small" in h.entry.content for h in hits)


@pytest.mark.parametrize("name", ["tenant_id", "user_id", "agent_id", "session_id"])
@pytest.mark.parametrize(
    "value", ["", " ", "\t\n", 5, b"x", "a\x00", "\ud800", "x" * 257, "é" * 129]
)
def test_bad_names(
    kind: str, shared_stores: Callable[[str], MemoryStore], name: str, value: Any
) -> None:
    anystore = shared_stores(kind)
    arguments = {"tenant_id": "t"} | {name: value}
    with pytest.raises(ValueError, match=f"^{name} "):
        anystore.tenant(**arguments)
    if name != "tenant_id":
        with pytest.raises(ValueError, match=name):
            anystore.tenant("t").add("x", **{name: value})
    with pytest.raises((ValueError, TypeError), match="tenant_id"):
        anystore.tenant(None)  # type: ignore[arg-type]


def test_a_user_does_not_say_that_everyones_memory_was_replaced(anystore: MemoryStore) -> None:
    everyone, one = anystore.tenant("acme"), anystore.tenant("acme", user_id="u1")
    everyone.add("shared office", id="shared")
    one.add("own office", id="own")
    with pytest.raises(AccessDeniedError, match="shared"):
        one.relate("shared", "own", "invalidated_by")
    one.relate("own", "shared", "invalidated_by")
    assert [n.entry.id for n in one.neighbours("own")] == ["shared"]
