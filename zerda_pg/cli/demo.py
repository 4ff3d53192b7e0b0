"""demo: a sample log of an agent's work, and what comes back from it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from zerda_pg.cli.application import command
from zerda_pg.cli.failures import FOUND, NOTHING
from zerda_pg.cli.options import Call

if TYPE_CHECKING:
    from rich.console import Console

    from zerda_pg.results import Context, Hits
    from zerda_pg.scoped import Memory

__all__: list[str] = []

TENANT = "demo"

FOLDER = Path(__file__).parent.parent / "demo"

QUESTIONS = (
    "Why did the nightly export fail, and what do I do about it?",
    "How does Maya like pull requests?",
    "What should I check when the connection pool is exhausted?",
)

CHANGED = "Where does the production database run?"
REPLACED_ID = "demo-db-host-1"
EARLIER = datetime(2025, 9, 10, tzinfo=UTC)

TASK = "Review a pull request that changes the export worker"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """What the demo shows."""

    imported: dict[str, Any]
    answers: dict[str, Hits]
    today: Hits
    earlier: Hits
    replaced: dict[str, Any]
    context: Context


@command("demo", "Try it")
def demo(
    call: Call,
    budget: Annotated[int, Option("--budget", metavar="N", help="Tokens of the context.")] = 220,
    clean: Annotated[bool, Option("--clean", help="Remove the sample again.")] = False,
) -> int:
    """Write a sample log of an agent's work and recall from it (tenant demo)."""
    if call.tenant == "default":
        call = dataclasses.replace(call, tenant=TENANT)
    if clean:
        return _remove(call)
    with call.memory(model=True) as memory:
        found = _find(memory, budget)
    from zerda_pg.cli import printing

    if call.json:
        printing.emit(_data(call, found))
    else:
        _show(printing.console(), call, found, budget)
    return FOUND


def _lines(name: str) -> list[dict[str, Any]]:
    text = (FOLDER / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _remove(call: Call) -> int:
    from zerda_pg.cli.printing import console, emit

    with call.memory() as memory:
        # by id: a tenant that was named may hold more than the sample
        counts = memory.purge(ids=[line["id"] for line in _lines("agent-log.jsonl")])
    if call.json:
        emit(dict(counts))
    else:
        console().print(f"removed {counts.get('entries', 0)} sample memories")
    return FOUND if counts.get("entries") else NOTHING


def _find(memory: Memory, budget: int) -> Findings:
    imported = memory.import_file(FOLDER / "agent-log.jsonl")
    for edge in _lines("edges.jsonl"):
        memory.relate(**edge)
    # without recording accesses, so that each run shows the same
    answers = memory.search_many(QUESTIONS, k=3, record_access=False)
    return Findings(
        imported=imported,
        answers=dict(zip(QUESTIONS, answers, strict=True)),
        today=memory.search(CHANGED, k=1, record_access=False),
        earlier=memory.search(CHANGED, k=1, valid_at=EARLIER, record_access=False),
        replaced=memory.explain(CHANGED, id=REPLACED_ID)["entry"],
        context=memory.build_context(TASK, token_budget=budget, record_access=False),
    )


def _data(call: Call, found: Findings) -> dict[str, Any]:
    from zerda_pg.cli.recalling import context_data, hit_data

    def hits(found: Hits) -> list[dict[str, Any]]:
        return [hit_data(hit) for hit in found]

    return {
        "tenant": call.tenant,
        "import": found.imported,
        "answers": [{"question": q, "hits": hits(a)} for q, a in found.answers.items()],
        "superseded": {
            "question": CHANGED,
            "today": hits(found.today),
            "earlier": hits(found.earlier),
            "replaced": found.replaced,
        },
        "context": {"task": TASK, **context_data(found.context)},
    }


def _show(out: Console, call: Call, found: Findings, budget: int) -> None:
    from rich.panel import Panel
    from rich.rule import Rule
    from rich.text import Text

    from zerda_pg.cli import printing

    lines, created = found.imported["lines"], found.imported["created"]
    how = "written" if created == lines else f"{created} new, the rest was there already"
    title = Text("zerda_pg demo", style="bold")
    out.print(Rule(title, style="dim") if printing.on_terminal() else title)
    out.print(
        f"The log of an agent on call for an order tracking service: {lines} memories from six "
        f"sessions, {how} (tenant {call.tenant}).\n"
    )

    _heading(out, "1", "Recall: meaning and words in one query, each signal's share as a bar")
    for question, hits in found.answers.items():
        out.print(f"\n? {question}", style="bold cyan")
        out.print(printing.hits_table(hits))

    _heading(out, "2", "A fact that changed: what was replaced does not come up again")
    for label, hits in (("today", found.today), ("on 2025-09-10", found.earlier)):
        out.print(f"\n? {CHANGED} ({label})", style="bold cyan")
        out.print(printing.hits_table(hits, bars=False))
    reasons = "; ".join(found.replaced.get("reasons", ()))
    out.print(f"Why not {REPLACED_ID} today? {reasons or found.replaced['fate']}.\n", style="dim")

    _heading(out, "3", f"Context: what a task needs, within {budget} tokens")
    out.print(f"\n? {TASK}", style="bold cyan")
    context = found.context
    note = f"{len(context.entries)} of {lines} memories, {context.tokens} of {budget} tokens"
    text = Text(printing.clean(context.text))
    if printing.on_terminal():
        out.print(Panel(text, subtitle=note, style="dim"))
    else:
        out.print(text, f"({note})", sep="\n")

    out.print()
    _heading(out, "4", "Now you")
    where = "" if call.url is None else " --url …"
    tenant = f"--tenant {call.tenant}{where}"
    for line in (
        f'search "who knows about refunds?" {tenant}',
        f'explain "how do we deploy?" --id demo-deploy-how-1 {tenant}',
        f'context "answer a carrier that repeats events" --budget 150 {tenant}',
        f'add "Ines is away until Monday" --kind fact --expires 7d {tenant}',
        "doctor",
        "demo --clean" + ("" if call.tenant == TENANT else f" {tenant}"),
    ):
        out.print(f"  {_program()} {line}", soft_wrap=True, style="green")


def _program() -> str:
    """What to type for this command: its path, where it was called by one."""
    found = shutil.which("zerda-pg")
    typed = Path(sys.argv[0])
    if typed.name != "zerda-pg" or (found is not None and typed.samefile(found)):
        return "zerda-pg"
    return os.path.relpath(typed)


def _heading(out: Console, number: str, title: str) -> None:
    from rich.text import Text

    out.print(Text.assemble((f" {number} ", "reverse bold"), (f" {title}", "bold")))
