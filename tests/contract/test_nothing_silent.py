"""Invariants 6 and 7: every mishap is a logged event with a defined outcome, and the audit adds up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import ALGORITHMS, experiment, local, population, simulation
from turnout import Algorithm, Observer, Server, Stopping
from turnout.core.errors import UserError
from turnout.local.sgd import ClientData, LocalSGD, Named
from turnout.record.audit import Audit
from turnout.server.observer import Event, Round
from turnout.server.updates import Updates
from turnout.task.task import Task


class Watch(Observer):
    """Keeps what the server was told to apply, independently of the audit."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.weights: dict[int, float] = {}
        self.rounds: list[Round] = []

    def on_event(self, server: Server, event: Event) -> None:
        self.events.append(event)

    def on_round(self, server: Server, record: Round) -> None:
        self.rounds.append(record)


def watch_law(server: turnout.Simulation) -> list[tuple[int, float]]:
    """Every (client, weight) that reached the law, noted where it is applied."""
    applied: list[tuple[int, float]] = []
    step, publish = server.step, server.publish

    def stepping(updates: Updates, weights: Any) -> Updates:
        used = step(updates, weights)
        _, counted, _ = server._rounds.used[-1]
        applied.extend(zip(used.clients.tolist(), counted.tolist(), strict=True))
        return used

    def publishing(model: torch.Tensor, updates: Updates, weights: Any) -> None:
        publish(model, updates, weights)
        given = np.ones(len(updates)) if weights is None else weights
        applied.extend(zip(updates.clients.tolist(), np.asarray(given, float).tolist(), strict=True))

    server.step, server.publish = stepping, publishing  # type: ignore[method-assign]
    return applied


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_audit_adds_up(name: str) -> None:
    plan = experiment(name, rounds=8)
    audit = Audit()
    server = simulation(plan.algorithm, plan.population, stopping=plan.stopping, seed=5, observers=[audit])
    applied = watch_law(server)
    server.run()
    findings = audit.findings
    expected = np.zeros(server.population.size)
    for client, weight in applied:
        expected[client] += weight
    np.testing.assert_allclose(findings.realised * findings.rounds, expected, atol=1e-12)
    assert findings.contributions.sum() == sum(weight != 0 for _, weight in applied)
    assert findings.mean_weight * findings.rounds == pytest.approx(sum(weight for _, weight in applied))
    assert sum(findings.staleness.values()) == findings.contributions.sum()
    assert findings.linear == (name not in ("continuing", "robust_mean", "robust_momentum"))
    if name != "local":
        assert findings.contributions.sum() > 0
        assert set(findings.never_heard) == set(np.flatnonzero(~server.heard & (findings.intended > 0)))


