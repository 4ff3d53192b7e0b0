"""The prompt fragment: its sections, its budget, its plain sentences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.scoring.sections import (
    NOTHING_FITS,
    NOTHING_RELEVANT,
    pack_sections,
    render_sections,
)


def count(text: str) -> int:
    return len(text.split())


def test_sections_in_their_order_with_everything_printed() -> None:
    kinds = ["attempt", "fact", None, "decision", "preference", "failure", "fact", "idea"]
    bodies = ["try", "one\ntwo", "loose", "use it", "tea", "broken", "three", "dream"]
    sections = pack_sections(range(8), kinds, bodies, budget=100, count_tokens=count)
    assert sections.text == (
        "## Key Decisions\n- use it\n\n"
        "## Known Facts\n- one\n  two\n- three\n\n"
        "## Preferences\n- tea\n\n"
        "## Known Issues\n- broken\n\n"
        "## Recent Attempts\n- try\n\n"
        "## Other Memories\n- loose\n- dream"
    )
    assert sections.chosen == [3, 1, 6, 4, 5, 0, 2, 7]
    assert sections.rejected == {}
    assert sections.tokens == count(sections.text)


def test_the_best_come_first_into_the_budget() -> None:
    bodies = ["a b c d e f g h", "one", "two"]
    sections = pack_sections([0, 2, 1], ["fact"] * 3, bodies, budget=7, count_tokens=count, top_k=1)
    assert sections.chosen == [2]
    assert sections.rejected == {0: "over_budget", 1: "beyond_top_k"}


def test_plain_sentences_when_there_is_nothing_to_say() -> None:
    assert pack_sections([], [], [], budget=99, count_tokens=count).text == NOTHING_RELEVANT
    sections = pack_sections([0], ["fact"], ["x " * 50], budget=20, count_tokens=count)
    assert sections.text == NOTHING_FITS
    assert sections.tokens == count(NOTHING_FITS)
    silent = pack_sections([0], ["fact"], ["x " * 50], budget=2, count_tokens=count)
    assert (silent.text, silent.tokens) == ("", 0)


@given(
    st.lists(st.tuples(st.sampled_from(["fact", "decision", None]), st.text(max_size=40))),
    st.integers(0, 60),
)
def test_the_budget_holds_on_the_text_and_everything_chosen_is_printed(
    rows: list[tuple[str | None, str]], budget: int
) -> None:
    kinds, bodies = [row[0] for row in rows], [row[1] for row in rows]
    sections = pack_sections(range(len(rows)), kinds, bodies, budget=budget, count_tokens=count)
    assert count(sections.text) == sections.tokens <= budget
    assert sorted([*sections.chosen, *sections.rejected]) == list(range(len(rows)))
    if sections.chosen:
        ranked = sorted(sections.chosen)
        assert sections.text == render_sections(ranked, kinds, bodies)
        assert sections.text.count("\n- ") == len(sections.chosen)
