"""`python -m benchmarks.recall PATH`: recall and packing over a folder of cases."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psycopg

from benchmarks.recall.cache import CachedEmbedder
from benchmarks.recall.cases import load
from benchmarks.recall.metrics import Row
from benchmarks.recall.plots import draw
from benchmarks.recall.report import commit, print_tables, record, summary, timings
from benchmarks.recall.run import METHODS, Clocks, ask, write
from zerda_pg import MemoryStore
from zerda_pg.embedding.resolve import resolve
from zerda_pg.testing import temporary_database

HERE = Path(__file__).parent
OUT = HERE.parent / "out"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit status is 2 for a wrong argument."""
    options = _parser().parse_args(arguments)
    rows: list[Row] = []
    clocks: Clocks = defaultdict(list)
    embedder = CachedEmbedder(resolve(options.embedder), options.out / "cache")
    with temporary_database() as url, MemoryStore.open(url, embedder=embedder) as store:
        plain = url.replace("postgresql+psycopg://", "postgresql://")
        with psycopg.connect(plain, autocommit=True) as database:
            for case in load(options.path):
                memory = write(store, case)
                database.execute("ANALYZE")
                rows += ask(memory, database, case, options.methods, clocks)
                print(f"{case.name}: {len(case.memories)} memories", file=sys.stderr, flush=True)
    figures = summary(rows)
    print_tables(figures)
    spent = timings(clocks)
    print(json.dumps(spent))
    document = {"commit": commit(), "figures": figures, "milliseconds": spent}
    (options.out / "recall.json").write_text(json.dumps(document, indent=1))
    (options.out / "recall-questions.json").write_text(json.dumps([asdict(row) for row in rows]))
    if options.plots:
        for file in draw(figures, options.out):
            print(file)
    if options.record is not None:
        record(HERE / "results.jsonl", figures, spent, options.record)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__)
    parser.add_argument("path", type=Path, help="a folder of SUITE/CASE.json.gz, or one file")
    parser.add_argument("--embedder", default="onnx", help="as of MemoryStore.open")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=METHODS, help="which to compare"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="where results and vectors go")
    parser.add_argument("--plots", action="store_true", help="draw them (extra bench)")
    parser.add_argument("--record", metavar="NOTE", help="append a line to results.jsonl")
    return parser


if __name__ == "__main__":
    sys.exit(main())
