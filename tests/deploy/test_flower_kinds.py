"""Every kind of Flower app under its own ServerApp: one that only asks, that sends bytes, that hides what clients send,
or that is led in an older way."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from deploy.flower_apps import OLD, HandWritten, imported, kind, settings, simulate
from turnout import UserError
from turnout.deploy.flower_parts import VERSIONS, check_version
from turnout.run.experiment import Result

SLOWEST = 4.0  # seconds of a job, of `SECONDS`
SLOW = {"down": 1e4, "up": 1e4}  # bits a second


def led(tmp_path: Path, client: str, server: str, folder: Path | None = None, **sections: Any) -> Result:
    return simulate(settings(kind(tmp_path, client, server), **{"run": {"rounds": 2}, **sections}), folder)


def test_a_server_app_that_only_asks(tmp_path: Path) -> None:
    """Messages of another type than train, with what clients answer untouched; time passes as for any job, and it is
    that time which a ServerApp reads and sleeps for."""
    result = led(tmp_path, "query:client", "query:server")
    said = imported("query").said
    values = [np.random.default_rng(client).normal(size=10) for client in range(3)]
    assert said["histogram"] == np.sum([np.histogram(v, [-10, 0, 10])[0] for v in values], 0).tolist()
    assert said["means"] == {client: v.mean() for client, v in enumerate(values)}
    # asked every 5 s: client 0 takes 1 s, client 1 1.5 s, client 2 4 s
    assert said["beats"] == [(client, 5.0 * (beat + 1)) for beat in range(4) for client in range(3)]
    assert result.server.now == 2 * SLOWEST + 20.0
    assert (result.server.version, len(result.jobs()["client"])) == (1, 3 * 6)
    assert result.audit.contributions.tolist() == [6, 6, 6]
    assert not result.nobody_heard
    assert result.state_dict() == {}
    again = led(tmp_path, "query:client", "query:server")
    assert again.jobs()["ended_at"].tolist() == result.jobs()["ended_at"].tolist()


def test_a_model_of_bytes_that_grows(tmp_path: Path) -> None:
    result = led(tmp_path, "boost:client", "boost:server", links=SLOW)
    (value,) = result.state_dict().values()
    trees = imported("boost").trees_of(value.numpy().tobytes())
    assert sorted(tree["leaf"] for tree in trees) == [0, 1, 2, 30, 31, 32]
    assert (result.server.version, result.measures["test_trees"]) == (2, 6.0)
    assert result.audit.contributions.tolist() == [2, 2, 2]
    down = result.rounds()["bytes_down"]
    # each round its model is sent to be trained, and what became of it to be evaluated: as many bytes as there are
    assert down[2] - down[1] == 3 * len(result.model) == 3 * value.nbytes
    assert result.server.now > 4 * SLOWEST
    again = led(tmp_path, "boost:client", "boost:server", links=SLOW)
    assert again.rounds()["bytes_down"].tolist() == down.tolist()
    assert torch.equal(again.model, result.model)


def test_bytes_in_the_old_style(tmp_path: Path) -> None:
    """Nothing can be known of them but that they are sent and come back."""
    result = led(tmp_path, "old_boost:client", "old_boost:server")
    assert (result.server.version, result.measures["test_trees"]) == (2, 6.0)
    assert result.audit.failures == {}


def test_vertical(tmp_path: Path) -> None:
    """Each client is sent something else: there is no model, but there are rounds, and clients keep their weights."""
    result = led(tmp_path, "vertical:client", "vertical:server", run={"rounds": 3})
    columns = [np.random.default_rng(client).normal(size=(8, 2)) for client in range(3)]
    weights, losses = [np.ones(2)] * 3, []
    for _ in range(3):
        error = sum(X @ w for X, w in zip(columns, weights, strict=True)) - np.arange(8.0)
        losses.append(float((error**2).mean()))
        weights = [w - 0.05 * X.T @ (error * (1 + i)) for i, (X, w) in enumerate(zip(columns, weights, strict=True))]
    np.testing.assert_allclose(imported("vertical").losses, losses, rtol=1e-12)
    assert (result.server.version, result.server.now) == (3, 3 * 2 * SLOWEST)
    assert result.audit.contributions.tolist() == [3, 3, 3]


def averaged(rounds: int = 2) -> float:
    """The legacy app by hand: weights 10, 20, 30, half-way to 0, 1, 2."""
    place = 2.0
    for _ in range(rounds):
        place = sum(weight * (place + client) / 2 for client, weight in enumerate((1, 2, 3))) / 6
    return place


@pytest.mark.parametrize("server", ["workflow", "at_once", "begun", "given"])
def test_legacy_ways_to_lead(tmp_path: Path, server: str) -> None:
    """Without initial parameters a client is asked for its own, which takes the time of a job."""
    result = led(tmp_path, "legacy:client", f"legacy:{server}")
    assert result.model.tolist() == pytest.approx([averaged()] * 3, abs=1e-12)
    assert result.audit.contributions.tolist() == [2, 2, 2]
    asked = result.server.now - 2 * 2 * SLOWEST
    assert asked == 0 if server in ("begun", "given") else asked in (1.0, 1.5, 4.0)
    told = server != "workflow"  # whether they could be asked beforehand how many samples they have
    loss = np.average(np.abs(averaged() - np.arange(3)), weights=[1, 2, 3] if told else None)
    assert result.measures["test_loss"] == pytest.approx(loss, abs=1e-12)
    assert result.audit.events.get("samples_unknown", 0) == 1 - told
    again = led(tmp_path, "legacy:client", f"legacy:{server}")
    assert torch.equal(again.model, result.model)
    assert again.jobs()["ended_at"].tolist() == result.jobs()["ended_at"].tolist()


@pytest.mark.parametrize("way", ["legacy", "mixed"])
def test_a_model_of_whole_numbers_that_is_averaged(tmp_path: Path, way: str) -> None:
    """It is what the app makes of it, as soon as the app shows that."""
    result = led(tmp_path, f"{way}:client", f"{way}:whole")
    assert result.model.tolist() == pytest.approx([averaged()] * 3, abs=1e-12)
    (values,) = result.state_dict().values()
    assert values.dtype == torch.float64 and values.equal(result.model)


def test_server_fn_leads() -> None:
    """As under Turnout's own FedAvg, to the last bits."""
    result = simulate(settings(OLD))
    hand, model = HandWritten(3, decay=False), np.zeros(5)
    for number in range(3):
        model = model + sum(p * hand(model, client, number) for client, p in enumerate(hand.importance))
    np.testing.assert_allclose(result.model.numpy(), model, rtol=0, atol=1e-12)
    assert result.server.version == 3


