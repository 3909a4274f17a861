"""FEM-OMD over rounds of a server: online-mixtures.md 3.4, 3.6."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from toy_problems import EXACT, SELDOM

import turnout
from support import mlp, population
from turnout import Full, LocalSGD, Task
from turnout.algorithms._mixtures import weights_of
from turnout.algorithms.fem_omd import FEMOMD
from turnout.clients import arriving, memories
from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.local.mixture import MixtureTask, responsibilities
from turnout.theory.mirror import floored, mirror_step

WORK = LocalSGD(0.2, steps=1, batching="full")


def run(people: Population, rounds: int, **options: Any) -> tuple[turnout.Result, Any]:
    method = FEMOMD(options.pop("work", WORK), Full(), components=3, **options)
    result = turnout.simulate(Task(mlp, seed=3), people, method, rounds, plan=EXACT, evaluation=SELDOM)
    return result, weights_of(result.server, method.own_work(), people.ids)


def by_hand(people: Population, rounds: int, em_steps: int, scale: float, floor: float) -> Any:
    """Models and weights, client by client, of clients that take one full step a round."""
    task = MixtureTask(Task(mlp, seed=3), 3).to(dtype=torch.float64)
    model, played = task.initial, torch.full((people.size, 3), 1 / 3, dtype=torch.float64)
    for number in range(rounds):
        rows = people.samples(people.ids, np.full(people.size, float(number)))
        there = np.flatnonzero(rows.counts)
        total = people.base_importance[there].sum()
        moved = torch.zeros_like(model)
        for client in there.tolist():
            index = torch.as_tensor(rows.row(client))
            x, y = people.inputs[index].double(), people.targets[index]
            losses = task.component_losses(model, x, y)
            explained = torch.full((3,), 1 / 3, dtype=torch.float64)
            for _ in range(em_steps):
                shares = responsibilities(losses, explained)
                explained = shares.mean(0)

            def explained_loss(p: Any, x: Any = x, y: Any = y, q: Any = shares) -> Any:
                return (task.component_losses(p, x, y) * q).sum(1).mean()

            gradient = task.gradient(explained_loss, model)
            moved = moved - people.base_importance[client] / total * 0.2 * gradient
            slope = -responsibilities(losses, played[client]).mean(0) / played[client]
            assert float(played[client] @ slope) == pytest.approx(-1)  # O1
            lr = scale * math.sqrt(math.log(3) / (number + 1))
            played[client] = floored(mirror_step(played[client], slope, lr), floor)
        model = model + moved
    return model, played


@pytest.mark.parametrize(("em_steps", "scale", "floor"), [(1, 0.1, 0.01), (4, 2.0, 0.2)])
def test_rounds_by_hand(em_steps: int, scale: float, floor: float) -> None:
    people = population().streaming(arriving.constant(2), memories.FIFO(4))
    result, weights = run(people, 4, em_steps=em_steps, scale=scale, min_weight=floor)
    model, played = by_hand(people, 4, em_steps, scale, floor)
    assert result.model == pytest.approx(model, abs=1e-12)
    assert weights == pytest.approx(played.numpy(), abs=1e-12)
    assert np.abs(weights - 1 / 3).max() > 1e-4
    assert weights.min() >= floor - 1e-12


def test_who_receives_nothing_keeps_its_weights() -> None:
    people = population().streaming(arriving.replay([2, 0]), memories.Latest())
    once, again = (run(people, rounds)[1] for rounds in (1, 2))
    assert np.array_equal(once, again)


def test_bad_options() -> None:
    with pytest.raises(UserError, match=r"algorithm.min_weight: 0.4 must be .*below 1 / components"):
        FEMOMD(WORK, min_weight=0.4)
    with pytest.raises(UserError, match=r"algorithm.scale: 0"):
        FEMOMD(WORK, scale=0.0)
    with pytest.raises(UserError, match=r"algorithm.em_steps: 0 must be at least 1"):
        FEMOMD(WORK, em_steps=0)
    with pytest.raises(UserError, match=r"algorithm.unseen_steps: 0 must be at least 1"):
        FEMOMD(WORK, unseen_steps=0)
