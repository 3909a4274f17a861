"""Whole Flower apps in virtual time: their own ServerApp over a grid whose seconds are those of the simulation."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from deploy.flower_apps import NUMPY, TORCH, settings, simulate
from turnout import UserError
from turnout.deploy.app import App
from turnout.run.experiment import Result
from turnout.server.observer import Observer

FULL = {"algorithm": {"name": "fedavg"}, "sampler": {"name": "full"}}


def test_flowers_fedavg_is_fedavg() -> None:
    """The same participants, the same draws: the same model, and the same measures as the app's own evaluation."""
    led_by_app, led_by_turnout = simulate(settings()), simulate(settings(**FULL))
    torch.testing.assert_close(led_by_app.model, led_by_turnout.model, rtol=0, atol=1e-12)
    assert led_by_app.measures["test_loss"] == pytest.approx(led_by_turnout.measures["test_loss"], abs=1e-12)
    assert led_by_app.server.version == 3
    assert led_by_app.server.now == 3 * (4.0 + 4.0)  # to train, then to evaluate
    assert led_by_app.audit.contributions.tolist() == [3, 3, 3]
    assert not led_by_app.audit.linear
    np.testing.assert_allclose(
        led_by_app.rounds()["reported_loss"][1:], led_by_turnout.rounds()["reported_loss"][1:], rtol=0, atol=1e-12
    )


def test_the_last_model_of_a_strategy() -> None:
    """It is sent to nobody where nobody evaluates: it is what the strategy ends with."""
    result = simulate(settings(flower={"run_config": {"fraction-evaluate": 0.0}}))
    torch.testing.assert_close(result.model, simulate(settings(**FULL)).model, rtol=0, atol=1e-12)
    assert result.audit.events == {}
    assert result.server.now == 12.0


@pytest.mark.parametrize("strategy", ["FedProx", "FedAdam", "FedMedian"])
def test_flowers_own_strategies(strategy: str) -> None:
    result = simulate(settings(flower={"run_config": {"strategy": strategy}}, run={"rounds": 2}))
    assert result.server.version == 2
    assert result.measures["test_loss"] < np.log(2)


def test_pytorch_quickstart() -> None:
    """Half of the clients a round, drawn by Flower with the run's seed; the same run twice has the same bits."""
    world = settings(TORCH, seconds=(1.0,) * 6, run={"rounds": 2, "seed": 1})
    result, again = simulate(world), simulate(world)
    assert torch.equal(result.model, again.model)
    assert result.audit.contributions.sum() == 6
    assert list(result.state_dict()) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    other = simulate(settings(TORCH, seconds=(1.0,) * 6, run={"rounds": 2, "seed": 2}))
    assert other.audit.contributions.tolist() != result.audit.contributions.tolist()


def test_failures_are_error_replies() -> None:
    """The strategy averages over those who answer; a client that raises, one that sends NaN."""
    result = simulate(settings(flower={"run_config": {"fails": 2, "lies": "nan"}}))
    assert result.audit.failures == {"crashed": 2, "rejected": 2}
    assert result.audit.contributions.tolist() == [3, 1, 1]
    assert np.isfinite(result.model.numpy()).all()


def test_a_round_without_answers() -> None:
    result = simulate(settings(crashes={"probability": 1.0}))
    assert result.server.version == 3
    assert torch.equal(result.model, torch.zeros(5, dtype=torch.float64))
    assert result.audit.events["empty_round"] == 3


def test_who_is_drawn_is_online() -> None:
    """Where presence is drawn anew every round, the nodes that an app sees are those of the round it asks them in."""
    result = simulate(settings(seconds=(1.0,) * 12, availability={"name": "bernoulli", "probability": 0.6}))
    assert result.audit.failures == {}
    assert 0 < result.audit.contributions.sum() < 36


class Interrupt(Observer):
    def on_arrival(self, server: Any, job: Any) -> None:
        if server.version == 2:
            raise KeyboardInterrupt


def test_killed_and_repeated(tmp_path: Path) -> None:
    """What a ServerApp holds cannot be saved: it begins again, and ends with the same bits."""
    whole = simulate(settings())
    with pytest.raises(KeyboardInterrupt):
        simulate(settings(), tmp_path / "run", checkpoint_every=1, observers=[Interrupt()])
    resumed = simulate(settings(), tmp_path / "run", checkpoint_every=1, resume=True)
    assert torch.equal(resumed.model, whole.model)
    assert resumed.jobs()["ended_at"].tolist() == whole.jobs()["ended_at"].tolist()


# -- the grid itself ----------------------------------------------------------------------------------------------

Main = Callable[..., None]


def led_by(monkeypatch: pytest.MonkeyPatch, main: Main, app: Path = NUMPY, **sections: Any) -> Result:
    """The numpy app with another ServerApp."""
    server = ServerApp()
    server.main()(main)
    load = App.load.__func__  # type: ignore[attr-defined]

    def other(cls: type[App], *args: Any) -> App:
        found: App = load(cls, *args)
        return App(found.client, server, found.run_config, found.folder)

    monkeypatch.setattr(App, "load", classmethod(other))
    return simulate(settings(app, **sections))


def question(client: int, kind: str = "train", ttl: float | None = None, value: float = 0.0) -> Message:
    arrays = ArrayRecord([np.full(4, value), np.zeros(1)])
    return Message(RecordDict({"arrays": arrays, "config": ConfigRecord()}), client, kind, ttl=ttl)


