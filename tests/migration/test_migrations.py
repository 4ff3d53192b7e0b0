"""Migrations on real databases: up, down, at once, by every way in."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from conftest import plain
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from zerda_pg import (
    AccessDeniedError,
    ConfigError,
    DatabaseUnavailableError,
    MemoryStore,
    SchemaOutdatedError,
    SchemaTooNewError,
    check_schema,
    migrate,
)
from zerda_pg.db import migrations
from zerda_pg.db.schema import HEAD, Xid8, metadata

CHECKOUT = Path(__file__).resolve().parents[2]


def connected(url: str, **options: Any) -> psycopg.Connection:
    return psycopg.connect(plain(url), autocommit=True, **options)


def snapshot(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """What the catalog says of the schema, for comparing two databases."""
    queries = {
        "columns": "SELECT table_name, column_name, data_type, udt_name, is_nullable, "
        "column_default, is_identity, generation_expression, collation_name "
        "FROM information_schema.columns WHERE table_schema = 'zerda' ORDER BY 1, ordinal_position",
        "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) "
        "FROM pg_constraint WHERE connamespace = 'zerda'::regnamespace ORDER BY 1, 2",
        "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes "
        "WHERE schemaname = 'zerda' ORDER BY 1, 2",
        "functions": "SELECT proname, pg_get_functiondef(oid) FROM pg_proc "
        "WHERE pronamespace = 'zerda'::regnamespace ORDER BY 1, 2",
        "options": "SELECT relname, reloptions FROM pg_class "
        "WHERE relnamespace = 'zerda'::regnamespace ORDER BY 1",
        "storage": "SELECT attrelid::regclass::text, attname, attstorage, attstattarget "
        "FROM pg_attribute JOIN pg_class c ON c.oid = attrelid "
        "WHERE relnamespace = 'zerda'::regnamespace AND attnum > 0 ORDER BY 1, 2",
        "revision": "SELECT version_num FROM zerda.alembic_version",
    }
    with connected(url) as connection:
        connection.execute("SET search_path TO pg_catalog")
        return {name: connection.execute(q).fetchall() for name, q in queries.items()}


def works(url: str) -> None:
    """The database takes in and gives back a memory."""
    with MemoryStore.open(url, embedder="hashing") as store:
        memory = store.tenant("acme")
        memory.add("The deploy failed because the disk was full", id="e", tags=["ops"])
        memory.update("e", content="The deploy failed as the disk was full")
        for mode in ("hybrid", "dense", "lexical"):
            assert memory.search("disk full", mode=mode)[0].entry.id == "e"
        assert memory.purge(ids="e")["entries"] == 1


@contextmanager
def role(url: str, *, grants: str = "") -> Iterator[str]:
    """The URL of a role with few rights in the database."""
    name = f"plain_{os.urandom(4).hex()}"
    with connected(url) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        if grants:
            connection.execute(grants.format(name))
        try:
            yield make_url(url).set(username=name).render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


# ── without a database ────────────────────────────────────────────────────────────────────────


def test_one_head_which_the_package_knows() -> None:
    scripts = ScriptDirectory(str(migrations.script_location()))
    assert scripts.get_heads() == [HEAD]
    assert scripts.get_bases() == ["v1_0001"]


@pytest.mark.parametrize(
    ("revision", "error"),
    [
        (HEAD, None),
        ("v1_9999", None),
        (None, SchemaOutdatedError),
        ("v0_0001", SchemaOutdatedError),
        ("v0_9999", SchemaOutdatedError),
        ("v2_0001", SchemaTooNewError),
        ("abc", SchemaTooNewError),
    ],
)
def test_which_revisions_open(revision: str | None, error: type[Exception] | None) -> None:
    if error is None:
        migrations.check_revision(revision)
        return
    with pytest.raises(error, match=r"zerda-pg migrate|upgrade zerda-pg|no revision"):
        migrations.check_revision(revision)


# ── up and down ───────────────────────────────────────────────────────────────────────────────


# generated expressions are compared below: Alembic cannot see through the server's form of them
@pytest.mark.filterwarnings("ignore:Computed default on entr")
def test_metadata_equals_the_migrated_schema(database: str) -> None:
    # The role of the test server is called `zerda`: its default schema would be the tables'.
    options = {"options": "-c search_path=public"}
    engine = create_engine(database, poolclass=NullPool, connect_args=options)
    engine.dialect.ischema_names = engine.dialect.ischema_names | {"xid8": Xid8}  # type: ignore[attr-defined]
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "compare_type": True,
                "compare_server_default": True,
                "version_table": "alembic_version",
                "version_table_schema": "zerda",
                "include_name": lambda name, kind, parents: kind != "schema" or name == "zerda",
            },
        )
        assert compare_metadata(context, metadata) == []


def test_tables_made_from_the_metadata_are_the_same(database: str, empty_database: str) -> None:
    """To the letter, as the server's catalog has them."""
    engine = create_engine(empty_database, poolclass=NullPool)
    with engine.begin() as connection:
        for extension in migrations.EXTENSIONS:
            connection.execute(text(f"CREATE EXTENSION {extension} SCHEMA public"))
        connection.execute(text("CREATE SCHEMA zerda"))
        connection.execute(text("CREATE TABLE zerda.alembic_version (version_num text)"))
        functions = Path(migrations.script_location()) / "functions" / HEAD
        connection.exec_driver_sql((functions / "search_vector.sql").read_text(encoding="utf-8"))
        metadata.create_all(connection)
    made, migrated = snapshot(empty_database), snapshot(database)
    for part in ("columns", "constraints", "indexes", "options"):
        ours, theirs = (
            [row for row in each[part] if "alembic_version" not in str(row)]
            for each in (made, migrated)
        )
        assert ours == theirs, part


