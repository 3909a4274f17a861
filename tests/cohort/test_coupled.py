"""Losses that look at the other samples of a batch: every path against a plain loop, and how they are evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import turnout
from oracle import plain
from support import SIZES, images, population
from turnout import Evaluation, FedAvg, Full, LocalSGD, Plan, Population, Ragged, Task, UserError
from turnout.core.random import key, uniform
from turnout.engine.batches import Jobs
from turnout.engine.train import Cohort
from turnout.local.modifiers import Proximal
from turnout.task.losses import LOSSES

WORK = LocalSGD(0.1, epochs=2, batch_size=4)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def spread(outputs: Tensor, targets: Tensor) -> Tensor:
    """third-party-tables.md O17: how far residuals are from their mean."""
    residual = (outputs - targets).squeeze(1)
    return (residual - residual.mean()).square()


def cox(outputs: Tensor, targets: Tensor) -> Tensor:
    """Negative partial log-likelihood; targets are time and whether it was seen."""
    score, (time, seen) = outputs[:, 0], targets.unbind(1)
    at_risk = torch.where(time[None] >= time[:, None], score[None], -torch.inf)
    return seen * (at_risk.logsumexp(1) - score)


def contrastive(outputs: Tensor, _targets: Tensor) -> Tensor:
    """Of each sample against all others of its batch."""
    return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)), reduction="none")


def of_the_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    """One number, which is no mean over samples."""
    return (1 + cox(outputs, targets).mean()).sqrt()


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


def mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


class Centred(nn.Module):
    """A model that looks at the other samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(centred(x))
        return out


def survival(people: Population) -> Population:
    """The same clients, some of whose times are seen."""
    times = torch.from_numpy(uniform(key(3, "times"), len(people.targets))).float()
    return replace(people, targets=torch.stack([times, (times < 0.6).float()], 1))


def flat(outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, outputs))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 1))


