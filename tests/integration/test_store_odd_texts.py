"""Odd texts and values come back as they went in, or are refused whole, with their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import psycopg
import pytest
from conftest import CountRows, plain
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from zerda_pg import InvalidContentError, Memory, MemoryEntry, MemoryStore, ZerdaError

MODEST = settings(
    max_examples=40,
    deadline=None,
    # each example has entries of its own in a tenant of the case
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), max_size=60)
SAID = TEXT.filter(str.strip)
KEY = SAID.filter(lambda text: len(text.encode()) <= 256)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def exact(value: Any) -> str:
    """JSON text: tells 1 from 1.0 and from true, and keeps the order of keys."""
    return json.dumps(value, ensure_ascii=False)


ODD = [
    "right to left: \u202eשלום مرحبا\u202c",
    "combining: e\u0301 n\u0303 \u0344",
    "emoji: 👩‍👩‍👧‍👦 🏳️‍🌈 \U0001f600",
    "beyond the first plane: 𐐀𝔘𠀀",
    "private and unassigned: \ue000 \U0010ffff \ufdd0",
    "control: \x01\x02\x1b[31m\x7f\x85\u2028\u2029",
    "line ends: a\r\nb\rc\nd",
    "byte order mark: \ufeffx",
    "the of and to in",
    "\\x00 \\u0000 \\ %s %% :name $1 {} '' \"\"",
    "<|endoftext|> <|im_start|>",
    "null", "NaN", "{}", "[]", "''",
    "- ", "?!", "…", "0", "\u200b",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_texts_come_back(anytenant: Memory, text: str) -> None:
    anytenant.add(text, id="e", kind=text, tags=[text], metadata={text: text},
                  session_id=text, agent_id=text)  # fmt: skip
    anytenant.update("e", content={"input": text, "output": text})
    anytenant.update("e", content=text)
    entry = anytenant.get("e")
    assert entry is not None
    assert (entry.content, entry.kind, entry.tags, entry.metadata) == (
        text, text, [text], {text: text}
    )  # fmt: skip
    assert (entry.session_id, entry.agent_id) == (text, text)
    hits = anytenant.search(text, mode="dense")
    assert [h.entry.content for h in hits] == [text]
    assert anytenant.count({"metadata": {text: text}, "tags_all": [text], "kinds": [text]}) == 1
    assert anytenant.build_context(text).tokens >= 0
    assert anytenant.add(text, dedupe=True, kind=text, session_id=text, agent_id=text).id == "e"


@given(content=JSON.filter(lambda v: v is not None and not (isinstance(v, str) and not v.strip())))
@example(content={"z": 1, "a": {"y": [], "b": {}}, "m": None})
@example(content=[1e16, 1, 1.0, True, -0.0, 5e-324, 1.7976931348623157e308, 2**64, -(10**3999)])
@example(content={"": {"": [""]}})
@MODEST
def test_content_comes_back_to_the_letter(anytenant: Memory, content: Any) -> None:
    try:
        anytenant.add(content, id="e")
    except InvalidContentError as error:
        assert "content is empty" in str(error)
        return
    entry = anytenant.get("e")
    assert entry is not None
    assert exact(entry.content) == exact(content)
    updated = anytenant.update("e", content=content)
    assert exact(updated.content) == exact(content)


# jsonb keeps decimals: a float from 1e16 comes back as the whole number that it is shown as
@given(metadata=st.dictionaries(TEXT, JSON.filter(lambda v: "e+" not in exact(v)), max_size=4))
@example(metadata={"n": 2**70, "f": 1e15, "small": 5e-324, "deep": [[[[[[]]]]]], "id": "order-17"})
@MODEST
def test_metadata_comes_back_equal(anytenant: Memory, metadata: dict[str, Any]) -> None:
    anytenant.add("x", id="e", metadata=metadata)
    entry = anytenant.get("e")
    assert entry is not None
    assert entry.metadata == metadata
    for key, value in metadata.items():
        assert anytenant.count({"metadata": {key: {"$eq": value}}}) == 1, key


@given(said=SAID, tags=st.lists(SAID, max_size=3), id=KEY, kind=SAID)
@MODEST
def test_texts_tags_and_ids_come_back(
    anytenant: Memory, said: str, tags: list[str], id: str, kind: str
) -> None:
    anytenant.add(said, id=id, tags=tags, kind=kind)
    entry = anytenant.get(id)
    assert entry is not None
    assert (entry.content, entry.id, entry.tags, entry.kind) == (said, id, tags, kind)
    if tags:
        assert anytenant.count({"tags_all": tags, "kinds": [kind]}) >= 1
    for mode in ("hybrid", "dense", "lexical"):
        anytenant.search(said, mode=mode)
    anytenant.delete(id)


@given(
    moment=st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=st.just(UTC)),
    end=st.timedeltas(timedelta(0), timedelta(days=1000)),
)
@example(moment=datetime(1, 1, 3, tzinfo=UTC), end=timedelta(microseconds=1))
@example(moment=datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), end=timedelta(0))
@example(moment=datetime(9990, 12, 29, tzinfo=UTC), end=timedelta(days=1))
@MODEST
def test_times_come_back(anytenant: Memory, moment: datetime, end: timedelta) -> None:
    try:
        until = moment + end
    except OverflowError:
        until = moment
    when: Any = moment  # the type is the seed's: seconds; a datetime is converted
    entry = MemoryEntry("x", id="e", timestamp=when, valid_from=moment, valid_to=until)
    anytenant.add(entry)
    found = anytenant.get("e")
    assert found is not None
    assert (found.valid_from, found.valid_to) == (moment, until)
    # a float of seconds, as the seed has it, is exact to the microsecond in our times
    slack = timedelta(microseconds=0 if 1700 < moment.year < 2200 else 32)
    assert abs(found.created_at - moment) <= slack
    assert [e.id for e in anytenant.entries(filter={"created_from": moment - slack})] == (
        ["e"] if moment <= datetime.now(UTC) < until else []
    )


def test_ten_megabytes(anymemory: Memory) -> None:
    """Indexed as far as a tsvector holds, embedded, kept whole."""
    start = "The deploy of zanzibar failed. "
    text = start + "".join(f"word{n} " for n in range(1000)) * 1300
    assert len(text) > 10_000_000
    anymemory.add(text, id="e")
    entry = anymemory.get("e")
    assert entry is not None
    assert entry.content == text
    assert [h.entry.id for h in anymemory.search("zanzibar", mode="lexical")] == ["e"]
    assert anymemory.build_context("zanzibar", token_budget=100).tokens <= 100


@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000,
        "".join(
            f"{chr(0x20000 + n % 40000)}-{chr(0x20000 + n * 7 % 40000)} " for n in range(25_000)
        ),
        "".join(f"{chr(0x4E00 + n % 20000)} " for n in range(50_000)),
        " ".join(f"http://h{n}.org/{n}" for n in range(8_000)),
        "a" * 3000 + " short words too " + "b" * 3000,
        "\n" * 10_000 + "end",
    ],
    ids=["one word", "hyphens", "ideographs", "addresses", "long words", "white space"],
)
def test_texts_that_strain_the_index(anytenant: Memory, text: str) -> None:
    anytenant.add(text, id="e")
    entry = anytenant.get("e")
    assert entry is not None
    assert entry.content == text
    anytenant.search(text[-10_000:])


# ── refused ───────────────────────────────────────────────────────────────────────────────────

BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"content": "ab\x00"}, "content has a NUL character at position 2"),
    ({"content": {"a": ["x\x00"]}}, r"content\.a\[0\] has a NUL character at position 1"),
    ({"content": "ab\ud800"}, "content has a lone surrogate at position 2"),
    ({"content": {"\ud800": 1}}, "a key of content has a lone surrogate at position 0"),
    ({"content": float("nan")}, "content is nan"),
    ({"content": [float("inf")]}, r"content\[0\] is inf"),
    ({"content": {1: 2}}, "content has a key of type int"),
    ({"content": object()}, "content is of type object"),
    ({"content": b"bytes"}, "content is of type bytes"),
    ({"content": ""}, "content is empty"),
    ({"content": " \n\t"}, "content is empty"),
    ({"content": None}, "content is empty"),
    ({"content": {"input": "", "output": None}}, "content is empty"),
    ({"content": {"speaker": "Ann", "text": " "}}, "content is empty"),
    ({"content": "x" * 20_000_001}, "content is 20000001 characters long"),
    ({"tags": ["ok", "a\x00"]}, r"tags\[1\] has a NUL character at position 1"),
    ({"tags": ["\udfff"]}, r"tags\[0\] has a lone surrogate"),
    ({"tags": [""]}, r"tags\[0\] is empty"),
    ({"tags": [5]}, r"tags\[0\] must be text"),
    ({"metadata": {"a": "\x00"}}, r"metadata\.a has a NUL"),
    ({"metadata": {"a": float("nan")}}, r"metadata\.a is nan"),
    ({"metadata": {5: 1}}, "metadata has a key of type int"),
    ({"metadata": {"a": datetime(2024, 1, 1)}}, r"metadata\.a is of type datetime"),
    ({"kind": "a\x00"}, "kind has a NUL"),
    ({"kind": " "}, "kind is empty"),
    ({"kind": 5}, "kind must be text"),
]

BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "id must not be empty"),
    ({"id": "a\x00"}, "id must not contain NUL"),
    ({"id": "x" * 257}, "id is 257 bytes"),
    ({"id": 5}, "id must be a string"),
    ({"session_id": "\ud800"}, "session_id has a lone surrogate"),
    ({"agent_id": 5}, "agent_id must be a string"),
    ({"user_id": ""}, "user_id must not be empty"),
    ({"memory_type": "dream"}, "memory_type must be one of"),
    ({"memory_type": None, "importance": 1.5}, "importance must be between 0 and 1"),
    ({"importance": float("nan")}, "importance must be between 0 and 1"),
    ({"importance": "high"}, "importance must be a number"),
    ({"importance": "0.5"}, "importance must be a number"),
    ({"importance": True}, "importance must be a number"),
    ({"tags": "one"}, "tags must be a list"),
    ({"tags": 5}, "tags must be a list"),
    ({"tags": {"a": 1}}, "tags must be a list"),
    ({"metadata": [1]}, "metadata must be a mapping"),
    ({"metadata": "x"}, "metadata must be a mapping"),
    ({"timestamp": datetime(2024, 1, 1)}, "timestamp .*naive"),
    ({"timestamp": "yesterday"}, "timestamp must be"),
    ({"timestamp": 1e15}, "timestamp must be"),
    ({"valid_from": datetime(2024, 1, 1)}, "valid_from .*naive"),
    ({"expires_at": datetime(2024, 1, 1)}, "expires_at .*naive"),
    ({"expires_at": timedelta(-1)}, "expires_at must lie ahead"),
    ({"language": "klingon"}, "language must be one of"),
    ({"language": 5}, "language must be one of"),
    ({"supersedes": 5}, "supersedes must be"),
    ({"supersedes": [None]}, "supersedes must be"),
    ({"supersedes": ""}, "supersedes must not be empty"),
    ({"if_exists": "merge"}, "if_exists must be"),
    ({"embedding": "x"}, "embedding must be"),
]


def test_nothing_is_written_of_what_cannot_be_stored(
    anystore: MemoryStore, rows: CountRows
) -> None:
    memory = anystore.tenant("acme")
    memory.add("something there", id="there")
    before = rows()
    for cases, kind in ((BAD_FIELDS, InvalidContentError), (BAD_ARGUMENTS, ValueError)):
        for values, said in cases:
            given = {"content": "fine"} | values
            content = given.pop("content")
            with pytest.raises(kind, match=f"^{said}") as raised:
                memory.add(content, **given)
            assert isinstance(raised.value, ValueError)
            if "if_exists" in values:
                continue
            with pytest.raises(kind, match=rf"^items\[1\]: {said}"):
                memory.add_many([{"content": "fine"}, {"content": "fine"} | values])
    assert rows() == before


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ("text", "items must be a list"),
        (b"x", "items must be a list"),
        ({"content": "x"}, "items must be a list"),
        (["text"], r"items\[0\]: must be a MemoryEntry or a mapping"),
        ([None], r"items\[0\]: must be a MemoryEntry or a mapping"),
        ([{}], r"items\[0\]: has no content"),
        ([{"content": "x", "typ": 1}], r"items\[0\]: has an unknown field 'typ'"),
        (5, "items must be"),
        (None, "items must be"),
    ],
)
def test_bad_items(anytenant: Memory, items: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        anytenant.add_many(items)


@pytest.mark.parametrize("ids", ["text", [""], [5], ["a\x00"], ["x" * 300], 5, None])
def test_bad_ids(anytenant: Memory, ids: Any) -> None:
    with pytest.raises(ValueError, match="ids"):
        anytenant.get_many(ids)


def test_any_mapping_will_do(anytenant: Memory) -> None:
    content = MappingProxyType({"a": MappingProxyType({"b": [1]})})
    anytenant.add(content, id="e", metadata=MappingProxyType({"k": MappingProxyType({"x": 1})}))
    anytenant.update("e", content=content, metadata=MappingProxyType({"k": content}))
    entry = anytenant.get("e")
    assert entry is not None
    assert entry.content == {"a": {"b": [1]}}
    assert entry.metadata == {"k": {"a": {"b": [1]}}}


@pytest.mark.parametrize(
    "arguments",
    [
        {"pool_size": 0}, {"pool_size": "5"}, {"pool_timeout": -1}, {"connect_timeout": "x"},
        {"statement_timeout": float("nan")}, {"statement_timeout": -1}, {"language": "klingon"},
    ],
    ids=lambda a: next(iter(a)),
)  # fmt: skip
def test_bad_settings_of_a_store(
    kind: str, shared_url: Callable[[], str], arguments: dict[str, Any]
) -> None:
    from drivers import opened

    with (
        pytest.raises(ValueError, match=next(iter(arguments))),
        opened(kind, shared_url(), **arguments),
    ):
        pass


def test_no_content_in_an_error(database: str, caplog: pytest.LogCaptureFixture) -> None:
    """What the database refuses for a reason of its own shows neither parameters nor rows."""
    with MemoryStore.open(database, embedder="hashing") as store:
        with psycopg.connect(plain(database), autocommit=True) as connection:
            connection.execute("ALTER TABLE zerda.entries ADD CHECK (body <> 'top secret words')")
        with pytest.raises(ZerdaError, match=r"SQLSTATE 23514") as raised:
            store.tenant("acme").add("top secret words", id="e")
    assert "top secret" not in f"{raised.value} {raised.value!r}"
    assert "top secret" not in caplog.text
