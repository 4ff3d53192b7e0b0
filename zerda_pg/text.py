"""An entry's content as text: what is embedded, searched and shown."""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

from zerda_pg.errors import InvalidContentError

__all__ = ["body_of", "check_json", "check_text", "content_hash", "dump_json", "is_blank"]

MAX_DEPTH = 200
"""Deepest nesting of JSON: far below what the server's stack and Python's recursion allow."""

MAX_DIGITS = 4000
"""Digits of the longest whole number: Python reads back at most 4,300."""


def body_of(content: object) -> str:
    """The text of a content: turns and messages as a transcript, text as it is, else JSON.

    Source of the transcript's form: the seed's `get_as_text`.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        if content and content.keys() <= {"input", "output"}:
            lines = [("user", content.get("input")), ("assistant", content.get("output"))]
            return "\n".join(f"{who}: {_plain(said)}" for who, said in lines if said is not None)
        if content.keys() == {"speaker", "text"}:
            return f"{_plain(content['speaker'])}: {_plain(content['text'])}"
    return dump_json(content)


def is_blank(content: object) -> bool:
    """Whether there is nothing to remember: no text, or a turn in which nothing was said."""
    said: list[object] = [content]
    if isinstance(content, Mapping):
        if content and content.keys() <= {"input", "output"}:
            said = list(content.values())
        elif content.keys() == {"speaker", "text"}:
            said = [content["text"]]
    return all(v is None or (isinstance(v, str) and not v.strip()) for v in said)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else dump_json(value)


def dump_json(value: object) -> str:
    """JSON text of what `check_json` admits; any mapping is an object."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=dict)


def content_hash(body: str) -> str:
    """128 bits over the normalised text, as hex: case, white space and Unicode form are folded."""
    folded = " ".join(unicodedata.normalize("NFKC", body).casefold().split())
    return hashlib.sha256(folded.encode("utf-8")).hexdigest()[:32]


def check_text(value: object, field: str) -> str:
    """Return `value` if Postgres can store it.

    Raises:
        InvalidContentError: If it is no text, or has NUL or a lone surrogate; with position.
    """
    if not isinstance(value, str):
        raise InvalidContentError(f"{field} must be text, got {type(value).__name__}")
    if (position := value.find("\x00")) >= 0:
        raise InvalidContentError(f"{field} has a NUL character at position {position}")
    # `isascii` and encoding are far faster than a search, which then only finds the place
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidContentError(
                f"{field} has a lone surrogate at position {error.start}"
            ) from None
    return value


def check_json(value: object, field: str) -> Any:
    """Return `value` if it is JSON that comes back from the database as it went in.

    Raises:
        InvalidContentError: Naming the place, such as `content.items[3]`, and what is wrong.
    """
    _check_json(value, field, 0)
    return value


def _check_json(value: object, field: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidContentError(f"{field} is nested deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        check_text(value, field)
    elif isinstance(value, int):
        if value.bit_length() > MAX_DIGITS * math.log2(10):
            raise InvalidContentError(f"{field} is a number of more than {MAX_DIGITS} digits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidContentError(f"{field} is {value}: JSON has no such number")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidContentError(
                    f"{field} has a key of type {type(key).__name__}: JSON keys are text"
                )
            check_text(key, f"a key of {field}")
            _check_json(item, f"{field}.{key[:40]}", depth + 1)
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _check_json(item, f"{field}[{position}]", depth + 1)
    else:
        raise InvalidContentError(
            f"{field} is of type {type(value).__name__}, which JSON cannot hold"
        )
