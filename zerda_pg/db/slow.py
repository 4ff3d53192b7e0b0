"""Slow statements, logged under `zerda_pg.slow` with their text and without their values."""

from __future__ import annotations

import logging
import time
from typing import Any

__all__ = ["log_if_slow"]

log = logging.getLogger("zerda_pg.slow")

SHOWN_CHARACTERS = 300
"""Of a statement: enough to tell which it is."""


def log_if_slow(raw: Any, statement: object, started: float) -> None:
    """Log a statement at WARNING if it took longer than its connection's `slow_seconds`.

    Args:
        raw: The driver's connection.
        statement: As it was sent.
        started: By `time.perf_counter`.
    """
    bound = getattr(raw, "slow_seconds", None)
    if bound is None:
        return
    taken = time.perf_counter() - started
    if taken >= bound:
        words = statement.decode() if isinstance(statement, bytes) else str(statement)
        log.warning("%.3f s: %s", taken, " ".join(words.split())[:SHOWN_CHARACTERS])
