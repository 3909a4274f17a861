"""IFCA: every client trains the best of k models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from personal_problems import FULL, REFERENCE, START, TRAINING, UNSEEN, P, assert_served, descend, loss, run, two_rules
from torch import Tensor, nn

from support import local, population
from turnout import MD, FedAvg, Full, LocalSGD, Task, UserError
from turnout.algorithms.ifca import IFCA
from turnout.samplers import PowerOfChoice


def best(models: Tensor, client: int) -> int:
    return int(np.argmin([float(loss(model, client)) for model in models]))


def test_a_plain_loop() -> None:
    """Algorithm 1, model averaging: each client trains the model of the least loss, each model becomes the weighted
    mean of its clients'. Everybody, the unseen too, serves the best one of the end."""
    models, history = REFERENCE.initials(3), []
    for _ in range(3):
        mine = [best(models, i) for i in TRAINING]
        history.append(mine)
        after = models.clone()
        for j in set(mine):
            members = [i for i in TRAINING if mine[i] == j]
            share = P[members] / P[members].sum()
            after[j] = sum(float(s) * descend(models[j], i) for s, i in zip(share, members, strict=True))
        models = after
    result = run(IFCA(FULL, Full(), clusters=3))
    found = result.server.algorithm.models  # type: ignore[attr-defined]
    torch.testing.assert_close(found, models, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(result.model, models.mean(0), rtol=1e-11, atol=1e-13)
    assert_served(result, [models[best(models, i)] for i in (*TRAINING, UNSEEN)])
    assert len({j for mine in history for j in mine}) > 1
    assert result.audit.mean_weight == pytest.approx(np.mean([len(set(mine)) / 3 for mine in history]))


def test_a_model_that_nobody_chose_stays() -> None:
    """After one round from three models, those of clusters nobody is in are where they began."""
    begin = REFERENCE.initials(3)
    chosen = {best(begin, i) for i in TRAINING}
    models = run(IFCA(FULL, Full(), clusters=3), 1).server.algorithm.models  # type: ignore[attr-defined]
    assert [bool(torch.equal(models[j], begin[j])) for j in range(3)] == [j not in chosen for j in range(3)]
    assert len(chosen) < 3


@pytest.mark.parametrize("sampler", [Full(), MD(4)])
def test_one_cluster_is_fedavg(sampler: Full | MD) -> None:
    people, task = population(), Task(lambda: nn.Linear(5, 3), seed=2)
    ours, fedavg = (
        run(kind, 4, people=people, task=task)
        for kind in (IFCA(local(), sampler, clusters=1), FedAvg(local(), sampler))
    )
    torch.testing.assert_close(ours.model, fedavg.model, rtol=1e-11, atol=1e-13)
    assert ours.measures["test_loss"] == pytest.approx(fedavg.measures["test_loss"], rel=1e-11)


def test_two_opposite_rules_are_told_apart() -> None:
    people, task = two_rules(), Task(lambda: nn.Linear(4, 2), seed=1)
    work = LocalSGD(0.5, batch_size=10)
    ended = run(IFCA(work, Full(), clusters=2), 15, people=people, task=task)
    assert ended.measures["test_accuracy"] > 0.95
    assert ended.measures["unseen_test_accuracy"] > 0.95
    assert run(FedAvg(work, Full()), 15, people=people, task=task).measures["test_accuracy"] < 0.65


@pytest.mark.parametrize("sampler", [Full(), PowerOfChoice(2, candidates=3)])
def test_all_models_travel_down_and_one_up(sampler: Full | PowerOfChoice) -> None:
    """Also to those who have reported on the server's own."""
    jobs = run(IFCA(FULL, sampler, clusters=3), 1).jobs()
    trained = jobs["steps"] > 0
    size = START.numel()
    assert set(jobs["bytes_down"][trained]) == {8 * 3 * size}
    assert set(jobs["bytes_up"][trained]) == {8 * (size + 1)}


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"algorithm.clusters: 0 must be at least 1"):
        IFCA(FULL, clusters=0)
