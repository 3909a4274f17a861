"""Evaluation over all clients: weighted, and the distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import turnout
from support import SIZES, local, population, simulation
from turnout import Evaluation, LocalSGD, Population, Ragged, Stopping, Task
from turnout.core.errors import UserError
from turnout.engine.evaluate import client_means, distribution


def test_federated_loss_equals_a_loop_over_clients_and_the_pooled_risk() -> None:
    """overview-heterogeneity.md O1: with p_i = n_i / n it is the mean loss on the union."""
    server = simulation(turnout.FedAvg(local()))
    measures = server.evaluate()
    people, losses = server.population, []
    for i in range(people.size):
        rows = people.train.row(i)
        losses.append(float(server.task.losses(server.model, people.inputs[rows], people.targets[rows]).mean()))
    assert measures["train_loss"] == pytest.approx(np.average(losses, weights=SIZES), rel=1e-6)
    assert measures["train_loss_mean"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert measures["train_loss_std"] == pytest.approx(np.std(losses), rel=1e-5)
    assert measures["train_loss_worst_decile"] == pytest.approx(max(losses), rel=1e-6)  # of fewer than 20
    pooled = float(server.task.losses(server.model, people.inputs, people.targets).mean())
    assert measures["train_loss"] == pytest.approx(pooled, rel=1e-6)


def test_the_worst_10th_percentile_is_the_tenth_worst_of_a_hundred() -> None:
    """knn-personalisation.md O18; federated-em.md, ambiguity 12, counts from one."""
    values = np.arange(1, 101) / 100
    measures = {"accuracy": values, "loss": values}
    summary = distribution("test", measures, np.full(100, 1 / 100), np.ones(100, int))
    assert summary["test_accuracy_worst_decile"] == 0.1
    assert summary["test_loss_worst_decile"] == 0.91


def test_clients_without_test_samples_do_not_count() -> None:
    counts, importance = np.array([1, 0, 2]), np.array([0.25, 0.5, 0.25])
    means = client_means(np.array([1.0, 2, 4]), Ragged(np.array([0, 1, 1, 3]), np.array([0, 1, 2])))
    np.testing.assert_equal(means, [1, np.nan, 3])
    assert distribution("test", {"loss": means}, importance, counts)["test_loss"] == 2


def test_a_panel_is_fixed_and_its_evaluation_touches_only_its_samples() -> None:
    server = simulation(turnout.FedAvg(local()), evaluation=Evaluation(clients=3))
    again = simulation(turnout.FedAvg(local()), evaluation=Evaluation(clients=3))
    panel = server._measurement.evaluators["train"].clients
    assert len(panel) == 3
    assert panel.tolist() == again._measurement.evaluators["train"].clients.tolist()
    rows = [server.population.train.row(i) for i in panel]
    losses = [float(server.task.losses(server.model, *_of(server, r)).mean()) for r in rows]
    weights = [len(r) for r in rows]
    assert server.evaluate()["train_loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-6)
    with pytest.raises(UserError, match="a panel of 9 out of 8"):
        simulation(turnout.FedAvg(local()), evaluation=Evaluation(clients=9))


def _of(server: turnout.Simulation, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return server.population.inputs[rows], server.population.targets[rows]


def test_the_central_test_set_belongs_to_nobody() -> None:
    people = population()
    central = (people.inputs[:10] + 1, people.targets[:10])
    server = simulation(turnout.FedAvg(local()), population(central=central))
    expected = server.task.losses(server.model, *central).mean()
    assert server.evaluate()["central_loss"] == pytest.approx(float(expected), rel=1e-6)


def test_on_a_schedule_by_virtual_seconds() -> None:
    people = population(devices=turnout.devices.fixed(1.0))
    result = turnout.execute(
        turnout.Experiment(
            turnout.Task(lambda: torch.nn.Linear(5, 3)),
            people,
            turnout.FedAvg(local(), turnout.Uniform(4)),
            stopping=Stopping(rounds=10),
            evaluation=Evaluation(seconds=3.0),
        )
    )
    rounds = result.rounds()
    assert rounds["time"][np.isfinite(rounds["train_loss"])].tolist() == [0, 3, 6, 9, 10]


def test_personal_models_are_evaluated_each_on_its_own_client() -> None:
    server = simulation(turnout.algorithms.Local(local()), stopping=Stopping(rounds=3))
    server.run()
    predictor = server.algorithm.predictor()
    assert predictor is not None
    shapes = predictor.state_shapes(server.task)
    state = server.store.get(shapes, server.population.ids)
    losses = [
        float(server.task.losses(state["model"][i], *_of(server, server.population.train.row(i))).mean())
        for i in range(server.population.size)
    ]
    assert server.measures["train_loss"] == pytest.approx(np.average(losses, weights=SIZES), rel=1e-5)
    assert torch.equal(server.model, server.task.initial)


def test_stop_at_a_target() -> None:
    rule = Stopping(200, target=0.9, measure="test_accuracy")
    server = simulation(turnout.FedAvg(local(), turnout.Full()), stopping=rule)
    server.run()
    assert server.version < 200
    assert server.measures["test_accuracy"] >= 0.9
    assert server.stopped is not None
    assert server.stopped.startswith("test_accuracy reached")
    with pytest.raises(UserError, match="'speed' is not measured"):
        simulation(turnout.FedAvg(local()), stopping=Stopping(5, target=1, measure="speed")).run()


def _tuned(server: turnout.Simulation, client: int, lr: float) -> torch.Tensor:
    """The global model after one full-batch step on a client's training samples."""
    inputs, targets = _of(server, server.whole_population.train.row(client))
    gradient = torch.func.grad(lambda p: server.task.losses(p, inputs, targets).mean())(server.model)
    return server.model - lr * gradient


