"""Server settings from a machine's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerda_pg.db import embedded_settings
from zerda_pg.db.embedded_settings import server_settings, usable_memory

MB = 1 << 20
GB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "buffers", "maintenance"),
    [
        (256 * MB, "64MB", "64MB"),
        (512 * MB, "128MB", "64MB"),
        (2 * GB, "256MB", "128MB"),
        (8 * GB, "1024MB", "512MB"),
        (64 * GB, "2048MB", "1024MB"),
    ],
)
def test_shares_of_memory(memory: int, buffers: str, maintenance: str) -> None:
    settings = server_settings(memory=memory, shared_memory=None)
    assert settings["shared_buffers"] == buffers
    assert settings["maintenance_work_mem"] == maintenance


@pytest.mark.parametrize(
    ("shared_memory", "kind"), [(None, "posix"), (8 * GB, "posix"), (64 * MB, "sysv"), (0, "sysv")]
)
def test_dynamic_shared_memory_has_room_for_an_index_build(
    shared_memory: int | None, kind: str
) -> None:
    settings = server_settings(memory=8 * GB, shared_memory=shared_memory)
    assert settings["dynamic_shared_memory_type"] == kind


def test_durability_is_never_traded() -> None:
    settings = server_settings(memory=8 * GB, shared_memory=None)
    assert not {"fsync", "full_page_writes", "synchronous_commit"} & set(settings)


def test_memory_is_that_of_the_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    absent = tmp_path / "absent"
    monkeypatch.setattr(embedded_settings, "_CGROUP_LIMITS", (limit, absent))
    limit.write_text("max\n")
    whole = usable_memory()
    limit.write_text(f"{64 * MB}\n")
    assert usable_memory() == 64 * MB < whole
