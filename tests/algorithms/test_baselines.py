"""The baselines above and below: everybody's data in one place, and everybody alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import personal_problems as few
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turnout
from turnout import FedAvg, Full, LocalSGD, Observer, Plan, Population, Task, UserError
from turnout.algorithms import Centralised, Local
from turnout.server.observer import Round
from turnout.server.server import Server

EXACT = Plan(precision="float64", threads=1)


def digits(clients: int = 5, **options: Any) -> Population:
    data = turnout.datasets.load("digits")
    return Population.of(data, clients, "dirichlet", partition_options={"alpha": 0.5}, **options)


def model() -> nn.Module:
    return turnout.models.linear(64, 10)


def descend(start: Tensor, inputs: Tensor, targets: Tensor, steps: int, **options: Any) -> Tensor:
    """Plain torch.optim.SGD on all samples, from a flat vector of weight and bias."""
    weight, bias = start[:640].view(10, 64).clone().requires_grad_(), start[640:].clone().requires_grad_()
    optimiser = torch.optim.SGD([weight, bias], **options)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(F.linear(inputs, weight, bias), targets).backward()
        optimiser.step()
    return torch.cat([weight.detach().flatten(), bias.detach()])


def loss(params: Tensor, inputs: Tensor, targets: Tensor) -> float:
    return float(F.cross_entropy(F.linear(inputs, params[:640].view(10, 64), params[640:]), targets))


def rows(people: Population, client: int | None = None) -> tuple[Tensor, Tensor]:
    """Training samples of one client, or of all."""
    index = torch.as_tensor(people.train.values if client is None else people.train.row(client))
    return people.inputs[index].double(), people.targets[index]


def test_pooled_risk() -> None:
    """overview-heterogeneity.md O1: sum N_c / N F_c equals the mean loss on the union, to 1e-6."""
    people = digits()
    task = Task(model, seed=1)
    ended = turnout.simulate(task, people, FedAvg(LocalSGD(0.3), Full()), rounds=2, plan=EXACT)
    assert ended.measures["train_loss"] == pytest.approx(loss(ended.model, *rows(people)), abs=1e-6)
    assert ended.measures["train_loss_mean"] == pytest.approx(
        np.mean([loss(ended.model, *rows(people, client)) for client in range(5)]), abs=1e-6
    )


@pytest.mark.parametrize("algorithm", [FedAvg, Centralised])
def test_one_full_step_is_gradient_descent(algorithm: type[FedAvg]) -> None:
    """overview-heterogeneity.md O4: E = 1, full batch, full participation == centralised gradient descent."""
    people, task = digits(), Task(model, seed=1)
    run = algorithm(LocalSGD(0.5, steps=1, batching="full"), Full())
    ended = turnout.simulate(task, people, run, rounds=6, plan=EXACT)
    plain = descend(task.initial.double(), *rows(people), steps=6, lr=0.5)
    assert ended.model == pytest.approx(plain, abs=1e-12)


def test_centralised_is_sgd_on_the_union() -> None:
    """Several steps with momentum and weight decay in one round: torch.optim.SGD on everybody's samples."""
    people, task = digits(), Task(model, seed=1)
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    run = Centralised(LocalSGD(steps=7, batching="full", **options))
    ended = turnout.simulate(task, people, run, rounds=1, plan=EXACT)
    plain = descend(task.initial.double(), *rows(people), steps=7, **options)
    assert ended.model == pytest.approx(plain, abs=1e-12)
    assert ended.server.population.size == 1
    assert ended.measures["train_loss_std"] > 0  # still evaluated over the clients as they are


def test_centralised_epoch_sees_every_sample_once() -> None:
    """On a linear loss an epoch of mini-batches of one moves by exactly -lr times the sum of all slopes."""
    people = digits(test="none")
    task = Task(nn.Linear(64, 1, bias=False), lambda outputs, _targets: outputs[:, 0])
    ended = turnout.simulate(task, people, Centralised(LocalSGD(0.5, batch_size=1)), rounds=1, plan=EXACT)
    moved = ended.model - task.initial
    assert moved == pytest.approx(-0.5 * people.inputs.double().sum(0), abs=1e-7)
    assert ended.jobs()["steps"].tolist() == [len(people.inputs)]


def test_local_never_exchanges() -> None:
    """Nothing is ever sent up, the global model stays, and nobody's data counted for anybody else."""
    task = Task(model, seed=1)
    ended = turnout.simulate(task, digits(), Local(LocalSGD(0.3)), rounds=3, plan=Plan(threads=1))
    assert ended.rounds()["bytes_up"].tolist() == [0, 0, 0, 0]
    assert ended.jobs()["bytes_up"].tolist() == [0] * 15
    assert ended.jobs()["upload_seconds"].tolist() == [0] * 15
    assert ended.model.equal(task.initial)
    assert ended.audit.contributions.tolist() == [0] * 5


