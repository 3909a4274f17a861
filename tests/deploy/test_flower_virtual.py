"""Flower apps, unmodified, under algorithms of Turnout in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from deploy.flower_apps import NUMPY, OLD, TORCH, HandWritten, imported, settings, simulate
from turnout import UserError
from turnout.algorithms._algorithm import Algorithm
from turnout.cli.flower import build
from turnout.core import random
from turnout.deploy.app import App, Arrays, Clients, seeded
from turnout.deploy.opening import opening
from turnout.deploy.screen import RejectedError, Rejection
from turnout.deploy.virtual import AppWork
from turnout.local.sgd import LocalSGD
from turnout.run.experiment import execute
from turnout.server.observer import Observer
from turnout.server.server import KEEP, Server

FULL = {"algorithm": {"name": "fedavg"}, "sampler": {"name": "full"}}
FEDBUFF = {"algorithm": {"name": "fedbuff", "buffer_size": 2, "weight_rule": "naive"}}
FEDFIX = {"algorithm": {"name": "fedfix", "window": 2.0, "weight_rule": "naive"}}


# -- the same as a loop written by hand ---------------------------------------------------------------------------


def test_fedavg_is_the_loop() -> None:
    """Weighted by num-examples; jobs draw from their own key and count themselves in the context's state, which the
    asking beforehand for sizes leaves untouched."""
    result = simulate(settings(**FULL, run={"seed": 3}))
    hand, model = HandWritten(3, seed=3), np.zeros(5)
    for number in range(3):
        model = model + sum(p * hand(model, client, number) for client, p in enumerate(hand.importance))
    np.testing.assert_allclose(result.model.numpy(), model, rtol=0, atol=1e-12)
    assert result.model.dtype == torch.float64
    assert result.server.now == 12.0
    assert result.jobs()["samples"].tolist() == [10, 15, 20] * 3


def test_fedbuff_is_the_loop() -> None:
    result = simulate(settings(**FEDBUFF, run={"rounds": 6}))
    model = HandWritten(3).asynchronous(6, lambda _, ends: ends[1], lambda _: 1 / 2, most=2)
    np.testing.assert_allclose(result.model.numpy(), model, rtol=0, atol=1e-12)
    assert max(result.audit.staleness) > 0


def test_fedfix_is_the_loop() -> None:
    result = simulate(settings(**FEDFIX, run={"rounds": 6}))
    hand = HandWritten(3)
    model = hand.asynchronous(6, lambda now, _: now + 2.0, lambda client: float(hand.importance[client]))
    np.testing.assert_allclose(result.model.numpy(), model, rtol=0, atol=1e-12)
    assert result.server.now == 12.0


def test_old_style_is_the_loop() -> None:
    """A NumPyClient behind client_fn, whose initial model a client is asked for."""
    result = simulate(settings(OLD, **FULL))
    hand, model = HandWritten(3, decay=False), np.zeros(5)
    for number in range(3):
        model = model + sum(p * hand(model, client, number) for client, p in enumerate(hand.importance))
    np.testing.assert_allclose(result.model.numpy(), model, rtol=0, atol=1e-12)
    assert result.measures["test_accuracy"] == 0.5


def test_pytorch_is_the_loop() -> None:
    """Flower's quickstart: a state_dict, a DataLoader that shuffles, momentum."""
    result = simulate(settings(TORCH, **FULL, run={"rounds": 2}))
    task = imported("quickstart.task")
    with seeded(int(random.key(0, "flower server app"))):
        model = task.Net().state_dict()
    for number in range(2):
        returned, counts = [], []
        for client in range(3):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(random.key(0, "flower app", client, number)))
                net = task.Net()
                net.load_state_dict(model)
                loader, _ = task.load_data(client)
                task.train(net, loader, epochs=1, lr=0.1)
            returned.append(net.state_dict())
            counts.append(len(loader.dataset))
        total = sum(counts)
        model = {name: sum(s[name] * n / total for s, n in zip(returned, counts, strict=True)) for name in model}
    found = result.state_dict()
    assert list(found) == list(model)
    for name, value in model.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=2e-6)
    assert result.measures["test_acc"] > 0.5
    assert result.rounds()["reported_loss"][-1] > 0


@dataclass
class Chain(Algorithm):
    """One client, job after job, from what it has."""

    clients_keep: ClassVar[Literal["models"]] = "models"
    local: LocalSGD

    def run(self, server: Server) -> None:
        for number in server.rounds():
            server.invite([1], self.local, KEEP if number else None)
            server.step(server.wait(), [1.0])


def test_clients_go_on_from_what_they_have() -> None:
    """As in SAFA: the app is then called with the client's own model, which the server's is the sum of changes to."""
    experiment, _, _, simulation = build(settings(**FULL))
    result = execute(replace(experiment, algorithm=Chain(AppWork())), kind=simulation)
    hand, model = HandWritten(3), np.zeros(5)
    for number in range(3):
        model = model + hand(model, 1, number)
    np.testing.assert_allclose(result.model.numpy(), model, rtol=0, atol=1e-12)


