"""The page of promises names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def names_of_tests() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))
    }


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 60
    assert named <= names_of_tests()


def test_every_promise_and_every_public_fault_has_a_test() -> None:
    tables = PAGE.replace(PAGE.split("## The soak")[1].split("## ")[0], "")
    rows = [line for line in tables.splitlines() if line.startswith("| ") and "---" not in line]
    without = [row for row in rows if "`test_" not in row]
    headings = ("| promise |", "| kind |")
    assert [row for row in without if not row.startswith(headings)] == []


def test_the_table_of_public_faults_is_whole() -> None:
    table = PAGE.split("## Faults that other systems had")[1]
    assert len(re.findall(r"^\| .+ \| .+ \| `test_", table, flags=re.MULTILINE)) == 27
