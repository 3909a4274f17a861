"""Flower apps of the tests, and how they are run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.cli.flower import build
from turnout.core import random
from turnout.run.experiment import Result, execute

APPS = Path(__file__).parent / "apps"
NUMPY, OLD, KINDS = APPS / "numpy_app", APPS / "old_app", APPS / "kinds"
TORCH = Path(__file__).parents[2] / "examples" / "flower-quickstart"
SECONDS = (1.0, 1.5, 4.0)  # of a job at each client

FloatArray = NDArray[np.float64]


def kind(folder: Path, client: str, server: str) -> Path:
    """The folder of an app made of modules of `apps/kinds`; `client` and `server` are `module:name`."""
    folder.mkdir(exist_ok=True)
    parts = f'clientapp = "{client}"\nserverapp = "{server}"\n'
    text = f"[tool.flwr.app.components]\n{parts}[tool.flwr.app.config]\nnum-server-rounds = 2\n"
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    for module in KINDS.glob("*.py"):
        shutil.copy(module, folder)
    return folder


def settings(app: Path = NUMPY, seconds: tuple[float, ...] = SECONDS, **sections: dict[str, Any]) -> dict[str, Any]:
    """Clients that take so long; `sections` are added to."""
    world: dict[str, Any] = {
        "flower": {"app": str(app)},
        "clients": {"count": len(seconds)},
        "devices": {"name": "table", "source": list(seconds)},
        "engine": {"threads": 1},
        "run": {"rounds": 3},
    }
    for section, options in sections.items():
        world[section] = world.get(section, {}) | options
    return world


def simulate(world: dict[str, Any], folder: Path | None = None, **options: Any) -> Result:
    experiment, _, _, simulation = build(world)
    return execute(experiment, folder, kind=simulation, **options)


def imported(name: str) -> Any:
    """A module of the app run last."""
    return sys.modules[name]


class HandWritten:
    """The clients of the numpy app without Flower: each job is a function of the model, the client and its number."""

    def __init__(self, clients: int, seed: int = 0, lr: float = 0.5, decay: bool = True) -> None:
        self.task, self.seed, self.lr, self.decay = imported("task"), seed, lr, decay
        self.data = [self.task.load_data(client) for client in range(clients)]
        counts = np.array([len(y) for _, y in self.data])
        self.importance = counts / counts.sum()

    def __call__(self, model: FloatArray, client: int, number: int) -> FloatArray:
        """`returned - received` of a client's job of that number."""
        X, y = self.data[client]
        draws = np.random.RandomState(int(random.key(self.seed, "flower app", client, number)) & 0xFFFFFFFF)
        lr = self.lr / (1 + number) if self.decay else self.lr
        coef, intercept = self.task.fit(model[:4], model[4:], X, y, lr, draws.permutation(len(y))[: len(y) // 2])
        return np.concatenate([coef, intercept]) - model

    def asynchronous(
        self, rounds: int, closes: Callable[[float, list[float]], float], weight: Callable[[int], float], most: int = 3
    ) -> FloatArray:
        """Everybody at work; a round closes when `closes(now, ends)` says so with the first `most` that have delivered,
        who go on with the new model."""
        model, now = np.zeros(5), 0.0
        jobs = {client: (seconds, model, 0) for client, seconds in enumerate(SECONDS)}  # end, received, number
        for _ in range(rounds):
            now = closes(now, sorted(end for end, _, _ in jobs.values()))
            done = sorted((end, client) for client, (end, _, _) in jobs.items() if end <= now)[:most]
            model = model + sum(weight(client) * self(jobs[client][1], client, jobs[client][2]) for _, client in done)
            for _, client in done:
                jobs[client] = now + SECONDS[client], model, jobs[client][2] + 1
        return model
