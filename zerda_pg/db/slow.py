"""Slow statements, logged under `zerda_pg.slow` with their text and without their values."""

from __future__ import annotations

import logging
import time
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

__all__ = ["log_slow_statements"]

log = logging.getLogger("zerda_pg.slow")

SHOWN_CHARACTERS = 300
"""Of a statement: enough to tell which it is."""


def log_slow_statements(engine: Engine, seconds: float) -> None:
    """Log each statement that takes longer, at WARNING."""

    @event.listens_for(engine, "before_cursor_execute")
    def begun(
        connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        connection.info["zerda_pg.begun"] = time.perf_counter()

    @event.listens_for(engine, "after_cursor_execute")
    def ended(
        connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        taken = time.perf_counter() - connection.info.get("zerda_pg.begun", float("inf"))
        if taken >= seconds:
            log.warning("%.3f s: %s", taken, " ".join(statement.split())[:SHOWN_CHARACTERS])
