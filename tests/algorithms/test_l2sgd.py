"""L2SGD: own models, drawn to their average whenever a coin says so."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from personal_problems import FULL, LR, START, TASK, UNSEEN, assert_served, average, descend, run, slope
from torch import Tensor
from toy_problems import EXACT, SELDOM, clients, point, steps

import turnout
from turnout import FedAvg, Full, LocalSGD, Observer, Server, Task, UserError
from turnout.algorithms.l2sgd import L2SGD
from turnout.server.observer import Round

C = np.array([0.0, 1.0, 5.0])


def coins(algorithm: L2SGD, rounds: int, seed: int = 0) -> list[tuple[int, int]]:
    servers: list[Any] = [SimpleNamespace(seed=seed, version=version) for version in range(rounds)]
    return [algorithm.coins(server) for server in servers]


def test_a_plain_loop_coin_by_coin() -> None:
    """With probability 1 - p a step of lr / (1 - p), with p a pull of lr mu / p. Unseen: the average stays."""
    algorithm, p, mu = L2SGD(FULL, Full(), mu=0.15, communication=0.3, tuning_epochs=6), 0.3, 0.15
    throws = [kind for pulls, count in coins(algorithm, 4) for kind in "c" * pulls + "l" * count]
    x = [START] * 4
    for kind in throws:
        if kind == "l":
            x = [mine - LR / (1 - p) * slope(mine, i) for i, mine in enumerate(x)]
        else:
            mean = average(x)
            x = [mine - LR * mu / p * (mine - mean) for mine in x]
    result = run(algorithm, 4)
    torch.testing.assert_close(result.model, average(x), rtol=1e-11, atol=1e-13)
    assert_served(result, [*x, descend(result.model, UNSEEN, steps=6, mu=mu, anchor=result.model)])
    assert {"c", "l"} == set(throws)
    assert "cc" in "".join(throws)


def test_steps_and_pulls_have_the_learning_rate_of_their_round() -> None:
    p, mu, decay = 0.3, 0.15, 0.5
    algorithm = L2SGD(replace(FULL, lr_decay=decay), Full(), mu=mu, communication=p)
    x = [START] * 4
    for version, (pulls, count) in enumerate(coins(algorithm, 4)):
        lr, mean = LR * decay**version, average(x)
        x = [mean + (1 - lr * mu / p) ** pulls * (mine - mean) for mine in x]
        for _ in range(count):
            x = [mine - lr / (1 - p) * slope(mine, i) for i, mine in enumerate(x)]
    torch.testing.assert_close(run(algorithm, 4).model, average(x), rtol=1e-11, atol=1e-13)


def test_the_coins_are_fair() -> None:
    """Runs of both kinds are geometric: 1 / p steps and 1 / (1 - p) pulls on average, at least one of each."""
    for p in (0.1, 0.5):
        pulls, steps_ = np.array(coins(L2SGD(LocalSGD(0.1), communication=p), 4000)).T
        assert pulls.min() == steps_.min() == 1
        for found, chance in ((steps_, p), (pulls, 1 - p)):
            spread = np.sqrt(1 - chance) / chance / np.sqrt(4000)
            assert abs(found.mean() - 1 / chance) < 4 * spread
            assert abs((found == 1).mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / 4000)
    assert coins(L2SGD(LocalSGD(0.1)), 5, seed=1) != coins(L2SGD(LocalSGD(0.1)), 5, seed=2)


class Own(Observer):
    """The clients' own models after every round."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def on_round(self, server: Server, record: Round) -> None:
        self.seen.append(server.store.get({"model": (1,)}, server.population.ids)["model"][:, 0].numpy())


def rest(lr: float, mu: float, p: float) -> float:
    """How far from the average a client rests after its steps, in the mean over time, as a share of c - mean c. Its
    distance d becomes k^a d with a pulls, then A d + (1 - A) (c - mean c), A = s^h, with h steps."""
    s, k = 1 - lr / (1 - p), 1 - lr * mu / p
    steps_, pulls = p * s / (1 - (1 - p) * s), (1 - p) * k / (1 - p * k)  # expected s^h and k^a, h and a geometric
    return (1 - steps_) / (1 - steps_ * pulls)


def test_where_it_rests() -> None:
    """federated-em.md O16: x = (c + mu mean c) / (1 + mu), for mu = 2 (1.3333, 1.6667, 3), as the step tends to zero;
    with a constant one the gradient and the pull cancel in the mean over time, not one by one."""
    assert 2 + rest(1e-9, 2.0, 0.3) * (C - 2) == pytest.approx([4 / 3, 5 / 3, 3], abs=1e-6)
    people, own, lr, mu, p = clients(C, "equal"), Own(), 0.05, 2.0, 0.3
    experiment = turnout.Experiment(point(2.0), people, L2SGD(steps(1, lr), Full(), mu=mu, communication=p), plan=EXACT)
    experiment.stopping, experiment.evaluation = turnout.Stopping(320), SELDOM
    turnout.execute(experiment, observers=[own])
    seen = np.array(own.seen[20:])
    np.testing.assert_allclose(seen.mean(1), 2, rtol=1e-12)  # it began at the mean of all c
    share = (seen - 2) / (C - 2)
    np.testing.assert_allclose(share, share[:, :1] * np.ones(3), rtol=1e-9)  # they share their coins
    blocks = share[:, 0].reshape(15, 20).mean(1)
    error = blocks.std() / np.sqrt(15)
    assert abs(share.mean() - rest(lr, mu, p)) < 4 * error
    assert error < 0.05 * rest(lr, mu, p)


def test_without_a_penalty_clients_train_alone() -> None:
    algorithm = L2SGD(FULL, Full(), mu=0.0, communication=0.25)
    total = sum(count for _, count in coins(algorithm, 3))
    scale = 1 / 0.75
    x = [START] * 4
    for _ in range(total):
        x = [mine - LR * scale * slope(mine, i) for i, mine in enumerate(x)]
    assert_served(run(algorithm), [*x, descend(average(x), UNSEEN, steps=1)])


def test_the_strongest_pull_is_fedavg() -> None:
    """lr mu = p: a pull takes every client to the average, from where it does as many steps as come up."""
    p = 0.25
    algorithm = L2SGD(FULL, Full(), mu=p / LR, communication=p)
    model = START
    for _, count in coins(algorithm, 3):
        one = FedAvg(LocalSGD(LR / (1 - p), steps=count, batching="full"), Full())
        model = run(one, 1, task=_starting_at(model)).model
    torch.testing.assert_close(run(algorithm).model, model, rtol=1e-11, atol=1e-13)


def _starting_at(model: Tensor) -> Task:
    moved = TASK.to(dtype=torch.float64)
    moved.initial = model
    return moved


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"algorithm.communication: 1.0 must be above 0 and below 1"):
        L2SGD(FULL, communication=1.0)
    with pytest.raises(UserError, match=r"algorithm.mu: 0.3 must be from 0 to communication / lr = 0.2"):
        L2SGD(FULL, mu=0.3)
