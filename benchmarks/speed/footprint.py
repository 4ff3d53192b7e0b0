"""What the package costs a process: the time of its import, and memory.

    python -m benchmarks.speed.footprint

Each figure is the median over fresh processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.speed.__main__ import ROOT
from benchmarks.speed.servers import about
from zerda_pg.testing import database_server, temporary_database

IMPORT = """
import time
import numpy, psycopg, sqlalchemy
start = time.perf_counter()
{line}
print(time.perf_counter() - start)
"""

RESIDENT = """
import sys
{body}
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS")))
"""

LIBRARIES = "import numpy, psycopg, sqlalchemy"

STORE = """
import numpy
from zerda_pg import MemoryStore
from zerda_pg.embedding import HashingEmbedder
store = MemoryStore.open(sys.argv[1], embedder=HashingEmbedder(384))
memory = store.tenant("one")
vectors = numpy.random.default_rng(1).normal(size=(100, 384))
for n, vector in enumerate(vectors):
    memory.add(f"note {n}: the pump is in order", id=str(n), embedding=vector)
for vector in vectors:
    memory.search("the pump", embedding=vector)
store.flush()
"""

MODEL = """
from zerda_pg import MemoryStore
store = MemoryStore.open(sys.argv[1], embedder="onnx")
memory = store.tenant("one")
for n in range(100):
    memory.add(f"note {n}: the pump is in order", id=str(n))
    memory.search("which pump is in order?")
store.flush()
"""

TARGETS = {"import, s": 0.1, "store, MB": 100, "store with the ONNX model, MB": 300}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.footprint")
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    given = parser.parse_args()
    found = {
        "import, s": median(IMPORT.format(line="import zerda_pg"), given.times),
        "import with MemoryStore, s": median(
            IMPORT.format(line="from zerda_pg import MemoryStore"), given.times
        ),
        "sqlalchemy, psycopg and numpy alone, MB": median(RESIDENT.format(body=LIBRARIES), 3),
    }
    for name, body in (("store, MB", STORE), ("store with the ONNX model, MB", MODEL)):
        with database_server(), temporary_database() as url:
            found[name] = median(RESIDENT.format(body=body), 3, url)
    result = about() | {"found": found, "targets": TARGETS}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "footprint.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"{result['machine']}; {result['at']}\n\n| what | found | target |\n| --- | --- | --- |")
    for name, value in found.items():
        print(f"| {name} | {value:.3g} | {TARGETS.get(name, '')} |")


def median(program: str, times: int, *arguments: str) -> float:
    """Of what a program prints, over fresh processes; a first one fills the caches."""
    printed = [
        float(
            subprocess.run(
                [sys.executable, "-c", program, *arguments],
                capture_output=True, text=True, check=True, cwd=ROOT,
            ).stdout
        )
        for _ in range(times + 1)
    ]  # fmt: skip
    return float(np.median(printed[1:]))


if __name__ == "__main__":
    main()
