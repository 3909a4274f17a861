"""Invariant 1: the vectorised cohort equals a plain one-client-at-a-time torch.optim loop.

Ragged data, unequal steps, partial batches, different starting versions in one cohort, every engine, every local work.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from oracle import plain
from support import SIZES, conv, images, mlp, population
from turnout.clients.population import Population
from turnout.core.ragged import Ragged
from turnout.core.random import key
from turnout.engine.batches import Jobs
from turnout.engine.plan import Plan
from turnout.engine.train import Cohort
from turnout.local.modifiers import ControlVariates, Proximal
from turnout.local.sgd import LocalSGD
from turnout.task.models import char_lstm
from turnout.task.task import Task

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
WORKS: dict[str, LocalSGD] = {
    "plain": LocalSGD(0.1, epochs=2, batch_size=4),
    "momentum": LocalSGD(0.1, epochs=2, batch_size=4, momentum=0.9),
    "decay": LocalSGD(0.1, epochs=2, batch_size=4, weight_decay=0.1),
    "clip": LocalSGD(0.1, epochs=2, batch_size=4, clip_norm=0.2),
    "steps": LocalSGD(0.1, steps=7, batch_size=4),
    "proximal": LocalSGD(0.1, epochs=2, batch_size=4, momentum=0.5, modifiers=(Proximal(0.5),)),
    "controlled": LocalSGD(0.1, epochs=2, batch_size=4, modifiers=(ControlVariates(torch.zeros(0)),)),
}


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def lstm() -> nn.Module:
    return char_lstm(symbols=7, embed=3, hidden=4, layers=2)


def texts() -> Population:
    tokens = torch.from_numpy(np.abs(key(4, "tokens", np.arange(sum(SIZES) * 5))) % 7).reshape(-1, 5)
    return Population(tokens, tokens[:, 0], Ragged(np.concatenate([[0], np.cumsum(SIZES)]), np.arange(len(tokens))))


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 2)
    )


class Standardised(nn.Module):
    """Looks at its kernels as at vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, bias=False), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread = self.second.weight.view(4, -1).std(1).view(4, 1, 1, 1)
        x = nn.functional.conv2d(self.first(x), self.second.weight / spread)
        scores: torch.Tensor = self.head(x.flatten(1))
        return scores


CASES: dict[str, tuple[Any, Any]] = {
    "mlp": (mlp, population),
    "dropout": (dropout_mlp, population),
    "conv": (conv, images),
    "normed": (normed, images),
    "standardised": (Standardised, images),
    "lstm": (lstm, texts),
}


@pytest.mark.parametrize(("case", "kernels"), [("normed", {"0.weight", "3.weight"}), ("standardised", set())])
def test_kernels_are_laid_out_as_images_where_the_model_allows_it(case: str, kernels: set[str]) -> None:
    people = images()
    cohort = Cohort(Task(CASES[case][0], seed=3), people.inputs, people.targets, Plan(threads=1))
    assert cohort._plain.kernels == kernels


