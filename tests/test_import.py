"""`import turnout` and the engine need torch, numpy and scipy only."""

from __future__ import annotations

import subprocess
import sys

ABSENT = (
    "pydantic",
    "plotly",
    "typer",
    "rich",
    "ray",
    "flwr",
    "pyarrow",
    "sklearn",
    "safetensors",
    "pandas",
    "PIL",
)

SCRIPT = f"""
import sys
sys.modules |= dict.fromkeys({ABSENT!r})  # None: not to be found, not to be imported
import turnout
data = turnout.datasets.load("synthetic", clients=5)
people = turnout.Population.of(data, clients=5, partition="natural")
task = turnout.Task(lambda: turnout.models.linear(60, 10))
result = turnout.simulate(task, people, turnout.FedAvg(turnout.LocalSGD(lr=0.1), turnout.Full()), rounds=2)
print(result.server.version)
"""


def test_the_engine_runs_without_everything_else() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr
