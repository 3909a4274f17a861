"""Candidates found in shadow runs: whose gradients grow, where that is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import Vector, quadratic_loss
from turnout import LocalSGD, Plan, Population, Task
from turnout.clients.adversary import Random
from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.run import shadow

EXACT = Plan(precision="float64", threads=1)


def people(optima: list[float]) -> Population:
    data = turnout.datasets.load("quadratics", optima=optima)
    return Population.of(data, len(optima), "natural", test="none", importance="equal")


def find(optima: list[float], start: float = 0.0, **options: Any) -> list[int]:
    module = Vector(1)
    module.theta = torch.nn.Parameter(torch.tensor([start], dtype=torch.float64))
    local = LocalSGD(0.2, steps=2, batching="full")
    options = {"first": 2, "last": 30, "plan": EXACT, **options}
    return shadow.candidates(Task(module, quadratic_loss), people(optima), local, **options)


OPTIMA = [0.0, 1.0, 2.0, 3.0, 8.0, 9.0, 10.0, 7.0]


def growth_of_gradients(start: float) -> FloatArray:
    """By hand, of the sum of the gradients of two steps, in rounds 2 and 30."""
    optima, theta, norms = np.array(OPTIMA), start, []
    for _ in range(30):
        norms.append(np.abs((1 - 0.8**2) * (theta - optima)))
        theta += float(((1 - 0.8**2) * (optima - theta)).mean())
    return norms[29] - norms[1]


def growth_of_momenta(start: float) -> FloatArray:
    """By hand, of m <- 0.9 m + 0.1 gradient; clipping at 100 does nothing here."""
    optima, theta, m, norms = np.array(OPTIMA), start, np.zeros(8), []
    for _ in range(30):
        m = 0.9 * m + 0.1 * (theta - optima)
        theta -= 0.2 * float(m.mean())
        norms.append(np.abs(m))
    return norms[29] - norms[1]


@pytest.mark.parametrize("start", [0.0, 9.5])
def test_candidates_are_those_whose_gradients_and_momenta_grow_most(start: float) -> None:
    by_gradient = np.argsort(-growth_of_gradients(start), kind="stable").tolist()
    by_momentum = np.argsort(-growth_of_momenta(start), kind="stable").tolist()
    assert find(OPTIMA, start, by_gradient=3, by_momentum=0) == sorted(by_gradient[:3])
    assert find(OPTIMA, start, by_gradient=0, by_momentum=3) == sorted(by_momentum[:3])
    others = [client for client in by_momentum if client not in by_gradient[:3]]
    assert find(OPTIMA, start, by_gradient=3, by_momentum=2) == sorted(by_gradient[:3] + others[:2])
    assert set(by_gradient[:3]) & set(by_momentum[:3])  # some were taken already


def test_everybody_takes_part_in_the_shadow() -> None:
    world = replace(people(OPTIMA), adversary=Random(0.9), availability=turnout.Bernoulli(0.3))
    module = Vector(1)
    found = shadow.candidates(
        Task(module, quadratic_loss),
        world,
        LocalSGD(0.2, steps=2, batching="full"),
        first=2,
        last=30,
        by_gradient=2,
        by_momentum=2,
        plan=EXACT,
    )
    assert found == find(OPTIMA, by_gradient=2, by_momentum=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"first": 5, "last": 5}, "shadow: rounds 5 and 5"),
        ({"by_gradient": 5, "by_momentum": 4}, "shadow: 5 and 4 candidates of 8 clients"),
    ],
)
def test_mistakes(options: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find(list(np.arange(8.0)), **options)


def test_a_shadow_that_diverges_says_so() -> None:
    with pytest.raises(UserError, match="diverged; choose a smaller one"):
        shadow.candidates(
            Task(Vector(1), quadratic_loss),
            people([0.0, 1.0]),
            LocalSGD(1e200, steps=2, batching="full"),
            by_gradient=1,
            by_momentum=1,
            plan=EXACT,
        )
