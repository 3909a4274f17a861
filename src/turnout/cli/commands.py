"""The command line: `turnout demo | run | resume | plan | tune | sweep | compare | list | show | inspect | attack |
unlearn | study | topology | streams | simulate-flower | deploy | replay`, one file a command, or a few."""

from __future__ import annotations

from typing import Annotated

import typer

from turnout.cli._display import out
from turnout.cli.attack import attack
from turnout.cli.compare import compare_runs, sweep_options
from turnout.cli.demo import demo
from turnout.cli.deploy import deploy_app, replay
from turnout.cli.flower import simulate_flower
from turnout.cli.inspect import inspect
from turnout.cli.list import list_names
from turnout.cli.plan import plan
from turnout.cli.report import report
from turnout.cli.resume import resume
from turnout.cli.run import run
from turnout.cli.show import show
from turnout.cli.streams import streams_app
from turnout.cli.study import study_app
from turnout.cli.topology import topology_app
from turnout.cli.tune import tune_options
from turnout.cli.unlearn import unlearn
from turnout.core.version import VERSION

app = typer.Typer(
    help="Federated learning with whoever shows up.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out.print(VERSION)
        raise typer.Exit


app.command()(demo)
app.command()(run)
app.command()(resume)
app.command()(plan)
app.command("tune")(tune_options)
app.command("list")(list_names)
app.command()(show)
app.command()(inspect)
app.command("compare")(compare_runs)
app.command("sweep")(sweep_options)
app.command()(attack)
app.command()(report)
app.add_typer(study_app(), name="study")
app.add_typer(topology_app, name="topology")
app.add_typer(streams_app, name="streams")
app.command()(unlearn)
app.command("simulate-flower")(simulate_flower)
app.add_typer(deploy_app, name="deploy")
app.command()(replay)
