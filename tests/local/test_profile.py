"""What a layer sees: features of any model, profiles of clients in either engine, and what a profile costs.

Oracles O6, O7 and O13 of the FedProf spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kurtosis, skew
from torch import nn

from support import Idle, conv, images, local, mlp, population, simulation
from turnout import LocalSGD, Plan, Population, Task, UserError, devices
from turnout.core import random
from turnout.core.random import key, normal
from turnout.local.answers import ProfileReport
from turnout.local.profile import elements, profile_of
from turnout.server.durations import Durations
from turnout.task.models import char_lstm


class Recurrent(nn.Module):
    """torch's own fused LSTM, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 4, num_layers=2)
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x.T.unsqueeze(2))[0][-1])


class Block(nn.Module):
    """A residual block with a rectifier that works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(1, 1, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.inner(x)) + x


def residual() -> nn.Module:
    return nn.Sequential(Block(), nn.Flatten(), nn.Linear(36, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))


def texts() -> Population:
    people = population()
    tokens = (people.inputs.abs() * 3).long() % 7
    return Population(tokens, people.targets, people.train)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Population], str, int]] = {
    "dense": (mlp, population, "0", 8),
    "output": (mlp, population, "", 3),
    "convolution": (conv, images, "0", 4),
    "pooling": (conv, images, "2", 4),
    "dense after convolution": (conv, images, "4", 2),
    "residual block": (residual, images, "0", 1),
    "in place": (residual, images, "2", 6),
    "own lstm": (lambda: char_lstm(symbols=7, embed=3, hidden=4), texts, "lstm", 1),
    "fused lstm": (Recurrent, population, "lstm", 1),
}


def by_hand(case: str, module: Any, x: torch.Tensor) -> torch.Tensor:
    """`[B, q]` without hooks."""
    if case == "dense":
        return module[0](x)
    if case == "output":
        return module(x)
    if case == "convolution":
        return module[0](x).sum((2, 3))
    if case == "pooling":
        return module[:3](x).sum((2, 3))
    if case == "dense after convolution":
        return module(x)
    if case == "residual block":
        return module[0](x).sum((2, 3))
    if case == "in place":
        return module[:3](x)
    if case == "own lstm":
        return module.lstm(module.embed(x))[:, -1].sum(1, keepdim=True)
    return module.lstm(x.T.unsqueeze(2))[0][-1].sum(1, keepdim=True)


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_layer_in_every_engine(case: str, engine: str) -> None:
    """Mean and population variance over each client's samples, two passes of plain torch, of the *received* model."""
    if (case, engine) == ("fused lstm", "vectorised"):
        pytest.skip("vmap cannot batch torch's fused LSTM")
    model, people, layer, q = CASES[case]
    task, clients = Task(model, seed=3), people()
    plan = Plan(engine=engine, precision="float64", threads=2)
    server = simulation(Idle(), clients, task=task, plan=plan)
    server.invite(clients.ids, local().reporting(f"profile:{layer}"))
    updates = server.wait()
    profiles = updates["profile"]
    assert profiles.shape == (clients.size, 2, q)
    assert float(updates.deltas.norm(dim=1).min()) > 0  # they have trained since
    for client, profile in zip(updates.clients.tolist(), profiles, strict=True):
        with torch.no_grad():
            seen = by_hand(case, server.task.module.eval(), server.cohort.inputs[clients.train.row(client)])
        expected = torch.stack([seen.mean(0), (seen - seen.mean(0)).square().mean(0)])
        torch.testing.assert_close(profile, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_a_report_changes_no_update(engine: str, momentum: float) -> None:
    """Reports come beside plain steps (which have a path of their own) and beside any other work."""
    results = []
    for report in ("", "loss", "loss,profile:2"):
        server = simulation(Idle(), plan=Plan(engine=engine, threads=1))
        server.invite(server.population.ids, local(momentum=momentum).reporting(report))
        updates = server.wait()
        results.append(updates.deltas)
        if report:
            assert updates["loss"].shape == (8,)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_reports_add_up() -> None:
    work = local().reporting("loss").reporting("profile:0").reporting("loss")
    assert work.report == "loss,profile:0"
    assert work.reporting("") is work


def test_the_first_linear_layer() -> None:
    assert Task(mlp).first_linear == "0"
    assert Task(conv).first_linear == "4"
    assert Task(nn.Linear(2, 2)).first_linear == ""
    assert Task(nn.Conv2d(1, 1, 3)).first_linear == ""


def test_unknown_layers() -> None:
    server = simulation(Idle())
    with pytest.raises(UserError, match=r"layer: the model has no 'fc1'; its layers: 0, 1, 2"):
        server.task.features(server.model, server.cohort.inputs[:2], "fc1")
    with pytest.raises(UserError, match="no 'fc1'"):
        server.invite([0], local(report="profile:fc1"))
    with pytest.raises(UserError, match="unknown name 'profil'; did you mean profile"):
        local(report="profil:0")


def test_layers_that_give_no_tensor() -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.idle, self.out = Pair(), nn.Linear(1, 1), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.pair(x)[0])

    server = simulation(Idle(), task=Task(Model))
    for layer in ("pair", "idle"):  # two tensors, and a layer that is never asked
        with pytest.raises(UserError, match=f"layer: '{layer}' gives no tensor"):
            server.task.features(server.model, server.cohort.inputs[:2], layer)
        with pytest.raises(UserError, match=f"layer: '{layer}' gives no tensor"):
            server.invite([0], local(report=f"profile:{layer}"))


