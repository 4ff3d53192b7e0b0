"""The recall benchmark on a case of our own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def case(suite: Path) -> None:
    said = [
        ("user", "We moved the launch of the rocket to June 3"),
        ("assistant", "Noted."),
        ("user", "My sister keeps bees"),
        ("user", "The launch of the rocket is on June 9 now"),
    ]
    memories = [
        {"id": f"m{n}", "session": f"s{n // 3}", "timestamp": f"2026-05-0{n + 1}T09:00:00Z",
         "speaker": speaker, "text": text}
        for n, (speaker, text) in enumerate(said)
    ]  # fmt: skip
    questions = [
        {"id": "q1", "text": "Who keeps bees?", "category": "people", "evidence": ["m2"]},
        {"id": "q2", "text": "When is the launch of the rocket?", "category": "dates",
         "evidence": ["m3"], "updated": ["m3"], "outdated": ["m0"]},
        {"id": "q3", "text": "What about the rocket?", "category": "dates", "evidence": [],
         "evidence_sessions": ["s0", "s1"]},
    ]  # fmt: skip
    suite.mkdir()
    document = {"memories": memories, "questions": questions}
    (suite / "one.json").write_text(json.dumps(document))


def test_it_runs_and_finds(tmp_path: Path, server: None) -> None:
    case(tmp_path / "own")
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.recall", tmp_path, "--embedder", "hashing",
         "--out", out],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads((out / "recall.json").read_text())["figures"]
    ours = figures["own"]["zerda"]
    assert set(figures["own"]) == {"zerda", "dense", "lexical", "rrf", "ts_rank"}
    assert ours["questions"] == 3
    assert ours["R@5"] == ours["packed@500"] == ours["updated"] == 1.0
    assert "own/people" in done.stdout
    rows = json.loads((out / "recall-questions.json").read_text())
    assert len(rows) == 3 * 5
