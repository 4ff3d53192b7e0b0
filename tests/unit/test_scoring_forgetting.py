"""Forgetting by hand, its laws, and bad configuration."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.entry import MemoryEntry
from zerda_pg.scoring.forgetting import (
    ForgettingConfig,
    ForgettingMechanism,
    decay_rate,
    half_life_hours,
    retention,
)
from zerda_pg.scoring.importance import degree_importance, importances
from zerda_pg.scoring.recency import decay

NOW = 1_700_000_000.0
DAY = 86400.0
HALF_LIFE_DAYS = 1 / 0.15


def entry(*, idle_days: float, **fields: Any) -> MemoryEntry:
    return MemoryEntry("x", NOW - 900 * DAY, last_access=NOW - idle_days * DAY, **fields)


def test_rate_half_life_and_retention_by_hand() -> None:
    config = ForgettingConfig()
    counts = np.array([0, 5, 6, 20, 1000])
    boosts = [1.0, 1.25, 1.3, 2.0, 2.0]
    assert decay_rate(counts, config) == pytest.approx([0.15 / boost for boost in boosts])
    assert half_life_hours(counts, config) == pytest.approx([160.0 * boost for boost in boosts])
    assert retention(160.0 * 3600.0, counts, config) == pytest.approx(
        [0.5 ** (1 / boost) for boost in boosts]
    )
    assert float(half_life_hours(0, ForgettingConfig(base_decay_rate=0.0))) == pytest.approx(24e9)


def test_a_run_sets_the_decay_factor_and_a_second_changes_nothing() -> None:
    faded = entry(idle_days=HALF_LIFE_DAYS, importance=0.8, decay_factor=0.9)
    mechanism = ForgettingMechanism()
    assert mechanism.score_retention(faded, now=NOW) == pytest.approx(0.4)
    for _ in range(3):
        assert mechanism.apply_to_single(faded, now=NOW)
        assert (faded.importance, faded.decay_factor) == pytest.approx((0.8, 0.5))
    faded.last_access = NOW
    mechanism.apply([faded], now=NOW)
    assert faded.decay_factor == 1.0  # an access brings it back


def test_the_original_s_step_adds_up_over_runs() -> None:
    faded = entry(idle_days=HALF_LIFE_DAYS, importance=0.8)
    mechanism = ForgettingMechanism(compat=True)
    assert mechanism.score_retention(faded, now=NOW) == pytest.approx(0.4)
    mechanism.apply([faded], now=NOW)
    assert (faded.importance, faded.decay_factor) == pytest.approx((0.4, 0.5))
    mechanism.apply([faded], now=NOW)
    assert (faded.importance, faded.decay_factor) == pytest.approx((0.2, 0.25))
    assert ForgettingMechanism(ForgettingConfig(compat=True)).config.compat
    assert not ForgettingMechanism(ForgettingConfig(compat=True), compat=False).config.compat


def test_alive_and_forgotten_in_the_order_given() -> None:
    entries = [
        entry(idle_days=500, importance=0.9),
        entry(idle_days=0, importance=0.9),
        entry(idle_days=0, importance=0.05),  # at the threshold
        entry(idle_days=0, importance=0.051),
        entry(idle_days=500, importance=1.0),
        entry(idle_days=500, importance=0.1, tags=["pinned"]),
    ]
    alive, forgotten = ForgettingMechanism().apply(entries, now=NOW)
    assert alive == [entries[i] for i in (1, 3, 4, 5)]
    assert forgotten == [entries[i] for i in (0, 2)]
    assert entries[4].decay_factor == 0.05  # pinned entries fade, and stay


def test_in_compat_only_the_tag_pins() -> None:
    whole = entry(idle_days=500, importance=1.0)
    tagged = entry(idle_days=500, importance=0.5, tags=["pinned"])
    assert ForgettingMechanism(compat=True).apply([whole, tagged], now=NOW) == ([tagged], [whole])


def test_none_is_two_empty_lists() -> None:
    assert ForgettingMechanism().apply([]) == ([], [])
    assert ForgettingMechanism().report([])["total"] == 0


def test_report() -> None:
    entries = [entry(idle_days=500, importance=0.9) for _ in range(12)]
    entries.append(entry(idle_days=0, importance=0.9))
    assert ForgettingMechanism().report(entries, now=datetime.fromtimestamp(NOW, UTC)) == {
        "total": 13,
        "at_risk_count": 12,
        "at_risk_ids": [e.id for e in entries[:10]],
        "config": {"base_decay_rate": 0.15, "min_importance": 0.05, "deletion_threshold": 0.05},
    }
    assert entries[0].decay_factor == 1.0  # nothing changed


def test_the_clock_is_used_without_now() -> None:
    fresh = MemoryEntry("x", importance=0.9)
    assert ForgettingMechanism().apply_to_single(fresh)
    assert fresh.decay_factor == pytest.approx(1.0, abs=1e-3)


@given(
    st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.integers(0, 50), st.floats(0.0, 1.0), st.booleans()
)
def test_idle_time_only_lowers_and_use_only_helps(
    idle: float, longer: float, accesses: int, importance: float, compat: bool
) -> None:
    mechanism = ForgettingMechanism(compat=compat)
    scores = [
        mechanism.score_retention(
            entry(idle_days=days, access_count=count, importance=importance), now=NOW
        )
        for days, count in ((idle, accesses), (min(1e5, idle + longer), accesses), (idle, 51))
        if days < 7e5
    ]
    assert all(0.0 <= score <= 1.0 for score in scores)
    if len(scores) == 3:
        assert idle > 1e5 or scores[1] <= scores[0] <= scores[2]


def test_the_future_and_the_distant_past() -> None:
    future = entry(idle_days=-3, importance=0.5)
    ancient = entry(idle_days=700_000, importance=0.5)
    assert ForgettingMechanism().score_retention(future, now=NOW) == 0.5
    ForgettingMechanism().apply([future, ancient], now=NOW)
    assert (future.decay_factor, ancient.decay_factor) == (1.0, 0.05)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_decay_rate", -0.1),
        ("base_decay_rate", math.nan),
        ("recency_boost_per_access", -1.0),
        ("max_recency_boost", 0.5),
        ("max_recency_boost", math.inf),
        ("min_importance", 1.5),
        ("deletion_threshold", math.nan),
        ("high_frequency_threshold", -1),
    ],
)
def test_a_bad_field_is_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        ForgettingConfig(**{field: value})  # type: ignore[arg-type]


# --- the curves that everything shares


def test_decay_by_hand() -> None:
    ages = np.array([-1.0, 0.0, 1.0, 2.0, 1e300, np.nan])
    assert decay(ages, 1.0)[:4].tolist() == [1.0, 1.0, 0.5, 0.25]
    assert 0.0 < decay(ages, 1.0)[4] < 1e-300
    assert np.isnan(decay(ages, 1.0)[5])
    assert float(decay(3.0, 2.0)) == pytest.approx(math.exp(-math.log(2) * 1.5), abs=1e-15)
    with np.errstate(all="raise"):
        decay(1e300, 1e-3)


def test_importances() -> None:
    entries = [entry(idle_days=0, importance=0.8, decay_factor=0.5)]
    assert importances(entries) == pytest.approx([0.4])
    assert importances([]).shape == (0,)
    assert degree_importance([0, 1, 3]) == pytest.approx([0.0, 0.5, 1.0])
    assert degree_importance([0, 0]).tolist() == [0.0, 0.0]
    assert degree_importance([]).shape == (0,)
