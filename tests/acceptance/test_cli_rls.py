"""`zerda-pg migrate --rls`, on a database and as a script."""

from __future__ import annotations

import psycopg
import pytest
from commandline import CommandLine

pytest_plugins = ["command_fixtures"]

PROTECTED = (
    "SELECT count(*) FROM pg_class c JOIN pg_policy p ON p.polrelid = c.oid "
    "WHERE c.relnamespace = 'zerda'::regnamespace AND c.relrowsecurity"
)


def protected(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(PROTECTED).fetchone()
    assert row is not None
    return int(row[0])


def test_a_database(run: CommandLine, empty_database: str) -> None:
    run.plain("migrate", "--url", empty_database)
    assert protected(empty_database) == 0
    run.plain("migrate", "--rls", "--url", empty_database)
    assert protected(empty_database) >= 10
    run.plain("migrate", "--url", empty_database)
    assert protected(empty_database) >= 10
    assert "exclude" in run.plain("migrate", "--rls", "--check", code=2).err


def test_the_roles_of_a_schema_that_is_there(run: CommandLine, empty_database: str) -> None:
    told = run.plain("migrate", "--rls", "--url", empty_database).out
    assert "migrate --roles" in told
    script = run.plain("migrate", "--roles").out
    with psycopg.connect(empty_database, autocommit=True) as connection:
        for _ in range(2):  # it may be run again
            connection.execute(script.encode())
        connection.execute("SET ROLE zerda_agent")
        assert connection.execute("SELECT count(*) FROM zerda.entries").fetchone() == (0,)
    for other in ("--sql", "--rls", "--check"):
        assert "alone" in run.plain("migrate", "--roles", other, code=2).err


def test_the_script(run: CommandLine, empty_database: str) -> None:
    """Schema, policies and roles, as an administrator runs it."""
    script = run.plain("migrate", "--sql", "--rls").out
    assert "tenant_isolation" not in run.plain("migrate", "--sql").out
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(script.encode())
        assert protected(empty_database) >= 10
        connection.execute("SET ROLE zerda_agent")
        assert connection.execute("SELECT count(*) FROM zerda.entries").fetchone() == (0,)
        connection.execute("SET ROLE zerda_reader")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM zerda.entries")
        owners = connection.execute(
            "SELECT DISTINCT relowner::regrole::text FROM pg_class "
            "WHERE relnamespace = to_regnamespace('zerda') AND relkind = 'r'"
        ).fetchall()
        assert owners == [("zerda_owner",)]