# -- profiles of any samples ----------------------------------------------------------------------------------


def linear(inputs: int = 3, outputs: int = 4) -> Task:
    return Task(lambda: nn.Linear(inputs, outputs), seed=1).to(dtype=torch.float64)


def gaussian(samples: int, features: int, purpose: str = "inputs") -> torch.Tensor:
    return torch.from_numpy(normal(key(6, purpose), samples * features)).reshape(samples, features)


def test_a_linear_layer_of_gaussian_inputs() -> None:
    """O6: mean W mu + b and variance sum (W sigma)^2, within 2 % from 200,000 samples."""
    task = linear()
    mu, sigma = torch.tensor([1.0, -2.0, 0.5]).double(), torch.tensor([0.5, 2.0, 1.0]).double()
    found = profile_of(task, task.initial, mu + sigma * gaussian(200_000, 3), "")
    layer: Any = task.module
    np.testing.assert_allclose(found[0], (layer.weight @ mu + layer.bias).numpy(), atol=0.02)
    np.testing.assert_allclose(found[1], (layer.weight * sigma).square().sum(1).numpy(), rtol=0.02)


def test_elements_are_close_to_gaussian() -> None:
    """O6: sums of a hundred terms that are not Gaussian at all."""
    task = linear(100, 5)
    uniform = torch.from_numpy(random.uniform(key(6, "flat"), 2_000_000)).reshape(-1, 100)
    seen = elements(task, task.initial, uniform, "").numpy()
    assert np.abs(skew(seen)).max() < 0.1
    assert np.abs(kurtosis(seen)).max() < 0.2
    assert np.abs(kurtosis(uniform[:, :5].numpy())).min() > 1


def test_batches_do_not_matter() -> None:
    """O7: batches of samples give what all give together, whatever their size and order."""
    task, inputs = linear(), gaussian(1000, 3)
    whole = profile_of(task, task.initial, inputs, "")
    for batch in (1, 7, 137, 5000):
        np.testing.assert_allclose(profile_of(task, task.initial, inputs, "", batch), whole, rtol=1e-10)
    np.testing.assert_allclose(profile_of(task, task.initial, inputs.flip(0), "", 7), whole, rtol=1e-10)


