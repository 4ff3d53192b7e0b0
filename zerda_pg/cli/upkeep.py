"""export, reembed and maintain."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from zerda_pg.cli.application import command
from zerda_pg.cli.failures import FOUND
from zerda_pg.cli.options import Call
from zerda_pg.cli.progress import progress_bar

__all__: list[str] = []


@command("export", "Write")
def export(
    file: Annotated[
        str, Argument(help="JSON Lines; compressed if it ends in .gz.", show_default=False)
    ],
    call: Call,
    vectors: Annotated[
        bool, Option("--vectors", help="With the vectors, which else are made again.")
    ] = False,
    resume: Annotated[
        bool, Option("--resume", help="Keep what an interruption leaves, and go on from there.")
    ] = False,
) -> int:
    """Write all memories of a tenant to a file, for import."""
    if file == "-":
        raise BadParameter("an export is a file that appears when it is whole: name one")
    with call.memory() as memory, progress_bar("exporting") as progress:
        report = memory.export(file, vectors=vectors, resume=resume, progress=progress)
    from zerda_pg.cli import printing

    if call.json:
        printing.emit(report)
    else:
        entries = printing.plural(report["entries"], "memory", "memories")
        printing.console().print(
            f"{entries}, {printing.plural(report['edges'], 'link')} in {report['path']}",
            soft_wrap=True,
        )
    return FOUND


@command("reembed", "Database")
def reembed(
    call: Call,
    model: Annotated[
        str | None,
        Option("--model", metavar="NAME", help="The embedder to change to, as --embedder."),
    ] = None,
    drop_retired: Annotated[
        bool, Option("--drop-retired", help="Erase the vectors of earlier models.")
    ] = False,
) -> int:
    """Change the embedding model of all tenants, beside readers and writers."""
    if model is None and not drop_retired:
        raise BadParameter("--model says which embedder to change to")
    from zerda_pg import admin
    from zerda_pg.cli import printing
    from zerda_pg.cli.opening import embedder_of
    from zerda_pg.db.location import database_url

    report: dict[str, Any] = {}
    with database_url(call.url) as url:
        if model is not None:
            target = embedder_of(model)
            with progress_bar("embedding") as progress:
                report |= admin.reembed(url, target, progress=progress)
        if drop_retired:
            with progress_bar("erasing") as progress:
                report["dropped"] = admin.drop_retired_models(url, progress=progress)
    if call.json:
        printing.emit(report)
        return FOUND
    console = printing.console()
    if model is not None:
        texts = printing.plural(report["embedded"], "text")
        then = "the database uses" if report["switched"] else "the database used already"
        console.print(f"{texts} embedded; {then} {report['model']}", soft_wrap=True)
    if drop_retired:
        console.print(f"{printing.plural(report['dropped']['vectors'], 'vector')} erased")
    return FOUND


@command("maintain", "Database")
def maintain(
    call: Call,
    cluster: Annotated[
        bool,
        Option(
            "--cluster",
            help="Also rewrite tables in which tenants' rows lie scattered, locked meanwhile.",
        ),
    ] = False,
) -> int:
    """Erase what has expired, bring statistics and indexes up to date; for cron."""
    with call.store() as store:
        report = store.maintain(cluster=cluster)
    from zerda_pg.cli import printing

    if call.json:
        printing.emit(report)
    else:
        shown = {_REPORTED.get(name, name): value for name, value in report.items()}
        printing.console().print(printing.pairs_table(shown))
    return FOUND


_REPORTED = {
    "expired": "expired, erased",
    "session_touches": "old touches, erased",
    "changes": "old changes, erased",
    "counted": "tenants whose words were counted",
    "indexed": "vector indexes built",
    "unindexed": "vector indexes dropped",
    "analyzed": "tables analyzed",
    "clustered": "tables put in order",
}
"""Part of the report → what it counts."""
