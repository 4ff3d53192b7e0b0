"""migrate and doctor."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import BadParameter, Option

from zerda_pg.cli.application import command
from zerda_pg.cli.failures import ENVIRONMENT, FOUND
from zerda_pg.cli.options import Call

__all__: list[str] = []

PANEL = "Database"


@command("migrate", PANEL)
def migrate(
    call: Call,
    check: Annotated[
        bool, Option("--check", help="Change nothing; exit 3 if the schema does not fit.")
    ] = False,
    sql: Annotated[
        bool, Option("--sql", help="Print the SQL for an administrator; needs no database.")
    ] = False,
    rls: Annotated[
        bool,
        Option(
            "--rls",
            help="Set row-level security up too; with --sql also the roles that it is for.",
        ),
    ] = False,
    roles: Annotated[
        bool,
        Option("--roles", help="Print the SQL of those roles alone, for a schema that is there."),
    ] = False,
) -> int:
    """Bring the schema to this package's version."""
    if check and rls:
        raise BadParameter("--check and --rls exclude each other")
    if check and sql:
        raise BadParameter("--check and --sql exclude each other")
    if roles and (check or sql or rls):
        raise BadParameter("--roles stands alone")
    if sql or roles:
        from zerda_pg.db.isolation import isolation_script, roles_script
        from zerda_pg.db.migrations import offline_script

        script = roles_script() if roles else offline_script()
        if rls:
            script += f"\n{roles_script()}\n{isolation_script()}"
        if call.json:
            from zerda_pg.cli.printing import emit

            emit({"sql": script})
        else:
            sys.stdout.write(script)
        return FOUND
    from zerda_pg import admin
    from zerda_pg.config import Settings
    from zerda_pg.db.location import database_url
    from zerda_pg.db.migrations import revision_of
    from zerda_pg.db.schema import HEAD

    with database_url(call.url) as url:
        timeout = Settings.from_env().maintenance_timeout
        before = None if check else revision_of(url, timeout=timeout)
        if check:
            admin.check_schema(url)
        else:
            admin.migrate(url, rls=rls)
    from zerda_pg.cli import printing

    if check or before == HEAD:
        status, told = "fits", f"the schema is up to date ({HEAD})"
    elif before is None:
        status, told = "created", f"created the schema ({HEAD})"
    else:
        status, told = "migrated", f"brought the schema from {before} to {HEAD}"
    if rls:
        told += "; row-level security is set up: its roles are in `zerda-pg migrate --roles`"
    if call.json:
        printing.emit({"schema": HEAD, "status": status})
    else:
        printing.console().print(told)
    return FOUND


@command("doctor", PANEL)
def doctor(call: Call) -> int:
    """Look at server, schema, model and packages, and say what to do."""
    from zerda_pg.cli.checkup import examine
    from zerda_pg.cli.printing import emit

    findings = examine(call.url, call.embedder)
    if call.json:
        emit(findings.data())
    else:
        findings.show()
    return ENVIRONMENT if findings.problems else FOUND
