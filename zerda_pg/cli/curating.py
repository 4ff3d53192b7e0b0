"""update, relate, invalidate, discard, restore, delete, purge and forget."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from typer import Argument, BadParameter, Option, confirm

from zerda_pg.cli.application import command
from zerda_pg.cli.failures import FOUND, NOTHING, say
from zerda_pg.cli.options import (
    Call,
    Expires,
    Timestamp,
    ValidFrom,
    json_object,
    lifetime,
    moment,
    text_of,
)

__all__: list[str] = []

PANEL = "Curate"

Id = Annotated[str, Argument(help="The memory's id.", show_default=False)]


@command("update", PANEL)
def update(
    id: Id,
    call: Call,
    text: Annotated[
        str | None, Argument(help="The new text; - reads it from stdin.", show_default=False)
    ] = None,
    kind: Annotated[str | None, Option("--kind", metavar="WORD", help="The new kind.")] = None,
    memory_type: Annotated[
        str | None, Option("--type", metavar="WORD", help="The new memory type.")
    ] = None,
    importance: Annotated[float | None, Option("--importance", help="From 0 to 1.")] = None,
    tags: Annotated[
        list[str] | None, Option("--tag", metavar="WORD", help="All tags anew; may be repeated.")
    ] = None,
    metadata: Annotated[
        str | None, Option("--metadata", metavar="JSON", help="Replaces what is there.")
    ] = None,
    session: Annotated[
        str | None, Option("--session", metavar="NAME", help="The session it belongs to.")
    ] = None,
    agent: Annotated[str | None, Option("--agent", metavar="NAME", help="Who wrote it.")] = None,
    timestamp: Timestamp = None,
    valid_from: ValidFrom = None,
    valid_to: Annotated[
        str | None, Option("--valid-to", metavar="TIME", help="Until when it is true.")
    ] = None,
    expires: Expires = None,
    language: Annotated[
        str | None, Option("--language", metavar="WORD", help="Text-search configuration.")
    ] = None,
    if_version: Annotated[
        int | None, Option("--if-version", metavar="N", help="Only if it is at this version.")
    ] = None,
) -> int:
    """Correct a memory; the version before it is kept (--known-at finds it)."""
    values: dict[str, Any] = {
        "content": None if text is None else text_of(text),
        "kind": kind, "memory_type": memory_type, "importance": importance, "tags": tags,
        "metadata": json_object(metadata, "--metadata"), "session_id": session, "agent_id": agent,
        "timestamp": moment(timestamp, "--timestamp"),
        "valid_from": moment(valid_from, "--valid-from"),
        "valid_to": moment(valid_to, "--valid-to"),
        "expires_at": lifetime(expires, "--expires"), "language": language,
    }  # fmt: skip
    changes = {name: value for name, value in values.items() if value not in (None, [])}
    if not changes:
        raise BadParameter("update needs a new text or an option to change")
    with call.memory(model=text is not None) as memory:
        entry = memory.update(id, if_version=if_version, **changes)
    from zerda_pg.cli import printing

    if call.json:
        printing.emit(printing.entry_data(entry))
    else:
        printing.console().print(f"updated {entry.id}, version {entry.version}", soft_wrap=True)
    return FOUND


@command("relate", PANEL)
def relate(
    source: Annotated[str, Argument(help="From this memory (id).", show_default=False)],
    target: Annotated[str, Argument(help="To this memory (id).", show_default=False)],
    call: Call,
    relation: Annotated[
        str,
        Option(
            "--relation", metavar="WORD", help="What links them: related, has_child, precedes, …"
        ),
    ] = "related",
    weight: Annotated[float, Option("--weight", help="From 0.")] = 1.0,
    remove: Annotated[bool, Option("--remove", help="Remove the link.")] = False,
) -> int:
    """Link two memories."""
    with call.memory() as memory:
        if remove:
            done = memory.unrelate(source, target, relation)
        else:
            memory.relate(source, target, relation, weight=weight)
            done = True
    if remove and not done:
        say(f"there is no such link {relation!r}")
    word = ("removed" if done else "absent") if remove else "linked"
    link = {"source_id": source, "target_id": target, "relation": relation, "status": word}
    _tell(call, link, f"{word}: {relation}" if done else None)
    return FOUND if done else NOTHING


@command("invalidate", PANEL)
def invalidate(
    id: Id,
    call: Call,
    by: Annotated[
        str | None, Option("--by", metavar="ID", help="The memory that replaced it.")
    ] = None,
    at: Annotated[
        str | None, Option("--at", metavar="TIME", help="Since when (ISO 8601); default: now.")
    ] = None,
) -> int:
    """Mark a memory as no longer true."""
    since = moment(at, "--at")
    with call.memory() as memory:
        entry = memory.invalidate(id, by=by, at=since)
    from zerda_pg.cli.printing import entry_data

    told = "marked as no longer true" if by is None else f"superseded by {by}"
    _tell(call, entry_data(entry), f"{entry.id} {told}")
    return FOUND


@command("discard", PANEL)
def discard(id: Id, call: Call) -> int:
    """Hide a memory until it is restored."""
    with call.memory() as memory:
        return _done(call, id, "discarded", memory.discard(id))


@command("restore", PANEL)
def restore(id: Id, call: Call) -> int:
    """Bring a discarded memory back."""
    with call.memory() as memory:
        entry = memory.get(id)
        if entry is not None and entry.status != "discarded":
            told = f"{id} was not discarded: it is {entry.status}"
            _tell(call, {"id": id, "status": "unchanged"}, told)
            return FOUND
        return _done(call, id, "restored", memory.restore(id))


@command("delete", PANEL)
def delete(id: Id, call: Call) -> int:
    """Remove a memory and all that hangs on it."""
    with call.memory() as memory:
        return _done(call, id, "deleted", memory.delete(id))


def _done(call: Call, id: str, word: str, done: bool) -> int:
    if not done:
        say(call.missing(id))
    _tell(call, {"id": id, "status": word if done else "absent"}, f"{word} {id}" if done else None)
    return FOUND if done else NOTHING


def _tell(call: Call, data: dict[str, Any], line: str | None) -> None:
    from zerda_pg.cli import printing

    if call.json:
        printing.emit(data)
    elif line is not None:
        printing.console().print(printing.clean(line), soft_wrap=True)


@command("purge", PANEL)
def purge(
    call: Call,
    ids: Annotated[
        list[str] | None, Option("--id", metavar="ID", help="This one; may be repeated.")
    ] = None,
    session: Annotated[
        str | None, Option("--session", metavar="NAME", help="Of this session.")
    ] = None,
    status: Annotated[
        str | None, Option("--status", metavar="WORD", help="active, superseded or discarded.")
    ] = None,
    expired: Annotated[bool, Option("--expired", help="Past their time.")] = False,
    before: Annotated[
        str | None, Option("--before", metavar="TIME", help="Happened before (ISO 8601).")
    ] = None,
    everything: Annotated[
        bool, Option("--all", help="All of the tenant, or of --user; no other criterion.")
    ] = False,
    yes: Annotated[bool, Option("--yes", help="With --all: do not ask on a terminal.")] = False,
) -> int:
    """Erase what meets every criterion given, from every table; --user is a criterion too."""
    criteria: dict[str, Any] = {
        "ids": ids or None, "session_id": session, "status": status, "expired": expired,
        "before": moment(before, "--before"),
    }  # fmt: skip
    named = any(value not in (None, False) for value in criteria.values())
    if everything:
        if named:
            raise BadParameter("--all takes no criterion but --user")
        return _clear(call, yes=yes)
    if not named and call.user is None:
        raise BadParameter(
            "purge needs a criterion: --id, --user, --session, --status, --expired or --before; "
            "--all erases everything"
        )
    with call.memory() as memory:
        counts = memory.purge(user_id=call.user, **criteria)
    erased = counts.get("entries", 0)
    from zerda_pg.cli.printing import plural

    _tell(call, dict(counts), f"erased {plural(erased, 'memory', 'memories')}")
    return FOUND if erased else NOTHING


def _clear(call: Call, *, yes: bool) -> int:
    """Erase the whole tenant, or all of a user; asked for once more where someone can answer."""
    whose = f"tenant {call.tenant!r}"
    if call.user is not None:
        whose = f"user {call.user!r} in {whose}"
    if not yes and sys.stdin.isatty():
        confirm(f"Erase all memories of {whose}?", abort=True, err=True)
    with call.memory() as memory:
        erased = memory.clear()
    told = f"erased all memories of {whose}" if erased else f"{whose} has no memories"
    _tell(call, {"status": "erased" if erased else "absent"}, told)
    return FOUND if erased else NOTHING


@command("forget", PANEL)
def forget(
    call: Call,
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what would be.")] = False,
    decay_rate: Annotated[
        float | None, Option("--decay-rate", metavar="X", help="Loss per day, unused (0.15).")
    ] = None,
    threshold: Annotated[
        float | None,
        Option("--threshold", metavar="X", help="Forget at this importance or less (0.05)."),
    ] = None,
) -> int:
    """Let unused memories fade, and discard those that have faded away."""
    from zerda_pg.scoring.forgetting import ForgettingConfig

    given = {"base_decay_rate": decay_rate, "deletion_threshold": threshold}
    config = ForgettingConfig(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
    with call.memory() as memory:
        report = memory.forget(config, dry_run=dry_run)
    word = "would be discarded" if dry_run else "discarded"
    _tell(call, report, f"{report['considered']} considered, {report['forgotten']} {word}")
    return FOUND
