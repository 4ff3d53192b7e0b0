"""What recall brings into a prompt: neighbours, newer values, excerpts, diversity, reasons."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zerda_pg import Memory, MemoryStore
from zerda_pg.scoring.hybrid import HybridRanker
from zerda_pg.scoring.rankers import FusionRanker
from zerda_pg.scoring.rerank_config import RerankConfig

START = datetime(2026, 5, 4, 9, tzinfo=UTC)


def quarter(text: str) -> int:
    return -(-len(text) // 4)


def chat(*lines: str) -> list[dict[str, Any]]:
    return [
        {
            "content": {"speaker": ("Ann", "Bob")[turn % 2], "text": line},
            "memory_type": "episodic",
            "session_id": "s",
            "timestamp": START + timedelta(minutes=turn),
            "id": f"turn-{turn}",
        }
        for turn, line in enumerate(lines)
    ]


def unit(*values: float) -> list[float]:
    vector = np.zeros(8)
    vector[: len(values)] = values
    return list(vector / np.linalg.norm(vector))


@pytest.mark.parametrize("linked", [True, False])
def test_an_answer_is_found_by_its_question(store: MemoryStore, linked: bool) -> None:
    memory = store.tenant("t")
    filler = [f"unrelated remark number {n} about gardening" for n in range(8)]
    lines = [*filler, "which city hosted the marathon finals", "Rotterdam", *filler]
    if linked:
        memory.add_messages(
            [
                {**entry["content"], "timestamp": entry["timestamp"], "id": entry["id"]}
                for entry in chat(*lines)
            ],
            session_id="s",
        )
    else:
        memory.add_many(chat(*lines))  # a session in order of time is a conversation, too
    hits = memory.search("city of the marathon finals", k=2, record_access=False)
    assert [hit.entry.id for hit in hits] == ["turn-8", "turn-9"]
    assert hits[1].contributions["neighbours"] > hits[1].contributions["lexical"]


def test_turns_two_steps_away_help_and_other_sessions_do_not(memory: Memory) -> None:
    memory.add_many(chat("zeppelin workshop", "yes", "on Friday"))
    memory.add("on Friday", session_id="other", timestamp=START, id="elsewhere")
    hits = {h.entry.id: h for h in memory.search("zeppelin workshop", record_access=False)}
    near = [hits[name].contributions["neighbours"] for name in ("turn-1", "turn-2")]
    assert near[0] > near[1] > 0.0
    assert "elsewhere" not in hits or hits["elsewhere"].contributions["neighbours"] == 0.0


def test_a_hyphenated_word_counts_once(memory: Memory) -> None:
    memory.add("the shop-api notes", id="compound")
    memory.add("deploy script", id="word")
    report = memory.search("shop-api deploy", record_access=False).report
    assert {term["lexeme"] for term in report["terms"]} == {"shop", "api", "deploy"}


def test_the_newer_of_two_values_comes_first(database: str) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        memory = store.tenant("t")
        said = chat(
            "our quota of calls is 1000 a day now", "fine",
            "our quota of calls is 1200 a day now",
        )  # fmt: skip
        memory.add_many(said)
        hits = memory.search("quota of calls a day", k=5, record_access=False)
    assert [hit.entry.id for hit in hits][:2] == ["turn-2", "turn-0"]


def test_a_superseded_memory_stands_behind_its_successor(memory: Memory) -> None:
    memory.add("the office is in Ghent, in Ghent", id="old")
    memory.add("the office is elsewhere: Namur", id="new", supersedes="old")
    query = "the office in Ghent"
    assert [h.entry.id for h in memory.search(query, record_access=False)] == ["new"]
    both = memory.search(query, filter={"status": ["active", "superseded"]}, record_access=False)
    assert [h.entry.id for h in both] == ["new", "old"]
    assert both[0].score >= both[1].score


LONG = (
    "A preface of many words. " * 120
    + "The launch code of the lighthouse is 4711. "
    + "An appendix without end. " * 120
)


def test_a_long_memory_is_shown_in_part(memory: Memory) -> None:
    memory.add(LONG, id="manual")
    memory.add("lighthouses are tall", id="short")
    context = memory.build_context(
        "launch code of the lighthouse", token_budget=300, count_tokens=quarter,
        record_access=False,
    )  # fmt: skip
    assert "launch code of the lighthouse is 4711" in context.text
    assert "[part of manual]" in context.text
    assert [entry.id for entry in context.entries] == ["short"]
    assert [entry.content for entry in context.excerpts] == [LONG]
    assert context.tokens == quarter(context.text) <= 300
    fates = {line["id"]: line["reason"] for line in context.report["not_packed"]}
    assert fates == {"manual": "excerpt"}


def test_what_fits_is_whole(memory: Memory) -> None:
    memory.add(LONG, id="manual")
    context = memory.build_context(
        "launch code", token_budget=4000, count_tokens=quarter, record_access=False
    )
    assert [entry.id for entry in context.entries] == ["manual"]
    assert context.excerpts == []


def test_reasons_for_what_was_left_out(memory: Memory) -> None:
    for n in range(30):
        memory.add(f"apples and pears, crate {n}, stored in the cold cellar", id=f"crate-{n:02}")
    context = memory.build_context(
        "apples in the cellar", token_budget=60, count_tokens=quarter, record_access=False
    )
    reasons = {line["reason"] for line in context.report["not_packed"]}
    assert reasons == {"over_budget"}
    strict = memory.build_context(
        "apples in the cellar", token_budget=60, min_score=0.99, record_access=False
    )
    assert strict.entries == []
    assert {line["reason"] for line in strict.report["not_packed"]} == {"below_min_score"}


def packed(memory: Memory, trade: float) -> list[str]:
    """Ids in the order in which they were chosen."""
    config = RerankConfig(w_sim=1.0, w_importance=0.0, w_recency=0.01, mmr_lambda=trade)
    context = memory.build_context(
        "fruit", embedding=unit(1), top_k=2, render="plain", packing="value",
        ranker=FusionRanker(config, base=HybridRanker()), record_access=False,
    )  # fmt: skip
    return [line["id"] for line in context.report["packed"]]


def test_diversity_is_honoured_at_both_ends(database: str) -> None:
    from zerda_pg.embedding.hashing import HashingEmbedder

    with MemoryStore.open(database, embedder=HashingEmbedder(8)) as store:
        memory = store.tenant("t")
        for name, vector in (
            ("best", unit(1, 0.1)), ("twin", unit(1, 0.11)), ("other", unit(0.3, 0, 1)),
        ):  # fmt: skip
            memory.add(f"item {name}", id=name, embedding=vector)
        assert packed(memory, 1.0) == ["best", "twin"]
        assert packed(memory, 0.0)[1] == "other"


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=8),
    budget=st.integers(1, 400),
    render=st.sampled_from(["transcript", "sections", "plain"]),
)
def test_no_budget_is_exceeded(
    store: MemoryStore, sizes: list[int], budget: int, render: str
) -> None:
    memory = store.tenant(f"{hash((tuple(sizes), budget, render))}")
    memory.add_many(chat(*[("kiwi melon " * size)[: size + 4] for size in sizes]))
    context = memory.build_context(
        "kiwi melon", token_budget=budget, render=render, count_tokens=quarter,
        record_access=False,
    )  # fmt: skip
    assert context.tokens == quarter(context.text) <= budget
    shown = [entry.id for entry in context.entries]
    assert len(shown) == len(set(shown))
    assert not set(shown) & {entry.id for entry in context.excerpts}


FACTS = {
    "ports": ("The {0} server listens on port {1}", "Which port does the {0} server listen on?",
              [("staging", 8443), ("production", 443), ("testing", 9000), ("billing", 1234)]),
    "rooms": ("Room {1} is booked by {0} on Monday", "Who booked room {1} on Monday?",
              [("Ada", 3), ("Bob", 4), ("Cleo", 5), ("Dan", 6)]),
    "invoices": ("Invoice {1} was paid in {0}", "When was invoice {1} paid?",
                 [("May", 1000), ("June", 1001), ("July", 1002), ("August", 1003)]),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTS)
def test_facts_about_different_things_are_not_versions_of_one(memory: Memory, name: str) -> None:
    told, asked, values = FACTS[name]
    memory.add_many({"content": f"note {n}: the weather in city {n} was fine"} for n in range(50))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for week, value in enumerate(values):
        memory.add(told.format(*value), timestamp=start + timedelta(weeks=week))
    for value in values:
        hit = memory.search(asked.format(*value), k=1)[0]
        assert hit.entry.content == told.format(*value)


def test_of_two_values_of_one_thing_the_newer_comes_first(memory: Memory) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    memory.add("The user has 3 cats at home", timestamp=start)
    memory.add("The user has 5 cats at home", timestamp=start + timedelta(weeks=3))
    hits = memory.search("How many cats does the user have?", k=2)
    assert [hit.entry.content for hit in hits] == [
        "The user has 5 cats at home", "The user has 3 cats at home"
    ]  # fmt: skip
