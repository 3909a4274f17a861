"""`turnout study`: what the distribution turnout-studies brings, or how to get it."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast

import typer

from turnout.cli._command import sentences
from turnout.core.imports import missing

_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": list[str]()}


def _missing() -> None:
    raise missing("study", "turnout-studies", "-e studies in the checkout of Turnout brings it")


# What an installed distribution registers as `study` in the group `turnout.commands`.
_registered = entry_points(group="turnout.commands", name="study")
if _registered:
    study_app = cast(typer.Typer, next(iter(_registered)).load())
else:
    study_app = typer.Typer(help="Published conclusions, tried here (needs turnout-studies).")
    study_app.callback(invoke_without_command=True, context_settings=_ANYTHING)(sentences()(_missing))