CASES: dict[str, tuple[Any, Any, Population]] = {
    "cox": (flat(1), cox, survival(population())),
    "cox, convolutions": (conv, cox, survival(images())),
    "contrastive": (flat(4), contrastive, population()),
    "one number": (flat(1), of_the_batch, survival(population())),
    "a sum": (flat(3), summed, population()),
    "a mean": (flat(3), mean, population()),
    "the model": (Centred, "cross_entropy", population()),
}


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_is_a_clients_own(case: str, engine: str) -> None:
    """Ragged clients, last batches that are smaller, several versions, several threads."""
    model, loss, people = CASES[case]
    task, plan = Task(model, loss, seed=3), Plan(engine=engine, precision="float64", threads=2, memory_mib=1)
    cohort = Cohort(task, people.inputs, people.targets, plan)
    task, clients = cohort.task, np.arange(len(SIZES))
    assert bool(task.coupled) == (case != "a mean")
    models, keys = torch.stack([task.initial * (1 + 0.3 * version) for version in range(3)]), key(9, "test", clients)
    for work in (WORK, LocalSGD(0.1, epochs=2, batch_size=4, momentum=0.5, modifiers=(Proximal(0.5),))):
        trained = cohort.train(Jobs(work, keys, models, clients % 3, people.train, {}, {}))
        for i, steps in enumerate(work.num_steps(people.train.counts).tolist()):
            mine, mu = people.train.row(i), work.pull
            samples, module = (cohort.inputs[mine], cohort.targets[mine]), task.module.requires_grad_(True)
            start, own = models[i % 3], int(keys[i])
            expected = plain.train(task, module, start, *samples, steps, own, 0.1, 4, work.momentum, mu=mu)
            torch.testing.assert_close(trained.payload["delta"][i], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("plan", [Plan(), Plan(kernels="general"), Plan(engine="sequential")])
def test_published_numbers(plan: Plan) -> None:
    """third-party-tables.md O17."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    people = Population(x, y, Ragged(np.array([0, 4, 8]), np.arange(8)))
    events: list[str] = []

    class Told(turnout.Observer):
        def on_event(self, server: turnout.Server, event: Any) -> None:
            events.append(str(event))

    task = Task(lambda: nn.Linear(3, 1), spread, seed=5)
    result = turnout.simulate(
        task, people, FedAvg(LocalSGD(0.1, batch_size=4), Full()), 1, plan=plan, observers=[Told()]
    )
    assert result.model[:3].tolist() == pytest.approx([0.27674, -0.29929, 0.46994], abs=1e-5)
    assert result.server.plan.engine == "sequential"
    assert sum("one by one (why the loss looks at" in event for event in events) == (plan.engine != "sequential")


def test_cox_by_hand() -> None:
    """third-party-tables.md O9."""
    scores, times = torch.tensor([[0.0], [math.log(2)], [0.0]]), torch.tensor([3.0, 2.0, 1.0])
    losses = cox(scores, torch.stack([times, torch.ones(3)], 1))
    assert losses.tolist() == pytest.approx([0, math.log(1.5), math.log(4)])
    assert float(losses.mean()) == pytest.approx(0.597253, abs=1e-6)
    assert float(cox(scores, torch.stack([times, torch.tensor([1.0, 0, 1])], 1)).mean()) == pytest.approx(
        0.462098, abs=1e-6
    )


@pytest.mark.parametrize("rare", [0, 150])
def test_one_event_among_many_is_enough(rare: int) -> None:
    """Where all others are censored, only pairs with that one are coupled."""
    x, times = torch.randn(200, 5), torch.rand(200)
    task = Task(flat(1), cox)
    task.examine(x, torch.stack([times, (torch.arange(200) == rare).float()], 1))
    assert task.coupled == {"loss"}


def test_large_values_do_not_hide_small_ones() -> None:
    """What is compared is a share of each value, not of the largest, here 1e4."""

    def rarely(outputs: Tensor, targets: Tensor) -> Tensor:
        return spread(outputs, 0 * targets) + targets.squeeze(1)

    y = torch.zeros(200, 1)
    y[7] = 1e4
    task = Task(nn.Linear(5, 1), rarely)
    task.examine(torch.randn(200, 5), y)
    assert task.coupled == {"loss"}


def harrell(outputs: Tensor, targets: Tensor) -> Tensor:
    """Concordance of a whole set: a number that is no mean over samples."""
    score, (time, seen) = outputs[:, 0], targets.unbind(1)
    pairs = (seen[:, None] > 0) & ((time[:, None] < time) | ((time[:, None] == time) & (seen == 0)))
    right = (score[:, None] > score).double() + (score[:, None] == score) / 2
    return (right * pairs).sum() / pairs.sum()


def test_concordance_by_hand() -> None:
    """third-party-tables.md O10."""
    targets = torch.stack([torch.tensor([1.0, 2, 3, 4]), torch.tensor([1.0, 0, 1, 1])], 1)
    assert float(harrell(torch.tensor([[4.0], [3], [1], [2]]), targets)) == 0.75


@pytest.mark.parametrize("algorithm", [FedAvg, turnout.algorithms.Local, turnout.algorithms.FedPer])
@pytest.mark.parametrize("loss", [cox, "mse"])
def test_a_client_is_measured_on_all_its_samples_at_once(
    algorithm: Callable[..., turnout.Algorithm], loss: str | Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Loss and metrics, by the global model and by each client's own; a metric may be coupled where the loss is not."""
    people, outputs = survival(population((9, 90, 12, 7))), 1 if loss is cox else 2
    people = replace(people, central=(people.inputs[:50], people.targets[:50]))
    task = Task(flat(outputs), loss, {"concordance": harrell}, seed=1)
    made = algorithm(LocalSGD(0.1, epochs=1, batch_size=4), Full())
    result = turnout.simulate(task, people, made, 2, plan=Plan(memory_mib=1, threads=1))
    server, served = result.server, result.clients()
    assert server.task.coupled == {"concordance"} | ({"loss"} if loss is cox else set())
    assert (server.plan.engine == "sequential") == (loss is cox)
    for i in range(people.size):
        rows = people.train.row(i)
        if algorithm is FedAvg:
            out = server.task.outputs(result.model, people.inputs[rows])
        else:
            work = made.predictor()
            assert work is not None
            kept = server.store.get(work.state_shapes(server.task), np.array([i]))
            own = {name: values[0] for name, values in kept.items()}
            out = work.predict(server.task, result.model, own, people.inputs[rows])
        losses = Task(flat(outputs), loss).loss(out, people.targets[rows])
        assert served["train_loss"][i] == pytest.approx(float(losses.mean()), rel=1e-5)
        assert served["train_concordance"][i] == pytest.approx(float(harrell(out, people.targets[rows])), rel=1e-5)
    if algorithm is FedAvg:
        out = server.task.outputs(result.model, people.inputs[:50])
        assert result.measures["central_concordance"] == pytest.approx(float(harrell(out, people.targets[:50])))
        weighted = np.average(served["train_loss"], weights=people.train.counts)
        assert result.measures["train_loss"] == pytest.approx(weighted)


def test_reports_are_of_all_samples_at_once() -> None:
    people = survival(population((9, 90, 12)))
    server = turnout.Simulation(
        Task(flat(1), cox), people, FedAvg(WORK), evaluation=Evaluation(rounds=None), plan=Plan(threads=1)
    )
    server.invite(people.ids, LocalSGD(0.1, steps=1, batch_size=4, report="loss"))
    updates = server.wait()
    for client, loss in zip(updates.clients, updates["loss"], strict=True):
        rows = people.train.row(client)
        expected = cox(server.task.outputs(server.model, people.inputs[rows]), people.targets[rows]).mean()
        assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_what_needs_the_loss_of_single_samples_is_refused() -> None:
    people = survival(population())
    plain_task = Task(flat(1), cox)
    with pytest.raises(UserError, match="a mixture weighs the losses of single samples, and the loss looks at"):
        turnout.simulate(plain_task, people, turnout.algorithms.FedEM(WORK, Full(), components=2, outputs="values"), 1)
    samples = people.inputs[:40], people.targets[:40]
    with pytest.raises(UserError, match="it compares the losses of single samples, and the loss looks at"):
        turnout.trust.three_way(plain_task, plain_task.initial, samples, samples)


@pytest.mark.parametrize("name", LOSSES)
def test_no_loss_of_ours_is_coupled(name: str) -> None:
    """From any model, also one that gives the same for all samples."""
    targets = torch.arange(90) % 3 if name in ("cross_entropy", "nll") else torch.randn(90, 3)
    for model in (flat(3), lambda: turnout.models.linear(5, 3, zero_init=True)):
        task = Task(model, name)
        task.examine(torch.randn(90, 5), targets)
        assert not task.coupled and not task.alone
