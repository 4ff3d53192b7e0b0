"""What a database distributed by tenant asks of the schema, from the catalog and the sources."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from isolated import isolated_database

CHECKOUT = Path(__file__).resolve().parents[2]

SHARED = {"embedding_models", "alembic_version"}
"""Tables of all tenants."""


def tables(admin: psycopg.Connection) -> set[str]:
    found = admin.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'zerda'::regnamespace AND relkind = 'r'"
    ).fetchall()
    return {str(name) for (name,) in found}


def test_every_table_but_the_shared_ones_has_a_tenant(admin: psycopg.Connection) -> None:
    found = admin.execute(
        "SELECT table_name, is_nullable, data_type FROM information_schema.columns "
        "WHERE table_schema = 'zerda' AND column_name = 'tenant_id'"
    ).fetchall()
    assert {name for name, *_ in found} == tables(admin) - SHARED
    assert {tuple(rest) for _, *rest in found} == {("NO", "text")}


def test_every_key_and_index_starts_with_the_tenant(admin: psycopg.Connection) -> None:
    found = admin.execute(
        "SELECT t.relname, x.relname, i.indisunique, a.attname, "
        "(SELECT array_agg(k.attname) FROM pg_attribute k WHERE k.attrelid = i.indexrelid) "
        "FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid "
        "JOIN pg_class x ON x.oid = i.indexrelid "
        "LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
        "WHERE t.relnamespace = 'zerda'::regnamespace"
    ).fetchall()
    assert len(found) > 15
    for table, index, _, first, _ in found:
        if table not in SHARED:
            assert first == "tenant_id", index


def test_foreign_keys_map_tenant_to_tenant(admin: psycopg.Connection) -> None:
    found = admin.execute(
        "SELECT c.conname, s.relname, t.relname, c.confdeltype, c.confupdtype, sa.attname, "
        "ta.attname FROM pg_constraint c JOIN pg_class s ON s.oid = c.conrelid "
        "JOIN pg_class t ON t.oid = c.confrelid "
        "JOIN pg_attribute sa ON sa.attrelid = c.conrelid AND sa.attnum = c.conkey[1] "
        "JOIN pg_attribute ta ON ta.attrelid = c.confrelid AND ta.attnum = c.confkey[1] "
        "WHERE c.contype = 'f' AND c.connamespace = 'zerda'::regnamespace"
    ).fetchall()
    assert len(found) >= 6
    for name, source, target, on_delete, on_update, first, other in found:
        assert (first, other) == ("tenant_id", "tenant_id"), name
        assert on_delete in {"a", "c", "r"}, f"{name}: no SET NULL, no SET DEFAULT"
        assert on_update in {"a", "r"}, name
        assert not {source, target} & SHARED, name


def test_no_triggers_rules_or_exclusions(admin: psycopg.Connection) -> None:
    for query in (
        "SELECT tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
        "WHERE c.relnamespace = 'zerda'::regnamespace AND NOT t.tgisinternal",
        "SELECT rulename FROM pg_rules WHERE schemaname = 'zerda'",
        "SELECT conname FROM pg_constraint WHERE connamespace = 'zerda'::regnamespace "
        "AND contype = 'x'",
    ):
        assert admin.execute(query).fetchall() == []


def test_no_subquery_in_a_policy(server: None) -> None:
    with isolated_database() as roles, psycopg.connect(roles.admin) as connection:
        found = connection.execute(
            "SELECT concat(qual, with_check) FROM pg_policies WHERE schemaname = 'zerda'"
        ).fetchall()
    assert len(found) > 5
    assert [text for (text,) in found if re.search(r"\bselect\b", text, re.IGNORECASE)] == []


def test_no_function_notifies_where_nobody_listens(admin: psycopg.Connection) -> None:
    found = admin.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'zerda'::regnamespace "
        "AND prosrc ~* '\\m(pg_)?notify\\M'"
    ).fetchall()
    assert found == []


def test_what_must_come_before_distribution_is_in_the_first_migration() -> None:
    for path in sorted((CHECKOUT / "migrations" / "versions").glob("*.py"))[1:]:
        assert not re.search(r"SET (STORAGE|STATISTICS)", path.read_text()), path.name


def test_keys_sort_by_bytes(admin: psycopg.Connection) -> None:
    """So that ties match Python's order, and one type and collation is everywhere."""
    found = admin.execute(
        "SELECT table_name, column_name, collation_name FROM information_schema.columns "
        "WHERE table_schema = 'zerda' AND table_name <> 'alembic_version' "
        "AND data_type = 'text' AND (column_name ~ '(^|_)id$' OR column_name IN "
        "('relation', 'layer', 'lexeme'))"
    ).fetchall()
    assert len(found) > 20
    assert [row for row in found if row[2] != "C"] == []


