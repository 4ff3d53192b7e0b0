"""The async classes have every public method of the sync ones, with the same signature."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from zerda_pg import AsyncMemory, AsyncMemoryStore, Memory, MemoryStore


def public(cls: type[Any]) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith("_")
    }


MEMORY = sorted(name for name in public(Memory) if callable(getattr(Memory, name)))

ITERATES = {"watch"}
"""What gives an iterator, in the twin an async one."""

OWN_WORDS = {"perform"}
"""Twins written by hand, with a docstring of their own."""


def test_nothing_is_missing() -> None:
    assert set(public(AsyncMemory)) == set(public(Memory))
    assert set(public(AsyncMemoryStore)) == set(public(MemoryStore))


@pytest.mark.parametrize("name", MEMORY)
def test_memory(name: str) -> None:
    sync, twin = getattr(Memory, name), getattr(AsyncMemory, name)
    assert inspect.iscoroutinefunction(twin) is (name not in ITERATES)
    assert sync.__doc__
    assert twin.__doc__
    if name not in OWN_WORDS:
        assert inspect.signature(twin) == inspect.signature(sync)
        assert twin.__doc__ == sync.__doc__


@pytest.mark.parametrize("name", sorted(public(MemoryStore)))
def test_store(name: str) -> None:
    sync, twin = getattr(MemoryStore, name), getattr(AsyncMemoryStore, name)
    assert sync.__doc__
    assert twin.__doc__
    if isinstance(sync, property):
        assert isinstance(twin, property)
        return
    parameters, others = (inspect.signature(f).parameters for f in (sync, twin))
    assert list(parameters) == list(others)
    for parameter, other in zip(parameters.values(), others.values(), strict=True):
        assert (parameter.kind, parameter.default) == (other.kind, other.default), parameter.name


@pytest.mark.parametrize("name", MEMORY)
def test_every_argument_is_documented(name: str) -> None:
    """Where a docstring has a section of arguments, none is left out of it."""
    method = getattr(Memory, name)
    text = inspect.getdoc(method) or ""
    if "Args:" not in text:
        return
    for parameter in list(inspect.signature(method).parameters)[1:]:
        # what `explain` and others pass on to `search` is described there
        if f"\n    {parameter}:" not in text:
            assert parameter in {"session_id", "user_id", "agent_id", "same"}, parameter


def test_a_synchronous_store_does_without_asyncio_and_the_object_mapper() -> None:
    program = (
        "import sys; from zerda_pg import MemoryStore; "
        "print([m for m in ('sqlalchemy.ext.asyncio', 'sqlalchemy.orm') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert run.stdout == "[]\n"
