"""search, context and explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from zerda_pg.cli.application import command
from zerda_pg.cli.failures import FOUND, NOTHING
from zerda_pg.cli.options import Call, Filters, Search, Text, text_of

if TYPE_CHECKING:
    from zerda_pg.results import Context, Hit

__all__ = ["context_data", "hit_data"]

PANEL = "Recall"

Task = Annotated[
    str, Argument(help="What the agent is about to do; - reads it from stdin.", show_default=False)
]


@command("search", PANEL)
def search(
    text: Text,
    call: Call,
    filters: Filters,
    how: Search,
    k: Annotated[int, Option("-k", help="Most memories.")] = 10,
) -> int:
    """Find the memories that fit a text best."""
    query = text_of(text)
    arguments = how.arguments(filters)
    with call.memory(model=how.needs_model) as memory:
        hits = memory.search(query, k=k, **arguments)
    from zerda_pg.cli import printing

    if call.json:
        printing.emit([hit_data(hit) for hit in hits])
    elif hits:
        printing.console().print(printing.hits_table(hits))
    else:
        printing.console().print("Nothing found.")
    return FOUND if hits else NOTHING


def hit_data(hit: Hit) -> dict[str, Any]:
    """A hit for `--json`."""
    entry = hit.entry
    return {
        "id": entry.id,
        "score": round(hit.score, 6),
        "content": entry.content,
        "similarity": hit.similarity,
        "lexical": hit.lexical,
        "recency": hit.recency,
        "importance": hit.importance,
        "contributions": dict(hit.contributions),
        "kind": entry.kind,
        "memory_type": entry.memory_type.value,
        "status": entry.status.value,
        "session_id": entry.session_id,
        "user_id": entry.user_id,
        "agent_id": entry.agent_id,
        "tags": entry.tags,
        "metadata": entry.metadata,
        "timestamp": entry.created_at,
        "valid_from": entry.valid_from,
        "valid_to": entry.valid_to,
        "version": entry.version,
    }


@command("context", PANEL)
def context(
    task: Task,
    call: Call,
    filters: Filters,
    how: Search,
    budget: Annotated[int, Option("--budget", metavar="N", help="Most tokens.")] = 3000,
    top_k: Annotated[int | None, Option("--top-k", metavar="N", help="Most memories.")] = None,
    packing: Annotated[str, Option("--packing", help="value, skip, stop or optimal.")] = "value",
    render: Annotated[
        str, Option("--render", help="transcript, sections or plain.")
    ] = "transcript",
    tokens: Annotated[str, Option("--tokens", help="Count auto, exact or estimate.")] = "auto",
) -> int:
    """Pack the memories a task needs into text for a prompt, under a budget of tokens."""
    asked = text_of(task)
    arguments = how.arguments(filters)
    with call.memory(model=how.needs_model) as memory:
        packed = memory.build_context(
            asked, token_budget=budget, top_k=top_k, packing=packing,  # type: ignore[arg-type]
            render=render, count_tokens=tokens, **arguments,
        )  # fmt: skip
    from zerda_pg.cli import printing

    if call.json:
        printing.emit(context_data(packed))
    elif packed.entries:
        # exactly the text that a prompt gets, and nothing else: it may be piped on
        printing.console().print(printing.clean(packed.text), soft_wrap=True)
        note = printing.console(stderr=True)
        memories = printing.plural(len(packed.entries), "memory", "memories")
        note.print(f"{memories}, {packed.tokens} of {budget} tokens", style="dim")
    else:
        printing.console(stderr=True).print("Nothing relevant within the budget.")
    return FOUND if packed.entries else NOTHING


def context_data(packed: Context) -> dict[str, Any]:
    """A context for `--json`."""
    from zerda_pg.cli.printing import entry_data

    return {
        "text": packed.text,
        "tokens": packed.tokens,
        "entries": [entry_data(entry) for entry in packed.entries],
        "report": dict(packed.report),
    }


@command("explain", PANEL)
def explain(
    task: Task,
    call: Call,
    filters: Filters,
    how: Search,
    id: Annotated[
        str | None, Option("--id", metavar="ID", help="Why this one did or did not come up.")
    ] = None,
    k: Annotated[int, Option("-k", help="Most memories of the search.")] = 10,
) -> int:
    """Show how a search comes about: candidates, signals, and what was left out and why."""
    asked = text_of(task)
    arguments = how.arguments(filters) | {"record_access": False}
    with call.memory(model=how.needs_model) as memory:
        report = memory.explain(asked, id=id, k=k, **arguments)
    if call.json:
        from zerda_pg.cli.printing import emit

        emit(report)
    else:
        from zerda_pg.cli.explaining import print_entry, print_report

        if id is None:
            print_report(report, k)
        else:
            print_entry(report["entry"])
    found = report["rows"] if id is None else report["entry"].get("fate") != "absent"
    return FOUND if found else NOTHING
