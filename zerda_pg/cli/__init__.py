"""The command `zerda-pg`.

Nothing here imports SQLAlchemy or a model before a command runs, and the model loads in a thread
while the database is joined: a search is mostly start-up.
"""

from __future__ import annotations

import zerda_pg.cli.curating
import zerda_pg.cli.database
import zerda_pg.cli.demo
import zerda_pg.cli.reading
import zerda_pg.cli.recalling
import zerda_pg.cli.upkeep
import zerda_pg.cli.writing  # noqa: F401 - each registers its commands
from zerda_pg.cli.application import main

__all__ = ["main"]
