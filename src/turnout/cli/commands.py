"""The command line: `turnout demo | init | run | resume | plan | tune | sweep | compare | figure | cite | list | show |
inspect | board | predict | export | attack | unlearn | study | topology | streams | simulate-flower | deploy | replay`,
a file a command, or a few.

A file is imported when one of its commands is looked at; `turnout --help` reads from it what describes each.
"""

from __future__ import annotations

import ast
import os
from collections import UserDict
from collections.abc import MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from turnout.core.version import VERSION

COMMANDS = {  # where the function is, or the app of several
    "demo": "run:demo",
    "init": "init:init",
    "run": "run:run",
    "resume": "run:resume",
    "plan": "plan:plan",
    "tune": "plan:tune_options",
    "list": "names:list_names",
    "show": "names:show",
    "inspect": "report:inspect",
    "predict": "use:predict",
    "export": "use:export",
    "compare": "compare:compare_runs",
    "sweep": "compare:sweep_options",
    "figure": "paper:figure",
    "cite": "paper:cite",
    "attack": "attack:attack",
    "report": "report:report",
    "board": "board:board",
    "study": "study:study_app",
    "topology": "topology:topology_app",
    "streams": "streams:streams_app",
    "unlearn": "unlearn:unlearn",
    "simulate-flower": "flower:simulate_flower",
    "deploy": "deploy:deploy_app",
    "replay": "deploy:replay",
}


class _Imported(UserDict[str, Any]):
    """Commands by name, each imported when it is looked at."""

    def __getitem__(self, name: str) -> click.Command:
        from turnout.cli._command import sentences

        file, _, attribute = self.data[name].partition(":")
        found = getattr(import_module(f"turnout.cli.{file}"), attribute)
        if not isinstance(found, typer.Typer):
            one = typer.Typer(add_completion=False)
            one.command(name)(sentences()(found))
            found = one
        command = typer.main.get_command(found)
        command.name = name
        return command


class _Group(TyperGroup):
    """The commands of `COMMANDS`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Imported(COMMANDS)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def _main_shell_completion(
        self, ctx_args: MutableMapping[str, Any], prog_name: str, complete_var: str | None = None
    ) -> None:
        """Answer a shell that completes a line, without importing the command that stands there."""
        if complete_var is None:
            complete_var = f"_{prog_name}_COMPLETE".replace("-", "_").upper()
        if complete_var in os.environ:
            from turnout.cli.completion import Completing

            Completing()._main_shell_completion(ctx_args, prog_name, complete_var)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the first line of what describes each command, none of which is imported for that."""
        every = self.commands
        self.commands = {name: TyperCommand(name, help=_line(*place.split(":"))) for name, place in COMMANDS.items()}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = every


def _line(file: str, attribute: str) -> str:
    """Read the first line of a function's docstring, or of an app's help."""
    tree = ast.parse((Path(__file__).parent / f"{file}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return (ast.get_docstring(node) or "").split("\n")[0]
        if isinstance(node, ast.keyword) and node.arg == "help" and attribute.endswith("_app"):
            return str(ast.literal_eval(node.value)).split("\n")[0]
    raise AssertionError(f"{file}: no {attribute}")


app = typer.Typer(
    cls=_Group,
    help="Federated learning with whoever shows up.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(VERSION)
        raise typer.Exit
