"""The report of a recall, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from zerda_pg.cli.printing import bars, clean, console, plural

__all__ = ["print_entry", "print_report"]

FATES = {
    "returned": "came up",
    "beyond_k": "is a candidate, but others ranked higher",
    "below_min_score": "is a candidate, but scores below --min-score",
    "dropped_by_ranker": "is a candidate, but the ranker dropped it",
    "not_a_candidate": "is no candidate",
    "absent": "is not there",
}


def print_report(report: Mapping[str, Any], shown: int) -> None:
    """Arms, words, and the first candidates with their bars."""
    out = console()
    arms = ", ".join(f"{name} {count}" for name, count in report["arms"].items())
    out.print(f"{plural(report['candidates'], 'candidate')} ({arms})", style="bold")
    words = []
    for term in report["terms"]:
        note = "" if term["looked_up"] else ", not looked up"
        words.append(f"{clean(term['lexeme'])} ({term['entries']}{note})")
    if words:
        out.print(Text("words, with the memories that have them: " + ", ".join(words), style="dim"))
    dropped = [
        f"{count} {why.replace('_', ' ')}" for why, count in report["dropped"].items() if count
    ]
    if dropped:
        out.print(Text("left out: " + ", ".join(dropped), style="dim"))
    took = sum(report["milliseconds"].values())
    out.print(Text(f"{report['path']} search, {took:.0f} ms", style="dim"))
    out.print()
    for row in report["rows"][:shown]:
        print_row(row)


def print_row(row: Mapping[str, Any]) -> None:
    """One candidate."""
    out = console()
    head = Text(f"{row['rank'] or '-':>3} {row['score']:.2f} ", style="bold")
    head.append(clean(row.get("content", row["id"]), 200), style="not bold")
    out.print(head)
    for line in bars(row["contributions"]):
        out.print(Text(" " * 4).append_text(line))
    cosine = "none" if row["similarity"] is None else f"{row['similarity']:.2f}"
    facts = (
        f"cosine {cosine}, {row['age_days']:.0f} days old, importance {row['importance']:.2f}, "
        f"by {' + '.join(row['arms']) or 'no arm'} · {row['id']}"
    )
    out.print(Text(f"    {clean(facts)}", style="dim"))
    out.print()


def print_entry(row: Mapping[str, Any]) -> None:
    """Why one entry did or did not come up."""
    out = console()
    out.print(Text(f"{clean(row['id'])} {FATES.get(row['fate'], row['fate'])}", style="bold"))
    for reason in row.get("reasons", ()):
        out.print(Text(f"  {clean(reason)}"))
    if "score" in row:
        print_row(row)
