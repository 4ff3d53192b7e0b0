"""AIMemoryManager: one transaction a turn, one context a query, within its budget and its user."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zerda_pg import (
    AIMemoryManager,
    ForgettingConfig,
    LongTermMemory,
    ManagerConfig,
    MemoryEntry,
    MemoryStore,
    SelectionConfig,
    SemanticMemory,
    ShortTermMemory,
    ZerdaError,
)
from zerda_pg.testing import temporary_store

CountRows = Callable[[], dict[str, int]]

TURNS = [
    ("I like dark roast coffee", "Noted."),
    ("Where is the office?", "In Berlin, on the third floor."),
    ("My budget for the trip is 900 euros", "I will look for something below that."),
    ("Kannst du auch Deutsch?", "Ja, natürlich. Worum geht es?"),
    ("请记住我的生日是五月三日", "好的,我记住了。"),
    ("```python\nprint('x' * 40)\n```", "That prints forty times x."),
]


@pytest.fixture
def manager(store: MemoryStore) -> AIMemoryManager:
    return AIMemoryManager(store=store)


def test_a_turn_is_in_every_layer_it_belongs_to(
    store: MemoryStore, manager: AIMemoryManager
) -> None:
    plain = manager.save_interaction("ann", "acme", "hello", "hi there")
    kept = manager.save_interaction(
        "ann", "acme", "I like coffee", "Noted",
        importance=0.7, tags=["drinks"], metadata={"source": "chat"}, topics=["coffee"],
    )  # fmt: skip
    window = ShortTermMemory(5, tenant_id="acme", store=store, session_id="ann", user_id="ann")
    assert window.get_all() == [plain, kept]
    long_term = LongTermMemory(tenant_id="acme", store=store, user_id="ann")
    assert long_term.get_recent() == [kept]
    semantic = SemanticMemory(tenant_id="acme", store=store, user_id="ann")
    assert semantic.search_entries("I like coffee", k=1, touch=False) == [kept]
    (found,) = long_term.get_recent()
    assert found.content == {"input": "I like coffee", "output": "Noted"}
    assert (found.user_id, found.tags) == ("ann", ["drinks"])
    assert found.metadata == {"source": "chat", "topics": ["coffee"]}
    assert found.importance == 0.7
    assert store.tenant("acme").count() == 2


def test_a_turn_out_of_the_window_is_still_meant(
    store: MemoryStore, manager: AIMemoryManager
) -> None:
    turns = [manager.save_interaction("ann", "acme", f"turn {n}", "ok") for n in range(8)]
    window = ShortTermMemory(5, tenant_id="acme", store=store, session_id="ann", user_id="ann")
    assert window.get_all() == turns[3:]
    assert store.tenant("acme").count() == 8
    assert manager.stats("acme")["semantic"] == 8


@pytest.mark.parametrize(
    "broken",
    [
        {"metadata": {"x": float("nan")}},
        {"metadata": {"x": "a\x00b"}},
        {"tags": ["\ud800"]},
        {"tags": "one string"},
        {"topics": "one string"},
        {"metadata": ["no", "mapping"]},
        {"importance": 1.01},
        {"user_input": "a\x00b"},
    ],
    ids=str,
)
def test_a_turn_that_cannot_be_stored_is_in_no_table(
    database: str, rows: CountRows, broken: dict[str, Any]
) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        turn = {"user_input": "hello", "assistant_output": "hi"} | broken
        with pytest.raises((ZerdaError, ValueError)):
            AIMemoryManager(store=store).save_interaction("ann", "acme", **turn)
    assert rows() == {}


@pytest.mark.parametrize("layer", ["short_term", "semantic", "long_term"])
def test_a_statement_that_fails_takes_the_whole_turn_back(
    database: str, admin: psycopg.Connection, rows: CountRows, layer: str
) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        manager = AIMemoryManager(ManagerConfig(window_size=1), store=store)
        manager.save_interaction("ann", "acme", "before", "ok", importance=0.9)
        before = rows()
        admin.execute(
            f"ALTER TABLE zerda.layer_entries ADD CONSTRAINT broken CHECK (layer <> '{layer}') "
            "NOT VALID"
        )
        with pytest.raises(ZerdaError, match="23514"):  # check_violation
            manager.save_interaction("ann", "acme", "after", "ok", importance=0.9)
        assert rows() == before
        admin.execute("ALTER TABLE zerda.layer_entries DROP CONSTRAINT broken")
        manager.save_interaction("ann", "acme", "after", "ok", importance=0.9)
        assert manager.stats("acme")["long_term"] == 2


def test_many_threads_save_and_read_at_once(store: MemoryStore, manager: AIMemoryManager) -> None:
    def talk(worker: int) -> None:
        user = f"user-{worker % 2}"
        for n in range(6):
            manager.save_interaction(user, "acme", f"{worker} says {n}", "ok", importance=0.8)
            context = manager.build_context(user, "acme", f"{worker} says {n}")
            assert context.tokens <= 2000
            assert all(entry.user_id == user for entry in context.entries)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(talk, worker) for worker in range(8)]:
            done.result()
    assert manager.stats("acme") | {"entries": 48, "semantic": 48, "long_term": 48} == (
        manager.stats("acme")
    )
    for user in ("user-0", "user-1"):
        window = ShortTermMemory(99, tenant_id="acme", store=store, session_id=user, user_id=user)
        assert window.size == 5


def test_users_do_not_see_each_other_and_all_see_what_is_shared(
    store: MemoryStore, manager: AIMemoryManager
) -> None:
    for user in ("ann", "bob"):
        manager.save_interaction(user, "acme", f"the {user} password hint", "ok", importance=0.9)
    manager.save_interaction("ann", "other", "password hint of the other tenant", "ok")
    shared = MemoryEntry("The password hint policy is everyone's", importance=0.9)
    SemanticMemory(tenant_id="acme", store=store).add(shared)
    LongTermMemory(tenant_id="acme", store=store).store(MemoryEntry("Shared rule", importance=0.95))
    text = manager.build_context("ann", "acme", "What is the password hint?").text
    assert "ann password" in text
    assert "everyone's" in text
    assert "Shared rule" in text
    assert "bob" not in text
    assert "other tenant" not in text
    assert "ann" not in manager.build_context("carol", "acme", "What is the password hint?").text


@pytest.fixture(scope="module")
def talk(server: None) -> Iterator[MemoryStore]:
    with temporary_store() as store:
        manager = AIMemoryManager(store=store)
        for n, (said, answered) in enumerate(TURNS * 3):
            manager.save_interaction(
                "ann", "acme", said * (1 + n % 4), answered, importance=(n % 10) / 10
            )
        yield store


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    budget=st.integers(1, 400),
    top_k=st.integers(1, 12),
    packing=st.sampled_from(["skip", "stop", "value", "optimal"]),
    query=st.sampled_from([said for said, _ in TURNS]),
)
def test_the_budget_holds_on_the_text(
    talk: MemoryStore, budget: int, top_k: int, packing: Any, query: str
) -> None:
    config = ManagerConfig(
        token_budget=budget, selection=SelectionConfig(top_k=top_k, packing=packing)
    )
    context = AIMemoryManager(config, store=talk).build_context("ann", "acme", query)
    assert context.tokens == talk.tenant("acme").count_tokens(context.text) <= budget
    assert context.token_estimate == context.tokens
    assert context.full_text == context.text
    assert len(context.entries) <= top_k
    report = context.report
    assert {row["id"] for row in report["packed"]} == {entry.id for entry in context.entries}
    assert {row["reason"] for row in report["not_packed"]} <= {
        "over_budget", "beyond_top_k", "below_min_score",
    }  # fmt: skip


def test_the_budget_is_the_manager_s_and_is_used(talk: MemoryStore) -> None:
    selection = SelectionConfig(token_budget=1, top_k=50)
    tokens = [
        AIMemoryManager(ManagerConfig(token_budget=budget, selection=selection), store=talk)
        .build_context("ann", "acme", "coffee")
        .tokens
        for budget in (60, 4000)
    ]
    assert 30 < tokens[0] <= 60 < tokens[1]


def test_packing_is_the_selection_s(store: MemoryStore) -> None:
    layer = LongTermMemory(tenant_id="acme", store=store)
    layer.store(MemoryEntry("long " * 60, importance=0.9))
    layer.store(MemoryEntry("short", importance=0.5))

    def packed(packing: Any) -> list[Any]:
        config = ManagerConfig(token_budget=40, selection=SelectionConfig(packing=packing))
        context = AIMemoryManager(config, store=store).build_context("ann", "acme", "query")
        return [entry.content for entry in context.entries]

    assert packed("skip") == packed("value") == packed("optimal") == ["short"]
    assert packed("stop") == []


def test_a_prompt(manager: AIMemoryManager) -> None:
    manager.save_interaction("ann", "acme", "I like dark roast", "Noted")
    prompt = manager.build_prompt("ann", "acme", "Which coffee?", system_instruction="Be brief.")
    assert prompt.startswith("Be brief.\n\n")
    assert prompt.endswith("=== Current Query ===\nWhich coffee?")
    assert "user: I like dark roast" in prompt
    nothing = manager.build_prompt("bob", "other", "Hello?")
    assert nothing.count("\n\n") == 1


def test_a_tenant_without_anything(manager: AIMemoryManager) -> None:
    context = manager.build_context("ann", "nobody", "anything")
    assert (context.text, context.entries, context.tokens) == ("", [], 0)
    report = manager.run_maintenance("nobody")
    assert report["tenant_id"] == "nobody"
    assert (report["considered"], report["forgotten"]) == (0, 0)
    stats = manager.stats("nobody")
    assert (stats["entries"], stats["semantic"], stats["long_term"]) == (0, 0, 0)
    manager.clear_tenant("nobody")


def test_maintenance_forgets_by_the_manager_s_rules(store: MemoryStore) -> None:
    config = ManagerConfig(forgetting=ForgettingConfig(deletion_threshold=0.3))
    manager = AIMemoryManager(config, store=store)
    weak = manager.save_interaction("ann", "acme", "small talk", "yes", importance=0.2)
    strong = manager.save_interaction("ann", "acme", "I moved to Bonn", "ok", importance=0.8)
    report = manager.run_maintenance("acme")
    assert (report["considered"], report["forgotten_ids"]) == (2, [weak.id])
    context = manager.build_context("ann", "acme", "small talk")
    assert [entry.id for entry in context.entries] == [strong.id]


def test_clear_tenant_clears_that_tenant(manager: AIMemoryManager) -> None:
    for tenant in ("acme", "other"):
        manager.save_interaction("ann", tenant, "hello", "hi", importance=0.9)
    manager.clear_tenant("acme")
    assert manager.stats("acme")["entries"] == 0
    assert manager.stats("other")["entries"] == 1


@pytest.mark.parametrize(
    ("argument", "what"),
    [
        ("encryption_key", "encryption"),
        ("enable_privacy_masking", "masking"),
        ("role", "roles"),
        ("include_profile", "profiles"),
        ("llm", "compression"),
        ("documents", "documents"),
    ],
)
def test_arguments_that_are_left_out_say_so(
    manager: AIMemoryManager, argument: str, what: str
) -> None:
    left_out: dict[str, Any] = {argument: None}
    with pytest.raises(TypeError, match=f"{argument}: zerda_pg has no {what}"):
        AIMemoryManager(**left_out)
    with pytest.raises(TypeError, match=f"{argument}: zerda_pg has no {what}"):
        manager.build_context("ann", "acme", "x", **left_out)
    with pytest.raises(TypeError, match=f"{argument}: zerda_pg has no {what}"):
        manager.build_prompt("ann", "acme", "x", **left_out)
    with pytest.raises(TypeError, match="unexpected argument 'nonsense'"):
        manager.build_context("ann", "acme", "x", nonsense=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window_size", 0),
        ("token_budget", 0),
        ("importance_threshold", 1.5),
        ("importance_threshold", float("nan")),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        ManagerConfig(**{field: value})
    other: Any = {field: value}
    with pytest.raises(ValueError, match="config must be a ManagerConfig, got dict"):
        AIMemoryManager(other)


def test_bad_arguments_are_named(manager: AIMemoryManager) -> None:
    for name, call in (
        ("user_id", lambda: manager.save_interaction("", "acme", "x", "y")),
        ("tenant_id", lambda: manager.save_interaction("ann", "", "x", "y")),
        ("top_k_semantic", lambda: manager.build_context("a", "acme", "x", top_k_semantic=0)),
        ("top_k_ltm", lambda: manager.build_context("a", "acme", "x", top_k_ltm=0)),
        ("query", lambda: manager.build_context("a", "acme", " ")),
    ):
        with pytest.raises(ValueError, match=name):
            call()


def test_async_twins_have_the_same_signatures() -> None:
    names = (
        "save_interaction", "build_context", "build_prompt", "run_maintenance", "stats",
        "clear_tenant",
    )  # fmt: skip
    for name in names:
        twin = getattr(AIMemoryManager, f"a{name}")
        assert inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(getattr(AIMemoryManager, name))


async def test_async_twins(manager: AIMemoryManager) -> None:
    await asyncio.gather(
        *(manager.asave_interaction("ann", "acme", f"fact {n}", "ok") for n in range(12))
    )
    stats = await manager.astats("acme")
    assert (stats["entries"], stats["semantic"]) == (12, 12)
    context = await manager.abuild_context("ann", "acme", "fact 3", top_k_semantic=1)
    assert any("fact 3" in entry.content["input"] for entry in context.entries)
    assert "fact 3" in await manager.abuild_prompt("ann", "acme", "fact 3")
    assert (await manager.arun_maintenance("acme"))["considered"] == 12
    await manager.aclear_tenant("acme")
    assert (await manager.astats("acme"))["entries"] == 0
    with pytest.raises(TypeError, match="roles"):
        await manager.abuild_context("ann", "acme", "x", role="admin")
