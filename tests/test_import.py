"""`import turnout` and the engine need torch, numpy and scipy only; what else there is can be installed as it says."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

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


def test_what_messages_and_pages_tell_to_install_can_be_installed() -> None:
    """Turnout is on no package index: extras come from a checkout, and exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    code = [path for part in ("src", "benchmarks", "examples") for path in (ROOT / part).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in pages + code}
    assert not [path for path, text in texts.items() if re.search(r"install\s+[^\n]{0,3}turnout\b", text)]
    named = [name for text in texts.values() for name in re.findall(r'\bextra\("([^"]*)"\)|"\.\[([\w-]*)\]"', text)]
    assert {first or second for first, second in named} <= extras.keys()
    assert len(named) > 10
