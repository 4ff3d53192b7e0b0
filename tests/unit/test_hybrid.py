"""The default ranker: what each channel does, and its laws."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.scoring.cues import phrases_of, speaker_of, spoken_by
from zerda_pg.scoring.excerpt import excerpt
from zerda_pg.scoring.hybrid import ChannelRanker, HybridRanker, HybridWeights
from zerda_pg.scoring.signals import Ranking, Signals
from zerda_pg.scoring.succession import successors_first

DAY = 86400.0
IDF = [3.0, 1.0]


def signals(rows: list[dict[str, Any]], links: list[tuple[str, str, int]] = []) -> Signals:  # noqa: B006
    """Rows with `words`, the numbers of the two query words that they have."""
    place = {row["id"]: number for number, row in enumerate(rows)}
    n = len(rows)
    matched = np.zeros((len(IDF), n), dtype=np.bool_)
    for number, row in enumerate(rows):
        matched[row.get("words", []), number] = True
    paired = [(place[a], place[b], s) for a, b, s in links if a in place and b in place]
    ages = np.array([row.get("age", DAY) for row in rows], dtype=np.float64)
    return Signals(
        ids=[row["id"] for row in rows],
        kinds=[None] * n,
        similarity=np.array([row.get("similarity", math.nan) for row in rows]),
        lexical=np.array(IDF) @ matched,
        lexical_total=sum(IDF),
        age_seconds=ages,
        updated_age_seconds=ages,
        accessed_age_seconds=ages,
        importance=np.full(n, 0.5),
        access_count=np.zeros(n, dtype=np.int64),
        degree=np.zeros(n, dtype=np.int64),
        touched=np.array([row.get("touched", False) for row in rows], dtype=np.bool_),
        sizes=np.array([row.get("size", 100) for row in rows], dtype=np.int64),
        heads=[row.get("head", "") for row in rows],
        term_idf=np.array(IDF),
        matched=matched,
        links=np.array(paired, dtype=np.int64).reshape(-1, 3),
        vectors={r["id"]: np.array(r["vector"], np.float32) for r in rows if "vector" in r},
    )


def ranked(rows: list[dict[str, Any]], task: str = "task", **more: Any) -> Ranking:
    return HybridRanker().rank(signals(rows, **more), task)


def order(rows: list[dict[str, Any]], task: str = "task", **more: Any) -> list[str]:
    return [rows[row]["id"] for row in ranked(rows, task, **more).order]


def test_words_and_meaning_add_up() -> None:
    ranking = ranked([{"id": "a", "similarity": 0.5, "words": [0]}])
    assert ranking.contributions["similarity"][0] == pytest.approx(0.42 * 0.5)
    assert ranking.contributions["lexical"][0] == pytest.approx(0.50 * 0.75)
    assert ranking.scores[0] == pytest.approx(sum(p[0] for p in ranking.contributions.values()))


def test_a_long_text_has_words_by_chance() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a-long", "words": [0], "size": 4000},
        {"id": "short", "words": [0]},
    ]
    ranking = ranked(rows)
    assert order(rows) == ["short", "a-long"]
    lexical = ranking.contributions["lexical"]
    assert lexical[0] == pytest.approx(lexical[1] / (1 + math.log(10)))


def test_the_answer_after_a_question_borrows_its_words() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "question", "words": [0, 1]},
        {"id": "answer"},
        {"id": "alone"},
    ]
    links = [("answer", "question", -1), ("question", "answer", 1)]
    ranking = ranked(rows, links=links)
    lent = ranking.contributions["neighbours"]
    assert lent[1] > 0.2
    assert lent[0] == lent[2] == 0.0
    assert order(rows, links=links) == ["question", "answer", "alone"]


def test_a_word_that_both_have_counts_once() -> None:
    rows: list[dict[str, Any]] = [{"id": "a", "words": [0]}, {"id": "b", "words": [0]}]
    ranking = ranked(rows, links=[("a", "b", 1), ("b", "a", -1)])
    assert not ranking.contributions["neighbours"].any()


def test_a_long_text_borrows_and_lends_little() -> None:
    def lent(own: int, other: int) -> float:
        rows: list[dict[str, Any]] = [
            {"id": "a", "size": own},
            {"id": "b", "words": [0], "size": other},
        ]
        return float(ranked(rows, links=[("a", "b", -1)]).contributions["neighbours"][0])

    assert lent(4000, 100) < lent(100, 100) / 50
    assert lent(100, 4000) < lent(100, 100) / 3


def test_a_further_turn_lends_less() -> None:
    rows: list[dict[str, Any]] = [{"id": "a"}, {"id": "b"}, {"id": "c", "words": [0]}]
    lent = ranked(rows, links=[("a", "c", -2), ("b", "c", -1)]).contributions["neighbours"]
    assert 0.0 < lent[0] < lent[1]


@pytest.mark.parametrize(
    ("task", "who"),
    [
        ("When did Caroline move?", "Caroline: I moved in May"),
        ("What did I order?", "user: two pizzas"),
        ("What did you recommend?", "assistant: the blue one"),
    ],
)
def test_who_spoke(task: str, who: str) -> None:
    heads = [who, "Melanie: so what", "no speaker"]
    assert spoken_by(task, heads, 3).tolist() == [1.0, 0.0, 0.0]


def test_a_speaker_stands_before_the_first_colon() -> None:
    assert speaker_of("Ann Lee: hello") == "ann lee"
    assert speaker_of("no colon") == speaker_of("x" * 80 + ": late") == ""
    assert speaker_of("The nightly export starts at 01:00") == ""


ASKED = "how many cats are there?"


def values(size: int = 90, **newer: Any) -> list[dict[str, Any]]:
    both = {"size": size}
    old = {"id": "old", "similarity": 0.9, "age": 9 * DAY, "head": "user: 3 cats", "vector": [1, 0]}
    new = {"id": "new", "similarity": 0.8, "age": DAY, "head": "user: 5 cats", "vector": [0.8, 0.6]}
    return [old | both, new | both | newer]


def test_of_two_values_the_newer_comes_first() -> None:
    ranking = ranked(values(), ASKED)
    assert order(values(), ASKED) == ["new", "old"]
    assert ranking.scores[1] > ranking.scores[0]
    assert ranking.contributions["newer"][1] > 0.0 > ranking.contributions["newer"][0]


def test_a_longer_message_overtakes_where_it_tells_of_a_change() -> None:
    assert order(values(size=500), ASKED) == ["old", "new"]
    changed = values(size=500, head="user: the number of cats has grown to 5")
    assert order(changed, ASKED) == ["new", "old"]
    assert order(changed, "tell me of the cats") == ["old", "new"]


@pytest.mark.parametrize(
    "newer",
    [
        {"age": 10 * DAY},  # it is older
        {"head": "user: no number"},
        {"head": "assistant: 5 cats"},
        {"vector": [0.1, 0.99]},  # another subject
        {"similarity": 0.3},  # much less relevant
    ],
)
def test_recency_alone_overtakes_nothing(newer: dict[str, Any]) -> None:
    assert order(values(**newer), ASKED) == ["old", "new"]


def test_the_older_fact_keeps_its_place_where_only_it_has_the_querys_words() -> None:
    production, testing = values()
    assert order([production | {"words": [0]}, testing], ASKED) == ["old", "new"]


def test_only_the_best_ten_change_places() -> None:
    better = [
        {"id": f"b{n}", "similarity": 0.95, "head": "user: 1", "vector": [0, 1]} for n in range(9)
    ]
    assert order([*better[:8], *values()], ASKED)[8:] == ["new", "old"]
    assert order([*better, *values()], ASKED)[9:] == ["old", "new"]


@pytest.mark.parametrize(
    "task",
    [
        "how many cats did I have?",
        "how many cats were there in May?",
        "how many cats came between May and June?",
        "which were the first dates?",
    ],
)
def test_who_asks_about_the_past_is_not_given_the_newest(task: str) -> None:
    assert order(values(), task) == ["old", "new"]


def test_without_sizes_nothing_changes_places() -> None:
    given_signals = replace(signals(values()), sizes=np.zeros(0, dtype=np.int64))
    assert HybridRanker().rank(given_signals, ASKED).order == [0, 1]


def test_what_was_superseded_stands_behind_its_successor() -> None:
    rows: list[dict[str, Any]] = [
        {"id": n, "similarity": s} for n, s in (("a", 0.9), ("b", 0.5), ("c", 0.7))
    ]
    given_signals = signals(rows)
    given_signals.successors.extend([(0, 2), (2, 1)])
    ranking = successors_first(HybridRanker().rank(given_signals, "task"), given_signals)
    assert [rows[row]["id"] for row in ranking.order] == ["b", "c", "a"]
    assert ranking.scores[1] >= ranking.scores[2] >= ranking.scores[0]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(0, 1), (1, 2), (2, 3)], "dcba"),  # a chain, of which the ranker likes the oldest best
        ([(1, 0)], "abcd"),  # as it is already
        ([(0, 2), (0, 3)], "cdab"),  # two successors, the better one first
        ([(0, 1), (1, 0)], "bacd"),  # a circle, as edges by hand may make it
        ([(0, 0)], "abcd"),
    ],
)
def test_successors_rise(pairs: list[tuple[int, int]], expected: str) -> None:
    rows: list[dict[str, Any]] = [
        {"id": name, "similarity": s} for name, s in zip("abcd", (0.9, 0.8, 0.7, 0.6), strict=True)
    ]
    given_signals = signals(rows)
    given_signals.successors.extend(pairs)
    ranking = successors_first(HybridRanker().rank(given_signals, "task"), given_signals)
    assert "".join(rows[row]["id"] for row in ranking.order) == expected
    risen = [ranking.scores[row] for row in ranking.order]
    assert risen == sorted(risen, reverse=True)


def test_a_successor_that_the_ranker_left_out_comes_too() -> None:
    given_signals = signals([{"id": "a", "similarity": 0.9}, {"id": "b"}])
    given_signals.successors.append((0, 1))
    ranking = successors_first(ChannelRanker("similarity").rank(given_signals, "t"), given_signals)
    assert ranking.order == [1, 0]


def test_weights_are_checked() -> None:
    with pytest.raises(ValueError, match="speaker"):
        HybridWeights(speaker=1.5)


entry = st.fixed_dictionaries(
    {
        "similarity": st.one_of(st.just(math.nan), st.floats(-1, 1)),
        "words": st.sets(st.integers(0, 1)).map(sorted),
        "size": st.integers(1, 10_000),
        "age": st.floats(-DAY, 1000 * DAY),
        "head": st.sampled_from(["user: 1", "user: none", "Ann: 2", ""]),
        "vector": st.sampled_from([[1.0, 0.0], [0.6, 0.8]]),
        "touched": st.booleans(),
    }
)


@given(st.data())
def test_the_order_does_not_depend_on_the_input(data: st.DataObject) -> None:
    rows: list[dict[str, Any]] = [
        row | {"id": f"e{number}"}
        for number, row in enumerate(data.draw(st.lists(entry, min_size=1, max_size=9)))
    ]
    ids = [row["id"] for row in rows]
    link = st.tuples(st.sampled_from(ids), st.sampled_from(ids), st.integers(-2, 2))
    links = data.draw(st.lists(link, max_size=8))
    shuffled = data.draw(st.permutations(rows))
    assert order(rows, "what did Ann say", links=links) == order(
        list(shuffled), "what did Ann say", links=links
    )


@given(st.lists(entry, min_size=1, max_size=9))
def test_scores_fall_along_the_order_and_stay_in_bounds(rows: list[dict[str, Any]]) -> None:
    named = [row | {"id": f"e{number}"} for number, row in enumerate(rows)]
    ranking = ranked(named)
    along = ranking.scores[ranking.order]
    assert sorted(ranking.order) == list(range(len(rows)))
    assert (np.diff(along) <= 1e-12).all()
    assert ((along >= 0.0) & (along <= 1.0)).all()


@given(st.lists(st.floats(0, 1000), min_size=2, max_size=12, unique=True))
def test_flat_relevance_is_not_sorted_by_time(ages: list[float]) -> None:
    rows: list[dict[str, Any]] = [
        {"id": f"e{n:02}", "similarity": 0.5 - n / 100, "age": a} for n, a in enumerate(ages)
    ]
    spread = [row | {"age": age * DAY} for row, age in zip(rows, sorted(ages), strict=True)]
    assert order(spread) == [row["id"] for row in rows]


def test_an_excerpt_shows_what_matched() -> None:
    text = "Nothing here. " * 40 + "The quota is 1,200 calls a day. " + "More filler. " * 40
    part = excerpt(text, {"quota": 5.0, "call": 2.0}, 120)
    assert "quota is 1,200 calls" in part
    assert part.startswith("… ")
    assert part.endswith(" …")


@given(st.text(min_size=1), st.integers(20, 200))
def test_an_excerpt_keeps_to_its_length(text: str, characters: int) -> None:
    assert len(excerpt(text, {"a": 1.0}, characters)) <= characters


@pytest.mark.parametrize(
    ("query", "phrases"),
    [
        ('who said "the disk is full" yesterday?', ["the disk is full"]),
        ("„guten Tag“ und «bon jour»", ["guten Tag", "bon jour"]),
        ('a single "word" and an open "quote', []),
        ('""', []),
        ("it's what's \"on the list\"", ["on the list"]),
        ('"' + "x y " * 100 + '"', []),
    ],
)
def test_phrases_are_what_is_quoted(query: str, phrases: list[str]) -> None:
    assert phrases_of(query) == phrases
