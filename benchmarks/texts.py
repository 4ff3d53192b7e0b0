"""`python -m benchmarks.texts`: how fast texts are counted and hashed, without a model.

The median of five passes over made-up log lines.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from zerda_pg.embedding import HashingEmbedder
from zerda_pg.tokens import estimate_tokens

LINES = [f"The worker {n % 50} retried the upload of report {n % 40}" for n in range(2_000)]


def main() -> None:
    """Print lines and characters a second."""
    embedder = HashingEmbedder()
    text = "\n".join(LINES) * 10
    print(f"hashing embedder: {len(LINES) / _median(lambda: embedder.embed(LINES)):,.0f} lines/s")
    counted = len(text) / _median(lambda: estimate_tokens(text))
    print(f"estimate of tokens: {counted / 1e6:,.1f} million characters/s")


def _median(call: Callable[[], Any]) -> float:
    call()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
