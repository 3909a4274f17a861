"""`turnout study`: what the distribution turnout-studies brings, or how to get it."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast

import typer

from turnout.cli._command import sentences
from turnout.core.imports import missing

_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": list[str]()}


def study_app() -> typer.Typer:
    """The command that an installed distribution registers as `study` in the group `turnout.commands`."""
    found = entry_points(group="turnout.commands", name="study")
    return cast(typer.Typer, next(iter(found)).load()) if found else _missing()


def _missing() -> typer.Typer:
    app = typer.Typer(help="Published conclusions, tried here (needs turnout-studies).")

    @app.callback(invoke_without_command=True, context_settings=_ANYTHING)
    def study() -> None:
        with sentences():
            raise missing("study", "turnout-studies", "-e studies in the checkout of Turnout brings it")

    return app
