"""The Python of the README and the guides runs as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.model

EXPECTED = {
    "README.md": ["Lisbon", "dark roast", "call Ines"],
    "docs/getting-started.md": ["8443", "similarity"],
    "docs/backup.md": ["1 created, 0 kept, []", "entry_state"],
    "docs/change-feed.md": ["created office", "updated office"],
    "docs/models.md": ["1 True", "letters\n2 vectors dropped"],
    "docs/store.md": ["created", "office-2\noffice-1", "Ines is away", "green build"],
}
"""Page → what its programs print, in part."""


@pytest.mark.parametrize("name", EXPECTED)
def test_the_programs_of_a_page_run(name: str, database: str, tmp_path: Path) -> None:
    text = (ROOT / name).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        capture_output=True,
        text=True,
        env=os.environ | {"ZERDA_PG_URL": database},
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in EXPECTED[name]:
        assert words in done.stdout, f"{words!r} is not in {done.stdout}"
    assert "Porto" not in done.stdout or name != "README.md", "what was superseded came up"