def test_a_large_offset_costs_no_accuracy() -> None:
    """O7: a difference of sums of squares would leave nothing of a variance of 1 at 1e6."""
    task, noise = linear(1, 1), gaussian(5000, 1)
    for batch in (5000, 64):
        near, far = (profile_of(task, task.initial, offset + noise, "", batch) for offset in (0.0, 1e6))
        np.testing.assert_allclose(far[1], near[1], rtol=1e-6)


def test_one_sample_has_no_variance() -> None:
    task = linear()
    assert profile_of(task, task.initial, gaussian(1, 3), "")[1].tolist() == [0, 0, 0, 0]


# -- what it costs --------------------------------------------------------------------------------------------


def seconds(work: LocalSGD, per: str, counts: tuple[int, ...] = (10, 17)) -> list[float]:
    """Compute time of each client at one unit a step, sample or job, by what is foretold and by what happens."""
    people = population(counts, devices=devices.fixed(1.0, per=per))  # type: ignore[arg-type]
    server = simulation(Idle(), people)
    server.invite(people.ids, work)
    happened = [job.seconds[1] for job in sorted(server.wait().jobs, key=lambda job: job.client)]
    assert Durations.of(people, work).compute(0).tolist() == happened
    return happened


def test_a_profile_takes_a_pass() -> None:
    """T_RPgen = T_train / epochs; a loss costs nothing extra, and neither changes the steps that are recorded."""
    work = local(epochs=2, batch_size=4)  # 3 and 5 steps a pass
    assert seconds(work, "step") == seconds(work.reporting("loss"), "step") == [6, 10]
    assert seconds(work.reporting("profile:0"), "step") == [9, 15]
    assert seconds(work.reporting("profile:0"), "sample") == [15, 25.5]
    assert seconds(work.reporting("profile:0"), "job") == [1, 1]
    fixed = local(steps=2, batch_size=4)
    assert seconds(fixed.reporting("profile:0"), "step") == [5, 7]
    alone = ProfileReport.extend(work).bind({"report": "profile:0"})
    assert seconds(alone, "step") == [3, 5]
    assert seconds(alone, "sample") == [5, 8.5]
    assert alone.num_steps([10, 17]).tolist() == [0, 0]


@pytest.mark.parametrize("compressed", [None, 1000])
def test_a_profile_is_eight_bytes_an_element(compressed: int | None) -> None:
    """O13: beside a model of any size on the wire."""
    people = population(model_bytes=compressed)
    size = compressed or 4 * Task(mlp).size

    def sent(work: LocalSGD) -> set[tuple[int, ...]]:
        server = simulation(Idle(), people)
        server.invite(people.ids, work)
        return {job.bytes for job in server.wait().jobs}

    assert sent(local()) == {(size, size)}
    assert sent(local(report="profile:0")) == {(size, size + 8 * 8)}
    assert sent(local(report="loss,profile:0")) == {(size, size + 8 * 8 + 4)}
    assert sent(ProfileReport.extend(local(report="profile:2"))) == {(size, 8 * 3)}


def test_profiles_survive_a_float32_round_trip() -> None:
    """What a client sends has the engine's precision; the server's own profile is float64."""
    people = population()
    server = simulation(Idle(), people)
    server.invite([4], local(report="profile:0"))
    sent = server.wait()["profile"][0]
    own: Any = profile_of(server.task, server.model, server.cohort.inputs[people.train.row(4)], "0")
    assert sent.dtype == torch.float32
    assert own.dtype == np.float64
    np.testing.assert_allclose(sent.numpy(), own, rtol=1e-5, atol=1e-6)


def test_padding_says_nothing() -> None:
    """A client of one sample beside one of thirty: its profile has no variance."""
    people = population((1, 30))
    server = simulation(Idle(), people, plan=Plan(engine="vectorised", precision="float64", threads=1))
    server.invite(people.ids, local(batch_size=4, report="profile:0"))
    updates = server.wait()
    profile = updates["profile"][updates.clients.tolist().index(0)]
    assert profile[1].tolist() == [0.0] * 8
