"""add and import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Annotated, Any

from typer import Argument, Option

from zerda_pg.cli.application import command
from zerda_pg.cli.failures import FOUND, NOTHING, USAGE, say
from zerda_pg.cli.options import (
    Call,
    Expires,
    Text,
    Timestamp,
    ValidFrom,
    json_object,
    lifetime,
    moment,
    text_of,
)
from zerda_pg.cli.progress import progress_bar

__all__: list[str] = []

PANEL = "Write"

BAD_LINES_SHOWN = 10


@command("add", PANEL)
def add(
    text: Text,
    call: Call,
    id: Annotated[str | None, Option("--id", metavar="ID", help="Default: a new one.")] = None,
    kind: Annotated[
        str | None,
        Option("--kind", metavar="WORD", help="decision, fact, preference, failure, attempt, …"),
    ] = None,
    memory_type: Annotated[
        str, Option("--type", metavar="WORD", help="semantic, episodic, procedural, …")
    ] = "semantic",
    importance: Annotated[float, Option("--importance", help="From 0 to 1.")] = 0.5,
    tags: Annotated[
        list[str] | None, Option("--tag", metavar="WORD", help="May be repeated.")
    ] = None,
    metadata: Annotated[
        str | None, Option("--metadata", metavar="JSON", help="A JSON object.")
    ] = None,
    session: Annotated[
        str | None, Option("--session", metavar="NAME", help="The run or conversation.")
    ] = None,
    agent: Annotated[str | None, Option("--agent", metavar="NAME", help="Who writes it.")] = None,
    timestamp: Timestamp = None,
    valid_from: ValidFrom = None,
    expires: Expires = None,
    supersedes: Annotated[
        list[str] | None,
        Option("--supersedes", metavar="ID", help="A memory it replaces; may be repeated."),
    ] = None,
    language: Annotated[
        str | None, Option("--language", metavar="WORD", help="Text-search configuration.")
    ] = None,
    if_exists: Annotated[
        str, Option("--if-exists", help="replace, keep or error, for an id that exists.")
    ] = "replace",
    dedupe: Annotated[
        bool, Option("--dedupe", help="Keep an earlier memory of the same content instead.")
    ] = False,
) -> int:
    """Write one memory."""
    content = text_of(text)
    given: dict[str, Any] = {
        "id": id, "kind": kind, "memory_type": memory_type, "importance": importance,
        "tags": tags or (), "metadata": json_object(metadata, "--metadata"),
        "session_id": session, "agent_id": agent, "timestamp": moment(timestamp, "--timestamp"),
        "valid_from": moment(valid_from, "--valid-from"),
        "expires_at": lifetime(expires, "--expires"), "supersedes": supersedes or (),
        "language": language, "if_exists": if_exists, "dedupe": dedupe,
    }  # fmt: skip
    with call.memory(model=True) as memory:
        result = memory.add(content, **given)
    from zerda_pg.cli import printing

    if call.json:
        entry = printing.entry_data(result.entry)
        printing.emit(
            {"id": result.id, "status": result.status, "version": result.version, "entry": entry}
        )
    else:
        printing.console().print(f"{result.status} {result.id}", soft_wrap=True)
    return FOUND


@command("import", PANEL)
def import_file(
    file: Annotated[
        str, Argument(help="JSON Lines, .gz or not; - reads stdin.", show_default=False)
    ],
    call: Call,
    if_exists: Annotated[
        str, Option("--if-exists", help="keep, replace or error, for an id that exists.")
    ] = "keep",
    dedupe: Annotated[
        bool, Option("--dedupe", help="Keep an earlier memory of the same content instead.")
    ] = False,
) -> int:
    """Write the memories and chat messages of a file; a second run adds nothing."""
    if file != "-" and (Path(file).is_file() or not Path(file).exists()):
        # What cannot be read is told before a server starts; a pipe must not be opened twice.
        with Path(file).open("rb"):
            pass
    source: str | IO[bytes] = sys.stdin.buffer if file == "-" else file
    with call.memory(model=True) as memory, progress_bar("importing") as progress:
        report = memory.import_file(
            source,
            if_exists=if_exists,  # type: ignore[arg-type]
            dedupe=dedupe,
            progress=progress,
        )
    from zerda_pg.cli import printing

    for error in report["errors"][:BAD_LINES_SHOWN]:
        say(f"line {error['line']}: {printing.clean(error['error'])}")
    if (more := report["failed"] - BAD_LINES_SHOWN) > 0:
        say(f"{printing.plural(more, 'further bad line')}")
    if call.json:
        printing.emit(report)
    else:
        counts = [
            f"{report[word]} {word}"
            for word in ("created", "replaced", "kept", "duplicate", "failed")
            if report[word]
        ]
        lines = printing.plural(report["lines"], "line")
        printing.console().print(f"{lines}: {', '.join(counts) or 'nothing to import'}")
    if report["failed"]:
        return USAGE
    return FOUND if report["lines"] else NOTHING
