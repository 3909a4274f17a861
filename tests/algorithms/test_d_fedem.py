"""D-FedEM: FedEM where everybody hears everybody, and close to it where they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import mlp, population
from turnout import Evaluation, Full, LocalSGD, Plan, Task
from turnout.algorithms._mixtures import weights_of
from turnout.algorithms.d_fedem import DFedEM
from turnout.algorithms.fedem import FedEM
from turnout.local.mixture import MixtureTask
from turnout.peers.network import Overlay
from turnout_studies.theory.surrogate import MixtureProblem, peers_round

EXACT = Plan(precision="float64", threads=1)
FULL = LocalSGD(0.2, steps=3, batching="full")


def complete(silos: int) -> Overlay:
    return Overlay("complete", ~np.eye(silos, dtype=np.bool_))


def run(algorithm: Any, people: turnout.Population, rounds: int) -> turnout.Result:
    options: dict[str, Any] = {"plan": EXACT, "evaluation": Evaluation(rounds=None)}
    return turnout.simulate(Task(mlp, seed=3), people, algorithm, rounds, **options)


def test_everybody_hears_everybody() -> None:
    """federated-em.md O8: W = 1 1^T / T and silos of one size."""
    people = population(tuple([10] * 6))
    fedem, alone = FedEM(FULL, Full()), DFedEM(FULL, complete(6), mixing="uniform")
    one, two = run(fedem, people, 5), run(alone, people, 5)
    torch.testing.assert_close(two.model, one.model, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(alone.silos.models, one.model.expand(6, -1), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        weights_of(two.server, alone.own_work(), people.ids), weights_of(one.server, fedem.own_work(), people.ids)
    )
    assert float(two.rounds()["consensus_distance"][-1]) < 1e-20
    assert two.measures["test_loss"] == pytest.approx(one.measures["test_loss"], rel=1e-9)


@pytest.mark.parametrize("objective", ["importance", "equal"])
def test_a_ring_of_unequal_silos_is_the_plain_loop(objective: Any) -> None:
    """Own components, own weights, gradients scaled by T omega_t or not at all, mixed over a ring."""
    people = population()
    size = people.size
    eye = np.eye(size)
    ring = Overlay("ring", (np.roll(eye, 1, 0) + np.roll(eye, -1, 0)) > 0)
    algorithm = DFedEM(FULL, ring, components=2, objective=objective)
    counts = people.base_importance if objective == "importance" else np.full(size, 1 / size)
    ended = run(algorithm, people, 4)
    task = MixtureTask(Task(mlp, seed=3), 2).to(dtype=torch.float64)
    rows, private = task.initial.repeat(size, 1), [torch.full((2,), 0.5, dtype=torch.float64)] * size
    data = [(people.inputs[people.train.row(i)].double(), people.targets[people.train.row(i)]) for i in range(size)]
    mixing = (eye + np.roll(eye, 1, 0) + np.roll(eye, -1, 0)) / 3
    for _ in range(4):
        rows, private = peers_round(MixtureProblem(task), rows, private, data, counts, mixing, 3, 0.2)
    torch.testing.assert_close(algorithm.silos.models, rows, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        weights_of(ended.server, algorithm.own_work(), people.ids), torch.stack(private), rtol=1e-9
    )
    torch.testing.assert_close(ended.model, rows.mean(0), rtol=1e-9, atol=1e-12)


def test_silos_agree_in_the_end() -> None:
    """federated-em.md O18: with eta = a / sqrt(K) the distance to consensus vanishes."""
    distances = [
        run(DFedEM(LocalSGD(1.0 / rounds**0.5, steps=1, batching="full"), components=2), population(), rounds).rounds()
        for rounds in (8, 32, 128)
    ]
    last = [float(rounds["consensus_distance"][-1]) for rounds in distances]
    assert last[2] < last[1] < last[0]
    assert last[2] < 0.2 * last[0]
