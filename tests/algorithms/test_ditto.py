"""Ditto: FedAvg's global model, and own models pulled towards it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from personal_problems import FULL, START, TRAINING, UNSEEN, assert_served, average, descend, fedavg, run
from toy_problems import clients, simulate, steps

import turnout
from support import local, population
from turnout import MD, FedAvg, Full, Task, UserError, devices
from turnout.algorithms import Local
from turnout.algorithms.ditto import Ditto
from turnout.local.own import DittoSGD


def task() -> Task:
    return Task(lambda: torch.nn.Linear(5, 3), seed=2)


def test_a_plain_loop() -> None:
    """Algorithm 1: w by FedAvg, v_i by `v - lr (grad + mu (v - w))` with w as received. Unseen: the same from v = w."""
    w, v = START, [START] * 4
    for _ in range(3):
        v = [descend(v[i], i, mu=0.7, anchor=w) for i in TRAINING]
        w = average([descend(w, i) for i in TRAINING])
    result = run(Ditto(FULL, Full(), mu=0.7, tuning_epochs=6))
    torch.testing.assert_close(result.model, w, rtol=1e-11, atol=1e-13)
    assert_served(result, [*v, descend(w, UNSEEN, steps=6, mu=0.7, anchor=w)])


def test_the_global_model_is_that_of_fedavg() -> None:
    torch.testing.assert_close(run(Ditto(FULL, Full(), mu=3.0)).model, fedavg(3)[-1], rtol=1e-11, atol=1e-13)


def test_without_a_pull_it_is_local_training() -> None:
    """mu = 0, on mini-batches: the same draws, so the same models."""
    people = population()
    ditto, alone = (run(a, 4, people=people, task=task()) for a in (Ditto(local(), Full(), mu=0.0), Local(local())))
    own = [r.server.store.get({"model": (r.server.task.size,)}, people.ids)["model"] for r in (ditto, alone)]
    torch.testing.assert_close(own[0], own[1], rtol=1e-11, atol=1e-13)
    assert ditto.measures["train_loss"] == pytest.approx(alone.measures["train_loss"], rel=1e-11)


@pytest.mark.parametrize("mu", [0.5, 9.0])
def test_own_models_rest_between_their_optimum_and_the_global_model(mu: float) -> None:
    """On 1/2 (v - c)^2 at (c + mu w) / (1 + mu); w tends to the mean of the c."""
    people = clients((0.0, 1.0, 5.0), "equal")
    ended = simulate(Ditto(steps(5, 0.09), Full(), mu=mu), people, 100)
    own = ended.server.store.get({"model": (1,)}, people.ids)["model"][:, 0].numpy()
    np.testing.assert_allclose(own, (np.array([0, 1, 5]) + mu * 2) / (1 + mu), rtol=1e-9)


def test_clients_that_are_not_invited_keep_their_models() -> None:
    people = population()
    result = run(Ditto(local(), MD(2)), 1, people=people, task=task())
    state = result.server.store.get(DittoSGD(0.1).state_shapes(result.server.task), people.ids)
    invited = sorted(result.jobs()["client"].tolist())
    assert np.flatnonzero(state["started"].numpy()).tolist() == invited
    assert len(invited) < people.size


def test_its_jobs_take_twice_as_long() -> None:
    """Two gradients a step, in a run and in a schedule without a model."""
    people = population(devices=devices.fixed(1.0, per="step"))
    times = [run(kind(local(), Full()), 2, people=people, task=task()).server.now for kind in (FedAvg, Ditto)]
    assert times[1] == 2 * times[0]
    assert turnout.schedule(Ditto(local(), Full()), people, 2).seconds == times[1]


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"algorithm.mu: -1 must be at least 0"):
        Ditto(FULL, mu=-1)
    with pytest.raises(UserError, match=r"algorithm.tuning_epochs: 0 must be at least 1"):
        Ditto(FULL, tuning_epochs=0)
