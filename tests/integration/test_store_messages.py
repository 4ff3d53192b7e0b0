"""Conversations: one entry a message, linked in order, written once however often they come."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from conftest import CountRows

from zerda_pg import InvalidContentError, Memory, MemoryStore, MemoryType

START = datetime(2024, 5, 1, 9, 0, tzinfo=UTC)

TALK: list[dict[str, Any]] = [
    {"speaker": "Ann", "text": "Shall we ship on Friday?", "timestamp": START},
    {"speaker": "Bob", "text": "ok", "timestamp": "2024-05-01T09:01:00Z"},
    {"role": "Ann", "content": "And the notes?", "timestamp": "2024-05-01T11:02:00+02:00"},
    {"speaker": "Bob", "text": "ok", "timestamp": START + timedelta(minutes=3)},
]


def edges(admin: psycopg.Connection) -> list[tuple[str, ...]]:
    return admin.execute(
        "SELECT source_id, relation, target_id FROM zerda.edges ORDER BY 1, 2, 3"
    ).fetchall()


def test_messages_become_episodes_in_order(anymemory: Memory, admin: psycopg.Connection) -> None:
    results = anymemory.add_messages(TALK, session_id="s1", user_id="u1")
    ids = [r.id for r in results]
    assert {r.status for r in results} == {"created"}
    assert len(set(ids)) == 4  # both "ok" are kept
    stored = [e for e in anymemory.get_many(ids) if e is not None]
    assert [e.content for e in stored] == [
        {"speaker": "Ann", "text": "Shall we ship on Friday?"},
        {"speaker": "Bob", "text": "ok"},
        {"speaker": "Ann", "text": "And the notes?"},
        {"speaker": "Bob", "text": "ok"},
    ]
    assert [e.created_at for e in stored] == [START + timedelta(minutes=n) for n in range(4)]
    assert {(e.session_id, e.user_id, e.memory_type) for e in stored} == {
        ("s1", "u1", MemoryType.EPISODIC)
    }
    assert edges(admin) == sorted(
        (first, "precedes", second) for first, second in itertools.pairwise(ids)
    )


def test_a_second_time_adds_nothing(anymemory: Memory, rows: CountRows) -> None:
    first = anymemory.add_messages(TALK, session_id="s1")
    before = rows()
    second = anymemory.add_messages(TALK, session_id="s1")
    assert [r.id for r in second] == [r.id for r in first]
    assert {r.status for r in second} == {"kept"}
    assert rows() == before


def test_a_second_time_without_times_adds_nothing(
    anymemory: Memory, rows: CountRows, admin: psycopg.Connection
) -> None:
    talk = [{"speaker": "Ann", "text": word} for word in ("one", "ok", "two", "ok", "ok")]
    first = [r.id for r in anymemory.add_messages(talk, session_id="s1")]
    before, links = rows(), edges(admin)
    assert len(set(first)) == 5
    assert len(links) == 4
    assert [e.id for e in anymemory.entries(order="oldest")] == first
    second = anymemory.add_messages(talk, session_id="s1")
    assert [r.id for r in second] == first
    assert rows() == before
    assert edges(admin) == links


def test_a_conversation_goes_on(anymemory: Memory, admin: psycopg.Connection) -> None:
    """More messages, alone or with all that came before, join the chain."""
    more = {"speaker": "Ann", "text": "Done.", "timestamp": START + timedelta(minutes=4)}
    last = {"speaker": "Bob", "text": "Great.", "timestamp": START + timedelta(minutes=5)}
    ids = [r.id for r in anymemory.add_messages(TALK, session_id="s1")]
    ids += [r.id for r in anymemory.add_messages([more], session_id="s1")]
    ids += [anymemory.add_messages([*TALK, more, last], session_id="s1")[-1].id]
    assert edges(admin) == sorted(
        (first, "precedes", second) for first, second in itertools.pairwise(ids)
    )


def test_the_same_words_in_another_session_are_others(anymemory: Memory) -> None:
    one = anymemory.add_messages(TALK, session_id="s1")
    two = anymemory.add_messages(TALK, session_id="s2")
    assert not {r.id for r in one} & {r.id for r in two}
    assert anymemory.count() == 8


def test_long_conversations_cross_batches(anymemory: Memory, admin: psycopg.Connection) -> None:
    talk = [
        {"speaker": "Ann", "text": f"message {n}", "timestamp": START + timedelta(seconds=n)}
        for n in range(520)
    ]
    seen: list[tuple[int, int | None]] = []
    results = anymemory.add_messages(
        talk, session_id="s1", progress=lambda *step: seen.append(step)
    )
    ids = [r.id for r in results]
    assert seen == [(256, 520), (512, 520), (520, 520)]
    assert edges(admin) == sorted(
        (first, "precedes", second) for first, second in itertools.pairwise(ids)
    )


def test_given_ids_are_kept(anytenant: Memory) -> None:
    results = anytenant.add_messages([TALK[0] | {"id": "m1"}, TALK[1]], session_id="s")
    assert results[0].id == "m1"
    assert results[1].id.startswith("msg-")


def test_the_scopes_user_and_agent_are_marked(anystore: MemoryStore) -> None:
    scope = anystore.tenant("acme", user_id="u1", agent_id="a1", session_id="other")
    entry = scope.add_messages(TALK[:1], session_id="s1")[0].entry
    assert (entry.user_id, entry.agent_id, entry.session_id) == ("u1", "a1", "s1")
    with pytest.raises(ValueError, match="user_id"):
        scope.add_messages(TALK, session_id="s1", user_id="u2")


@pytest.mark.parametrize(
    ("message", "error", "said"),
    [
        ({"text": "x"}, ValueError, r"messages\[1\] has no speaker"),
        ({"speaker": "A"}, ValueError, r"messages\[1\] has no text"),
        ({"speaker": "A", "text": " "}, InvalidContentError, r"messages\[1\].*text.*empty"),
        ({"speaker": "", "text": "x"}, InvalidContentError, r"messages\[1\].*speaker.*empty"),
        ({"speaker": "A", "text": "a\x00"}, InvalidContentError, r"messages\[1\].*position 1"),
        ({"speaker": "A\ud800", "text": "a"}, InvalidContentError, r"speaker.*position 1"),
        ({"speaker": "A", "text": 5}, InvalidContentError, r"messages\[1\].*must be text"),
        ("hello", ValueError, r"messages\[1\] must be a mapping"),
        (
            {"speaker": "A", "text": "x", "timestamp": datetime(2024, 1, 1)},
            ValueError,
            r"messages\[1\].*timestamp.*naive",
        ),
        (
            {"speaker": "A", "text": "x", "timestamp": "2024-01-01 10:00"},
            ValueError,
            r"messages\[1\].*timestamp.*offset",
        ),
        ({"speaker": "A", "text": "x", "id": "a" * 257}, ValueError, r"messages\[1\].*id.*257"),
    ],
)
def test_bad_messages(anytenant: Memory, message: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        anytenant.add_messages([TALK[0], message], session_id="s1")
    assert anytenant.count() == 0


@pytest.mark.parametrize("session_id", ["", " ", None, 5, "a\x00", "x" * 257])
def test_bad_sessions(anytenant: Memory, session_id: Any) -> None:
    with pytest.raises(ValueError, match="session_id"):
        anytenant.add_messages(TALK, session_id=session_id)


@pytest.mark.parametrize("messages", ["hello", {"speaker": "A", "text": "x"}, b"x"])
def test_one_message_is_no_list(anytenant: Memory, messages: Any) -> None:
    with pytest.raises(ValueError, match="messages must be a list"):
        anytenant.add_messages(messages, session_id="s1")


def test_two_users_may_have_sessions_of_one_name(store: MemoryStore) -> None:
    messages = [{"speaker": "user", "text": "hello"}, {"speaker": "assistant", "text": "hi"}]
    for user in ("ann", "bob"):
        results = store.tenant("acme", user_id=user).add_messages(messages, session_id="chat-1")
        assert [result.status for result in results] == ["created", "created"]
    assert store.tenant("acme").count() == 4
