"""FedPer and FedRep: the body is shared, the head is the client's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from personal_problems import FULL, LR, START, STEPS, TASK, TRAINING, UNSEEN, assert_served, average, run, slope
from torch import Tensor, nn

from support import local, population
from turnout import FedAvg, Full, Links, Task, UserError
from turnout.algorithms import Local
from turnout.algorithms.fedper import FedPer
from turnout.algorithms.fedrep import FedRep
from turnout.local.head import HeadSGD

HEAD = torch.zeros(len(START), dtype=torch.bool)
HEAD[25:] = True  # of the linear layers 4 -> 5 -> 3 the last: 15 weights and 3 biases


def train(vector: Tensor, client: int, which: Tensor, steps: int = STEPS) -> Tensor:
    """Steps that move only some of the parameters."""
    for _ in range(steps):
        vector = vector - LR * slope(vector, client) * which
    return vector


def with_head(body: Tensor, own: Tensor) -> Tensor:
    return torch.where(HEAD, own, body)


@pytest.mark.parametrize("head", ["", "2", " 2 ,"])
def test_fedper_is_a_plain_loop(head: str) -> None:
    """Head and body together; only the body is averaged. Unseen: a head on the body as it is."""
    w, own = START, [START] * 4
    everything = torch.ones_like(HEAD)
    for _ in range(3):
        own = [train(with_head(w, own[i]), i, everything) for i in TRAINING]
        w = with_head(average(own), START)
    result = run(FedPer(FULL, Full(), head=head, tuning_epochs=4))
    torch.testing.assert_close(result.model, w, rtol=1e-11, atol=1e-13)
    assert torch.equal(result.model[HEAD], START[HEAD])
    assert_served(result, [*(with_head(w, mine) for mine in own), train(w, UNSEEN, HEAD, steps=4)])


def test_fedrep_is_a_plain_loop() -> None:
    """Algorithm 1: the head on the body received, then the body under that head."""
    w, own = START, [START] * 4
    for _ in range(3):
        own = [train(train(with_head(w, own[i]), i, HEAD, steps=3), i, ~HEAD) for i in TRAINING]
        w = with_head(average(own), START)
    result = run(FedRep(FULL, Full(), head_epochs=3, tuning_epochs=4))
    torch.testing.assert_close(result.model, w, rtol=1e-11, atol=1e-13)
    assert_served(result, [*(with_head(w, mine) for mine in own), train(w, UNSEEN, HEAD, steps=4)])


@pytest.mark.parametrize("kind", [FedPer, FedRep])
def test_without_a_head_it_is_fedavg(kind: type[FedPer]) -> None:
    """Layer 1, a Tanh, has no parameters. (FedRep on full gradients: else its passes over the head shift the draws.)"""
    shared, whole = run(FedAvg(FULL, Full())), run(kind(FULL, Full(), head="1"))
    torch.testing.assert_close(whole.model, shared.model, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(whole.server.clients()["train_loss"], shared.server.clients()["train_loss"], rtol=1e-11)


def test_fedper_without_a_head_is_fedavg_on_mini_batches() -> None:
    people, task = population(), Task(lambda: nn.Sequential(nn.Linear(5, 3), nn.Tanh()), seed=2)
    models = [
        run(a, 4, people=people, task=task).model for a in (FedPer(local(), Full(), head="1"), FedAvg(local(), Full()))
    ]
    torch.testing.assert_close(*models, rtol=1e-11, atol=1e-13)


def test_fedper_without_a_body_is_local_training() -> None:
    result, alone = run(FedPer(FULL, Full(), head="0, 2")), run(Local(FULL))
    assert torch.equal(result.model, START)
    seen = slice(UNSEEN)
    np.testing.assert_allclose(
        result.server.clients()["train_loss"][seen], alone.server.clients()["train_loss"][seen], rtol=1e-11
    )


def test_only_the_body_travels_and_only_the_head_is_kept() -> None:
    people = population(links=Links(down=1e6, up=1e6))
    task = Task(lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)))
    result = run(FedRep(local(), Full(), head_epochs=1), 1, people=people, task=task)
    assert set(result.jobs()["bytes_up"]) == set(result.jobs()["bytes_down"]) == {48 * 8}
    assert HeadSGD(0.1).state_shapes(result.server.task) == {"head": (27,), "started": ()}


def test_the_head_is_the_last_linear_layer() -> None:
    assert HeadSGD(0.1).private(TASK) == [False, False, True, True]
    nested = Task(nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4)), nn.Sequential(nn.Linear(4, 3))))
    assert HeadSGD(0.1, head="0.1,1").private(nested) == [False, False, True, True, True, True]


class HeadFirst(nn.Module):
    """Defined in another order than called."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, 3), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).tanh())
        return out


def test_the_last_is_that_of_a_pass() -> None:
    result = run(FedPer(local(), Full()), task=Task(HeadFirst), people=population())
    assert HeadSGD(0.1).private(result.server.task) == [True, True, False, False]


@pytest.mark.parametrize("kind", [FedPer, FedRep])
def test_a_model_without_a_linear_layer_has_no_head_until_it_is_named(kind: type[FedPer]) -> None:
    """A normalisation or a bare parameter that comes last is no head."""
    model = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 5), nn.Flatten(), nn.LayerNorm(3))
    with pytest.raises(
        UserError, match=r"algorithm\.head: the model has no fully connected layer; name .*, of 0, 1, 2, 3"
    ):
        run(kind(local(), Full()), task=Task(model), people=population())
    run(kind(local(), Full(), head="1,3"), task=Task(model), people=population())


def test_a_layer_is_not_taken_for_another_that_begins_alike() -> None:
    layers = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(11)))
    assert sum(HeadSGD(0.1, head="1").private(Task(layers))) == 1


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"algorithm.head: the model has no layer 'fc'; its layers: 0, 1, 2"):
        run(FedPer(FULL, Full(), head="fc"))
    with pytest.raises(UserError, match=r"algorithm.head_epochs: -1 must be at least 0"):
        FedRep(FULL, head_epochs=-1)