def run(
    case: str, work: LocalSGD, plan: Plan, versions: int = 3, options: dict[str, np.ndarray] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Differences `[k, P]` by the engine and by the plain loop."""
    model, people = CASES[case][0], CASES[case][1]()
    task = Task(model, seed=3)
    cohort = Cohort(task, people.inputs, people.targets, plan)
    task = cohort.task
    models = torch.stack([task.initial * (1 + 0.3 * v) for v in range(versions)])
    clients = np.arange(len(SIZES))
    received = clients % versions
    keys = key(9, "test", clients)
    control = torch.linspace(-1, 1, task.size, dtype=plan.dtype)
    state = {
        name: torch.full((len(clients), *shape), 0.05, dtype=plan.dtype)
        for name, shape in work.stored_shapes(task).items()
    }
    controlled = any(isinstance(modifier, ControlVariates) for modifier in work.modifiers)
    if controlled:
        work = work.bind({"modifiers.0.control": control})
    options = options or {}
    trained = cohort.train(Jobs(work, keys, models, received, people.train, options, state))
    rows = []
    steps = work.bind(options).num_steps(people.train.counts)
    for i in clients.tolist():
        mine = people.train.row(i)
        rows.append(
            plain.train(
                task,
                task.module.requires_grad_(True),
                models[received[i]],
                cohort.inputs[mine],
                cohort.targets[mine],
                int(steps[i]),
                int(keys[i]),
                float(options["lr"][i]) if "lr" in options else work.lr,
                work.batch_size,
                float(options["momentum"][i]) if "momentum" in options else work.momentum,
                float(options["weight_decay"][i]) if "weight_decay" in options else work.weight_decay,
                work.clip_norm,
                work.pull - work.weight_decay,
                control - 0.05 if controlled else None,
            )
        )
    return trained.payload["delta"], torch.stack(rows)


def from_one_version(
    work: LocalSGD, model: torch.Tensor, people: Population, options: dict[str, np.ndarray] | None = None
) -> Jobs:
    clients = np.arange(people.size)
    return Jobs(work, key(9, "x", clients), model[None], np.zeros_like(clients), people.train, options or {}, {})


def worst(engine: torch.Tensor, reference: torch.Tensor) -> float:
    return float(((engine - reference).norm(dim=1) / reference.norm(dim=1)).max())


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("work", WORKS)
def test_every_work_equals_the_plain_loop(work: str, engine: str, precision: str) -> None:
    got, expected = run("mlp", WORKS[work], Plan(engine=engine, precision=precision, threads=2))
    assert worst(got, expected) <= TOLERANCE[precision]


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("case", ["dropout", "conv", "normed", "standardised", "lstm"])
def test_every_model_equals_the_plain_loop(case: str, engine: str) -> None:
    got, expected = run(case, WORKS["plain"], Plan(engine=engine, precision="float64", threads=2))
    assert worst(got, expected) <= 1e-9


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("work", ["plain", "momentum"])
def test_numbers_may_differ_between_clients(work: str, engine: str) -> None:
    options = {"lr": np.linspace(0.01, 0.2, len(SIZES)), "epochs": np.array([1, 2, 3, 1, 2, 3, 1, 2.0])}
    got, expected = run("mlp", WORKS[work], Plan(engine=engine, precision="float64", threads=1), options=options)
    assert worst(got, expected) <= 1e-9


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("option", ["momentum", "weight_decay"])
def test_so_may_those_that_plain_sgd_does_not_have(option: str, engine: str) -> None:
    options = {option: np.linspace(0.0, 0.9, len(SIZES))}
    got, expected = run("mlp", WORKS["plain"], Plan(engine=engine, precision="float64", threads=1), options=options)
    assert worst(got, expected) <= 1e-9


def test_a_client_may_do_no_step_at_all() -> None:
    options = {"epochs": np.array([1, 0, 1, 0, 1, 1, 1, 1.0])}
    for engine in ("vectorised", "sequential"):
        people, task = population(), Task(mlp)
        cohort = Cohort(task, people.inputs, people.targets, Plan(engine=engine, threads=1).resolve())
        jobs = Jobs(
            WORKS["plain"], key(1, "x", np.arange(8)), task.initial[None], np.zeros(8, int), people.train, options, {}
        )
        norms = cohort.train(jobs).payload["delta"].norm(dim=1)
        assert [bool(norm) for norm in norms] == [True, False, True, False, True, True, True, True]


def test_chunks_change_nothing_but_the_last_bits() -> None:
    people, task = population(), Task(mlp, seed=3)
    jobs = Jobs(
        WORKS["plain"], key(9, "x", np.arange(8)), task.initial[None].double(), np.zeros(8, int), people.train, {}, {}
    )
    plan = Plan(engine="vectorised", precision="float64", threads=1)
    whole = Cohort(task, people.inputs, people.targets, plan)
    small = Cohort(task, people.inputs, people.targets, plan)
    small.plan = _WithLimit(**{part.name: getattr(plan, part.name) for part in fields(plan)})
    one, many = whole.train(jobs).payload["delta"], small.train(jobs).payload["delta"]
    torch.testing.assert_close(many, one, rtol=1e-12, atol=1e-14)


class _WithLimit(Plan):
    def clients_a_call(self, *_: Any) -> int:
        return 3


def test_a_chunk_follows_from_the_configured_budget_alone() -> None:
    task, work = Task(nn.Linear(1000, 1000)), WORKS["plain"]
    assert Plan(memory_mib=1).clients_a_call(task, work, 0) == 1
    assert Plan(memory_mib=2048).clients_a_call(task, work, 0) == 89  # 2 GiB over 6 vectors of 4 MB
    assert Plan(memory_mib=2048).clients_a_call(task, work, 10**8) < 10


@pytest.mark.parametrize("batching", ["draws", "fixed", "full"])
def test_other_ways_of_batching_agree_between_engines(batching: str) -> None:
    work = LocalSGD(0.1, steps=5, batch_size=4, batching=batching)
    people, task = population(), Task(mlp, seed=3)
    jobs = from_one_version(work, task.initial.double(), people)
    results = []
    for engine in ("vectorised", "sequential"):
        plan = Plan(engine=engine, precision="float64", threads=1)
        results.append(Cohort(task, people.inputs, people.targets, plan).train(jobs).payload["delta"])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert float(results[0].norm(dim=1).min()) > 0


def test_full_batches_are_gradient_descent() -> None:
    """`batching="full"`, one step: theta - lr * gradient of the mean loss of all the client's samples."""
    people, task = population(), Task(mlp, seed=3)
    cohort = Cohort(task, people.inputs, people.targets, Plan(engine="vectorised", precision="float64", threads=1))
    work = LocalSGD(0.5, epochs=1, batching="full")
    got = cohort.train(from_one_version(work, cohort.task.initial, people)).payload["delta"]
    for i in range(8):
        mine = people.train.row(i)
        theta = cohort.task.initial.clone().requires_grad_()
        loss = cohort.task.losses(theta, cohort.inputs[mine], cohort.targets[mine]).mean()
        torch.testing.assert_close(got[i], -0.5 * torch.autograd.grad(loss, theta)[0], rtol=1e-12, atol=1e-14)


def test_a_model_that_cannot_pass_one_sample_is_trained() -> None:
    """BatchNorm of a pixel needs two samples: nothing but its own batches is passed in training mode."""
    people = images((4, 8, 4))
    model = nn.Sequential(nn.Conv2d(1, 4, 6), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    task = Task(model, batchnorm="averaged", seed=3)
    cohort = Cohort(task, people.inputs, people.targets, Plan(threads=1))
    trained = cohort.train(from_one_version(WORKS["plain"], cohort.task.initial, people, {"version": np.zeros(3)}))
    assert trained.payload["delta"].abs().sum() > 0
    assert "kernels" not in vars(cohort._plain)
