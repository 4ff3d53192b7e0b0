"""Row-level security and the roles that it is for, as statements.

The policies compare a row's tenant with the setting that `zerda.use_tenant()` makes for a
transaction. They bind every role but the tables' owner (ENABLE, not FORCE), so that upkeep and
migrations go on seeing all tenants. They have no subquery, which a distributed database would
refuse, and without a tenant they admit nothing.

Stores that are open meanwhile must begin to name their tenant before it is asked for. So each
table first gets a second policy too, which admits everything; it goes once they have noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psycopg import sql
from sqlalchemy import Connection, text

from zerda_pg.db.schema import SCHEMA, metadata

__all__ = [
    "BOUND",
    "LOOK_SECONDS",
    "SETTLING_SECONDS",
    "enforce_isolation",
    "isolation_script",
    "prepare_isolation",
    "roles_script",
]

POLICY = "tenant_isolation"
SETTLING = "tenant_isolation_settling"

LOOK_SECONDS = 2.0
"""How often a store that policies do not bind asks whether they do by now; a round trip each."""

SETTLING_SECONDS = 5.0
"""How long everything is admitted: a store has looked by then, and what it had begun is over."""

BOUND = f"SELECT row_security_active('{SCHEMA}.entries')"
"""Whether policies bind the role."""

_OWN_TENANT = "tenant_id = nullif(current_setting('zerda.tenant_id', true), '')"

LOCK_WAIT = "10s"
"""For a table that is in use: those who come after wait behind."""


def tenant_tables() -> list[str]:
    """The tables whose rows belong to a tenant."""
    return sorted(table.name for table in metadata.sorted_tables if "tenant_id" in table.c)


def _preparing(table: str) -> list[str]:
    """The table's policies, and one that still admits everything."""
    name = f"{SCHEMA}.{table}"
    return [
        f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
        f"DROP POLICY IF EXISTS {POLICY} ON {name}",
        f"CREATE POLICY {POLICY} ON {name} USING ({_OWN_TENANT}) WITH CHECK ({_OWN_TENANT})",
        f"DROP POLICY IF EXISTS {SETTLING} ON {name}",
        f"CREATE POLICY {SETTLING} ON {name} USING (true) WITH CHECK (true)",
    ]


def _enforcing(table: str) -> list[str]:
    return [f"DROP POLICY IF EXISTS {SETTLING} ON {SCHEMA}.{table}"]


def _tables_with(connection: Connection, policy: str) -> set[str]:
    found = text(
        "SELECT c.relname FROM pg_class c JOIN pg_policy p ON p.polrelid = c.oid "
        "WHERE c.relnamespace = to_regnamespace(:schema) AND c.relrowsecurity "
        "AND p.polname = :policy"
    )
    with connection.begin():
        return set(connection.scalars(found, {"schema": SCHEMA, "policy": policy}))


def _alter(connection: Connection, statements: Sequence[str]) -> None:
    """Change one table in a transaction of its own: locks on two would wait for each other's."""
    with connection.begin():
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
        for statement in statements:
            connection.exec_driver_sql(statement)


def prepare_isolation(connection: Connection) -> bool:
    """Set the policies up where they are missing; all rows are still admitted.

    Tables that have theirs are left alone: a statement on them would wait for every reader.

    Returns:
        Whether there is something to enforce, once stores have noticed.
    """
    done = _tables_with(connection, POLICY)
    for table in tenant_tables():
        if table not in done:
            _alter(connection, _preparing(table))
    return bool(_tables_with(connection, SETTLING))


def enforce_isolation(connection: Connection) -> None:
    """From now on rows of no tenant but the one that is set are admitted."""
    for table in sorted(_tables_with(connection, SETTLING)):
        _alter(connection, _enforcing(table))


def isolation_script() -> str:
    """The same as SQL, for an administrator."""

    def transactions(statements: Callable[[str], Sequence[str]]) -> str:
        return "".join(
            "BEGIN;\n" + "".join(f"{line};\n" for line in statements(table)) + "COMMIT;\n"
            for table in tenant_tables()
        )

    return (
        f"{transactions(_preparing)}-- until the stores that are open have noticed\n"
        f"SELECT pg_sleep({SETTLING_SECONDS:g});\n{transactions(_enforcing)}"
    )


_WRITTEN = (
    "changes", "edges", "embeddings", "entries", "entry_state", "entry_versions",
    "layer_entries", "lexemes", "session_touches", "tenants",
)  # fmt: skip
"""What an agent reads and writes, of its own tenant."""


def roles_script(
    owner: str = "zerda_owner", agent: str = "zerda_agent", reader: str = "zerda_reader"
) -> str:
    """SQL for an administrator: three roles, each with what it needs and no more.

    Nobody logs in as one of them: grant it to the roles that log in. It may be run again, as it
    must be after a release that brings new tables.

    Args:
        owner: Migrates, maintains, re-embeds; sees all tenants.
        agent: Reads and writes the tenant that is set.
        reader: Reads the tenant that is set; its searches count no accesses.
    """
    names = {"owner": owner, "agent": agent, "reader": reader}
    quoted = {word: sql.Identifier(name).as_string(None) for word, name in names.items()}
    lines: list[str] = []
    for name in names.values():
        literal, identifier = (
            sql.Literal(name).as_string(None),
            sql.Identifier(name).as_string(None),
        )
        lines.append(
            f"DO $$ BEGIN IF to_regrole(quote_ident({literal})) IS NULL THEN "
            f"CREATE ROLE {identifier} NOLOGIN; END IF; "
            "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        )
    tables = ", ".join(f"{SCHEMA}.{name}" for name in _WRITTEN)
    both = f"{quoted['agent']}, {quoted['reader']}"
    shared = f"{SCHEMA}.embedding_models, {SCHEMA}.alembic_version"
    lines += [
        f"GRANT CREATE, USAGE ON SCHEMA {SCHEMA} TO {quoted['owner']}",
        f"GRANT USAGE ON SCHEMA {SCHEMA} TO {both}",
        f"GRANT SELECT ON {tables}, {shared} TO {both}",
        f"GRANT INSERT, UPDATE, DELETE ON {tables} TO {quoted['agent']}",
        # an agent's first write records the model
        f"GRANT INSERT ON {SCHEMA}.embedding_models TO {quoted['agent']}",
        f"GRANT EXECUTE ON FUNCTION {SCHEMA}.postings(text[], tsquery[], integer, jsonb) TO {both}",
    ]
    return (
        "BEGIN;\n" + "".join(f"{line};\n" for line in lines) + _own(quoted["owner"]) + "COMMIT;\n"
    )


def _own(owner: str) -> str:
    """Hand the schema over: only who owns the tables may alter them."""
    return f"""\
ALTER SCHEMA {SCHEMA} OWNER TO {owner};
DO $$
DECLARE
    v_statement text;
BEGIN
    FOR v_statement IN
        SELECT format('ALTER TABLE %s OWNER TO {owner}', c.oid::regclass)
        FROM pg_class c WHERE c.relnamespace = '{SCHEMA}'::regnamespace AND c.relkind IN ('r', 'p')
        UNION ALL
        SELECT format('ALTER FUNCTION %s OWNER TO {owner}', f.oid::regprocedure)
        FROM pg_proc f WHERE f.pronamespace = '{SCHEMA}'::regnamespace
    LOOP
        EXECUTE v_statement;
    END LOOP;
END
$$;
"""
