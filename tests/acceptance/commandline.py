"""The command as its users run it: a process of its own, on a real embedded server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["CommandLine", "Outcome"]

PROGRAM = Path(sys.executable).with_name("zerda-pg")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run left."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """Runs the command in a home and a tenant."""

    home: Path
    tenant: str
    embedder: str = "hashing"
    more_environment: Mapping[str, str] | None = None

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ZERDA_PG_", "COV"))}
        return kept | {"ZERDA_PG_HOME": str(self.home)} | dict(self.more_environment or {})

    def on(self, **more: str) -> CommandLine:
        """The same with other environment variables."""
        return replace(self, more_environment=more)

    def arguments(self, name: str, *arguments: str) -> Sequence[str]:
        common = ("--tenant", self.tenant, "--embedder", self.embedder)
        return [str(PROGRAM), name, *arguments, *common]

    def __call__(
        self, name: str, *arguments: str, code: int = 0, stdin: str | bytes = b""
    ) -> Outcome:
        """Run a command in the tenant; it must end with `code`."""
        return self.plain(*self.arguments(name, *arguments)[1:], code=code, stdin=stdin)

    def plain(self, *arguments: str, code: int = 0, stdin: str | bytes = b"") -> Outcome:
        """Run with just these arguments."""
        done = subprocess.run(
            [str(PROGRAM), *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=self.environment(),
            timeout=120,
            check=False,
        )
        outcome = Outcome(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())
        assert done.returncode == code, f"{arguments} ended with {outcome}"
        assert "Traceback" not in outcome.err
        return outcome

    def data(self, name: str, *arguments: str, code: int = 0, stdin: str | bytes = b"") -> Any:
        """Run with `--json`; the document."""
        return self(name, *arguments, "--json", code=code, stdin=stdin).json()
