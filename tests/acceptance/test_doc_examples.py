"""The Python of the README and the guides runs as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zerda_pg import MemoryStore

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.model

EXPECTED = {
    "README.md": ["Lisbon", "dark roast", "call Ines"],
    "docs/getting-started.md": ["8443", "similarity"],
    "docs/backup.md": ["1 created, 0 kept, []", "0 expired in 2 tenants"],
    "docs/change-feed.md": ["created office", "updated office"],
    "docs/models.md": ["1 True", "back to", "The office is in Porto", "1 vector dropped"],
    "docs/recall.md": ["[]"],
    "docs/scaling.md": ["True"],
    "docs/store.md": ["created", "office-2\noffice-1", "Ines is away", "green build"],
}
"""Page → what its programs print, in part."""


def run_programs(name: str, folder: Path, **environment: str) -> str:
    """What the programs of a page print, one after the other."""
    text = (ROOT / name).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd=folder,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXPECTED)
def test_the_programs_of_a_page_run(name: str, database: str, tmp_path: Path) -> None:
    printed = run_programs(name, tmp_path, ZERDA_PG_URL=database)
    for words in EXPECTED[name]:
        assert words in printed, f"{words!r} is not in {printed}"


def test_the_readme_can_be_run_again(database: str, tmp_path: Path) -> None:
    counts = []
    for _ in range(2):
        printed = run_programs("README.md", tmp_path, ZERDA_PG_URL=database)
        assert "Lisbon" in printed
        assert "Porto" not in printed, "what was superseded came up"
        with MemoryStore.open(database) as store:
            memory = store.tenant("acme")
            counts.append((memory.count(), memory.count({"status": ["superseded"]})))
    assert counts == [(4, 1)] * 2, "nothing is there twice"


def test_the_embedded_server_is_where_the_environment_says(tmp_path: Path) -> None:
    printed = run_programs("docs/embedded-server.md", tmp_path, ZERDA_PG_HOME=str(tmp_path / "h"))
    assert str(tmp_path / "h") in printed
