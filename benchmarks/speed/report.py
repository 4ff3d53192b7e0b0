"""Results as a table with ratios, and as a plot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], float]], ...] = (
    ("bulk rows/s", lambda r: r["bulk_rows_per_second"]),
    ("write p50", lambda r: r["write_ms"]["p50"]),
    ("dense p50", lambda r: r["dense_ms"]["p50"]),
    ("p95", lambda r: r["dense_ms"]["p95"]),
    ("p99", lambda r: r["dense_ms"]["p99"]),
    ("hybrid p50", lambda r: r["hybrid_ms"]["p50"]),
    ("p95", lambda r: r["hybrid_ms"]["p95"]),
    ("recall@10", lambda r: r["recall_at_10"]),
    ("short", lambda r: r["short_results"]),
    ("MB", lambda r: r["memory_mb"]),
    ("DB MB", lambda r: r["database_mb"]),
)


def table(whole: dict[str, Any]) -> str:
    """Markdown: milliseconds, and each system's ratio to zerda_pg in brackets."""
    systems = whole["systems"]
    ours = systems["zerda_pg"]
    size = f"{whole['entries']} entries, {whole['tenants']} tenants"
    lines = [
        f"{size}; {whole['machine']}; {whole['at']}",
        "",
        "| system | " + " | ".join(name for name, _ in COLUMNS) + " |",
        "| --- |" + " --- |" * len(COLUMNS),
    ]
    for system, result in systems.items():
        cells = []
        for name, value_of in COLUMNS:
            try:
                value = value_of(result)
            except KeyError:
                cells.append("–")
                continue
            try:
                ratio = value / value_of(ours) if "p50" in name or "rows" in name else None
            except (KeyError, ZeroDivisionError):
                ratio = None
            shown = f"{value:g}"
            cells.append(
                shown if ratio is None or system == "zerda_pg" else f"{shown} ({ratio:.2f})"
            )
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
        if "error" in result:
            lines.append(f"{system}: {result['error']}")
    lines += ["", "In turns, ms: " + in_turns(whole["in_turns"])]
    return "\n".join(lines)


def in_turns(paired: dict[str, dict[str, float]]) -> str:
    """Medians, with what is by hand behind ours."""
    shown = []
    for name, ours in paired.items():
        hand = paired.get(f"{name} by hand")
        if hand is not None:
            more, ratio = ours["p50"] - hand["p50"], ours["p50"] / hand["p50"]
            shown.append(
                f"{name} {ours['p50']:g}, by hand {hand['p50']:g} ({more:+.2f}, {ratio:.2f} times)"
            )
    recording = paired["hybrid, recording"]["p50"] / paired["hybrid"]["p50"]
    return "; ".join([*shown, f"recording accesses {recording:.2f} times"])


PLOTTED: tuple[tuple[str, Callable[[dict[str, Any]], float]], ...] = (
    ("bulk, rows a second", lambda r: r["bulk_rows_per_second"]),
    ("single write, ms", lambda r: r["write_ms"]["p50"]),
    ("dense search, ms (log)", lambda r: r["dense_ms"]["p50"]),
    ("recall@10", lambda r: r["recall_at_10"]),
)


def plot(whole: dict[str, Any], file: Path) -> None:
    """Bars of the medians, if matplotlib is installed."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return
    systems = {k: v for k, v in whole["systems"].items() if "error" not in v}
    figure, axes = plt.subplots(1, len(PLOTTED), figsize=(12, 3), sharey=True)
    for axis, (title, value_of) in zip(axes, PLOTTED, strict=True):
        axis.barh(list(systems), [value_of(result) for result in systems.values()])
        axis.set_title(title, fontsize=10)
        if "log" in title:
            axis.set_xscale("log")
            axis.set_xlim(left=0.1)
    axes[0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(file, dpi=110)