def test_secure_aggregation(tmp_path: Path) -> None:
    """Four messages a round, of which one trains: the sum is that without secrecy, but for its rounding to integers."""
    result = led(tmp_path, "legacy:secret", "legacy:secure")
    # quantised to 2 * 8 / 2^22, weights to 100 / 2^22; two rounds
    assert result.model.tolist() == pytest.approx([averaged()] * 3, abs=1e-3)
    assert (result.server.version, result.audit.contributions.tolist()) == (2, [2, 2, 2])
    assert result.audit.failures == {}
    again = led(tmp_path, "legacy:secret", "legacy:secure")
    assert torch.equal(again.model, result.model)  # keys are drawn anew, and cancel
    assert again.server.now == result.server.now


def test_who_drops_out_of_a_secure_sum(tmp_path: Path) -> None:
    """Its masks are taken out with the others' shares, or the round is given up: it never reaches the model."""
    result = led(tmp_path, "legacy:secret", "legacy:secure", crashes={"probability": 0.3}, run={"rounds": 2, "seed": 4})
    assert result.audit.failures["crashed"] > 0
    assert np.abs(result.model.numpy()).max() < 3.0
    again = led(tmp_path, "legacy:secret", "legacy:secure", crashes={"probability": 0.3}, run={"rounds": 2, "seed": 4})
    assert torch.equal(again.model, result.model)


def test_a_strategy_waits_for_nodes_in_virtual_time(tmp_path: Path) -> None:
    """The last of them joins after an hour."""
    late = {"joined_at": [0.0, 0.0, 3600.0]}
    with pytest.raises(UserError, match=r"waits for more than 1 nodes|waits for more nodes"):
        simulate(settings(kind(tmp_path, "legacy:client", "legacy:workflow"), seconds=(1.0,)))
    result = led(tmp_path, "legacy:client", "legacy:at_once", clients=late)
    assert result.audit.contributions[:2].tolist() == [2, 2]
    assert result.server.now < 3600.0  # two are enough for it


