"""Optimal sampling: norms first, then the updates of a few."""

from __future__ import annotations

import numpy as np
import pytest
from small_server import EXAMPLE_A, near, population, task

import turnout
from turnout import Evaluation, FedAvg, Links, LocalSGD, Observer, Plan, UserError
from turnout.algorithms import Local
from turnout.core.random import FloatArray
from turnout.samplers import Optimal
from turnout.server.observer import Round

WORK = LocalSGD(0.5, steps=1, batching="full")
EXACT = Plan(precision="float64", threads=1)


class Weights(Observer):
    """`[rounds, n]` the weights applied."""

    def __init__(self, clients: int) -> None:
        self.clients, self.rows = clients, []  # type: ignore[var-annotated]

    def on_round(self, server: turnout.Server, record: Round) -> None:
        row = np.zeros(self.clients)
        for job, weight in zip(record.jobs, record.weights, strict=True):
            row[job.client] += weight
        self.rows.append(row)

    @property
    def matrix(self) -> FloatArray:
        return np.array(self.rows)


def weights(optima: list[float], rounds: int, m: int = 2) -> FloatArray:
    """Rounds that all begin at 0, so that the norms stay what they are: the server does not move."""
    watch = Weights(4)
    algorithm = FedAvg(WORK, Optimal(m), server_lr=1e-12)
    turnout.execute(
        turnout.Experiment(
            task(),
            population(EXAMPLE_A, optima),
            algorithm,
            stopping=turnout.Stopping(rounds),
            evaluation=Evaluation(rounds=None),
            plan=EXACT,
        ),
        observers=[watch],
    )
    return watch.matrix


@pytest.mark.parametrize(
    ("optima", "chance"),
    [
        ([1, 1, 1, 1], [0.8, 0.6, 0.4, 0.2]),
        ([1, 2, 3, 4], [0.4, 0.6, 0.6, 0.4]),
        ([5, 1, 1, 1], [1, 0.5, 1 / 3, 1 / 6]),
    ],
)
def test_chances_follow_the_norms_and_weights_make_up_for_them(optima: list[float], chance: list[float]) -> None:
    """client-sampling.md 3.6: norms in proportion to the optima; O1: E[omega] = p."""
    found = weights([float(value) for value in optima], 800)
    assert near((found > 0).astype(float), np.array(chance))
    assert near(found, np.array(EXAMPLE_A))
    asked = found[:, 0][found[:, 0] > 0]
    assert asked == pytest.approx(np.full(len(asked), 0.4 / chance[0]))


def test_clients_without_a_change_are_not_asked() -> None:
    found = weights([0.0, 0.0, 1.0, 1.0], 1, m=3)
    assert (found[:, :2] == 0).all()
    assert (found[:, 2:] > 0).all()


def test_only_those_asked_upload_their_update() -> None:
    """The others send eight bytes: a norm."""
    people = turnout.Population.of(
        turnout.datasets.load("quadratics", optima=[1.0, 1.0, 1.0, 1.0]),
        4,
        "natural",
        test="none",
        links=Links(up=1e6),
        model_bytes=1000,
    )
    result = turnout.simulate(task(), people, FedAvg(WORK, Optimal(2)), rounds=20, plan=EXACT)
    jobs = result.jobs()
    asked = jobs["weight"] != 0
    assert set(jobs["bytes_up"][~asked].tolist()) == {8}
    assert set(jobs["bytes_up"][asked].tolist()) == {1008}
    assert 20 < asked.sum() < 60


def test_what_cannot_be() -> None:
    with pytest.raises(UserError, match=r"algorithm\.wait_for"):
        FedAvg(WORK, Optimal(2), wait_for=1)
    with pytest.raises(UserError, match=r"sampler\.name"):
        Local(WORK, Optimal(2))
    with pytest.raises(UserError, match=r"sampler\.clients_per_round"):
        turnout.simulate(task(), population(EXAMPLE_A), FedAvg(WORK, Optimal(0)), rounds=1)
