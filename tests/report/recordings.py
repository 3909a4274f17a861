"""Small runs, recorded."""

from __future__ import annotations

from pathlib import Path

from turnout import execute
from turnout.config import config

SMALL = ("clients.count=12", "run.rounds=6", "engine.threads=1", "model.hidden=[4]")
SIX = "sampler.clients_per_round=6"


def record(folder: Path, *overrides: str) -> Path:
    """A small run of the built-in configuration, in a folder of that name."""
    settings = config.read("digits", [*SMALL, f"run.name={folder.name}", *overrides])
    experiment, _, complete = config.build(settings)
    execute(experiment, folder, configuration=config.as_toml(complete))
    return folder