def test_a_mistake_in_a_client(tmp_path: Path) -> None:
    """The function is named, and the log has the whole traceback, once."""
    folder = tmp_path / "run"
    with pytest.raises(UserError, match=r"its ServerApp fails \(.*failing\.py:\d+, in total\)"):
        simulate(settings(kind(tmp_path / "app", "failing:client", "failing:server")), folder)
    log = (folder / "log.txt").read_text()
    assert "LookupError: no such column (failing.py:13, in answer)" in log
    assert log.count("Traceback (most recent call last)") == 2  # the client's, and what follows from it
    assert "total(grid.send_and_receive(messages))" in log


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ("mistakes:no_key", r"its ServerApp fails \(KeyError: 'rounds' \(mistakes.py:\d+, in without_a_key\)\)"),
        ("mistakes:nothing", "its server_fn returns NoneType; it must return ServerAppComponents"),
        ("serving:app", "it calls start_server, which opens a network connection"),
    ],
)
def test_a_mistake_in_a_server(tmp_path: Path, server: str, sentence: str) -> None:
    with pytest.raises(UserError, match=rf"flower\.app: {sentence}"):
        led(tmp_path, "legacy:client", server)


def test_a_mistake_in_a_server_that_need_not_lead(tmp_path: Path) -> None:
    world = settings(kind(tmp_path, "legacy:client", "mistakes:no_key"), algorithm={"name": "fedavg"})
    with pytest.raises(UserError, match=r"its server_fn fails \(KeyError: 'rounds'"):
        simulate(world)


def test_who_leaves_the_process_leaves_the_run(tmp_path: Path) -> None:
    """A ServerApp that ends so has ended; a client has failed."""
    ended = led(tmp_path, "legacy:client", "mistakes:leaving")
    assert (ended.server.stopped, ended.nobody_heard) == ("the app has ended", True)
    with pytest.raises(UserError, match=r"its ServerApp fails \(.*in total\)"):  # nobody answers it
        led(tmp_path, "mistakes:client", "failing:server", folder=tmp_path / "run")
    assert "it leaves the process by sys.exit(0)" in (tmp_path / "run" / "log.txt").read_text()


def test_a_question_before_the_strategy(tmp_path: Path) -> None:
    """The model is known only by its first message; what was answered before is no part of a round of training."""
    result = led(tmp_path, "mixed:client", "mixed:server")
    assert result.model.tolist() == pytest.approx([averaged()] * 3, abs=1e-12)
    assert result.model.dtype == torch.float64
    assert (result.server.version, result.server.now) == (2, (1 + 2 * 2) * SLOWEST)
    assert result.audit.contributions.tolist() == [2, 2, 2]
    assert result.rounds()["reported_place"][1:].tolist() == pytest.approx([8 / 6] * 2)  # by samples, once a round
    assert result.jobs()["client"].tolist() == [0, 1, 2] * 5
    assert result.measures["test_place"] == 1.0


def test_an_app_that_only_evaluates(tmp_path: Path) -> None:
    result = led(tmp_path, "mixed:client", "mixed:trial")
    assert (result.server.version, result.server.now) == (1, SLOWEST)
    assert result.model.tolist() == [1.0, 1.0]
    assert result.clients()["test_samples"].tolist() == [10, 20, 30]


def test_a_grid_is_of_one_thread(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its ServerApp sends messages from several threads"):
        led(tmp_path, "mixed:client", "mixed:threaded")


def test_versions() -> None:
    """The one range that is installed is the one that the adapter knows."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest, newest = VERSIONS[0], int(VERSIONS[-1].partition(".")[2])
    assert f'"flwr=={VERSIONS[-1]}.*"' in (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    assert project["optional-dependencies"]["flower"] == [f"flwr>={oldest},<1.{newest + 1}"]


def test_another_version_of_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.deploy.flower_parts.version", lambda _: "1.39.0")
    with pytest.raises(UserError, match=r"flower\.app: Flower 1\.39\.0 is installed; allowed: 1\.41 and 1\.42"):
        check_version()