@dataclass(frozen=True)
class Poisoned(LocalSGD):
    """Clients with one sample answer NaN."""

    def finish(
        self, task: Task, received: torch.Tensor, params: torch.Tensor, carry: Any, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        payload, state = super().finish(task, received, params, carry, state, data)
        return {"delta": torch.where(data.count == 1, torch.nan, payload["delta"])}, state


def test_a_nan_update_is_rejected_and_logged_and_the_rest_counts() -> None:
    watch, clean = Watch(), simulation(turnout.FedAvg(local(), turnout.Full()), stopping=Stopping(rounds=1))
    clean.run()
    work = Poisoned.extend(local())
    poisoned = simulation(turnout.FedAvg(work, turnout.Full()), stopping=Stopping(rounds=1), observers=[watch])
    poisoned.run()
    (event,) = watch.events
    assert (event.kind, event.facts["client"], event.facts["why"]) == ("rejected_update", 3, "not finite")
    assert bool(torch.isfinite(poisoned.model).all())
    assert watch.rounds[0].facts["weight"] == pytest.approx(1 - poisoned.importance[3])
    assert watch.rounds[0].facts["arrived"] == 8
    assert 0 < float((poisoned.model - clean.model).norm()) < float((clean.model - clean.task.initial).norm())


def test_only_bad_updates_is_an_empty_round() -> None:
    watch = Watch()
    people = population((1, 1))
    work = Poisoned.extend(local())
    server = simulation(turnout.FedAvg(work, turnout.Full()), people, stopping=Stopping(rounds=2), observers=[watch])
    server.run()
    assert torch.equal(server.model, server.task.initial)
    assert [event.kind for event in watch.events] == ["rejected_update", "rejected_update", "empty_round"] * 2
    assert server.version == 2


def test_an_infinite_loss_stops_the_run_and_keeps_the_record() -> None:
    people = population()
    people = replace(people, targets=people.targets[:, None].float())
    task = Task(lambda: torch.nn.Linear(5, 1), "mse")
    algorithm = turnout.FedAvg(local(), turnout.Full(), server_lr=1e25)
    result = turnout.execute(turnout.Experiment(task, people, algorithm, stopping=Stopping(50)))
    assert result.server.stopped == "diverged: the loss is no longer finite"
    assert bool(torch.isfinite(result.model).all())
    assert result.audit.events["diverged"] == 1
    assert len(result.rounds()["round"]) == 2


def test_an_infinite_model_is_never_taken() -> None:
    watch = Watch()
    server = simulation(turnout.FedAvg(local()), observers=[watch])
    server.publish(server.model / 0, server.wait(0), None)
    assert server.stopped == "diverged: the model is no longer finite"
    assert torch.equal(server.model, server.task.initial)
    assert [event.kind for event in watch.events] == ["diverged"]


def test_an_update_counts_once() -> None:
    @dataclass
    class Twice(Algorithm):
        local: LocalSGD

        def run(self, server: Server) -> None:
            for _ in server.rounds():
                server.invite([0], self.local)
                updates = server.wait()
                server.step(updates, [0.5])
                server.step(updates, [0.5])

    with pytest.raises(UserError, match="may be used once"):
        simulation(Twice(local())).run()


def test_weights_must_fit_the_updates() -> None:
    server = simulation(turnout.FedAvg(local()))
    server.invite([0, 1], local())
    updates = server.wait()
    for weights in ([1.0], [1.0, np.nan], [[0.5, 0.5]]):
        with pytest.raises(UserError, match="finite weights"):
            server.step(updates, weights)
    with pytest.raises(UserError, match="a model of shape"):
        server.publish(server.model[:2], updates, None)


def test_nobody_online_is_an_empty_round_that_takes_time() -> None:
    watch = Watch()
    people = population(availability=turnout.Bernoulli(0.0, clock="seconds"))
    algorithm = turnout.FedAvg(local(), turnout.Uniform(2), retry=30.0)
    server = simulation(algorithm, people, stopping=Stopping(None, seconds=100), observers=[watch])
    server.run()
    assert server.version == 4
    assert server.now == 120
    assert [event.kind for event in watch.events] == ["empty_round"] * 4


def test_old_jobs_may_be_published_again_and_are_counted_again() -> None:
    @dataclass
    class Remembering(Algorithm):
        local: LocalSGD
        jobs: list[Any] = field(default_factory=list)

        def run(self, server: Server) -> None:
            for number in server.rounds():
                if not number:
                    server.invite([0, 1], self.local)
                    self.jobs = [server.wait()]
                server.publish(server.model + 0, self.jobs[0], [0.25, 0.75])

    result = turnout.execute(experiment("fedavg", rounds=3, algorithm=Remembering(local()), people=population()))
    jobs = result.jobs()
    assert jobs["outcome"].tolist() == ["arrived", "arrived"] + ["used_later"] * 4
    assert jobs["bytes_up"][2:].sum() == 0
    np.testing.assert_allclose(result.audit.realised[:2], [0.25, 0.75])
    assert result.audit.staleness == {0: 2, 1: 2, 2: 2}


def test_evaluation_takes_no_virtual_time_and_changes_no_bit() -> None:
    often = turnout.execute(experiment("windowed", evaluation=turnout.Evaluation(rounds=1)))
    never = turnout.execute(experiment("windowed", evaluation=turnout.Evaluation(rounds=1000)))
    assert torch.equal(often.model, never.model)
    assert often.server.now == never.server.now
    assert often.measures == never.measures  # the end is always evaluated
    assert np.isfinite(often.rounds()["train_loss"]).all()
    assert np.isnan(never.rounds()["train_loss"]).sum() == 5
