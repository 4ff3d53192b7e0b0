"""What Alembic runs; `zerda_pg.db.migrations` does the work, in a checkout and from a wheel."""

from __future__ import annotations

from alembic import context

from zerda_pg.db.migrations import run_env

run_env(context)
