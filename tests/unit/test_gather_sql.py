"""The hot statement as text: readable, bounded, and every block within its tenant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zerda_pg.db.criteria import Criteria
from zerda_pg.db.gather import GatherShape, gather_sql
from zerda_pg.filters import Filter
from zerda_pg.scope import Scope

GOLDEN = Path(__file__).parent / "golden" / "gather.sql"

SHAPES = [
    GatherShape(),
    GatherShape(dense=False),
    GatherShape(lexical=False),
    GatherShape(degree=True, session=True, vectors=True),
    GatherShape(ann=384),
]


def statement(shape: GatherShape, **criteria: object) -> str:
    wanted = Criteria(scope=Scope(tenant_id="t"), **criteria)  # type: ignore[arg-type]
    return gather_sql(wanted, shape, "public")


def test_the_statement_is_as_it_was_read_last() -> None:
    """After a change: read the statement, measure it, then write the file anew."""
    assert statement(GatherShape()) + "\n" == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("shape", SHAPES)
def test_every_block_that_reads_a_table_names_the_tenant(shape: GatherShape) -> None:
    text = statement(shape, filter=Filter(min_importance=0.1))
    # embedding models belong to no tenant
    tables = re.findall(r"(?:FROM|JOIN) zerda\.(?!embedding_models|nearest)\w+", text)
    tenants = re.findall(r"(?:tenant_id = |nearest\(CAST\()%\(tenant\)s", text)
    assert len(tables) >= 5
    assert len(tenants) >= len(tables)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_optional_condition_stands_in_the_text(shape: GatherShape) -> None:
    assert " IS NULL OR %(" not in statement(shape)
