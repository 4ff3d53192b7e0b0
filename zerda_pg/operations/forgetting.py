"""Forgetting over a tenant, in bounded batches."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import select

from zerda_pg.db import maintenance, reads
from zerda_pg.scope import Scope
from zerda_pg.scoring.forgetting import ForgettingConfig
from zerda_pg.steps import Steps, read, write

__all__ = ["forget"]


def forget(
    scope: Scope, config: ForgettingConfig | None, *, dry_run: bool
) -> Steps[dict[str, Any]]:
    """Fade every active entry, discard what has faded away, and report."""
    if config is not None and not isinstance(config, ForgettingConfig):
        raise ValueError(f"config must be a ForgettingConfig, got {type(config).__name__}")
    rules = config or ForgettingConfig()
    clock = yield from read(lambda c: c.execute(select(reads.clock())).scalar_one())
    considered, forgotten, after = 0, list[str](), ""
    while True:
        batch = yield from _one(scope, rules, after, clock, dry_run=dry_run)
        considered += batch.considered
        forgotten += batch.forgotten
        if batch.last_id is None:
            break
        after = batch.last_id
    return {
        "considered": considered,
        "forgotten": len(forgotten),
        "forgotten_ids": forgotten,
        "dry_run": dry_run,
    }


def _one(
    scope: Scope, config: ForgettingConfig, after: str, clock: datetime, *, dry_run: bool
) -> Steps[maintenance.Faded]:
    step = read if dry_run else write
    return (
        yield from step(
            lambda c: maintenance.fade(c, scope, config, after=after, clock=clock, dry_run=dry_run)
        )
    )
