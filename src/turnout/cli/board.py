"""`turnout board`: one page over all runs of a folder, served to this machine alone or written as a static folder."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli._command import remark
from turnout.cli._display import say
from turnout.core.errors import UserError
from turnout.report import board as pages
from turnout.report.index import Index
from turnout.report.loopback import Board

PORT = 8765
RUNS = Path("runs")


def board(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where runs are, however deep.")] = RUNS,
    port: Annotated[
        int | None, typer.Option(help=f"Where to listen, on this machine alone; default: {PORT}; 0: any free port.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    target: Annotated[
        Path | None, typer.Option("--write", metavar="DIR", help="Write it as a folder that needs no server, and end.")
    ] = None,
) -> None:
    """Show all runs of a folder on one page in the browser: filter, sort, compare, open reports; Ctrl-C ends it.

    Example: turnout board runs --open
    """
    index = Index(folder)
    if target is not None:
        if port is not None:
            raise UserError(f"--port: {port} has no use with --write; leave one of them out")
        first, remarks = pages.write(index, target)
        remark(remarks)
        say(f"Written: {first}")
        if show:
            webbrowser.open(first.resolve().as_uri())
        return
    with Board(index, PORT if port is None else port) as server:
        count = len(server.known()["runs"])
        say(f"{count} run{'s' * (count != 1)} of {folder} at {server.address} (Ctrl-C ends it)")
        if show:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("The board has ended; the runs go on.")