def test_timeout_and_a_busy_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 2 takes 4 s: not there after 2 s, its next message waits behind the first."""
    seen: list[tuple[list[int], float]] = []

    def main(grid: Grid, _: Any) -> None:
        now = lambda: grid.server.now  # type: ignore[attr-defined]  # noqa: E731
        replies = list(grid.send_and_receive([question(c) for c in range(3)], timeout=2.0))
        seen.append(([reply.metadata.src_node_id for reply in replies], now()))
        replies = list(grid.send_and_receive([question(2), question(0)], timeout=None))
        seen.append(([reply.metadata.src_node_id for reply in replies], now()))
        assert not grid._replies  # type: ignore[attr-defined]  # nobody can ask for the one that came too late

    result = led_by(monkeypatch, main)
    assert seen == [([0, 1], 2.0), ([0, 2], 8.0)]
    assert result.server.people.states[2]["count"]["jobs"] == 2  # type: ignore[attr-defined]


def test_pull_takes_no_longer_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []

    def main(grid: Grid, _: Any) -> None:
        assert torch.is_grad_enabled()
        ids = list(grid.push_messages([question(2, value=1.0)]))
        while not list(grid.pull_messages(ids)):
            times.append(grid.server.now)  # type: ignore[attr-defined]

    result = led_by(monkeypatch, main)
    assert times == [1.0, 2.0, 3.0]
    assert result.audit.events == {"unknown_model": 1}  # the app showed nobody what it made of the reply


def test_error_codes_and_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hears of a crash: the reply is an error when the message has expired."""
    codes: list[tuple[int, float]] = []

    def main(grid: Grid, _: Any) -> None:
        for _round in range(2):
            (reply,) = grid.send_and_receive([question(0, ttl=30.0)])
            codes.append((reply.error.code, grid.server.now))  # type: ignore[attr-defined]

    led_by(monkeypatch, main, crashes={"probability": 1.0}, detection={"kind": "none"})
    assert codes == [(ErrorCode.MESSAGE_UNAVAILABLE, 30.0), (ErrorCode.MESSAGE_UNAVAILABLE, 60.0)]
    codes.clear()
    led_by(monkeypatch, main, crashes={"probability": 1.0})
    assert codes[0][0] == ErrorCode.CLIENT_APP_CRASHED
    assert codes[0][1] < 4.0


def test_a_client_nobody_heard_of_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next message finds it as the world has it, not behind the job that died."""
    answered: list[bool] = []

    def main(grid: Grid, _: Any) -> None:
        for _round in range(8):
            (reply,) = grid.send_and_receive([question(0, ttl=30.0)])
            answered.append(reply.has_content())

    result = led_by(monkeypatch, main, crashes={"probability": 0.5}, detection={"kind": "none"}, run={"rounds": 20})
    world = result.server.population
    crashed, _ = world.crashes.draw(world.seed, np.zeros(8, np.int64), np.arange(8))
    assert answered[1:] == (~crashed).tolist()  # the first: nobody answers before the run begins
    assert 0 < crashed.sum() < 8


def test_sleep_is_virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour until the last client joins passes at once."""
    real = time.sleep

    def main(grid: Grid, _: Any) -> None:
        while len(list(grid.get_node_ids())) < 3:
            time.sleep(600)
        grid.send_and_receive([question(2)])

    result = led_by(monkeypatch, main, clients={"joined_at": [0.0, 0.0, 3600.0]})
    assert result.server.now == 3604.0
    assert time.sleep is real


def test_sleep_until_a_round_with_enough_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where presence is drawn anew every round, another round comes."""
    monkeypatch.setattr("turnout.deploy.virtual_grid._MOST_SLEEPS", 200)

    def main(grid: Grid, _: Any) -> None:
        while len(list(grid.get_node_ids())) < 3:
            time.sleep(1)
        grid.send_and_receive([question(client) for client in range(3)])

    result = led_by(monkeypatch, main, availability={"name": "bernoulli", "probability": 0.4}, run={"rounds": 1000})
    assert result.audit.failures == {}
    assert result.server.now == (result.server.version - 1) + 4.0  # a second each, and the round that was enough
    assert result.server.version > 1


def test_an_evaluation_is_that_of_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def main(grid: Grid, _: Any) -> None:
        for client in range(2):
            grid.send_and_receive([question(client)])
            grid.send_and_receive([question(client, "evaluate")])

    result = led_by(monkeypatch, main)
    assert result.clients()["test_samples"].tolist() == [0, 15, 0]


@pytest.mark.parametrize("clock", ["seconds", "round"])
def test_more_nodes_than_there_ever_are(monkeypatch: pytest.MonkeyPatch, clock: str) -> None:
    """One sentence, not a wait for ever."""
    monkeypatch.setattr("turnout.deploy.virtual_grid._MOST_SLEEPS", 20)

    def main(grid: Grid, _: Any) -> None:
        grid.send_and_receive([question(0)])
        while len(list(grid.get_node_ids())) < 4:
            time.sleep(1)

    world: dict[str, Any] = {"availability": {"name": "bernoulli", "probability": 0.5}} if clock == "round" else {}
    with pytest.raises(UserError, match="waits for more nodes than ever are online"):
        led_by(monkeypatch, main, run={"rounds": 1000}, **world)


def test_sleep_before_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def main(grid: Grid, _: Any) -> None:
        time.sleep(5)
        grid.send_and_receive([question(0)])

    assert led_by(monkeypatch, main).server.now == 6.0


def test_a_strategy_that_wants_more_than_all() -> None:
    with pytest.raises(UserError, match=r"clients\.count: the app's strategy waits for more than 1 nodes"):
        simulate(settings(seconds=(1.0,)))


def test_an_error_in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    def main(grid: Grid, _: Any) -> None:
        grid.send_and_receive([question(0)])
        raise RuntimeError("no idea")

    with pytest.raises(UserError, match=r"its ServerApp fails \(RuntimeError: no idea \(test_flower_virtual_grid.py:"):
        led_by(monkeypatch, main)
