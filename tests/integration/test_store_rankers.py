"""The store's rankers and packings, each by the effect that is its own."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zerda_pg import (
    ConfigError,
    KindPriorWeights,
    Memory,
    MemoryEntry,
    MemoryStore,
    RerankConfig,
    SelectionConfig,
    pack_memories,
)
from zerda_pg.scoring.hybrid import HybridRanker
from zerda_pg.scoring.rankers import CompositeRanker, FusionRanker, KindPriorRanker
from zerda_pg.scoring.signals import Ranking, Signals

RANKERS = ("default", "composite", "fusion", "kind_prior")
PACKINGS = ("value", "skip", "stop", "optimal")


def order(memory: Memory, query: str, **options: Any) -> list[str]:
    return [hit.entry.id for hit in memory.search(query, record_access=False, **options)]


def packed(memory: Memory, task: str, **options: Any) -> list[str]:
    context = memory.build_context(task, record_access=False, **options)
    return [line["id"] for line in context.report["packed"]]


def test_kind_prior_puts_a_decision_above_an_attempt(memory: Memory) -> None:
    query = "deploy the billing service on friday"
    memory.add(query, id="attempt", kind="attempt")
    memory.add(f"After the outage: {query}, not before noon", id="decision", kind="decision")
    assert order(memory, query)[0] == "attempt"
    for options in ({"ranker": "kind_prior"}, {"ranker": KindPriorRanker(base=HybridRanker())}):
        assert order(memory, query, **options) == ["decision", "attempt"]
        assert packed(memory, query, packing="skip", **options) == ["decision", "attempt"]
    flat = KindPriorWeights(decision=0.1, attempt=0.1)
    ranker = KindPriorRanker(flat, base=HybridRanker())
    assert order(memory, query, ranker=ranker) == ["attempt", "decision"]


def test_kind_prior_s_log_is_not_in_dialog(memory: Memory) -> None:
    memory.add("The dialog closes by itself", id="dialog", kind="fact")
    memory.add("The log is rotated at night", id="log", kind="fact")
    hits = memory.search("log", ranker="kind_prior", record_access=False)
    overlap = {hit.entry.id: hit.contributions["lexical"] for hit in hits}
    assert overlap["log"] == pytest.approx(0.25)
    assert overlap.get("dialog", 0.0) == 0.0


def test_kind_prior_hardly_counts_words_that_are_everywhere(memory: Memory) -> None:
    for n in range(30):
        memory.add(f"the user asked about the invoice number {n}", kind="fact")
    memory.add("the user asked something", id="filler", kind="fact")
    memory.add("terraform", id="telling", kind="fact")
    hits = memory.search("the user asked about terraform", k=40, ranker="kind_prior")
    overlap = {hit.entry.id: hit.contributions["lexical"] for hit in hits}
    assert overlap["telling"] > 0.8 * 0.25
    assert 0.0 < overlap["filler"] < 0.15 * 0.25


def test_kind_prior_counts_use_up_to_its_cap(memory: Memory, store: MemoryStore) -> None:
    for name in ("used", "fresh"):
        memory.add(f"coffee facts {name}", id=name, kind="fact")
    for _ in range(7):
        memory.search("used coffee", k=1, mode="lexical")
    store.flush()
    hits = {hit.entry.id: hit for hit in memory.search("coffee facts", ranker="kind_prior")}
    assert hits["used"].entry.access_count == 7
    assert hits["used"].contributions["access"] == pytest.approx(0.10)
    assert hits["fresh"].contributions["access"] == 0.0


def test_pack_memories_in_sections(memory: Memory) -> None:
    memory.add("Use Postgres for the queue", kind="decision")
    memory.add("The queue holds a million jobs", kind="fact")
    memory.add("Prefers short answers about the queue", kind="preference")
    memory.add("The queue deadlocked on monday", kind="failure")
    memory.add("Tried redis for the queue", kind="attempt")
    memory.add("The queue has a note", kind="note")
    context = pack_memories(memory, "queue", token_budget=200)
    titles = ["Key Decisions", "Known Facts", "Preferences", "Known Issues", "Recent Attempts"]
    places = [context.text.index(title) for title in titles]
    assert places == sorted(places)
    assert "a note" in context.text
    assert context.tokens == memory.count_tokens(context.text) <= 200
    small = pack_memories(memory, "queue", token_budget=20)
    assert small.tokens == memory.count_tokens(small.text) <= 20
    assert small.text.count("Postgres") == 1
    assert pack_memories(memory, "queue", filter={"kinds": ["none"]}).text.strip()


@pytest.fixture
def graph(memory: Memory) -> Memory:
    """Two equally good answers, one of them well linked; and the entries it is linked to."""
    for name in ("linked", "alone"):
        memory.add(f"coffee roast guide {name}", id=name)
    for n in range(4):
        memory.add(f"unrelated number {n}", id=f"n{n}")
    memory.relate("linked", "n0", "has_child")
    memory.relate("n1", "linked", "related")
    memory.relate("linked", "n2", "invalidated_by")
    return memory


def fusion(**weights: float) -> FusionRanker:
    return FusionRanker(RerankConfig(**weights), base=HybridRanker())  # type: ignore[arg-type]


def test_fusion_lifts_the_well_linked(graph: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "coffee roast guide alone"
    assert order(graph, query, ranker="fusion")[:2] == ["alone", "linked"]
    monkeypatch.setenv("MEMORY_RERANK_W_IMPORTANCE", "3")
    assert order(graph, query, ranker="fusion")[0] == "linked"
    assert packed(graph, query, ranker="fusion", packing="skip")[0] == "linked"
    assert order(graph, query, ranker=fusion(w_importance=3.0))[0] == "linked"
    monkeypatch.setenv("MEMORY_RERANK_W_IMPORTANCE", "much")
    with pytest.raises(ConfigError, match="MEMORY_RERANK_W_IMPORTANCE"):
        graph.search(query, ranker="fusion")


def test_degree_counts_neighbours_once_over_three_relations_only(graph: Memory) -> None:
    graph.relate("n0", "linked", "related")  # a neighbour already
    for n in range(4):
        for relation in ("precedes", "mentions"):
            graph.relate("alone", f"n{n}", relation)
    degrees: dict[str, int] = {}

    class Look:
        needs_vectors = False

        def rank(self, signals: Signals, task: str) -> Ranking:
            degrees.update(zip(signals.ids, signals.degree.tolist(), strict=True))
            return HybridRanker().rank(signals, task)

    graph.search("coffee roast guide", ranker=Look())
    assert (degrees["linked"], degrees["alone"]) == (3, 0)


def test_fusion_ranks_what_the_session_touched_first(memory: Memory, store: MemoryStore) -> None:
    touched = memory.add("a handbook", id="touched").id
    memory.add("coffee roast guide", id="best")  # newer: without a session it leads in recency
    options: dict[str, Any] = {"ranker": fusion(w_recency=5.0), "current_session": "s1"}
    store.tenant("acme", session_id="s1").search("handbook", k=1, mode="lexical")
    store.flush()
    assert order(memory, "coffee roast guide", ranker="fusion")[0] == "best"
    hits = memory.search("coffee roast guide", record_access=False, **options)
    share = {hit.entry.id: hit.contributions["recency"] for hit in hits}
    assert share[touched] > share["best"]
    assert hits[0].entry.id == touched
    other = memory.search(
        "coffee roast guide", record_access=False, ranker=options["ranker"], current_session="s2"
    )
    assert other[0].entry.id == "best"


@pytest.fixture
def twins(memory: Memory) -> Memory:
    """Two near-duplicates that answer best, and another answer."""
    memory.add("the espresso machine needs a new water filter", id="a")
    memory.add("the espresso machine needs one new water filter", id="a-again")
    memory.add("the espresso machine has its manual nearby there", id="other")
    memory.relate("other", "a")
    return memory


def test_mmr_lets_the_near_duplicate_fall(twins: Memory) -> None:
    query = "espresso machine water filter"
    plain, diverse = fusion(w_importance=0.01), fusion(w_importance=0.01, mmr_lambda=0.3)
    assert order(twins, query, ranker=plain) == ["a", "a-again", "other"]
    assert order(twins, query, ranker=diverse) == ["a", "other", "a-again"]
    # without a boost there is no silent diversification
    assert order(twins, query, ranker=fusion(mmr_lambda=0.3)) == ["a", "a-again", "other"]


@pytest.mark.parametrize("packing", PACKINGS)
def test_packing_keeps_the_diversity(
    twins: Memory, packing: Literal["value", "skip", "stop", "optimal"]
) -> None:
    query = "espresso machine water filter"
    options: dict[str, Any] = {"packing": packing, "top_k": 2, "token_budget": 500}
    diverse = fusion(w_importance=0.01, mmr_lambda=0.3)
    assert packed(twins, query, ranker=fusion(w_importance=0.01), **options) == ["a", "a-again"]
    assert packed(twins, query, ranker=diverse, **options) == ["a", "other"]


def test_mmr_by_the_environment(twins: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_RERANK_W_IMPORTANCE", "0.01")
    monkeypatch.setenv("MEMORY_RERANK_MMR_LAMBDA", "0.3")
    found = order(twins, "espresso machine water filter", ranker="fusion")
    assert found == ["a", "other", "a-again"]


def test_composite_weighs_importance_and_age(memory: Memory) -> None:
    day = 86400.0
    now = memory.add("coffee", id="probe").entry.timestamp
    memory.delete("probe")
    memory.add(MemoryEntry("coffee roast", id="plain", importance=0.0, timestamp=now - 9 * day))
    memory.add(MemoryEntry("coffee roast map", id="vital", importance=1.0, timestamp=now - 9 * day))
    memory.add(MemoryEntry("coffee cups", id="new", importance=0.2, timestamp=now))
    query = "coffee roast"
    relevance = SelectionConfig(relevance_weight=1, recency_weight=0, importance_weight=0)
    assert order(memory, query, ranker=CompositeRanker(relevance))[0] == "plain"
    assert order(memory, query, ranker="composite")[0] == "vital"
    recent = SelectionConfig(
        relevance_weight=0.1, recency_weight=0.8, importance_weight=0.1,
        recency_half_life_hours=24,
    )  # fmt: skip
    assert order(memory, query, ranker=CompositeRanker(recent))[0] == "new"
    picky = SelectionConfig(min_composite_score=0.9)
    assert order(memory, query, ranker=CompositeRanker(picky)) == []
    hits = memory.search(query, ranker="composite")
    assert set(hits[0].contributions) == {"relevance", "recency", "importance"}
    assert sum(hits[0].contributions.values()) == pytest.approx(hits[0].score)


def test_packings_differ_where_they_should(memory: Memory) -> None:
    """One long best answer, two short ones; room for the long one or for both short ones."""
    memory.add("coffee roast " * 12, id="long")
    memory.add("coffee roast one", id="one")
    memory.add("coffee roast two", id="two")
    lengths = {
        name: memory.count_tokens(memory.build_context("coffee", render=only(name)).text)
        for name in ("long", "one", "two")
    }
    ranked = Fixed({"long": 0.9, "one": 0.85, "two": 0.8})
    options: dict[str, Any] = {"ranker": ranked, "render": "plain"}
    room = lengths["long"] + 1
    got = {
        packing: packed(memory, "coffee", packing=packing, token_budget=room, **options)
        for packing in PACKINGS
    }
    assert got["skip"] == got["stop"] == ["long"]
    assert got["value"] == got["optimal"] == ["one", "two"]
    small = lengths["one"] + 1
    assert packed(memory, "coffee", packing="stop", token_budget=small, **options) == []
    assert packed(memory, "coffee", packing="skip", token_budget=small, **options) == ["one"]


def only(name: str) -> Any:
    def render(entries: Any) -> str:
        return "\n\n".join(entry.content for entry in entries if entry.id == name)

    return render


class Fixed:
    """Scores by id; has no `needs_vectors`, which then is False."""

    def __init__(self, scores: dict[str, float]) -> None:
        self.scores = scores

    def rank(self, signals: Signals, task: str) -> Ranking:
        scores = np.array([self.scores.get(name, 0.0) for name in signals.ids])
        rows = sorted(range(len(scores)), key=lambda row: (-scores[row], signals.ids[row]))
        return Ranking(order=rows, scores=scores, contributions={"fixed": scores})


@pytest.fixture(scope="module")
def talk(server: None) -> Any:
    from zerda_pg.testing import temporary_store

    words = "coffee tea deploy disk full user likes dark roast green red server".split()
    generator = np.random.default_rng(9)
    kinds = ["decision", "fact", "attempt", None]
    with temporary_store() as store:
        memory = store.tenant("acme")
        memory.add_many(
            [
                {
                    "content": " ".join(generator.choice(words, int(generator.integers(1, 40)))),
                    "id": f"e{n:02}",
                    "kind": kinds[n % 4],
                    "importance": float(generator.random()),
                    "memory_type": "episodic" if n % 3 else "semantic",
                }
                for n in range(60)
            ]
        )
        for n in range(0, 59, 2):
            memory.relate(f"e{n:02}", f"e{n + 1:02}")
        yield memory


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ranker=st.sampled_from([*RANKERS, "diverse"]),
    packing=st.sampled_from(PACKINGS),
    budget=st.integers(1, 600),
    top_k=st.none() | st.integers(1, 20),
    render=st.sampled_from(["transcript", "sections", "plain"]),
    query=st.sampled_from(["coffee roast", "server deploy disk", "red", "nothing known"]),
)
def test_no_combination_exceeds_the_budget(
    talk: Memory, ranker: str, packing: Any, budget: int, top_k: int | None, render: str, query: str
) -> None:
    chosen: Any = fusion(w_importance=0.5, mmr_lambda=0.4) if ranker == "diverse" else ranker
    context = talk.build_context(
        query, ranker=chosen, packing=packing, token_budget=budget, top_k=top_k, render=render,
        record_access=False,
    )  # fmt: skip
    assert context.tokens == (talk.count_tokens(context.text) if context.text else 0) <= budget
    assert top_k is None or len(context.entries) <= top_k
    assert {line["id"] for line in context.report["packed"]} == {e.id for e in context.entries}
    assert len({entry.id for entry in context.entries}) == len(context.entries)


@pytest.mark.parametrize("ranker", RANKERS)
def test_explain_names_every_channel_of_the_ranker(talk: Memory, ranker: str) -> None:
    report = talk.explain("coffee roast", k=5, ranker=ranker)
    assert report["ranker"] == ranker
    channels = {
        "default": {"similarity", "lexical", "neighbours", "recency", "importance", "touched"},
        "composite": {"relevance", "recency", "importance"},
        "fusion": {"relevance", "graph", "recency"},
        "kind_prior": {"kind", "relevance", "lexical", "access"},
    }[ranker]
    fates = [row["fate"] for row in report["rows"]]
    assert fates[:5] == ["returned"] * 5
    assert set(fates[5:]) <= {"beyond_k", "dropped_by_ranker", "below_min_score"}
    for row in report["rows"]:
        assert set(row["contributions"]) >= channels
        total = sum(row["contributions"].values())
        assert total == pytest.approx(row["score"], abs=2e-3) or total > 1.0


def test_an_unknown_ranker_is_named(memory: Memory) -> None:
    for ranker in ("composed", 5, object()):
        with pytest.raises(ValueError, match="ranker"):
            memory.search("x", ranker=ranker)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="packing"):
        memory.build_context("x", packing="best")  # type: ignore[arg-type]


class Wrong:
    """A ranker that gives what it was made with."""

    needs_vectors = False

    def __init__(self, ranking: Any) -> None:
        self.ranking = ranking

    def rank(self, signals: Signals, task: str) -> Any:
        return self.ranking


def ranking(order: list[int], scores: list[float]) -> Ranking:
    return Ranking(order=order, scores=np.array(scores), contributions={})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([0, 1], "must return a Ranking, got list"),
        (ranking([0, 0], [0.5, 0.5]), "names a row twice"),
        (ranking([0, 2], [0.5, 0.5]), "row numbers from 0 to 1"),
        (ranking([0, -1], [0.5, 0.5]), "row numbers from 0 to 1"),
        (ranking([0, 1], [0.5]), "2 finite numbers"),
        (ranking([0, 1], [0.5, float("nan")]), "2 finite numbers"),
    ],
)
def test_what_a_ranker_may_not_return(memory: Memory, given: Any, words: str) -> None:
    memory.add("the deploy failed")
    memory.add("the deploy went well")
    for call in (memory.search, memory.build_context, memory.explain):
        with pytest.raises(ValueError, match=f"^ranker.*{words}"):
            call("deploy", ranker=Wrong(given))
    with pytest.raises(ValueError, match=r"^ranker"):
        memory.search_many(["deploy"], ranker=Wrong(given))


def test_a_class_is_no_ranker(memory: Memory) -> None:
    with pytest.raises(ValueError, match=r"^ranker must be .*, got <class .*Wrong"):
        memory.search("deploy", ranker=Wrong)  # type: ignore[arg-type]
