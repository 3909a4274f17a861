"""What every command does alike: a mistake is one sentence, a result for scripts one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.display import err
from turnout.errors import FailedError, UserError
from turnout.files import as_json_text

Source = Annotated[str, typer.Argument(metavar="CONFIG", help="A .toml file, or a built-in configuration by name.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[SECTION.OPTION=VALUE]...", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; progress goes to stderr.")]


@contextmanager
def sentences() -> Iterator[None]:
    """A user's mistake is one sentence on stderr and exit code 2, a run that failed one and exit code 1."""
    try:
        yield
    except (UserError, FailedError) as error:
        err.print(f"[red]turnout:[/red] {escape(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(2 if isinstance(error, UserError) else 1) from error


def print_json(document: Any) -> None:
    sys.stdout.write(as_json_text(document))
