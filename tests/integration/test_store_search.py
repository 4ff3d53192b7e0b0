"""Search, many searches, contexts and explanations: what comes back, and its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from zerda_pg import EmbeddingMismatchError, InvalidContentError, Memory, MemoryEntry, MemoryStore
from zerda_pg.embedding.hashing import HashingEmbedder
from zerda_pg.embedding.protocol import Kind, Vectors

FACTS = [
    ("coffee", "Prefers dark roast coffee in the morning", "preference"),
    ("disk", "The deploy failed because the disk was full", "failure"),
    ("retry", "Retries use exponential backoff with jitter", "decision"),
    ("tea", "Green tea helps in the afternoon", "preference"),
    ("queue", "The queue is drained before each deploy", "fact"),
]


@pytest.fixture
def filled(anytenant: Memory) -> Memory:
    anytenant.add_many([{"content": c, "id": i, "kind": k} for i, c, k in FACTS])
    return anytenant


def test_each_mode_finds_the_words(filled: Memory) -> None:
    for mode in ("hybrid", "dense", "lexical"):
        hits = filled.search("why did the deploy fail, was the disk full?", k=3, mode=mode)
        assert hits[0].entry.id == "disk", mode
        scores = [h.score for h in hits]
        assert scores == sorted(scores, reverse=True)
        assert all(0.0 <= h.score <= 1.0 for h in hits)
        assert all(0.0 <= h.lexical <= 1.0 and 0.0 <= h.recency <= 1.0 for h in hits)
        report = hits.report
        assert (report["mode"], report["returned"]) == (mode, len(hits))
        assert report["candidates"] >= len(hits)
    lexical = filled.search("deploy", mode="lexical")
    assert sorted(h.entry.id for h in lexical) == ["disk", "queue"]
    assert [h.similarity for h in lexical] == [None, None]


def test_a_word_match_is_not_lost_beside_the_similar_ones(anytenant: Memory) -> None:
    """A lexical score is on the same scale: a rare name decides."""
    for n in range(40):
        anytenant.add(f"The status report for customer number {n} is ready", id=f"r{n}")
    anytenant.add("Ticket ZX-4711 belongs to Mallory", id="rare")
    hits = anytenant.search("what is the status of ZX-4711?", k=5)
    assert "rare" in [h.entry.id for h in hits[:2]]
    hit = next(h for h in hits if h.entry.id == "rare")
    assert hit.lexical > 0.3
    assert hit.contributions["lexical"] > 0.1


def test_k_and_min_score(filled: Memory) -> None:
    query, now = "deploy disk coffee tea queue", datetime.now(UTC)
    every = filled.search(query, k=1000, now=now)
    assert len(every) == 5
    for k in (1, 2, 4):
        best = filled.search(query, k=k, now=now)
        assert [h.entry.id for h in best] == [h.entry.id for h in every[:k]]
    least = every[1].score
    assert [h.entry.id for h in filled.search(query, min_score=least, now=now)] == [
        h.entry.id for h in every if h.score >= least
    ]
    assert len(filled.search(query, min_score=1.0)) == 0


@pytest.mark.parametrize("k", [0, -1, 1001, 2.0, True, "3", None])
def test_bad_k(filled: Memory, k: Any) -> None:
    for call in (
        lambda: filled.search("x", k=k),
        lambda: filled.search_many(["x"], k=k),
        lambda: filled.search_many([], k=k),
        lambda: filled.build_context("x", k=k),
        lambda: filled.explain("x", k=k),
    ):
        with pytest.raises(ValueError, match="k must be a whole number from 1 to 1000"):
            call()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": "fuzzy"}, "mode must be"),
        ({"min_score": -0.1}, "min_score"),
        ({"min_score": 1.1}, "min_score"),
        ({"min_score": float("nan")}, "min_score"),
        ({"min_score": "0.5"}, "min_score"),
        ({"current_session": ""}, "current_session"),
        ({"current_session": "a\x00"}, "current_session"),
        ({"ranker": "best"}, "ranker must be one of"),
        ({"ranker": 5}, "ranker must be"),
        ({"filter": "kind"}, "filter must be a Filter"),
    ],
)
def test_bad_arguments(filled: Memory, arguments: dict[str, Any], said: str) -> None:
    for call in (filled.search, filled.build_context, filled.explain):
        with pytest.raises(ValueError, match=said):
            call("deploy", **arguments)
    with pytest.raises(ValueError, match=said):
        filled.search_many(["deploy"], **arguments)


def test_unknown_arguments_are_refused(filled: Memory) -> None:
    for call in (filled.search, filled.build_context, filled.explain):
        with pytest.raises(TypeError, match="top"):
            call("deploy", top=3)  # type: ignore[call-arg]


ODD_QUERIES = [
    'What\'s "x" & \\| !y:*?',
    "a & | ! ( ) <-> :* 'b",
    "'''",
    "\\",
    "c:\\temp\\new 'file'.txt",
    "/usr/local/bin --flag=1 user@example.org https://example.org/a?b=c#d",
    "%s %(query_text)s %% :tenant $1 {}",
    "??? !!! ...",
    "—",
    "the of and",
    "😀 👩‍👩‍👧 é e\u0301",
    "مرحبا بالعالم \u202eabc",
    "日本語の検索",
    "a" * 5000,
    " ".join(f"word{n}" for n in range(500)),
    "deploy " * 500,
    "x" * 200_000,
    "\t\n deploy \r\n",
    "DROP TABLE zerda.entries; --",
    "<|endoftext|>",
]


@pytest.mark.parametrize("query", ODD_QUERIES, ids=range(len(ODD_QUERIES)))
def test_a_query_with_operators_searches(filled: Memory, query: str) -> None:
    filled.add(query, id="odd")
    for mode in ("hybrid", "dense", "lexical"):
        filled.search(query, mode=mode)
        filled.search(f"{query} deploy", mode=mode)
    assert filled.search(query, mode="dense", k=1)[0].entry.id == "odd"
    assert filled.build_context(query, token_budget=50).tokens <= 50
    assert len(filled.search_many([query, "deploy"])) == 2


def test_every_word_that_is_indexed_is_found(anytenant: Memory) -> None:
    """A lexeme may hold quotes and backslashes; it is looked up as it is."""
    words = ["o'neill", "c:\\temp\\x", "a/b/c.txt", "user@example.org", "x86-64", "3.14", "-5",
             "naïve", "snake_case", "日本語", "https://example.org/p?q=1", "d''e"]  # fmt: skip
    for n, word in enumerate(words):
        anytenant.add(word, id=f"w{n}")
    for n, word in enumerate(words):
        found = [h.entry.id for h in anytenant.search(word, mode="lexical")]
        assert f"w{n}" in found, word


@pytest.mark.parametrize("query", ["", " ", "\n\t ", None, 5, b"x", ["x"], "a\x00b", "a\ud800"])
def test_bad_queries(filled: Memory, query: Any) -> None:
    for call in (
        lambda: filled.search(query),
        lambda: filled.search_many(["fine", query]),
        lambda: filled.build_context(query),
        lambda: filled.explain(query),
    ):
        with pytest.raises(InvalidContentError, match="query"):
            call()


# ── many ──────────────────────────────────────────────────────────────────────────────────────


def test_search_many_gives_what_search_gives(filled: Memory) -> None:
    queries = ["deploy disk", "coffee", "backoff", "deploy disk", "nothing of the kind"]
    now = datetime.now(UTC)
    for arguments in (
        {}, {"k": 2}, {"mode": "lexical"}, {"mode": "dense"}, {"filter": {"kinds": ["preference"]}},
        {"ranker": "fusion"}, {"ranker": "kind_prior"}, {"min_score": 0.2},
    ):  # fmt: skip
        options: dict[str, Any] = {"now": now, "record_access": False} | arguments
        together = filled.search_many(queries, **options)
        assert len(together) == 5
        for query, hits in zip(queries, together, strict=True):
            alone = filled.search(query, **options)
            assert [h.entry.id for h in alone] == [h.entry.id for h in hits], (query, arguments)
            assert [h.score for h in hits] == pytest.approx([h.score for h in alone])


def test_search_many_is_checked(filled: Memory) -> None:
    assert filled.search_many([]) == []
    for bad in ("text", 5, None, {"a": 1}):
        with pytest.raises(ValueError, match="queries must be a list"):
            filled.search_many(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="embedding belongs to one query"):
        filled.search_many(["a", "b"], embedding=[1.0] * 384)


# ── context ───────────────────────────────────────────────────────────────────────────────────


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("packing", ["value", "skip", "stop", "optimal"])
@pytest.mark.parametrize("render", ["transcript", "sections", "plain"])
def test_a_context_never_exceeds_its_budget(anytenant: Memory, packing: Any, render: str) -> None:
    anytenant.add_many(
        [
            {"content": f"Deploy note {n}: " + "more words about it " * (n % 7), "id": f"n{n}",
             "kind": ["fact", "decision", None][n % 3],
             "memory_type": "episodic" if n % 4 == 0 else "semantic"}
            for n in range(40)
        ]
    )  # fmt: skip
    for budget in (1, 3, 10, 37, 100, 400, 100_000):
        context = anytenant.build_context(
            "deploy notes", token_budget=budget, packing=packing, render=render, count_tokens=words
        )
        assert context.tokens == words(context.text) <= budget
        assert context.report["token_budget"] == budget
        assert len({e.id for e in context.entries}) == len(context.entries)
        for entry in context.entries:
            assert entry.content.strip() in context.text
        if budget == 100_000:
            assert len(context.entries) == 40
    few = anytenant.build_context("deploy notes", top_k=3, packing=packing, render=render)
    assert len(few.entries) == 3


def test_a_renderer_and_counter_of_ones_own(filled: Memory) -> None:
    def render(entries: Sequence[MemoryEntry]) -> str:
        return "HEAD " + " | ".join(e.id for e in entries)

    context = filled.build_context("deploy disk", render=render, count_tokens=words, token_budget=4)
    assert context.text.startswith("HEAD disk")
    assert context.tokens == words(context.text) <= 4


def test_one_memory_longer_than_the_budget(anytenant: Memory) -> None:
    anytenant.add("deploy " + "word " * 500, id="long")
    context = anytenant.build_context("deploy", token_budget=20)
    assert (context.text, context.tokens, context.entries) == ("", 0, [])
    assert [row["reason"] for row in context.report["not_packed"]] == ["over_budget"]
    anytenant.add("deploy briefly", id="short")
    assert [e.id for e in anytenant.build_context("deploy", token_budget=20).entries] == ["short"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"token_budget": 0}, "token_budget"),
        ({"token_budget": -5}, "token_budget"),
        ({"token_budget": 10.0}, "token_budget"),
        ({"token_budget": True}, "token_budget"),
        ({"token_budget": None}, "token_budget"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": "3"}, "top_k"),
        ({"packing": "tight"}, "packing"),
        ({"render": "html"}, "render"),
        ({"count_tokens": "guess"}, "count_tokens"),
        ({"count_tokens": 5}, "count_tokens"),
    ],
)
def test_bad_context_arguments(filled: Memory, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, Exception), match=said) as raised:
        filled.build_context("deploy", **arguments)
    assert isinstance(raised.value, ValueError) or "Config" in type(raised.value).__name__


# ── explanation ───────────────────────────────────────────────────────────────────────────────


def test_explain_says_why_one_did_or_did_not_come_up(filled: Memory) -> None:
    report = filled.explain("deploy disk", k=2)
    assert [row["fate"] for row in report["rows"]].count("returned") == 2
    assert filled.explain("deploy disk", id="disk")["entry"]["fate"] == "returned"
    filtered = filled.explain("deploy disk", id="disk", filter={"kinds": ["fact"]})["entry"]
    assert filtered["fate"] == "not_a_candidate"
    assert "kinds" in filtered["reasons"][0]
    filled.discard("tea")
    assert "discarded" in filled.explain("tea", id="tea")["entry"]["reasons"][0]
    assert filled.explain("tea", id="missing")["entry"]["fate"] == "absent"
    with pytest.raises(ValueError, match="id"):
        filled.explain("tea", id="")


def test_explaining_counts_no_access(anystore: MemoryStore) -> None:
    memory = anystore.tenant("acme")
    memory.add("deploy", id="e")
    memory.explain("deploy")
    anystore.flush()
    entry = memory.get("e")
    assert entry is not None
    assert entry.access_count == 0


# ── rankers and models ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ranker", ["default", "composite", "fusion", "kind_prior"])
def test_each_ranker(filled: Memory, ranker: str) -> None:
    first = filled.search("the deploy failed, disk full", ranker=ranker, k=5)
    assert "disk" in [h.entry.id for h in first[:2]]
    assert first.report["ranker"] == ranker
    context = filled.build_context("the deploy failed", ranker=ranker)
    assert "disk" in [e.id for e in context.entries]


def test_3072_dimensions(database: str) -> None:
    with MemoryStore.open(database, embedder=HashingEmbedder(3072)) as store:
        memory = store.tenant("acme")
        memory.add("The deploy failed", id="e")
        assert memory.search("deploy", mode="dense")[0].similarity == pytest.approx(0.8, abs=0.3)
        assert store.stats()["dimensions"] == 3072


class Same(HashingEmbedder):
    """Another model of the same dimensions."""

    name = "another"

    def __init__(self) -> None:
        super().__init__(384)
        self.fingerprint = "another-fingerprint"

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        return np.roll(super().embed(texts, kind=kind), 1, axis=1)


@pytest.mark.parametrize("other", [HashingEmbedder(512), Same()], ids=["dimensions", "model"])
def test_another_model_is_refused(database: str, other: HashingEmbedder) -> None:
    """Vectors of two models never mix in silence, and the message names the way out."""
    with MemoryStore.open(database, embedder="hashing") as store:
        store.tenant("acme").add("The deploy failed", id="e")
    with MemoryStore.open(database, embedder=other) as store:
        memory = store.tenant("acme")
        for call in (
            lambda: memory.search("deploy"),
            lambda: memory.add("x"),
            lambda: memory.update("e", content="y"),
            lambda: memory.build_context("deploy"),
        ):
            with pytest.raises(EmbeddingMismatchError, match="reembed"):
                call()
        assert memory.count() == 1
        assert [h.entry.id for h in memory.search("deploy", mode="lexical")] == ["e"]
    with MemoryStore.open(database) as store:  # "auto": the recorded one
        assert store.tenant("acme").search("deploy", mode="dense")[0].entry.id == "e"


def test_the_first_writer_decides_on_the_model(database: str) -> None:
    """Two stores open on an empty database; the second learns of the first one's model."""
    with (
        MemoryStore.open(database, embedder="hashing") as one,
        MemoryStore.open(database, embedder=HashingEmbedder(512)) as two,
    ):
        one.tenant("acme").add("The deploy failed")
        with pytest.raises(EmbeddingMismatchError):
            two.tenant("acme").add("x")
        with pytest.raises(EmbeddingMismatchError):
            two.tenant("acme").search("deploy")


