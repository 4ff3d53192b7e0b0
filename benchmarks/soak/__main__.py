"""`python -m benchmarks.soak [--seconds 300] [--processes 8]`: a table, and JSON in out."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.soak.run import soak

OUT = Path(__file__).parents[1] / "out"


def main() -> int:
    """0 if everything holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--kill-every", type=float, default=10.0)
    options = parser.parse_args()
    found = soak(options.seconds, options.processes, kill_every=options.kill_every)
    counts = found.findings.counts()
    print("| | |\n| --- | --- |")
    for name, value in {**found.figures, **counts}.items():
        print(f"| {name} | {value:g} |")
    for name, examples in vars(found.findings).items():
        for example in examples[:5]:
            print(f"{name}: {example}", file=sys.stderr)
    OUT.mkdir(exist_ok=True)
    (OUT / "soak.json").write_text(
        json.dumps({**found.figures, **counts, "examples": vars(found.findings)}, indent=2) + "\n"
    )
    return int(any(counts.values()))


if __name__ == "__main__":
    raise SystemExit(main())
