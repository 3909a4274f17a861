"""What the contract tests share: small populations, small models, and algorithms that use every call of the server."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import turnout
from turnout import KEEP, Algorithm, LocalSGD, Plan, Population, Ragged, Server, Simulation, Stopping, Task, devices
from turnout.clients.power import Power
from turnout.config import registry
from turnout.core.random import key, normal
from turnout.local.modifiers import ControlVariates
from turnout.local.transforms import Transform, former

SIZES = (3, 17, 8, 1, 25, 10, 6, 12)
SMALL = (3, 9, 8, 1, 12, 10, 6, 7)  # of whole experiments, of which there are thousands: half the steps


def population(sizes: tuple[int, ...] = SIZES, features: int = 5, classes: int = 3, **columns: Any) -> Population:
    """Ragged clients of separable data, test samples included."""
    total = sum(sizes)
    draws = torch.from_numpy(normal(key(1, "test inputs"), total * features)).reshape(total, features)
    rule = torch.from_numpy(normal(key(1, "test rule"), features * classes)).reshape(features, classes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows = Ragged(offsets, np.arange(total))
    columns.setdefault("test", rows)
    return Population(draws.float(), (draws @ rule).argmax(1), rows, **columns)


def images(sizes: tuple[int, ...] = SIZES, **columns: Any) -> Population:
    """The same clients with 1x6x6 images."""
    total = sum(sizes)
    inputs = torch.from_numpy(normal(key(2, "test images"), total * 36)).reshape(total, 1, 6, 6).float()
    rows = Ragged(np.concatenate([[0], np.cumsum(sizes)]), np.arange(total))
    return Population(inputs, (inputs.mean((1, 2, 3)) > 0).long(), rows, **columns)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2))


def theta(size: int = 1) -> nn.Module:
    """A model that is one vector, for the quadratics."""
    return Vector(size)


class Vector(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size))

    def forward(self, curvature: torch.Tensor) -> torch.Tensor:
        return torch.cat([curvature, self.theta.expand(len(curvature), -1)], dim=1)


def quadratic_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """1/2 c |theta - optimum|^2."""
    return outputs[:, 0] * (outputs[:, 1:] - targets).square().sum(1) / 2


def local(**options: Any) -> LocalSGD:
    return LocalSGD(**{"lr": 0.1, "batch_size": 4, "epochs": 2, **options})


def chained(text: str) -> tuple[Transform, ...]:
    """Transforms as version 0.1 wrote them: `clip:1.0,top_k:0.01`."""
    return tuple(former(text).values())


@dataclass
class Idle(Algorithm):
    """Lets a test play the algorithm."""

    clients_keep = "models"

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            server.step(server.wait(0), [])


@dataclass
class Windowed(Algorithm):
    """Every `window` seconds, whatever has arrived: jobs of several versions in flight at every checkpoint."""

    reads_updates = False

    local: LocalSGD
    window: float = 0.5

    def begin(self, server: Server) -> None:
        server.invite(server.population.ids, self.local)

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            updates = server.wait(seconds=self.window)
            server.step(updates, server.importance[updates.clients])
            idle = np.concatenate([updates.clients, updates.failed.clients])
            server.invite(idle, self.local)


@dataclass
class Standing(Algorithm):
    """Standing invitations, three arrivals a round, the rest stays in the inbox."""

    reads_updates = False

    local: LocalSGD

    def begin(self, server: Server) -> None:
        server.invite(server.population.ids, self.local, again=True)

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            updates = server.wait(3)
            server.step(updates, np.full(len(updates), 1 / 3))
            server.invite(updates.failed.clients, self.local, again=True)


@dataclass
class Continuing(Algorithm):
    """Clients go on from what they have; interrupted ones finish what they began."""

    clients_keep = "models"

    local: LocalSGD

    def begin(self, server: Server) -> None:
        server.invite(server.population.ids, self.local)

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            updates = server.wait(seconds=0.7)
            server.publish(updates.returned().mean(0) if len(updates) else server.model, updates, None)
            idle = np.concatenate([updates.clients, updates.failed.clients])
            known = server.keeps(idle)
            server.invite(idle[known], self.local, KEEP)
            server.invite(idle[~known], self.local)


@dataclass
class Fetching(Algorithm):
    """Clients answer with a norm; the two largest are fetched, the others dropped."""

    local: LocalSGD
    fetched: list[int] = field(default_factory=list, init=False)

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            server.invite(server.population.ids, self.local, hold=True)
            answers = server.wait()
            chosen = answers.clients[np.argsort(-answers.norms().cpu().numpy(), kind="stable")[:2]]
            server.cancel(np.setdiff1d(answers.clients, chosen))
            updates = server.fetch(chosen)
            self.fetched += updates.clients.tolist()
            server.step(updates, np.full(len(updates), 0.5))


@dataclass
class Stateful(Algorithm):
    """Client state under asynchrony: SCAFFOLD's work, its updates often not even looked at."""

    local: LocalSGD

    def begin(self, server: Server) -> None:
        server.invite(server.population.ids, self.work(server))

    def work(self, server: Server) -> LocalSGD:
        return self.local.modified(ControlVariates(torch.full_like(server.model, 0.01)))

    def run(self, server: Server) -> None:
        for number in server.rounds():
            updates = server.wait(seconds=0.6)
            used = updates if number % 2 else updates.select(np.zeros(len(updates), bool))
            server.step(used, server.importance[used.clients])
            server.invite(np.concatenate([updates.clients, updates.failed.clients]), self.work(server))