# -- randomness ---------------------------------------------------------------------------------------------------


def test_an_app_draws_what_it_draws_alone() -> None:
    """Neither the company nor the caller's generators change a job, and the caller's are left as they were."""
    alone = simulate(settings(**FULL, run={"rounds": 1}, flower={"samples": [10, 15, 20]}))
    np.random.seed(5)
    torch.manual_seed(5)
    expected = np.random.RandomState(5).uniform(), torch.rand(1, generator=torch.Generator().manual_seed(5))
    again = simulate(settings(**FULL, run={"rounds": 1}))
    assert (np.random.uniform(), torch.rand(1)) == expected
    assert torch.equal(alone.model, again.model)
    fewer = settings(seconds=(1.0, 1.5), **FULL, run={"rounds": 1})
    hand = HandWritten(2)
    model = sum(p * hand(np.zeros(5), client, 0) for client, p in enumerate(hand.importance))
    np.testing.assert_allclose(simulate(fewer).model.numpy(), model, rtol=0, atol=1e-12)


# -- failures -----------------------------------------------------------------------------------------------------


def test_an_exception_is_a_crash(tmp_path: Path) -> None:
    """Client 2 fails from its second job on: logged with its place in the app's code, and what it has written into its
    state before is not kept, or it would succeed the next time."""
    folder = tmp_path / "run"
    result = simulate(settings(**FULL, flower={"run_config": {"fails": 2}}), folder)
    assert result.audit.failures == {"crashed": 2}
    assert result.audit.events == {"client_error": 2}
    assert "RuntimeError: out of luck (client_app.py:" in (folder / "log.txt").read_text()
    states = result.server.people.states
    assert [states[client]["count"]["jobs"] for client in range(3)] == [3, 3, 1]


@pytest.mark.parametrize(
    ("lie", "why"),
    [("nan", Rejection.NOT_FINITE), ("shape", Rejection.WRONG_SHAPE), ("words", Rejection.UNDECODABLE)],
)
def test_a_malformed_reply_is_rejected(tmp_path: Path, lie: str, why: str) -> None:
    """It does not touch the model: the others count as they would without it."""
    result = simulate(settings(**FULL, flower={"run_config": {"lies": lie}}), tmp_path / "run")
    assert result.audit.failures == {"rejected": 2}
    assert (tmp_path / "run" / "log.txt").read_text().count(f"rejected reply (client 1, job 1, why {why})") == 1
    hand, model = HandWritten(3), np.zeros(5)
    for number in range(3):
        honest = [client for client in range(3) if client != 1 or number == 0]
        model = model + sum(hand.importance[client] * hand(model, client, number) for client in honest)
    np.testing.assert_allclose(result.model.numpy(), model, rtol=0, atol=1e-12)


def test_devices_crash_and_go_offline() -> None:
    """A job that the world ends never reaches the app."""
    result = simulate(settings(**FULL, crashes={"probability": 1.0}))
    assert result.audit.failures == {"crashed": 9}
    assert result.server.people.states == {}


def test_an_app_that_cannot_evaluate(tmp_path: Path) -> None:
    """Said once an evaluation; training goes on."""
    (tmp_path / "pyproject.toml").write_text((NUMPY / "pyproject.toml").read_text())
    for name in ("task.py", "server_app.py"):
        (tmp_path / name).write_text((NUMPY / name).read_text())
    (tmp_path / "client_app.py").write_text((NUMPY / "client_app.py").read_text().replace("@app.evaluate()\n", ""))
    result = simulate(settings(tmp_path, **FULL))
    assert result.measures == {}
    assert result.audit.events == {"evaluation_failed": 4}
    assert result.audit.contributions.tolist() == [3, 3, 3]


@pytest.mark.parametrize("name", ["fedprox", "fedem", "centralised"])
def test_an_algorithm_with_a_work_of_its_own(name: str) -> None:
    sampler = {"name": "full"} if name == "fedprox" else {}
    with pytest.raises(UserError, match="the business of a Flower app"):
        simulate(settings(algorithm={"name": name}, sampler=sampler))


def test_a_sampler_that_wants_reports() -> None:
    with pytest.raises(UserError, match="the business of a Flower app"):
        simulate(settings(algorithm={"name": "fedavg"}, sampler={"name": "oort", "clients_per_round": 2}))


# -- going on -----------------------------------------------------------------------------------------------------


class Interrupt(Observer):
    """Ends a run as Ctrl-C does."""

    def on_arrival(self, server: Any, job: Any) -> None:
        if server.version == 4:
            raise KeyboardInterrupt


