"""How many tokens a text takes in a model's prompt.

Exact counts are those of o200k_base, the encoding of the GPT-4o family; other vendors' differ by
some percent. The estimate needs no package and errs on the side of too many: a prompt packed too
full is an error at the model, one token too few costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerda_pg.errors import ConfigError, MissingExtraError

__all__ = ["count_tokens_exactly", "estimate_tokens", "resolve_counter", "seed_token_estimate"]

_CHUNK = 1 << 18
"""Characters that are estimated at a time: some 40 bytes of arrays for each."""

# Classes of characters. The order matters: up to _DIGIT is what `\\w` of ASCII holds.
_LOWER, _UPPER, _DIGIT, _SPACE, _BREAK, _PUNCTUATION, _LETTER, _HAN, _KANA, _HANGUL, _SYMBOL = range(
    11
)
