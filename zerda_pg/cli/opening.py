"""Opening the store for one command: the model loads in a thread meanwhile."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from typer import BadParameter

from zerda_pg.errors import ZerdaError

if TYPE_CHECKING:
    from zerda_pg.embedding.protocol import Embedder
    from zerda_pg.store import MemoryStore

__all__ = ["embedder_of", "opened"]

NAMES = ("auto", "onnx", "sentence-transformers", "hashing")


@contextmanager
def opened(url: str | None, embedder: str, *, model: bool) -> Iterator[MemoryStore]:
    """The store for a command.

    Args:
        url: As `MemoryStore.open`.
        embedder: A name, or `package.module:factory`.
        model: Whether the model will be needed.
    """
    given = embedder_of(embedder)
    if model and given in {"auto", "onnx"}:
        # Not a daemon: an interpreter that ends under a loading library may crash.
        threading.Thread(target=_warm, name="zerda_pg model").start()
    with ExitStack() as stack:
        with _waiting("opening the database"):
            from zerda_pg.store import MemoryStore

            store = stack.enter_context(MemoryStore.open(url, embedder=given))
        yield store


def _warm() -> None:
    """Load the model that most databases record; what fails here fails again where it is used."""
    from zerda_pg.config import Settings
    from zerda_pg.embedding.onnx import OnnxEmbedder

    if OnnxEmbedder.installed():
        try:
            OnnxEmbedder(cache_dir=Settings.from_env().cache).embed(["warm"], kind="query")
        except ZerdaError:
            return


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """A sign of life on a terminal: the first start of the embedded server takes seconds."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …"):
        yield


def embedder_of(given: str) -> str | Embedder:
    """A name as it is; what `package.module:factory` makes.

    Raises:
        BadParameter: If there is no such module or factory.
    """
    module, _, factory = given.partition(":")
    if module in NAMES or not factory:
        return given
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - an entry of the path is text
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in factory.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadParameter(f"--embedder {given} cannot be imported: {error}") from error
    if not callable(found):
        raise BadParameter(f"--embedder {given} is no function that makes an embedder")
    made: Embedder = found()
    return made