def test_killed_and_resumed(tmp_path: Path) -> None:
    """Jobs in flight and what clients keep survive: the same bits as without the interruption."""
    world = settings(**FEDBUFF, run={"rounds": 6})
    whole = simulate(world)
    with pytest.raises(KeyboardInterrupt):
        simulate(world, tmp_path / "run", checkpoint_every=3, observers=[Interrupt()])
    resumed = simulate(world, tmp_path / "run", checkpoint_every=3, resume=True)
    assert torch.equal(resumed.model, whole.model)
    for name, column in whole.rounds().items():
        np.testing.assert_array_equal(resumed.rounds()[name], column)
    assert resumed.jobs()["ended_at"].tolist() == whole.jobs()["ended_at"].tolist()


def test_an_edited_app_is_not_gone_on_with(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    for path in NUMPY.iterdir():
        if path.is_file():
            (app / path.name).write_text(path.read_text())
    world = settings(app, **FULL)
    simulate(world, tmp_path / "run")
    (app / "task.py").write_text((app / "task.py").read_text() + "\n# changed\n")
    with pytest.raises(UserError, match="another configuration"):
        simulate(world, tmp_path / "run", resume=True)


def test_states_as_bytes() -> None:
    clients = Clients(None, 3)  # type: ignore[arg-type]
    clients.keep(2, RecordDict({"a": ConfigRecord({"x": 1}), "b": ArrayRecord([np.arange(3.0)])}))
    clients.keep(0, RecordDict({"a": ConfigRecord({"x": [1.5]})}))
    other = Clients(None, 3)  # type: ignore[arg-type]
    other.load(clients.save())
    assert other.states == clients.states
    other.keep(0, RecordDict())
    assert list(other.states) == [2]


def test_messages_are_those_of_the_app() -> None:
    """As the app's own strategy sends them, evaluation with its own configuration, with the number of the round."""
    app = App.load(NUMPY)
    first = opening(app, Clients(app, 3), seed=0)
    assert first.arrays.to_numpy_ndarrays()[0].tolist() == [0.0] * 4
    for kind, purpose in (("train", "training"), ("evaluate", "evaluation")):
        content = first.message(kind, 2, ArrayRecord([np.ones(4), np.ones(1)]), round=5).content
        assert content["config"] == {"for": purpose, "server-round": 5}
        assert content["arrays"].to_numpy_ndarrays()[0].tolist() == [1.0] * 4  # type: ignore[union-attr]
    assert first.train["config"]["server-round"] == 1


# -- arrays -------------------------------------------------------------------------------------------------------


def test_arrays_of_many_kinds() -> None:
    """Counters of a BatchNorm, scalars, half precision: sent back with shape and type as they came."""
    values: list[np.ndarray] = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(7),
        np.array([0.5], np.float16),
        np.zeros((0, 2), np.float32),
    ]
    record = ArrayRecord(values)
    arrays = Arrays(record)
    vector = arrays.vector(record)
    assert vector.dtype == torch.float32
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 7, 0.5]
    assert arrays.record(vector) == record
    turned = ArrayRecord([np.asfortranarray(values[0]), *values[1:]])  # columns first: read, not recognised
    assert torch.equal(arrays.vector(turned), vector)
    single = ArrayRecord([values[0].astype(np.float64), *values[1:]])
    assert torch.equal(arrays.vector(single), vector)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda record: record.pop("0"), Rejection.MISSING_ARRAY),
        (lambda record: record.update(z=Array(np.zeros(1))), Rejection.EXTRA_ARRAY),
        (lambda record: record.update({"0": Array(np.zeros(3))}), Rejection.WRONG_SHAPE),
        (lambda record: record.update({"0": Array(np.array([np.inf, 0.0]))}), Rejection.NOT_FINITE),
        (lambda record: record.update({"0": Array("float64", (2,), "numpy.ndarray", b"junk")}), Rejection.UNDECODABLE),
        (lambda record: record.update({"0": Array("float64", (2,), "pickle", b"")}), Rejection.UNDECODABLE),
    ],
)
def test_arrays_that_are_not_the_model(change: Any, why: Rejection) -> None:
    record = ArrayRecord([np.zeros(2)])
    arrays = Arrays(record)
    change(record)
    with pytest.raises(RejectedError) as caught:
        arrays.vector(record)
    assert caught.value.why is why


def test_importance_is_not_asked_for_where_it_is_given() -> None:
    """Equal importance needs no sizes: nobody trains beforehand."""
    result = simulate(settings(**FULL, clients={"importance": "equal"}, run={"rounds": 1}))
    assert result.server.population.train.counts.tolist() == [1, 1, 1]
    assert result.jobs()["samples"].tolist() == [10, 15, 20]  # as the replies say
    hand = HandWritten(3)
    model = sum(hand(np.zeros(5), client, 0) / 3 for client in range(3))
    np.testing.assert_allclose(result.model.numpy(), model, rtol=0, atol=1e-12)
