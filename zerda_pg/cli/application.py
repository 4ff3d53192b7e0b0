"""The Typer application: how a function becomes a command, and how a run ends."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from zerda_pg.cli.failures import INTERRUPTED, PIPE_CLOSED, USAGE, expected, say

__all__ = ["app", "command", "main"]

F = TypeVar("F", bound=Callable[..., int])


class _Command(TyperCommand):
    """A command whose switches show no type in the help: nothing follows them."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _bare(super().get_params(ctx))


class _Group(TyperGroup):
    """The same for the options before a command."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _bare(super().get_params(ctx))


def _bare(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


app = typer.Typer(
    name="zerda-pg",
    cls=_Group,
    help="Persistent memory for AI agents on Postgres and pgvector.",
    epilog="Exit codes: 0 found, 1 nothing found, 2 wrong use, 3 the environment is not usable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


PANELS = ("Try it", "Write", "Recall", "Look", "Curate", "Database")
"""Headings of `--help`, in this order."""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"zerda-pg {version('zerda-pg')}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Persistent memory for AI agents on Postgres and pgvector."""


def command(name: str, panel: str) -> Callable[[F], F]:
    """Register a function as a command; it returns the exit code.

    A parameter whose type is a dataclass of options stands for these options: groups that many
    commands share are written once.

    Args:
        name: What is typed.
        panel: Under which of `PANELS` `--help` lists it.
    """

    def register(function: F) -> F:
        app.command(name, cls=_Command, rich_help_panel=panel)(_flattened(function))
        return function

    return register


def _flattened(function: Callable[..., int]) -> Callable[..., int]:
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if dataclasses.is_dataclass(parameter.annotation)
    }
    parameters = [p for name, p in signature.parameters.items() if name not in groups]
    for group in groups.values():
        parameters += _parameters_of(group)

    def run(**values: Any) -> int:
        made = {
            name: group(**{f.name: values.pop(f.name) for f in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        # here, since Typer ends with 1 when a pipe is closed: that means that nothing was found
        try:
            code = function(**values, **made)
            sys.stdout.flush()
        except BrokenPipeError:
            # the reader has gone; flushing at exit would say so again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return PIPE_CLOSED
        except KeyboardInterrupt:
            return INTERRUPTED
        return code

    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )
        for f in dataclasses.fields(group)
    ]


def main() -> None:
    """Run the command line, and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        # a memory may hold any character, a terminal may not show it
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")
    sys.exit(_run())


def _run() -> int:
    app.registered_commands.sort(key=lambda known: PANELS.index(str(known.rich_help_panel)))
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _misused(error)
        return expected(error)
    return code if isinstance(code, int) else 0


def _misused(error: Any) -> int:
    """A command line that cannot be read; Typer keeps the class of these errors to itself."""
    context = getattr(error, "ctx", None)
    path = "zerda-pg" if context is None else context.command_path
    message = " ".join(str(error.format_message()).split())
    if not message:  # no arguments: the help was shown
        return USAGE
    say(f"{message.rstrip('.')} (see {path} --help)")
    return USAGE
