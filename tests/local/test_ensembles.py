"""Members that are added and never averaged: bagging and cyclic boosting equal plain loops, clients may fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeRegressor

import turnout
from support import WORLD, Windowed, population
from turnout import EnsembleTask, Plan, PythonWork, UserError
from turnout.aggregation.rules import CoordinateMedian
from turnout.aggregation.weights import Equal
from turnout.clients import behaviour
from turnout.clients.population import Population
from turnout.local.transforms import Clip
from turnout.samplers import Cyclic
from turnout.server.stopping import Stopping

Arrays = dict[str, NDArray[Any]]
DOUBLE = Plan(precision="float64", threads=1)
NODES = 7  # of a tree of depth 2


def predict(arrays: Arrays, inputs: NDArray[Any]) -> NDArray[Any]:
    total = np.zeros(len(inputs))
    for tree in arrays["trees"]:
        at = np.zeros(len(inputs), int)
        for _ in range(2):
            _, feature, threshold, left, right = tree[at].T
            smaller = inputs[np.arange(len(inputs)), feature.astype(int)] <= threshold
            at = np.where(left < 0, at, np.where(smaller, left, right)).astype(int)
        total += tree[at, 0]
    return total


def grow(arrays: Arrays, inputs: NDArray[Any], targets: NDArray[Any], key: np.random.Generator) -> Any:
    """A tree on what the ensemble has left over, as an array [1, NODES, 5]."""
    model = DecisionTreeRegressor(max_depth=2, random_state=int(key.integers(2**31)))
    found = model.fit(inputs, targets - predict(arrays, inputs)).tree_
    tree = np.zeros((1, NODES, 5))
    columns = 0.3 * found.value[:, 0, 0], found.feature, found.threshold, found.children_left, found.children_right
    tree[0, : found.node_count] = np.stack(columns, 1)
    return {"trees": tree}, len(inputs)


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets) ** 2


def task(capacity: int = 200, a_job: int = 1) -> EnsembleTask:
    return EnsembleTask({"trees": (NODES, 5)}, predict, capacity=capacity, a_job=a_job, loss=squared)


def simulate(method: turnout.Algorithm, rounds: int = 4, people: Population | None = None, **more: Any) -> Any:
    return turnout.simulate(more.pop("task", task()), people or population(), method, rounds, plan=DOUBLE, **more)


def members(result: turnout.Result) -> NDArray[Any]:
    """The trees that there are, in the order of their places."""
    return task().arrays(result.model)["trees"]


def plain(turns: list[list[int]]) -> NDArray[Any]:
    """Every round the clients named fit a tree to what the trees of the rounds before leave over."""
    from turnout.core import random

    people, trees = population(), np.zeros((0, NODES, 5))
    inputs, targets, jobs = people.inputs.double().numpy(), people.targets.numpy(), dict[int, int]()
    for turn in turns:
        new = []
        for client in turn:
            key = random.fold(random.key(0, "local work", people.ids)[[client]], np.array([jobs.get(client, 0)]))[0]
            jobs[client], rows = jobs.get(client, 0) + 1, people.train.row(client)
            new.append(grow({"trees": trees}, inputs[rows], targets[rows], random.generator(key))[0]["trees"])
        trees = np.concatenate([trees, *new])
    return trees


def test_bagging_is_a_plain_loop() -> None:
    result = simulate(turnout.FedAvg(PythonWork(grow), turnout.Full()))
    expected = plain([list(range(8))] * 4)
    np.testing.assert_allclose(members(result), expected, rtol=0, atol=1e-9)
    assert len(expected) == 32
    people = population()
    error = predict({"trees": expected}, people.inputs.double().numpy()) - people.targets.numpy()
    rows = [people.train.row(client) for client in people.ids]
    loss = sum(p * np.mean(error[own] ** 2) for p, own in zip(people.base_importance, rows, strict=True))
    assert result.measures["test_loss"] == pytest.approx(loss, abs=1e-9)


def test_cyclic_boosting_is_a_plain_loop() -> None:
    result = simulate(turnout.FedAvg(PythonWork(grow), Cyclic()), 10)
    expected = plain([[number % 8] for number in range(10)])
    np.testing.assert_allclose(members(result), expected, rtol=0, atol=1e-9)
    assert result.audit.contributions.tolist() == [2, 2, 1, 1, 1, 1, 1, 1]


METHODS: dict[str, turnout.Algorithm] = {
    "fedavg": turnout.FedAvg(PythonWork(grow), turnout.MD(4)),
    "deadline": turnout.FedAvg(PythonWork(grow), turnout.Uniform(5), deadline=1.0),
    "fedbuff": turnout.FedBuff(PythonWork(grow), buffer_size=3, mode="restart"),
    "async": turnout.AsyncFedAvg(PythonWork(grow)),
    "windowed": Windowed(PythonWork(grow)),
}


@pytest.mark.parametrize("name", METHODS)
def test_whoever_fails_leaves_nothing_and_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    def experiment(rounds: int, count: int = 1) -> turnout.Experiment:
        stop, plan = Stopping(rounds), Plan(threads=count)
        return turnout.Experiment(task(), population(**WORLD), METHODS[name], 5, stopping=stop, plan=plan)

    whole = turnout.execute(experiment(8))
    assert 0 < len(members(whole)) == whole.audit.contributions.sum()
    turnout.execute(experiment(4), tmp_path, checkpoint_every=1)
    for other in (turnout.execute(experiment(8), tmp_path, resume=True), turnout.execute(experiment(8, 2))):
        assert torch.equal(whole.model, other.model)
        assert whole.measures == other.measures


def test_only_members_are_sent() -> None:
    """Down the trees there are, up the new one: each of 36 numbers of 8 bytes."""
    jobs = simulate(turnout.FedAvg(PythonWork(grow), turnout.Full()), 3).jobs()
    assert set(jobs["bytes_up"]) == {36 * 8}
    assert sorted(set(jobs["bytes_down"])) == [0, 8 * 36 * 8, 16 * 36 * 8]


def test_a_job_may_add_several_members_or_none() -> None:
    def several(arrays: Arrays, inputs: Any, targets: Any, key: Any) -> Any:
        count = len(inputs) % 3
        trees = [grow(arrays, inputs, targets, key)[0]["trees"] for _ in range(count)]
        return {"trees": np.concatenate([np.zeros((0, NODES, 5)), *trees])}, len(inputs)

    result = simulate(turnout.FedAvg(PythonWork(several), turnout.Full()), 2, task=task(a_job=2))
    assert len(members(result)) == 2 * sum(size % 3 for size in (3, 17, 8, 1, 25, 10, 6, 12))


def test_liars_touch_no_member_of_others() -> None:
    """A change of sign takes away instead of adding; noise is everywhere; both are rejected, with their names."""
    for lie in (behaviour.SignFlip(clients=[1, 4]), behaviour.GaussianNoise(clients=[1, 4])):
        events: list[tuple[int, str]] = []

        class Rejected(turnout.Observer):
            def on_event(self, server: Any, event: Any, events: Any = events) -> None:
                events += [(event.facts["client"], event.facts["why"])] if event.kind == "rejected_update" else []

        people = population(behaviour=lie)
        result = simulate(turnout.FedAvg(PythonWork(grow), turnout.Full()), 1, people, observers=[Rejected()])
        assert sorted(events) == [(client, "not members in the places of its job") for client in (1, 4)]
        assert len(members(result)) == 6


def test_one_sentence() -> None:
    fedavg = turnout.FedAvg(PythonWork(grow), turnout.Full())
    with pytest.raises(UserError, match="20 members are room for 20 jobs of 1, and job 24 begins"):
        simulate(fedavg, task=task(capacity=20))
    for method, sentence in (
        (turnout.FedAvg(PythonWork(grow), rule=CoordinateMedian()), "rule: members of an EnsembleTask are added"),
        (turnout.FedAvg(PythonWork(grow), weigh=Equal()), "weigh: members of an EnsembleTask are added"),
        (turnout.FedAvg(PythonWork(grow), server_lr=0.5), "optimiser: members of an EnsembleTask are added"),
        (turnout.FedAdam(PythonWork(grow)), "optimiser: members of an EnsembleTask are added"),
        (turnout.algorithms.FedAsync(PythonWork(grow)), "algorithm: FedAsync mixes models"),
        (turnout.FedAvg(PythonWork(grow, modifiers=(Clip(1.0),))), "local.modifiers: Clip would change members"),
        (turnout.FedAvg(turnout.LocalSGD(0.1)), "members of an EnsembleTask are made by a PythonWork, not by LocalSGD"),
    ):
        with pytest.raises(UserError, match=sentence):
            simulate(method)
    with pytest.raises(UserError, match=r"privacy\.noise: members of an EnsembleTask are added"):
        simulate(fedavg, privacy=turnout.Privacy(noise=1.0, clip=1.0))

    def many(arrays: Arrays, inputs: Any, targets: Any, key: Any) -> Any:
        return {"trees": np.repeat(grow(arrays, inputs, targets, key)[0]["trees"], 2, 0)}, len(inputs)

    def shapeless(_arrays: Arrays, inputs: Any, _targets: Any, _key: Any) -> Any:
        return {"trees": np.zeros((1, NODES + 1, 5))}, len(inputs)

    def ragged(_arrays: Arrays, inputs: Any, _targets: Any, _key: Any) -> Any:
        return {"trees": [[[1.0, 2.0], [3.0]]]}, len(inputs)

    for function, sentence in (
        (ragged, "ragged at client 4 returned 'trees', which is no array"),
        (many, "many at client 4 returned 2 members, and a job adds 1"),
        (shapeless, r"'trees' of shape \(1, 8, 5\); it must have shape \(1, 7, 5\)"),
    ):
        with pytest.raises(UserError, match=sentence):
            simulate(turnout.FedAvg(PythonWork(function), turnout.Full()))
    with pytest.raises(UserError, match="capacity: 0 must be at least 1"):
        EnsembleTask({"trees": (NODES, 5)}, predict, capacity=0)
