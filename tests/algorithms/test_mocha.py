"""MOCHA: own models and how they are related, in turns."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from personal_problems import FULL, LR, PEOPLE, START, UNSEEN, assert_served, average, run, slope
from scipy.linalg import sqrtm
from torch import Tensor
from toy_problems import EXACT, SELDOM, clients, point, steps

import turnout
from support import local, population
from turnout import MD, Full, Observer, Server, Task, UserError
from turnout.algorithms import Local
from turnout.algorithms.mocha import Mocha, relation
from turnout.core.random import key, normal
from turnout.samplers import PowerOfChoice
from turnout.server.observer import Round

EPSILON, PENALTY = 1e-3, 0.05
OPTIMA = np.array([(3.0, 1, 0), (3.1, 0.8, 0), (2.9, 1.2, 0), (0, -1, 4.0), (0.1, -1.2, 3.9)])


def test_the_relation() -> None:
    """federated-em.md 3.8: Omega = Sigma^-1, Sigma = (W'W)^1/2 / tr (W'W)^1/2 + epsilon I, also of few parameters."""
    for count, size in ((4, 7), (6, 2)):
        models = normal(key(1, "models"), count * size).reshape(count, size)
        root = np.real(sqrtm(models @ models.T))
        expected = np.linalg.inv(root / np.trace(root) + 0.02 * np.eye(count))
        np.testing.assert_allclose(relation(models, 0.02), expected, rtol=1e-4)
    np.testing.assert_allclose(relation(np.zeros((3, 2)), 0.5), 2 * np.eye(3), rtol=1e-12)  # nothing is known
    alike = relation(np.ones((3, 5)), 0.1)  # in one direction 1.1, in the others 0.1
    np.testing.assert_allclose(alike, 10 * np.eye(3) - (10 - 1 / 1.1) / 3, rtol=1e-9)
    np.testing.assert_allclose(relation(np.eye(4), 0.05), np.eye(4) / 0.3, rtol=1e-12)  # no two are related


def solve(own: Tensor, anchor: Tensor, client: int, mu: float, count: int) -> Tensor:
    """Proximal steps."""
    pull = LR * mu / PEOPLE.train.counts[client]
    for _ in range(count):
        own = (own - LR * slope(own, client) + pull * anchor) / (1 + pull)
    return own


def test_a_plain_loop() -> None:
    """Towards the average at first, then towards a_i = w_i - (W Omega)_i / s. Unseen: towards the average again."""
    models, s, anchors = torch.stack([START] * 4), 1 / (1 / 4 + EPSILON), torch.stack([START] * 4)
    for number in range(3):
        if number:
            omega = relation(models.numpy(), EPSILON)
            s = np.linalg.eigvalsh(omega)[-1]
            anchors = models - torch.as_tensor(omega) @ models / s
        mu = 2 * PENALTY * s
        models = torch.stack([solve(models[i], anchors[i], i, mu, 2) for i in range(4)])
    result = run(Mocha(FULL, Full(), penalty=PENALTY, tuning_epochs=3))
    mean = average(list(models))
    torch.testing.assert_close(result.model, mean, rtol=1e-9, atol=1e-11)
    assert_served(result, [*models, solve(mean, mean, UNSEEN, mu, 3)])


class Models(Observer):
    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def on_round(self, server: Server, record: Round) -> None:
        assert isinstance(server.algorithm, Mocha)
        self.seen.append(server.algorithm.models.numpy().copy())


def objective(models: np.ndarray, omega: np.ndarray) -> float:
    """Of clients with one sample each, 1/2 |w - optimum|^2."""
    return float(np.square(models - OPTIMA).sum() / 2 + PENALTY * np.trace(models.T @ omega @ models))


@pytest.fixture(scope="module")
def path() -> list[np.ndarray]:
    """Models after every round, in which each client all but solves its own problem."""
    watch, people = Models(), clients(OPTIMA.tolist(), "equal")
    assert people.train.counts.tolist() == [1] * 5
    algorithm = Mocha(steps(15, 0.5), Full(), penalty=PENALTY, epsilon=0.05)
    experiment = turnout.Experiment(point((0.0, 0.0, 0.0)), people, algorithm, plan=EXACT, evaluation=SELDOM)
    experiment.stopping = turnout.Stopping(100)
    turnout.execute(experiment, observers=[watch])
    return watch.seen


def test_no_round_makes_it_worse_and_the_end_is_stationary(path: list[np.ndarray]) -> None:
    """Given Omega the objective falls with every round, since each client's problem bounds it from above and touches it
    where the round began. In the end w - optimum + 2 penalty (W Omega) = 0 for every client."""
    for before, after in pairwise(path[:31]):
        omega = relation(before, 0.05)
        assert objective(after, omega) < objective(before, omega) + 1e-9
    end = path[-1]
    residual = end - OPTIMA + 2 * PENALTY * relation(end, 0.05) @ end
    assert np.abs(residual).max() < 1e-4


def test_related_clients_are_found(path: list[np.ndarray]) -> None:
    """Of the five, the first three are alike and so are the last two: their models end nearer to each other than their
    optima are, and Sigma says why."""
    end = path[-1]
    sigma = np.linalg.inv(relation(end, 0.05))
    correlation = sigma / np.sqrt(np.outer(np.diag(sigma), np.diag(sigma)))
    group = np.array([0, 0, 0, 1, 1])
    alike, apart = np.equal.outer(group, group), np.not_equal.outer(group, group)
    assert correlation[alike].min() > correlation[apart].max() + 0.3
    for one in (group == 0, group == 1):
        assert np.ptp(end[one], axis=0).max() < 0.8 * np.ptp(OPTIMA[one], axis=0).max()


def test_a_vanishing_penalty_is_local_training() -> None:
    people, task = population(), Task(lambda: torch.nn.Linear(5, 3), seed=2)
    weak, alone = (run(a, 4, people=people, task=task) for a in (Mocha(local(), Full(), penalty=1e-12), Local(local())))
    assert weak.measures["train_loss"] == pytest.approx(alone.measures["train_loss"], rel=1e-7)


def test_silent_clients_keep_their_models_and_only_those_heard_are_related() -> None:
    """The relation is one of models the server has been told, not of where the others would begin."""
    people, watch = population(), Models()
    task = Task(lambda: torch.nn.Linear(5, 3), seed=2)
    experiment = turnout.Experiment(task, people, Mocha(local(), MD(3)), plan=EXACT, stopping=turnout.Stopping(2))
    result = turnout.execute(experiment, observers=[watch])
    jobs = result.jobs()
    second = set(jobs["client"][jobs["round"] == 2].tolist())
    for client in range(people.size):
        moved = not np.array_equal(watch.seen[0][client], watch.seen[1][client])
        assert moved == (client in second)
    first = np.unique(jobs["client"][jobs["round"] == 1])
    strength = np.linalg.eigvalsh(relation(watch.seen[0][first], 1e-3))[-1]
    assert result.server.algorithm.strength == pytest.approx(strength, rel=1e-9)  # type: ignore[attr-defined]
    assert len(first) < people.size


def test_clients_that_have_reported_on_the_current_model_are_sent_their_own_points_too() -> None:
    people, task = population(), Task(lambda: torch.nn.Linear(5, 3), seed=2)
    jobs = run(Mocha(local(), PowerOfChoice(2, candidates=4)), 2, people=people, task=task).jobs()
    trained = jobs["steps"] > 0
    assert trained.sum() == 4
    assert set(jobs["bytes_down"][trained]) == {task.size * 8}


def test_mistakes() -> None:
    for name in ("penalty", "epsilon"):
        with pytest.raises(UserError, match=rf"algorithm.{name}: 0 must be above 0"):
            Mocha(FULL, **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"algorithm.server_lr: 0.5 must be 1"):
        Mocha(FULL, server_lr=0.5)