def test_the_choices_that_are_costly_to_change(admin: psycopg.Connection) -> None:
    def one(query: str) -> object:
        row = admin.execute(query).fetchone()
        assert row is not None
        return row[0]

    assert one("SELECT reloptions FROM pg_class WHERE oid = 'zerda.entry_state'::regclass") == [
        "fillfactor=70"
    ]
    assert (
        one(
            "SELECT attstorage::text FROM pg_attribute "
            "WHERE attrelid = 'zerda.embeddings'::regclass AND attname = 'embedding'"
        )
        == "p"
    )
    assert one(
        "SELECT reloptions FROM pg_class WHERE oid = 'zerda.ix_entries_search'::regclass"
    ) == ["fastupdate=off"]
    assert (
        one(
            "SELECT attgenerated::text FROM pg_attribute "
            "WHERE attrelid = 'zerda.entries'::regclass AND attname = 'search'"
        )
        == "s"
    )
    assert (
        one(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'zerda.entries'::regclass AND attname = 'content'"
        )
        == "json"
    )
    # one index beside its key would make every recorded access write to it
    assert one("SELECT count(*) FROM pg_indexes WHERE tablename = 'entry_state'") == 1
    assert (
        one(
            "SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
            "WHERE c.relnamespace = 'zerda'::regnamespace AND a.atttypid = 'regconfig'::regtype"
        )
        == 0
    )
    with pytest.raises(psycopg.errors.CheckViolation):
        admin.execute(
            "INSERT INTO zerda.entries (tenant_id, id, version, memory_type, content, body, tags, "
            "metadata, language, status, created_at, recorded_at, updated_at, content_hash) "
            "VALUES ('', 'e', 1, 'semantic', '1', '1', '{}', '{}', 'english', 'active', now(), "
            "now(), now(), '')"
        )


BANNED = {
    "set_config(": r"set_config\s*\(",
    "MERGE": r"\bMERGE\s+INTO\b",
    "force_generic_plan": r"force_generic_plan",
    "diag.constraint_name": r"diag\s*\.\s*(constraint_name|table_name)|\.constraint_name\b",
    "CYCLE or SEARCH": r"\bSEARCH (DEPTH|BREADTH) FIRST\b|\bCYCLE \w+ SET\b",
    "LANGUAGE sql": r"\bLANGUAGE\s+sql\b",
    "reltuples": r"\breltuples\b",
    "SET SESSION": r"\bSET SESSION\b",
    "DROP EXTENSION": r"\bDROP EXTENSION\b",
    "ADD COLUMN with more than a default": r"\bADD COLUMN\b.*\b(CHECK|IDENTITY|\w*SERIAL)\b",
    "several indexes in one DROP INDEX": r"\bDROP INDEX\b[^;\"]*,\s*[\w{]",
    # power() and exp() of old entries do not fit it, which is an error
    "real": r"::\s*(real|float4)\b",
}

GUARDED = {"force_generic_plan": "zerda_pg/db/engine.py"}
"""Where it is looked for Citus first: `test_plans_are_kept_unless_citus_is_there`."""


@pytest.mark.parametrize("what", BANNED)
def test_what_a_distributed_database_cannot_do_is_in_no_source(what: str) -> None:
    sources = [
        path
        for folder in ("zerda_pg", "migrations")
        for path in sorted((CHECKOUT / folder).rglob("*"))
        if path.suffix in {".py", ".sql"} and path != CHECKOUT / GUARDED.get(what, "none")
    ]
    assert len(sources) > 40
    assert CHECKOUT / "migrations/functions/v1_0001/put_entries.sql" in sources
    pattern = re.compile(BANNED[what], re.IGNORECASE if what != "MERGE" else 0)
    found = [
        f"{path.relative_to(CHECKOUT)}: {line.strip()}"
        for path in sources
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(line) and not line.lstrip().startswith(("#", "--"))
    ]
    assert found == []