EXERCISES: dict[str, Callable[[LocalSGD], Algorithm]] = {
    "windowed": Windowed, "standing": Standing, "continuing": Continuing, "fetching": Fetching, "stateful": Stateful,
}  # fmt: skip


SETTINGS: dict[str, dict[str, Any]] = {
    "apfl": {"adaptive": True},
    "fedbuff": {"buffer_size": 3},
    "fedcs": {"deadline": 2.0},
    "hierfavg": {"deadline": 2.0, "fraction": 0.5, "cloud_interval": 2},
    "hybridfl": {"deadline": 2.0, "fraction": 0.4},
    "fedprof": {"clients_per_round": 4, "reference": normal(key(1, "test reference"), 100).reshape(20, 5)},
    "fedrep": {"head_epochs": 2},
    "pfedme": {"inner_steps": 2},
}  # what a population of eight needs


def algorithm(name: str, **options: Any) -> Algorithm:
    """An exercise, or a published algorithm by name with small settings."""
    if name in EXERCISES:
        return EXERCISES[name](local())
    cls = registry.find("algorithm", name)
    options = SETTINGS.get(name, {}) | options
    if "sampler" in inspect.signature(cls).parameters and name not in ("local", "centralised"):
        options.setdefault("sampler", turnout.MD(4))
    return cls(options.pop("local", None) or local(), **options)


ALGORITHMS = [*registry.names("algorithm"), *EXERCISES]

WORLD: dict[str, Any] = {
    "devices": devices.lognormal(0.5, 0.7),
    "links": turnout.Links(down=1e5, up=1e5, latency=0.01, server=1e6, backhaul=1e5),
    "availability": turnout.Bernoulli(0.8),
    "crashes": turnout.Crashes(0.15),
    "regions": np.array([0, 1, 0, 1, 0, 0, 1, 0]),
    "power": Power(np.linspace(0.5, 2.0, len(SIZES))),
}


def experiment(name: str, rounds: int = 6, model: Callable[[], nn.Module] = mlp, **options: Any) -> turnout.Experiment:
    """A published algorithm or an exercise on unreliable clients."""
    people = options.pop("people", None) or (images if model is conv else population)(SMALL, **WORLD)
    if name == "fetching":
        people = replace(people, availability=turnout.Always(), crashes=turnout.Crashes())
    return turnout.Experiment(
        Task(model, seed=3),
        people,
        options.pop("algorithm", None) or algorithm(name),
        seed=options.pop("seed", 5),
        stopping=Stopping(rounds),
        plan=options.pop("plan", Plan(threads=1)),
        **options,
    )


def simulation(work: Algorithm, people: Population | None = None, **options: Any) -> Simulation:
    options.setdefault("plan", Plan(threads=1))
    task = options.pop("task", None) or Task(mlp, seed=3)
    return Simulation(task, people or population(), work, **options)


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Equal tables, NaN equal to NaN."""
    if a.keys() != b.keys():
        return False
    return all(np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f") for name in a)
