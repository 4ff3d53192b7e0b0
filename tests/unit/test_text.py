"""Contents as text, and what of text and JSON cannot be stored."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg import InvalidContentError
from zerda_pg.text import body_of, check_json, check_text, content_hash, dump_json


@pytest.mark.parametrize(
    ("content", "body"),
    [
        ("as it is\n ", "as it is\n "),
        ({"input": "hi", "output": "hello"}, "user: hi\nassistant: hello"),
        ({"input": "hi"}, "user: hi"),
        ({"output": {"a": 1}}, 'assistant: {"a": 1}'),
        ({"input": "hi", "output": None}, "user: hi"),
        ({"input": "hi", "other": 1}, '{"input": "hi", "other": 1}'),
        ({"speaker": "Ann", "text": "hi"}, "Ann: hi"),
        ({"speaker": "Ann", "text": "hi", "x": 1}, '{"speaker": "Ann", "text": "hi", "x": 1}'),
        (["é", 1e16, None], '["é", 1e+16, null]'),
        ({}, "{}"),
        (0, "0"),
        (False, "false"),
        (MappingProxyType({"a": MappingProxyType({"b": 1})}), '{"a": {"b": 1}}'),
    ],
)
def test_bodies(content: Any, body: str) -> None:
    assert body_of(content) == body


def test_equal_after_normalising() -> None:
    texts = ["The  Café\tis OPEN", "the cafe\u0301 is open\n", " THE ＣＡＦÉ is open"]
    assert len({content_hash(text) for text in texts}) == 1
    assert content_hash("straße") == content_hash("STRASSE")
    assert content_hash("a b") != content_hash("ab")
    assert len(content_hash("")) == 32


@given(st.text())
def test_normalising_again_changes_nothing(text: str) -> None:
    if any("\ud800" <= c <= "\udfff" for c in text):
        return
    assert content_hash(text) == content_hash(f"  {text}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\x00", "field has a NUL character at position 0"),
        ("abc\x00", "field has a NUL character at position 3"),
        ("é\x00", "field has a NUL character at position 1"),
        ("ab\ud800", "field has a lone surrogate at position 2"),
        ("é😀\udfff", "field has a lone surrogate at position 2"),
        (None, "field must be text, got NoneType"),
        (b"x", "field must be text, got bytes"),
    ],
)
def test_text_that_cannot_be_stored(text: Any, said: str) -> None:
    with pytest.raises(InvalidContentError, match=f"^{said}$"):
        check_text(text, "field")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, {"b": "x\x00"}]}, r"content\.a\[1\]\.b has a NUL character at position 1"),
        ({"a\x00": 1}, r"a key of content has a NUL character at position 1"),
        ({"a": {"\ud800": 1}}, r"a key of content\.a has a lone surrogate at position 0"),
        ({1: 2}, r"content has a key of type int: JSON keys are text"),
        ({None: 2}, r"content has a key of type NoneType"),
        ([float("nan")], r"content\[0\] is nan: JSON has no such number"),
        ([float("-inf")], r"content\[0\] is -inf: JSON has no such number"),
        ({"a": datetime(2024, 1, 1, tzinfo=UTC)}, r"content\.a is of type datetime, which JSON"),
        ({"a": {1, 2}}, r"content\.a is of type set"),
        (b"x", r"content is of type bytes"),
        (1j, r"content is of type complex"),
        (10**4001, r"content is a number of more than 4000 digits"),
    ],
)
def test_json_that_cannot_be_stored(value: Any, said: str) -> None:
    with pytest.raises(InvalidContentError, match=f"^{said}"):
        check_json(value, "content")


def test_nesting_is_bounded() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    assert check_json(deep, "content") is deep
    with pytest.raises(InvalidContentError, match="nested deeper than 200 levels"):
        check_json({"a": deep}, "content")
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidContentError, match="nested deeper"):
        check_json(endless, "content")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00")),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00")),
        inner, max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_what_is_admitted_is_the_same_after_json(value: Any) -> None:
    assert check_json(value, "content") is value
    assert json.loads(dump_json(value)) == value
    body_of(value)
