"""What every command does alike: a mistake is one sentence, a result for scripts one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.models import CommandFunctionType

from turnout.cli._display import err
from turnout.core.errors import FailedError, UserError
from turnout.core.files import as_json_text

INTERRUPTED = 130  # the exit code of what Ctrl-C has ended
Source = Annotated[str, typer.Argument(metavar="CONFIG", help="A .toml file, or a built-in configuration by name.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[SECTION.OPTION=VALUE]...", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/digits.")]
Overwrite = Annotated[bool, typer.Option(help="Replace an earlier run of the same name.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; progress goes to stderr.")]


@contextmanager
def sentences() -> Iterator[None]:
    """A user's mistake, or a file that the system refuses, is one sentence on stderr and exit code 2; a run that failed
    is one and exit code 1; Ctrl-C is 130. Every command is decorated with it."""
    try:
        yield
    except (UserError, FailedError, OSError, MemoryError) as error:
        err.print(f"[red]turnout:[/red] {escape(_sentence(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(1 if isinstance(error, FailedError | MemoryError) else 2) from error
    except KeyboardInterrupt:
        err.print("[red]turnout:[/red] interrupted", highlight=False)
        raise typer.Exit(INTERRUPTED) from None


class Commands(typer.Typer):
    """Commands below one name."""

    def __init__(self, *, help: str) -> None:
        super().__init__(help=help, no_args_is_help=True)

    def command(self, *given: Any, **options: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Decorate a function that is to be one of them."""
        register = super().command(*given, **options)
        return lambda function: register(sentences()(function))


def listed(text: str) -> list[str]:
    """The words of an option that takes several, between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "this machine has too little memory for it; take a smaller model or fewer clients, or engine.memory_mib"
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def remark(lines: Iterable[str]) -> None:
    """Tell what is wrong and does not stop the command, on stderr."""
    for line in lines:
        err.print(f"[yellow]turnout:[/yellow] {escape(line)}", soft_wrap=True, highlight=False)


def print_json(document: Any) -> None:
    sys.stdout.write(as_json_text(document))