def test_from_empty(empty_database: str) -> None:
    with pytest.raises(SchemaOutdatedError, match="zerda-pg migrate"):
        check_schema(empty_database)
    with pytest.raises(SchemaOutdatedError, match="zerda-pg migrate"):
        MemoryStore.open(empty_database, embedder="hashing")
    migrate(empty_database)
    check_schema(empty_database)
    migrate(empty_database)
    works(empty_database)


def test_open_migrates_if_asked(empty_database: str) -> None:
    with MemoryStore.open(empty_database, embedder="hashing", migrate=True) as store:
        store.tenant("acme").add("x")
    with MemoryStore.open(empty_database, embedder="hashing", migrate=True) as store:
        assert store.tenant("acme").count() == 1


def test_down_to_base_and_up_again(database: str) -> None:
    before = snapshot(database)
    works(database)
    migrations.downgrade(database, "base")
    with connected(database) as connection:
        left = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'zerda'::regnamespace "
            "AND relkind = 'r' AND relname <> 'alembic_version' "
            "UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'zerda'::regnamespace"
        ).fetchall()
    assert left == []
    with pytest.raises(SchemaOutdatedError):
        check_schema(database)
    migrate(database)
    assert snapshot(database) == before
    works(database)


def test_data_survives_a_second_upgrade(database: str) -> None:
    with MemoryStore.open(database, embedder="hashing") as store:
        store.tenant("acme").add("x", id="e")
    migrate(database)
    with MemoryStore.open(database) as store:
        assert store.tenant("acme").count() == 1


def test_six_processes_at_once(empty_database: str) -> None:
    code = "import sys, zerda_pg; zerda_pg.migrate(sys.argv[1]); print('done')"

    def run(_: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, empty_database],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    with ThreadPoolExecutor(6) as pool:
        for result in pool.map(run, range(6)):
            assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    check_schema(empty_database)
    works(empty_database)


def test_an_open_transaction_elsewhere_does_not_stop_it(empty_database: str) -> None:
    """Whoever calls it from within a transaction of his own gets a migrated schema, no deadlock."""
    with psycopg.connect(plain(empty_database)) as connection:
        connection.execute("CREATE TABLE public.mine (x int)")
        migrate(empty_database)
        connection.execute("INSERT INTO public.mine VALUES (1)")
    works(empty_database)


# ── other ways in ─────────────────────────────────────────────────────────────────────────────


def alembic(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("ZERDA_PG")} | environment
    return subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_alembic_in_a_checkout_by_environment(empty_database: str) -> None:
    result = alembic("upgrade", "head", ZERDA_PG_URL=empty_database)
    assert result.returncode == 0, result.stderr
    check_schema(empty_database)
    result = alembic("check", ZERDA_PG_URL=empty_database)
    assert result.returncode in {0, 255}  # a role named as the schema confuses autogeneration


