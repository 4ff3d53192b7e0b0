"""Databases with row-level security, and the roles that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from sqlalchemy import create_engine, make_url

from zerda_pg.db.isolation import enforce_isolation, prepare_isolation, roles_script
from zerda_pg.testing import temporary_database

OWNER, AGENT, READER = "zerda_test_owner", "zerda_test_agent", "zerda_test_reader"
PASSWORD = "for-tests-only"


@dataclass(frozen=True, kw_only=True)
class Isolated:
    """One database by the URL of each role."""

    admin: str
    owner: str
    agent: str
    reader: str


@contextmanager
def isolated_database() -> Iterator[Isolated]:
    """A migrated database with policies, owned by a role that is no superuser."""
    with temporary_database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(roles_script(OWNER, AGENT, READER).encode())
            for role in (OWNER, AGENT, READER):
                let_in(connection, role)
        roles = {role: login(url, role) for role in (OWNER, AGENT, READER)}
        engine = create_engine(make_url(roles[OWNER]).set(drivername="postgresql+psycopg"))
        with engine.connect() as own:
            prepare_isolation(own)
            enforce_isolation(own)
        engine.dispose()
        _ADMINISTRATORS[roles[AGENT]] = url
        yield Isolated(admin=url, owner=roles[OWNER], agent=roles[AGENT], reader=roles[READER])


_ADMINISTRATORS: dict[str, str] = {}


def administrator(url: str) -> str:
    """For an agent's URL the one that sees all of its database, else the URL itself."""
    return _ADMINISTRATORS.get(url, url)


def let_in(connection: psycopg.Connection, role: str) -> None:
    """Roles belong to the whole server: another worker may be doing the same."""
    for _ in range(20):
        known = connection.execute("SELECT rolcanlogin FROM pg_roles WHERE rolname = %s", [role])
        if known.fetchone() == (True,):
            return
        with suppress(psycopg.errors.InternalError):  # "tuple concurrently updated"
            connection.execute(f"ALTER ROLE {role} LOGIN PASSWORD '{PASSWORD}'".encode())
    raise AssertionError(f"{role} could not be let in")


def login(url: str, role: str) -> str:
    """The URL as one of the roles."""
    changed = make_url(url).set(username=role, password=PASSWORD)
    return changed.render_as_string(hide_password=False)
