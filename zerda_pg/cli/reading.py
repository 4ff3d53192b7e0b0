"""list, show, tenants and stats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from zerda_pg.cli.application import command
from zerda_pg.cli.failures import FOUND, NOTHING, say
from zerda_pg.cli.options import Call, Filters

if TYPE_CHECKING:
    from zerda_pg.entry import Edge
    from zerda_pg.results import Neighbour

__all__: list[str] = []

PANEL = "Look"


@command("list", PANEL)
def list_entries(
    call: Call,
    filters: Filters,
    limit: Annotated[int, Option("--limit", metavar="N", help="Most memories.")] = 20,
    oldest: Annotated[bool, Option("--oldest", help="Oldest first.")] = False,
    cursor: Annotated[
        str | None, Option("--cursor", metavar="TEXT", help="Go on where a list ended.")
    ] = None,
) -> int:
    """List memories by when they happened, newest first."""
    wanted = filters.filter()
    with call.memory() as memory:
        page = memory.entries(
            filter=wanted, order="oldest" if oldest else "newest", limit=limit, cursor=cursor
        )
    from zerda_pg.cli import printing

    if call.json:
        items = [printing.entry_data(entry) for entry in page]
        printing.emit({"items": items, "next_cursor": page.next_cursor})
    else:
        out = printing.console()
        out.print(printing.entries_table(page.items) if page.items else "No memories.")
        if page.next_cursor:
            out.print(f"more: --cursor {page.next_cursor}", style="dim", soft_wrap=True)
    return FOUND if page.items else NOTHING


@command("show", PANEL)
def show(
    id: Annotated[str, Argument(help="The memory's id.", show_default=False)], call: Call
) -> int:
    """Show one memory whole, with what it is linked to."""
    with call.memory() as memory:
        entry = memory.get(id)
        linked = [] if entry is None else memory.neighbours(id)
    if entry is None:
        say(call.missing(id))
        return NOTHING
    from zerda_pg.cli import printing

    data = printing.entry_data(entry)
    if call.json:
        links = [
            {"id": n.entry.id, "relation": edge.relation, "direction": direction}
            for n, edge, direction in _edges(id, linked)
        ]
        printing.emit(data | {"neighbours": links})
        return FOUND
    out = printing.console()
    out.print(printing.clean(entry.text), soft_wrap=True)
    shown = {
        name.replace("_", " "): value
        for name, value in data.items()
        if name != "content" and value not in (None, [], {}, "")
    }
    out.print(printing.pairs_table(shown))
    for n, edge, direction in _edges(id, linked):
        body = printing.clean(n.entry.text, 120)
        arrow = "→" if direction == "out" else "←"
        word = _LINKS.get((edge.relation, direction), f"{arrow} {printing.clean(edge.relation)}")
        out.print(f"{word}: {body} ({n.entry.id})", style="dim")
    return FOUND


_LINKS = {
    ("invalidated_by", "out"): "superseded by",
    ("invalidated_by", "in"): "supersedes",
}
"""Links that have words of their own."""


def _edges(id: str, linked: Sequence[Neighbour]) -> Iterator[tuple[Neighbour, Edge, str]]:
    """Every edge of an entry, with the neighbour at its other end."""
    for n in linked:
        for edge in n.edges:
            yield n, edge, "out" if edge.source_id == id else "in"


@command("tenants", PANEL)
def tenants(call: Call) -> int:
    """List the tenants that have memories."""
    with call.store() as store:
        names = store.tenants()
    from zerda_pg.cli import printing

    if call.json:
        printing.emit(names)
    else:
        for name in names:
            printing.console().print(printing.clean(name))
    return FOUND if names else NOTHING


@command("stats", PANEL)
def stats(
    call: Call,
    everything: Annotated[
        bool, Option("--all", help="Over all tenants, with the server's versions.")
    ] = False,
) -> int:
    """Count a tenant's memories by type, kind and status; sizes and the model."""
    with call.store() as store:
        found = store.stats() if everything else store.tenant(call.tenant).stats()
    from zerda_pg.cli import printing

    if call.json:
        printing.emit(found)
    else:
        printing.console().print(printing.pairs_table(_flat(found)))
    return FOUND


def _flat(found: dict[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in found.items():
        shown = value
        if isinstance(value, dict):
            shown = ", ".join(f"{word or 'none'} {n}" for word, n in value.items()) or "none"
        flat[name.replace("_", " ")] = shown
    return flat
