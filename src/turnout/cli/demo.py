"""`turnout demo`: a first run, on bundled data."""

from __future__ import annotations

from turnout.cli._command import Json, sentences
from turnout.cli._display import out
from turnout.cli.run import run_configuration


def demo(as_json: Json = False) -> None:
    """Train over a hundred unreliable clients on bundled data and show whose data counted.

    Example: turnout demo
    """
    with sentences():
        run_configuration("digits", ["run.name=demo"], overwrite=True, resume=False, as_json=as_json)
        if not as_json:
            commands = ("turnout run digits algorithm.name=scaffold", "turnout list algorithms", "turnout show fedprox")
            out.print("\nNext: " + ", ".join(f"[bold]{command}[/bold]" for command in commands))
