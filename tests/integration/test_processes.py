"""Eight processes do everything to the same rows, while the model is changed under them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import racer
from conftest import plain

import zerda_pg
from zerda_pg import MemoryStore

PROCESSES = 8

WRONG = {
    "an entry without its state, or a state without its entry": """
        SELECT coalesce(e.id, s.entry_id) FROM zerda.entries e
        FULL JOIN zerda.entry_state s ON s.tenant_id = e.tenant_id AND s.entry_id = e.id
        WHERE e.id IS NULL OR s.entry_id IS NULL""",
    "an entry without a vector of the model in use": """
        SELECT e.id FROM zerda.entries e WHERE NOT EXISTS (
            SELECT 1 FROM zerda.embeddings v
            JOIN zerda.embedding_models m ON m.id = v.model_id AND m.state = 'active'
            WHERE v.tenant_id = e.tenant_id AND v.entry_id = e.id)""",
    "what a vector repeats of its entry is another thing": """
        SELECT e.id, e.status, v.status FROM zerda.entries e
        JOIN zerda.embeddings v ON v.tenant_id = e.tenant_id AND v.entry_id = e.id
        WHERE (v.status, v.valid_from, v.valid_to, v.expires_at, v.kind, v.memory_type)
            IS DISTINCT FROM
            (e.status, e.valid_from, e.valid_to, e.expires_at, e.kind, e.memory_type)""",
    "a version is missing, or there twice": """
        SELECT e.id, e.version, count(o.*) FROM zerda.entries e
        LEFT JOIN zerda.entry_versions o ON o.tenant_id = e.tenant_id AND o.id = e.id
        GROUP BY e.id, e.version HAVING count(o.*) <> e.version - 1""",
    "superseded, and it is not known since when": """
        SELECT e.id FROM zerda.entries e
        WHERE (e.status = 'superseded' AND (e.invalidated_at IS NULL OR e.valid_to IS NULL))
           OR (e.status = 'active' AND e.invalidated_at IS NOT NULL)""",
    "each of two has replaced the other": """
        SELECT o.source_id, o.target_id FROM zerda.edges o
        JOIN zerda.edges b ON b.tenant_id = o.tenant_id
            AND b.source_id = o.target_id AND b.target_id = o.source_id
        WHERE o.relation = 'invalidated_by' AND b.relation = 'invalidated_by'""",
    "the same text in force twice": """
        SELECT e.body FROM zerda.entries e
        WHERE e.status = 'active' AND e.body = 'the same text' GROUP BY e.body
        HAVING count(*) > 1""",
}
"""What must not be found afterwards."""


def test_every_operation_on_the_same_rows(
    database: str, admin: psycopg.Connection, tmp_path: Path
) -> None:
    file = tmp_path / "lines.jsonl"
    lines = [{"id": id, "content": f"imported {id}"} for id in reversed(racer.IDS)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with MemoryStore.open(database, embedder="hashing:64") as store:
        memory = store.tenant("acme")
        memory.add("how often", id="counter", importance=1.0, metadata={"n": 0})
        memory.add_many([{"content": f"text {id}", "id": id} for id in racer.IDS])
    processes = [
        subprocess.Popen(
            [sys.executable, racer.__file__, plain(database), str(number), str(file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        with ThreadPoolExecutor(PROCESSES) as pool:
            results = [pool.submit(process.communicate, "go\n", 150) for process in processes]
            for model in ("hashing:96", "hashing:64", "hashing:96"):
                zerda_pg.reembed(database, model)
                zerda_pg.migrate(database)
            told = [result.result() for result in results]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failed = [
        error for process, (_, error) in zip(processes, told, strict=True) if process.returncode
    ]
    assert not failed, "\n".join(failed)
    done = sum((Counter(json.loads(out)) for out, _ in told), Counter[str]())
    for what, query in WRONG.items():
        assert admin.execute(query.encode()).fetchall() == [], what
    with MemoryStore.open(database) as store:
        counter = store.tenant("acme").get("counter")
        assert counter is not None
        assert done["counted"] > PROCESSES
        assert (counter.metadata["n"], counter.version) == (done["counted"], done["counted"] + 1)


def test_eight_change_the_model_at_once(database: str, admin: psycopg.Connection) -> None:
    with MemoryStore.open(database, embedder="hashing:64") as store:
        store.tenant("acme").add_many([{"content": f"text {n}"} for n in range(300)])
    code = "import sys, zerda_pg; print(zerda_pg.reembed(sys.argv[1], 'hashing:96')['embedded'])"

    def run(_: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, plain(database)],
            capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip

    with ThreadPoolExecutor(PROCESSES) as pool:
        results = list(pool.map(run, range(PROCESSES)))
    assert [r.returncode for r in results] == [0] * PROCESSES, [r.stderr for r in results]
    assert sum(int(r.stdout) for r in results) == 300
    found = admin.execute(
        "SELECT m.dimensions, m.state, count(v.*) FROM zerda.embedding_models m "
        "JOIN zerda.embeddings v ON v.model_id = m.id GROUP BY m.id ORDER BY 1"
    ).fetchall()
    assert found == [(64, "retired", 300), (96, "active", 300)]
