"""What personal clients compute: both engines equal a plain loop, for ragged clients, old and new, in any chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracle import personal, plain
from support import SIZES, population
from turnout.core.random import key, normal
from turnout.engine.batches import Jobs
from turnout.engine.plan import Plan
from turnout.engine.train import Cohort
from turnout.local.clusters import ClusterSGD
from turnout.local.head import HeadSGD
from turnout.local.own import DittoSGD, InterpolatedSGD, LooplessSGD, MoreauSGD, PulledSGD, RelatedSGD
from turnout.local.sgd import LocalSGD
from turnout.task.task import Task

SMALL: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch_size": 4}
HEAVY: dict[str, Any] = {**SMALL, "momentum": 0.9, "weight_decay": 0.1}


def net() -> nn.Module:
    """The head, layer 2, lies between two parts of the body."""
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))


TASK = Task(net, seed=3).to(dtype=torch.float64)
PEOPLE = population()
MODELS = torch.stack([TASK.initial * (1 + 0.3 * v) for v in range(3)])
RECEIVED = np.arange(len(SIZES)) % 3
STARTED = np.arange(len(SIZES)) % 2  # every other client has trained before
OWN = torch.from_numpy(normal(key(8, "own models"), len(SIZES) * TASK.size)).reshape(-1, TASK.size) / 3
HEAD = torch.zeros(TASK.size, dtype=torch.bool)
HEAD[36:64] = True  # 6 * 4 weights and 4 biases
KEYS = key(9, "test", np.arange(len(SIZES)))


@dataclass
class Client:
    """What a plain loop needs to know."""

    number: int
    work: LocalSGD

    @property
    def received(self) -> Tensor:
        return MODELS[RECEIVED[self.number]]

    @property
    def own(self) -> Tensor:
        return OWN[self.number] if STARTED[self.number] else self.received

    @property
    def samples(self) -> int:
        return SIZES[self.number]

    @property
    def batches(self) -> list[np.ndarray]:
        steps = int(self.work.num_steps(self.samples))
        return list(plain.batches(int(KEYS[self.number]), self.samples, self.work.batch_size, steps))

    @property
    def sgd(self) -> dict[str, Any]:
        return {name: getattr(self.work, name) for name in ("lr", "momentum", "weight_decay")}

    def loss(self, vector: Tensor, rows: np.ndarray | slice = slice(None)) -> Tensor:
        mine = PEOPLE.train.row(self.number)[rows]
        return TASK.losses(vector, PEOPLE.inputs[mine].double(), PEOPLE.targets[mine]).mean()

    def slope(self, vector: Tensor, rows: np.ndarray) -> Tensor:
        leaf = vector.clone().requires_grad_()
        return torch.autograd.grad(self.loss(leaf, rows), leaf)[0]


Reference = Callable[[Client], tuple[Tensor, dict[str, Any]]]


def keeps_model(reference: Callable[..., Any], **options: Any) -> Reference:
    def one(client: Client) -> tuple[Tensor, dict[str, Any]]:
        delta, own = reference(client.slope, client.received, client.own, client.batches, client.sgd, **options)
        return delta, {"model": own, "started": 1.0}

    return one


def keeps_alpha(first: float, **options: Any) -> Reference:
    def one(client: Client) -> tuple[Tensor, dict[str, Any]]:
        alpha = 0.7 if STARTED[client.number] else first
        given = (client.slope, client.received, client.own, client.batches, client.sgd)
        delta, (own, alpha) = personal.interpolated(*given, alpha, **options)
        return delta, {"model": own, "alpha": alpha, "started": 1.0}

    return one


def moreau(client: Client) -> tuple[Tensor, dict[str, Any]]:
    given = (client.slope, client.received, client.batches, client.sgd)
    delta, own = personal.moreau(*given, mu=2.0, outer_lr=0.2, inner_steps=3)
    return delta, {"model": own, "started": 1.0}


def related(client: Client) -> tuple[Tensor, dict[str, Any]]:
    given = (client.slope, client.received, client.own, client.batches, client.sgd)
    delta, own = personal.related(*given, mu=40.0, samples=client.samples)
    return delta, {"model": own, "started": 1.0}


def keeps_head(head_epochs: int, joint: bool) -> Reference:
    def one(client: Client) -> tuple[Tensor, dict[str, Any]]:
        head_steps = head_epochs * -(-client.samples // client.work.batch_size)
        given = (client.slope, client.received, client.own, HEAD, client.batches, client.sgd)
        delta, head = personal.with_head(*given, head_steps, joint)
        return delta, {"head": head, "started": 1.0}

    return one


def best(client: Client) -> tuple[Tensor, dict[str, Any]]:
    losses = lambda vector: float(client.loss(vector))  # noqa: E731
    delta, chosen = personal.best_of(client.slope, losses, MODELS.flip(0), client.batches, client.sgd)
    return delta, {"payload": float(chosen)}


WORKS: dict[str, tuple[LocalSGD, Reference]] = {
    "pulled": (PulledSGD(**SMALL, mu=0.5), keeps_model(personal.pulled, mu=0.5)),
    "pulled, heavy": (PulledSGD(**HEAVY, mu=0.5), keeps_model(personal.pulled, mu=0.5)),
    "ditto": (DittoSGD(**HEAVY, mu=0.5), keeps_model(personal.ditto, mu=0.5)),
    "interpolated": (InterpolatedSGD(**HEAVY, alpha=0.3), keeps_alpha(0.3)),
    "adaptive": (InterpolatedSGD(**SMALL, alpha=0.3, adaptive=True), keeps_alpha(0.3, adaptive=True)),
    "frozen": (InterpolatedSGD(**SMALL, alpha=0.3, frozen=True), keeps_alpha(0.3, frozen=True)),
    "moreau": (MoreauSGD(**HEAVY, mu=2.0, outer_lr=0.2, inner_steps=3), moreau),
    "loopless": (LooplessSGD(0.1, steps=7, batch_size=4, keep=0.4), keeps_model(personal.loopless, keep=0.4)),
    "related": (RelatedSGD(**SMALL, mu=40.0), related),
    "head": (HeadSGD(**HEAVY, head="2"), keeps_head(0, joint=True)),
    "head first": (HeadSGD(**HEAVY, head="2", head_epochs=3, joint=False), keeps_head(3, joint=False)),
    "head alone": (HeadSGD(0.1, epochs=0, batch_size=4, head="2", head_epochs=2), keeps_head(2, joint=True)),
    "best of three": (ClusterSGD(**SMALL, momentum=0.5, models=MODELS.flip(0)), best),
}  # fmt: skip


class SmallChunks(Plan):
    """Three clients a call."""

    def clients_a_call(self, *_: Any) -> int:
        return 3


def train(work: LocalSGD, engine: str, chunks: type[Plan] = Plan) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Payload and state of all clients, by the engine."""
    cohort = Cohort(TASK, PEOPLE.inputs, PEOPLE.targets, chunks(engine=engine, precision="float64", threads=2))
    kept = {"model": OWN, "head": OWN[:, HEAD], "alpha": torch.full((len(SIZES),), 0.7, dtype=torch.float64)}
    started = torch.as_tensor(STARTED, dtype=torch.float64)
    state = {name: started if name == "started" else kept[name] for name in work.state_shapes(TASK)}
    state = {name: values * started.view(-1, *[1] * (values.ndim - 1)) for name, values in state.items()}  # else zeros
    trained = cohort.train(Jobs(work, KEYS, MODELS, RECEIVED, PEOPLE.train, {}, state))
    return trained.payload, trained.state


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("name", WORKS)
def test_every_work_equals_the_plain_loop(name: str, engine: str) -> None:
    work, reference = WORKS[name]
    payload, state = train(work, engine)
    assert set(payload) == set(work.sends(TASK))
    assert set(state) == set(work.state_shapes(TASK))
    for number in range(len(SIZES)):
        delta, kept = reference(Client(number, work))
        torch.testing.assert_close(payload["delta"][number], delta, rtol=1e-9, atol=1e-12)
        if "payload" in kept:
            assert payload["cluster"][number] == kept.pop("payload")
        for what, value in kept.items():
            expected = torch.as_tensor(value, dtype=torch.float64)
            torch.testing.assert_close(state[what][number], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", WORKS)
def test_chunks_change_nothing(name: str) -> None:
    whole, parts = train(WORKS[name][0], "vectorised"), train(WORKS[name][0], "vectorised", SmallChunks)
    for one, two in zip(whole, parts, strict=True):
        for what in one:
            torch.testing.assert_close(two[what], one[what], rtol=1e-12, atol=1e-14)


def test_different_clients_choose_different_models() -> None:
    """Or the choice above shows nothing."""
    assert len(set(train(WORKS["best of three"][0], "vectorised")[0]["cluster"].tolist())) > 1


def test_what_is_sent() -> None:
    """Only the body; all models down and one up; else one model each way, whatever is kept."""
    head, best_of = WORKS["head first"][0], WORKS["best of three"][0]
    body = TASK.size - 28
    assert (head.download_numbers(TASK), head.upload_numbers(TASK)) == (body, body)
    assert (best_of.download_numbers(TASK), best_of.upload_numbers(TASK)) == (3 * TASK.size, TASK.size + 1)
    for name in ("pulled", "ditto", "adaptive", "moreau", "loopless", "related"):
        work = WORKS[name][0]
        assert (work.download_numbers(TASK), work.upload_numbers(TASK)) == (TASK.size, TASK.size)


def test_what_it_costs() -> None:
    """Two passes of 10 samples in batches of 4 are 6 steps: of two gradients each, of three, after three more passes
    over the samples for the head, or over three models."""
    cost = {
        "pulled": 6,
        "ditto": 12,
        "interpolated": 12,
        "frozen": 6,
        "moreau": 18,
        "head first": 15,
        "best of three": 15,
    }
    for name, steps in cost.items():
        busy, samples = WORKS[name][0].busy(np.array([10]))
        assert np.asarray(busy).tolist() == [steps], name
        extra = steps / float(WORKS[name][0].num_steps([10])[0])
        assert np.asarray(samples).tolist() == [10 * extra], name