def test_alembic_in_a_checkout_by_argument(empty_database: str) -> None:
    """A percent sign in the password reaches the driver as it is."""
    url = make_url(empty_database).set(password="100%sure%20%").render_as_string(False)
    assert "%25" in url
    result = alembic("-x", f"url={url}", "upgrade", "head", ZERDA_PG_EMBEDDED="0")
    assert result.returncode == 0, result.stderr
    check_schema(url)
    result = alembic("-x", f"url={url}", "downgrade", "base", ZERDA_PG_EMBEDDED="0")
    assert result.returncode == 0, result.stderr
    with pytest.raises(SchemaOutdatedError):
        check_schema(url)
    migrate(url)
    works(url)


def test_the_offline_script_gives_the_same_schema(database: str, empty_database: str) -> None:
    script = migrations.offline_script()
    with psycopg.connect(plain(empty_database)) as connection:
        connection.execute(script)
        connection.commit()
    check_schema(empty_database)
    assert snapshot(empty_database) == snapshot(database)
    works(empty_database)
    migrate(empty_database)


def test_the_offline_script_needs_no_database() -> None:
    code = "from zerda_pg.db.migrations import offline_script; print(offline_script())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"ZERDA_PG_URL": "postgresql://nobody:secret@127.0.0.1:1/none"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    schema, table = (result.stdout.index(f"CREATE {x} ") for x in ("SCHEMA", "TABLE"))
    assert schema < table
    assert f"'{HEAD}'" in result.stdout


# ── extensions and rights ─────────────────────────────────────────────────────────────────────


def test_extensions_in_another_schema(empty_database: str) -> None:
    with connected(empty_database) as connection:
        connection.execute('CREATE SCHEMA "Ext"')
        connection.execute('CREATE EXTENSION vector SCHEMA "Ext"')
        connection.execute('CREATE EXTENSION btree_gin SCHEMA "Ext"')
    migrate(empty_database)
    works(empty_database)
    with MemoryStore.open(empty_database, embedder="hashing") as store:
        memory = store.tenant("acme")
        memory.add_many([{"content": f"note {n}"} for n in range(20)])
        assert len(memory.search("note", ranker="fusion")) == 10
        assert len(memory.search_many(["note", "7"])) == 2
        memory.forget()


def test_a_role_that_may_create_nothing(empty_database: str) -> None:
    """The error has every statement for the administrator; after them it works."""
    with role(empty_database) as url:
        with pytest.raises(AccessDeniedError, match="may not create the schema 'zerda'") as raised:
            migrate(url)
        message = str(raised.value)
        statements = message[message.index("CREATE") :]
        assert statements.count(";") == 3
        with connected(empty_database) as connection:
            connection.execute(statements)
        migrate(url)
        works(url)


def test_a_role_that_may_not_create_extensions(empty_database: str) -> None:
    with role(empty_database, grants="CREATE SCHEMA zerda AUTHORIZATION {0}") as url:
        with pytest.raises(AccessDeniedError, match="may not create the extension") as raised:
            migrate(url)
        message = str(raised.value)
        assert "CREATE EXTENSION IF NOT EXISTS vector SCHEMA public;" in message
        assert "CREATE EXTENSION IF NOT EXISTS btree_gin SCHEMA public;" in message
        with connected(empty_database) as connection:
            connection.execute(message[message.index("CREATE") :])
        migrate(url)
        works(url)


def test_a_role_without_rights_on_the_tables(database: str) -> None:
    with role(database) as url, pytest.raises(AccessDeniedError, match="permission denied"):
        MemoryStore.open(url, embedder="hashing")


def test_a_role_that_may_only_read(database: str) -> None:
    """It searches without recording; a write is refused in our words."""
    with MemoryStore.open(database, embedder="hashing") as store:
        store.tenant("acme").add("The deploy failed", id="e")
    grants = "GRANT USAGE ON SCHEMA zerda TO {0}; GRANT SELECT ON ALL TABLES IN SCHEMA zerda TO {0}"
    with role(database, grants=grants) as url, MemoryStore.open(url, embedder="hashing") as store:
        memory = store.tenant("acme")
        assert [h.entry.id for h in memory.search("deploy")] == ["e"]
        store.flush()
        for call in (
            lambda: memory.add("x"),
            lambda: memory.delete("e"),
            lambda: memory.update("e", kind="fact"),
            memory.forget,
        ):
            with pytest.raises(AccessDeniedError, match="permission denied"):
                call()
        assert memory.count() == 1


# ── other versions ────────────────────────────────────────────────────────────────────────────


def set_revision(url: str, revision: str) -> None:
    with connected(url) as connection:
        connection.execute("UPDATE zerda.alembic_version SET version_num = %s", [revision])


