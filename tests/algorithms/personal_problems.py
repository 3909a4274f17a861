"""A tiny problem for methods with a model a client: full gradients, so that a plain loop over flat vectors is the whole
method; four clients that train and one that is never seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from toy_problems import EXACT, SELDOM

import turnout
from support import population
from turnout import Algorithm, LocalSGD, Population, Ragged, Result, Task
from turnout.core.random import key, normal

SIZES = (6, 9, 4, 7, 5)
TRAINING, UNSEEN = range(4), 4
PEOPLE = population(SIZES, features=4, joined_at=np.array([0.0] * 4 + [np.inf]))
P = PEOPLE.importance_at(0.0)
LR, STEPS = 0.5, 2
FULL = LocalSGD(LR, steps=STEPS, batching="full")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


TASK = Task(net, seed=3)
START = TASK.initial.double()
REFERENCE = TASK.to(dtype=torch.float64)


def run(algorithm: Algorithm, rounds: int = 3, task: Task = TASK, **options: Any) -> Result:
    options = {"plan": EXACT, "evaluation": SELDOM, **options}
    return turnout.simulate(task, options.pop("people", PEOPLE), algorithm, rounds, **options)


def loss(vector: Tensor, client: int) -> Tensor:
    rows = PEOPLE.train.row(client)
    return REFERENCE.losses(vector, PEOPLE.inputs[rows].double(), PEOPLE.targets[rows]).mean()


def slope(vector: Tensor, client: int) -> Tensor:
    """The full gradient."""
    leaf = vector.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(leaf, client), leaf)[0]


def descend(vector: Tensor, client: int, steps: int = STEPS, mu: float = 0.0, anchor: Tensor | float = 0.0) -> Tensor:
    """Plain steps, pulled towards an anchor."""
    for _ in range(steps):
        vector = vector - LR * (slope(vector, client) + mu * (vector - anchor))
    return vector


def average(vectors: list[Tensor]) -> Tensor:
    """Of the clients that train, as important as they are."""
    return sum((float(p) * vector for p, vector in zip(P, vectors, strict=False)), torch.zeros_like(vectors[0]))


def fedavg(rounds: int) -> list[Tensor]:
    """The global model before each round, and after the last."""
    models = [START]
    for _ in range(rounds):
        models.append(average([descend(models[-1], client) for client in TRAINING]))
    return models


def assert_served(result: Result, served: list[Tensor]) -> None:
    """Every client, the unseen one last, is evaluated with these models."""
    expected = [float(loss(vector, client)) for client, vector in enumerate(served)]
    np.testing.assert_allclose(result.server.clients()["train_loss"], expected, rtol=1e-9)
    assert len(set(np.round(expected, 6))) == len(expected)


def two_rules(clients: int = 12, samples: int = 40) -> Population:
    """Even clients label by a rule, odd ones by its opposite; the last two are never seen."""
    inputs = torch.from_numpy(normal(key(5, "two rules"), clients * samples * 4)).reshape(-1, 4).float()
    odd = torch.arange(clients).repeat_interleave(samples) % 2
    rows = Ragged(np.arange(clients + 1) * samples, np.arange(clients * samples))
    joined = np.where(np.arange(clients) < clients - 2, 0.0, np.inf)
    return Population(
        inputs, ((inputs @ torch.tensor([1.0, -2, 0.5, 1]) > 0).long() + odd) % 2, rows, rows, joined_at=joined
    )
