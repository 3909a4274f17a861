"""Algorithms leave the simulator without a changed line: the same model as in the simulation where order is the same,
and as in a replay where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_network import FIRST_NODE, SECONDS, SIZES, World
from flwr.app import Message

import support
from turnout import (
    Algorithm,
    ArrayTask,
    EnsembleTask,
    FedAvg,
    FedBuff,
    FedFix,
    Full,
    PythonWork,
    Safa,
    Scaffold,
    Simulation,
    Task,
    devices,
)
from turnout.deploy.replay import replay
from turnout.local import SharpnessAware, TopK
from turnout.samplers import CAFed
from turnout.task.arrays import Arrays

ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "fedavg": lambda: FedAvg(support.local(), Full()),
    "fedavg_deadline": lambda: FedAvg(support.local(), Full(), deadline=3.0),
    "fedfix": lambda: FedFix(support.local(), window=1.4, weight_rule="measured"),
    "fedbuff": lambda: FedBuff(support.local(), buffer_size=2, weight_rule="measured"),
    "fedbuff_restart": lambda: FedBuff(support.local(lr_decay=0.9), buffer_size=3, mode="restart", weight_rule="naive"),
    "safa": lambda: Safa(support.local(), fraction=0.5, lag_tolerance=2),
    "cafed": lambda: FedAvg(support.local(), CAFed(estimator="beta")),
    "scaffold": lambda: Scaffold(support.local(), Full()),
    "transform": lambda: FedAvg(support.local(modifiers=support.chained("top_k:0.2")), Full()),
    "modified": lambda: Scaffold(support.local(modifiers=[SharpnessAware(0.2), TopK(0.5)]), Full()),
    "continuing": lambda: support.Continuing(support.local()),
}


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_replay_gives_the_same_model(name: str, tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS[name])
    deployed = world.server()
    deployed.run()
    assert deployed.version == 6
    assert difference(deployed.model, deployed.task.initial) > 1e-2
    again = replay(world.experiment(world.population), world.jobs(), deployed.timeline.rows(), 6)
    assert torch.equal(again.model, deployed.model)
    assert again.now == deployed.now


@pytest.mark.parametrize("name", ["fedavg", "fedfix", "fedbuff", "safa", "scaffold", "transform", "modified"])
def test_the_same_model_as_in_the_simulation(name: str, tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS[name])
    deployed = world.server().run()
    people = support.population(SIZES, devices=devices.table(list(SECONDS)))
    built = world.experiment(people)
    simulated = Simulation(built.task, people, built.algorithm, seed=7, plan=built.plan, stopping=built.stopping).run()
    assert difference(simulated.model, deployed.model) < 1e-6
    for measure, value in simulated.measures.items():
        assert deployed.measures[measure] == pytest.approx(value, abs=1e-5)


class Measured(World):
    """Clients that measure whole sets; some of them lack a class."""

    @staticmethod
    def task() -> Task:
        return Task(support.mlp, seed=3, metrics="auc,log_loss,accuracy")


def test_clients_measure_whole_sets_themselves(tmp_path: Path) -> None:
    world = Measured(tmp_path, ALGORITHMS["fedavg"])
    deployed = world.server().run()
    people = support.population(SIZES, devices=devices.table(list(SECONDS)))
    built = world.experiment(people)
    simulated = Simulation(built.task, people, built.algorithm, seed=7, plan=built.plan, stopping=built.stopping).run()
    assert deployed.measures == pytest.approx(simulated.measures, abs=1e-5, nan_ok=True)
    assert 0 < simulated.measures["test_auc_undefined"] < len(SIZES)
    assert "test_auc" in {facts["measure"] for facts in world.events.of("undefined_measure")}
    assert deployed._measurement.confusion(deployed) is None


def shifted(arrays: Arrays, inputs: np.ndarray, _targets: np.ndarray, key: np.random.Generator) -> tuple[Arrays, int]:
    return {"coef": arrays["coef"] + 0.1 * inputs.mean(0) + 0.01 * key.normal(size=(3, 5))}, len(inputs)


def summed(arrays: Arrays, inputs: np.ndarray) -> np.ndarray:
    scores: np.ndarray = inputs @ arrays["coef"].reshape(-1, 3, 5).sum(0).T
    return scores


def added(arrays: Arrays, inputs: np.ndarray, targets: np.ndarray, key: np.random.Generator) -> tuple[Arrays, int]:
    found, count = shifted({"coef": np.zeros((3, 5))}, inputs, targets, key)
    return {"coef": found["coef"][None] * (1 + len(arrays["coef"]))}, count


class Fixed(World):
    @staticmethod
    def task() -> ArrayTask:
        return ArrayTask({"coef": np.zeros((3, 5))}, summed)


class Growing(World):
    @staticmethod
    def task() -> ArrayTask:
        return EnsembleTask({"coef": (3, 5)}, summed, capacity=40)


@pytest.mark.parametrize(("kind", "function"), [(Fixed, shifted), (Growing, added)])
def test_python_functions_at_real_clients(kind: type[World], function: Any, tmp_path: Path) -> None:
    """A message names the function; the client has it."""
    world = kind(tmp_path, lambda: FedAvg(PythonWork(function), Full()))
    deployed = world.server().run()
    people = support.population(SIZES, devices=devices.table(list(SECONDS)))
    built = world.experiment(people)
    simulated = Simulation(built.task, people, built.algorithm, seed=7, plan=built.plan, stopping=built.stopping).run()
    assert deployed.model.any()
    torch.testing.assert_close(simulated.model, deployed.model, rtol=0, atol=1e-6)


def test_a_client_carries_out_no_function_but_its_own(tmp_path: Path) -> None:
    world = Fixed(tmp_path, lambda: FedAvg(PythonWork(shifted), Full()))
    server = world.server(rounds=1)
    server.algorithm.local = PythonWork(added)  # type: ignore[attr-defined]
    server.run()
    assert not server.heard.any()
    assert any(
        "the Python function added, which the algorithm given does not have" in str(event) for event in world.events.all
    )


def test_clients_hold_only_their_own_samples_and_the_server_none(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["fedavg"])
    assert [len(worker.population.inputs) for worker in world.workers] == [6, 9, 4, 12]
    server = world.server()
    assert len(server.population.inputs) == 1
    assert not server.population.inputs.any()
    assert server.population.train.counts.tolist() == [6, 9, 4, 12]


def test_the_history_has_the_columns_of_a_simulation(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["fedavg"])
    world.server(rounds=2).run()
    rows = world.history.rounds.read()
    assert {"train_loss", "test_accuracy", "test_accuracy_worst_decile", "bytes_up", "weight"} <= rows.keys()
    jobs = world.jobs()
    assert jobs["outcome"].tolist() == ["arrived"] * 8
    assert np.allclose(jobs["ended_at"] - jobs["sent_at"], np.tile(SECONDS, 2), atol=0.11)
    assert (jobs["bytes_up"] > 4 * world.task().size).all()


def test_what_is_there_at_the_close_counts(tmp_path: Path) -> None:
    """However seldom the server looks: client 0 answers between its last look and the close of a window."""
    world = World(tmp_path, lambda: FedFix(support.local(), window=1.4, weight_rule="naive"))
    world.grid.seconds = (1.35, 9.0, 9.0, 9.0)
    server = world.server(rounds=2, poll_seconds=60.0)
    server.run()
    jobs = world.jobs()
    assert (jobs["client"][0], jobs["round"][0], jobs["weight"][0] > 0) == (0, 1, True)
    again = replay(world.experiment(world.population), jobs, server.timeline.rows(), 2)
    assert torch.equal(again.model, server.model)


def test_a_client_that_a_message_does_not_reach_is_offline(tmp_path: Path) -> None:
    """Flower says so with an empty name, of as many as there are."""
    world = World(tmp_path, ALGORITHMS["fedavg"])
    push = world.grid.push_messages
    lost = [FIRST_NODE + 1, FIRST_NODE + 2]

    def pushed(messages: Iterable[Message]) -> list[str]:
        names = {m.metadata.dst_node_id: "" for m in messages}
        taken = [message for message in messages if message.metadata.dst_node_id not in lost]
        names |= zip([message.metadata.dst_node_id for message in taken], push(taken), strict=True)
        return list(names.values())

    world.grid.push_messages = pushed  # type: ignore[method-assign]
    world.server(rounds=2, evaluate="server").run()
    jobs = world.jobs()
    assert {(c, str(how)) for c, how in zip(jobs["client"].tolist(), jobs["outcome"], strict=True)} == {
        (0, "arrived"), (1, "offline"), (2, "offline"), (3, "arrived"),
    }  # fmt: skip
