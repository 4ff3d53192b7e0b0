"""The programs in docs/seeds run, and print what the comments beside them say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import zerda_pg

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "seeds").glob("*.md"))

NAMES = """
    MemoryEntry MemorySelector SelectionConfig ScoredMemory score_memory KindPriorWeights
    pack_memories RerankConfig Candidate rerank rerank_entries rerank_disabled
    memory_rerank_config build_importance_map build_recency_map build_get_vector WorkingMemory
    ShortTermMemory LongTermMemory SemanticMemory ForgettingMechanism ForgettingConfig
    AIMemoryManager ManagerConfig
""".split()


@pytest.mark.model
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_programs_of_a_page_print_what_they_say(page: Path, database: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    program = "\n".join(blocks)
    said = re.findall(r"print\(.*?\)  # (.*)$", program, re.MULTILINE)
    assert said
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"ZERDA_PG_URL": database},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # a line in a loop prints several, told apart by ` # `
    assert done.stdout.splitlines() == [line for lines in said for line in lines.split(" # ")]


def test_every_name_and_every_page_is_listed() -> None:
    index = (ROOT / "docs" / "seeds" / "README.md").read_text()
    assert {page.name for page in PAGES if page.name != "README.md"} == set(
        re.findall(r"\]\(([a-z-]+\.md)\) \|", index)
    )
    for name in NAMES:
        assert hasattr(zerda_pg, name)
        assert f"`{name}`" in index, f"{name} is not in the index"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
