"""What every command does alike: a mistake is one sentence, a result for scripts one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout import config
from turnout.display import client_columns, err, show_summary
from turnout.errors import UserError
from turnout.files import as_json_text
from turnout.observe.progress import ProgressBar
from turnout.run import Experiment, execute
from turnout.server.simulation import Simulation

Source = Annotated[str, typer.Argument(metavar="CONFIG", help="A .toml file, or a built-in configuration by name.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[SECTION.OPTION=VALUE]...", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; progress goes to stderr.")]


@contextmanager
def sentences() -> Iterator[None]:
    """A user's mistake is one sentence on stderr and exit code 2."""
    try:
        yield
    except UserError as error:
        err.print(f"[red]turnout:[/red] {escape(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from error


def print_json(document: Any) -> None:
    sys.stdout.write(as_json_text(document))


def carry_out(
    experiment: Experiment,
    folder: Path,
    complete: config.Settings,
    checkpoint_every: int,
    overwrite: bool,
    resume: bool,
    as_json: bool,
    simulation: Callable[..., Simulation] = Simulation,
) -> None:
    """Execute an experiment in a folder and show how it ended; exit code 1 if it diverged."""
    with ProgressBar(err) if err.is_terminal else nullcontext() as bar:
        result = execute(
            experiment,
            folder,
            checkpoint_every=checkpoint_every,
            resume=resume,
            overwrite=overwrite,
            configuration=config.as_toml(complete),
            observers=[bar] if bar else [],
            simulation=simulation,
        )
    if as_json:
        print_json({"run": str(folder), **result.summary()})
    else:
        show_summary(folder, {**result.summary(), "clients": client_columns(result.audit)})
    if result.server.stopped and result.server.stopped.startswith("diverged"):
        raise typer.Exit(1)