def test_a_newer_revision_of_the_same_major_version_opens(database: str) -> None:
    """So that a deployment can roll; migrating from the older package then does nothing."""
    set_revision(database, "v1_9999")
    check_schema(database)
    works(database)
    migrate(database)
    with MemoryStore.open(database, embedder="hashing", migrate=True) as store:
        assert store.tenant("acme").count() == 0
    with connected(database) as connection:
        found = connection.execute("SELECT version_num FROM zerda.alembic_version").fetchall()
    assert found == [("v1_9999",)]


@pytest.mark.parametrize(
    ("revision", "error"), [("v2_0001", SchemaTooNewError), ("v0_0001", SchemaOutdatedError)]
)
def test_other_major_versions_do_not_open(
    database: str, revision: str, error: type[Exception]
) -> None:
    set_revision(database, revision)
    with pytest.raises(error, match=revision):
        check_schema(database)
    with pytest.raises(error, match=revision):
        MemoryStore.open(database, embedder="hashing")
    if error is SchemaTooNewError:
        with pytest.raises(error, match=revision):
            migrate(database)


# ── bad addresses ─────────────────────────────────────────────────────────────────────────────

SECRET = "s3cr3t-Pa55"


@pytest.mark.parametrize(
    ("url", "error"),
    [
        (f"mysql://root:{SECRET}@localhost/db", ConfigError),
        (f"sqlite:///{SECRET}.db", ConfigError),
        (f"postgresql://me:{SECRET}@localhost:port/db", ConfigError),
        (f"host=localhost password={SECRET}", ConfigError),
        ("nonsense", ConfigError),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/db", DatabaseUnavailableError),
        (f"postgres://me:{SECRET}@127.0.0.1:1/db", DatabaseUnavailableError),
        (f"postgresql+asyncpg://me:{SECRET}@127.0.0.1:1/db", DatabaseUnavailableError),
        (f"postgresql://me:{SECRET}@no-such-host.invalid/db", DatabaseUnavailableError),
        (f"postgresql://me@127.0.0.1:1/db?password={SECRET}", DatabaseUnavailableError),
        (f"postgresql://me:{SECRET}@/db?host=/no/such/folder", DatabaseUnavailableError),
    ],
)
def test_bad_addresses(url: str, error: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """Each an error of ours, soon, and the password in no message, chain or log."""
    caplog.set_level(logging.DEBUG)
    for call in (
        lambda: migrate(url),
        lambda: check_schema(url),
        lambda: MemoryStore.open(url, embedder="hashing"),
    ):
        with pytest.raises(error) as raised:
            call()
        chain = "".join(traceback.format_exception(raised.value))
        assert SECRET not in chain.replace(url, "")  # this test's own source lines
        assert SECRET not in f"{raised.value} {raised.value!r}"
    assert SECRET not in caplog.text


@pytest.mark.parametrize("part", ["database", "username"])
def test_a_database_or_role_that_is_not_there(database: str, part: str) -> None:
    url = make_url(database).set(**{part: "not_there"}).render_as_string(False)  # type: ignore[arg-type]
    with pytest.raises(
        (ConfigError, AccessDeniedError, DatabaseUnavailableError), match="not_there"
    ):
        MemoryStore.open(url, embedder="hashing")


def test_the_password_is_hidden_in_what_is_printed(database: str) -> None:
    url = make_url(database).set(password=SECRET).update_query_dict({"sslpassword": SECRET})
    with MemoryStore.open(url.render_as_string(False), embedder="hashing") as store:
        assert store.url.startswith("postgresql://zerda:***@")
        assert SECRET not in f"{store.url} {store!r} {store.tenant('a')!r} {store.stats()}"


def test_our_own_engine(database: str) -> None:
    engine = create_engine(make_url(database))
    with MemoryStore.open(engine=engine, embedder="hashing") as store:
        store.tenant("acme").add("The deploy failed", id="e")
        assert store.tenant("acme").search("deploy")[0].entry.id == "e"
    with engine.connect() as connection:  # it was not disposed of
        assert connection.scalar(text("SELECT count(*) FROM zerda.entries")) == 1
    engine.dispose()


def test_without_prepared_statements(database: str) -> None:
    with MemoryStore.open(database, embedder="hashing", prepare=False) as store:
        memory = store.tenant("acme")
        for n in range(12):
            memory.add(f"note {n}")
            assert memory.search("note", k=1)
        store.flush()
    with connected(database) as connection:
        assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