def test_local_is_training_alone() -> None:
    """After T rounds of K steps each client's model is that of T K steps on its own samples, and it serves that one."""
    people, task = digits(), Task(model, seed=1)
    ended = turnout.simulate(task, people, Local(LocalSGD(0.5, steps=3, batching="full")), rounds=2, plan=EXACT)
    own = ended.server.store.get({"model": (task.size,)}, people.ids)["model"]
    alone = torch.stack([descend(task.initial.double(), *rows(people, c), steps=6, lr=0.5) for c in range(5)])
    assert own == pytest.approx(alone, abs=1e-12)
    losses = np.array([loss(alone[client], *rows(people, client)) for client in range(5)])
    assert ended.measures["train_loss"] == pytest.approx(people.base_importance @ losses, rel=1e-9)
    assert ended.measures["train_loss_mean"] == pytest.approx(losses.mean(), rel=1e-9)
    start = ended.rounds()["train_loss"][0]  # nobody has a model of its own yet: the initial one
    assert start == pytest.approx(loss(task.initial.double(), *rows(people)), rel=1e-9)


class Patience(Observer):
    """Gives up after so many rounds."""

    def on_round(self, server: Server, record: Round) -> None:
        if record.number > 50:
            raise TimeoutError(f"round {record.number} at {server.now} s")


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(LocalSGD(0.1), Full()),
        Local(LocalSGD(0.1)),
    ],
)
def test_waiting_for_somebody_takes_time(algorithm: turnout.Algorithm) -> None:
    """Nobody is online before 3 s: empty rounds pass the time until somebody is, or until the run is over."""
    people = digits(joined_at=np.full(5, 3.0))
    experiment = turnout.Experiment(Task(model, seed=1), people, algorithm, plan=Plan(threads=1))
    experiment.stopping = turnout.Stopping(None, seconds=5.0)
    ended = turnout.execute(experiment, observers=[Patience()])
    assert ended.server.now == 5.0
    assert set(ended.jobs()["sent_at"]) == {3.0, 4.0}


def test_local_with_some_of_the_clients() -> None:
    """A client that was not invited keeps its model; one never invited serves the initial one."""
    people, task = digits(), Task(model, seed=1)
    run = Local(LocalSGD(0.5, steps=2, batching="full"), turnout.Uniform(2))
    ended = turnout.simulate(task, people, run, rounds=3, plan=EXACT)
    jobs = np.bincount(ended.jobs()["client"], minlength=5)
    assert jobs.sum() == 6
    assert jobs.min() == 0
    losses = []
    for client in range(5):
        mine = descend(task.initial.double(), *rows(people, client), steps=2 * int(jobs[client]), lr=0.5)
        losses.append(loss(mine, *rows(people, client)))
    assert ended.measures["train_loss"] == pytest.approx(people.base_importance @ np.array(losses), rel=1e-9)


@pytest.mark.parametrize(("options", "steps"), [({}, 3 * few.STEPS), ({"tuning_epochs": 4}, 4)])
def test_a_client_never_seen_trains_alone_as_well(options: dict[str, Any], steps: int) -> None:
    """knn-personalisation.md 3.9: from the initial model; as long as the others could, unless told how long."""
    own = [few.descend(few.START, i, steps=3 * few.STEPS) for i in few.TRAINING]
    ended = few.run(Local(few.FULL, **options))
    few.assert_served(ended, [*own, few.descend(few.START, few.UNSEEN, steps=steps)])
    assert ended.server.store._row[few.UNSEEN] < 0  # and keeps nothing
    passes = LocalSGD(few.LR, epochs=few.STEPS, batching="full", lr_decay=0.5)  # begins with the rate of a first round
    served = few.run(Local(passes, **options)).server.clients()["train_loss"][few.UNSEEN]
    assert served == pytest.approx(float(few.loss(few.descend(few.START, few.UNSEEN, steps=steps), few.UNSEEN)))


def test_with_the_average_of_all_a_client_never_seen_serves_that() -> None:
    ended = few.run(Local(few.FULL, average=True))
    own = [few.descend(few.START, i, steps=3 * few.STEPS) for i in few.TRAINING]
    few.assert_served(ended, [few.average(own)] * 5)


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"algorithm.tuning_epochs: 0 must be at least 1"):
        Local(few.FULL, tuning_epochs=0)