def test_clients_adapt_before_they_are_evaluated_and_keep_nothing() -> None:
    work = LocalSGD(lr=0.5, batching="full")
    people = population(joined_at=np.array([0.0] * 6 + [np.inf] * 2))
    server = simulation(turnout.algorithms.FedAvgPlus(work, turnout.Full()), people, stopping=Stopping(rounds=3))
    server.run()
    losses = [
        float(server.task.losses(_tuned(server, i, 0.5), *_of(server, people.train.row(i))).mean())
        for i in range(people.size)
    ]
    sizes = np.array(SIZES)
    assert server.measures["test_loss"] == pytest.approx(np.average(losses[:6], weights=sizes[:6]), rel=1e-5)
    assert server.measures["unseen_test_loss"] == pytest.approx(np.average(losses[6:], weights=sizes[6:]), rel=1e-5)
    table = server.clients()
    np.testing.assert_allclose(table["test_loss"], losses, rtol=1e-5)
    assert table["unseen"].tolist() == [False] * 6 + [True] * 2
    assert not server.store.save()["row"].ge(0).any()
    assert not server.heard[6:].any()


def test_clients_adapt_at_the_learning_rate_of_jobs_from_that_version() -> None:
    server = simulation(
        turnout.algorithms.FedAvgPlus(LocalSGD(lr=0.5, batching="full", lr_decay=0.5), turnout.Full()),
        stopping=Stopping(rounds=3),
    )
    server.run()
    tuned = [_tuned(server, i, 0.5 * 0.5**3) for i in range(len(SIZES))]
    losses = [
        float(server.task.losses(m, *_of(server, server.population.train.row(i))).mean()) for i, m in enumerate(tuned)
    ]
    np.testing.assert_allclose(server.clients()["test_loss"], losses, rtol=1e-5)


def test_unseen_clients_and_validation_samples_are_set_aside() -> None:
    data = turnout.datasets.load("digits")
    people = Population.of(data, 20, validation_fraction=0.25, unseen_fraction=0.2)
    assert people.validation is not None
    assert people.test is not None
    joined = people.joined(people.ids, 1e9)
    assert joined.sum() == 16
    for i in range(20):
        parts = [set(rows.row(i).tolist()) for rows in (people.train, people.validation, people.test)]
        assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
        assert all(parts)
    server = simulation(turnout.FedAvg(local()), people, task=Task(lambda: torch.nn.Linear(64, 10)))
    measures = server.evaluate()
    assert {"validation_accuracy", "unseen_validation_accuracy", "unseen_test_loss"} <= set(measures)
    with pytest.raises(UserError, match=r"clients.unseen_fraction: 1.5 must be"):
        Population.of(data, 20, unseen_fraction=1.5)
