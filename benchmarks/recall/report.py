"""Figures as tables, JSON and a line for the record."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.recall.metrics import Row, averages, groups_of

__all__ = ["Summary", "commit", "print_tables", "record", "summary", "timings"]

Summary = dict[str, dict[str, dict[str, float]]]
"""Suite → method → figure; categories stand as `suite/category`."""

SHOWN = ("R@5", "R@10", "R@20", "nDCG@10", "packed@500", "packed@1000", "packed@2000",
         "shown@500", "shown@1000", "shown@2000", "updated")  # fmt: skip


def summary(rows: Sequence[Row], *, categories: bool = True) -> Summary:
    """Means by suite, by category, and method."""
    buckets: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for group in groups_of(row):
            buckets[group][row.method].append(row)
        if categories:
            buckets[f"{row.suite}/{row.category}"][row.method].append(row)
    return {
        group: {method: averages(found) for method, found in methods.items()}
        for group, methods in sorted(buckets.items())
    }


def print_tables(figures: Summary) -> None:
    """In percent."""
    width = max(map(len, figures))
    print(f"{'':{width}}  {'':8}  {'n':>5}" + "".join(f"{name:>12}" for name in SHOWN))
    for group, methods in figures.items():
        for place, (method, values) in enumerate(methods.items()):
            cells = "".join(
                f"{values[name] * 100:12.1f}" if name in values else f"{'–':>12}" for name in SHOWN
            )
            label = group if place == 0 else ""
            print(f"{label:{width}}  {method:8}  {values['questions']:5.0f}{cells}")


def timings(clocks: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Median and 95th percentile of each call, in milliseconds."""
    return {
        name: {
            "median": round(statistics.median(spent), 2),
            "p95": round(sorted(spent)[int(len(spent) * 0.95)], 2),
        }
        for name, spent in clocks.items()
        if spent
    }


def commit() -> str:
    """The commit that is measured; a `+` marks changes on top of it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=False,
            cwd=Path(__file__).parent,
        )  # fmt: skip
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/zerda_pg")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def record(path: Path, figures: Summary, clocks: Mapping[str, Any], note: str) -> None:
    """Append one line of JSON: date, commit, and our figures for each suite, in percent."""
    line = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "note": note,
        "suites": {
            group: {
                name: round(value * 100, 1)
                for name, value in methods["zerda"].items()
                if name != "questions"
            }
            for group, methods in figures.items()
            if "/" not in group and "zerda" in methods
        },
        "milliseconds": clocks,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