def test_an_importance_filter_reaches_far_down(anytenant: Memory) -> None:
    """k rows although the filter admits few of many."""
    anytenant.add_many(
        [
            {"content": f"deploy note {n}", "importance": 1.0 if n % 50 == 0 else 0.1,
             "tags": ["rare"] if n % 50 == 0 else [], "metadata": {"n": n}}
            for n in range(600)
        ]
    )  # fmt: skip
    for filter in (
        {"min_importance": 0.9}, {"tags_any": ["rare"]}, {"metadata": {"n": {"$lt": 12}}}
    ):  # fmt: skip
        for mode in ("hybrid", "dense", "lexical"):
            assert len(anytenant.search("deploy note", mode=mode, filter=filter)) == 10


def test_the_current_session_ranks_higher_but_filters_nothing(anystore: MemoryStore) -> None:
    memory = anystore.tenant("acme")
    for n in range(4):
        memory.add("The deploy failed again", id=f"e{n}", session_id=f"s{n}",
                   timestamp=datetime.now(UTC) - timedelta(minutes=1))  # fmt: skip
    hits = memory.search("deploy failed", current_session="s2")
    assert len(hits) == 4
    assert hits[0].entry.id == "e2"
    anystore.flush()
    scoped = anystore.tenant("acme", session_id="s3")
    assert scoped.search("deploy failed")[0].entry.id == "e3"


def test_a_quoted_phrase_counts_word_after_word(anymemory: Memory) -> None:
    anymemory.add("the export is late and the nightly job is red", id="scattered")
    anymemory.add("late is the nightly export, is it not", id="turned")
    anymemory.add("we saw that the nightly export is late again and nobody knew", id="phrase")
    hits = anymemory.search('who wrote "the nightly export is late"?', k=3)
    assert hits[0].entry.id == "phrase"
    assert hits[0].contributions["quoted"] > 0
    assert all(hit.contributions["quoted"] == 0 for hit in hits[1:])
    many = anymemory.search_many(['"nightly job"', '"nightly export"', "nightly"], k=1)
    assert many[0][0].entry.id == "scattered"
