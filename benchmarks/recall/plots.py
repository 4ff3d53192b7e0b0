"""Recall by k and evidence by budget, ours beside the baselines (extra `bench`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.recall.metrics import KS
from benchmarks.recall.report import Summary
from benchmarks.recall.run import BUDGETS

__all__ = ["draw"]


def draw(figures: Summary, folder: Path) -> list[Path]:
    """One picture a suite.

    Raises:
        ModuleNotFoundError: Without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written: list[Path] = []
    for suite, methods in figures.items():
        if "/" in suite or ":" in suite:
            continue
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
        for method, values in methods.items():
            style: dict[str, Any] = {"linewidth": 2.5} if method == "zerda" else {"alpha": 0.7}
            recall = [values[f"R@{k}"] * 100 for k in KS]
            packed = [values[f"packed@{budget}"] * 100 for budget in BUDGETS]
            left.plot(KS, recall, marker="o", label=method, **style)
            right.plot(BUDGETS, packed, marker="o", label=method, **style)
        left.set(xscale="log", xlabel="k", ylabel="evidence recall, %", xticks=KS)
        left.set_xticklabels([str(k) for k in KS])
        right.set(xlabel="token budget", ylabel="evidence packed, %", xticks=BUDGETS)
        left.legend()
        figure.suptitle(suite)
        written.append(folder / f"{suite}.png")
        figure.savefig(written[-1], dpi=120)
        pyplot.close(figure)
    return written
