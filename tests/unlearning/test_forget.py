"""IFU and SIFU in memory: rollback, noise, retraining, and what is kept for the next request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

import turnout
from support import experiment, population
from turnout import Evaluation, Experiment, FedAvg, Full, LocalSGD, Plan, Stopping, Task, UserError
from turnout.core.random import key, normal, secret_normal
from turnout.record.branch import Cut, Models, Table, Turn, stored_bytes
from turnout.record.unlearning import Retention, Unlearning
from turnout.trust.forget import SIFU, Branches, noised, retraining


def held(models: Models) -> int:
    """Bytes of the models in memory."""
    return sum(model.nbytes for model in models.save().values())


def made(rounds: int = 8, **options: Any) -> Experiment:
    return Experiment(
        Task(lambda: nn.Linear(5, 3), seed=3),
        population(test=None),
        FedAvg(LocalSGD(0.1, steps=3, batching="full"), Full()),
        5,
        Stopping(rounds),
        Evaluation(rounds=1000),
        plan=Plan(threads=1),
        unlearning=Unlearning(**options),
    )


def test_a_series_of_requests() -> None:
    sifu = SIFU(made(sigma=0.03))
    sifu.train()
    for number, clients in enumerate(([2], [5, 0], [7]), 1):
        plan = sifu.branches.plan(clients)
        result = sifu.forget(clients, noise_seed=1)
        assert sifu.branches.lineage == plan.lineage
        assert plan.request == number
        promised = plan.guarantee
        assert max(promised.psi) <= sifu.branches.settings.threshold
        assert promised.mu == pytest.approx(np.hypot.reduce(np.array(promised.psi) / 0.03))
        gone = sifu.branches.forgotten
        assert (result.audit.contributions[gone] == 0).all()
        assert result.audit.realised.sum() == pytest.approx(1)
        assert result.audit.contributions[[i for i in range(8) if i not in gone]].min() == 8
    assert sifu.branches.forgotten == [0, 2, 5, 7]
    assert 0 < min(cut.round for cut in sifu.branches.lineage) < 8
    for branch, models in enumerate(sifu.branches.models[:-1]):
        cuts = dict(sifu.branches.lineage)
        assert models.rounds == list(range(cuts.get(branch, -1) + 1))  # dead ones are gone


@pytest.mark.parametrize(
    ("name", "unlike"),
    [("fedadam", "unexplained_rounds"), ("fedbuff", "stale_rounds"), ("scaffold", "client_state"),
     ("clustered_fl", ""), ("dpasgd", "stale_rounds"), ("safa", "stale_rounds"), ("continuing", "unexplained_rounds")],
)  # fmt: skip
def test_any_run_can_be_tracked_and_forget(name: str, unlike: str) -> None:
    """What the proof does not cover is in the facts."""
    sifu = SIFU(experiment(name, rounds=3, evaluation=Evaluation(rounds=1000), unlearning=Unlearning()))
    trained = sifu.train()
    assert trained.sensitivity is not None
    assert not unlike or trained.sensitivity.facts[unlike]
    assert sifu.forget([3]).audit.contributions[3] == 0


@pytest.mark.parametrize(("name", "words"), [("fedem", "trains several models"), ("centralised", "data together")])
def test_runs_without_a_model_of_their_clients(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        SIFU(experiment(name, unlearning=Unlearning()))


def test_no_noise_is_retraining_from_scratch() -> None:
    sifu = SIFU(made(sigma=0.0))
    sifu.train()
    forgotten = sifu.forget([4])
    assert sifu.branches.lineage == [(0, 0)]
    whole = made()
    scratch = turnout.execute(replace(whole, population=whole.population.without([4])))
    assert torch.equal(forgotten.model, scratch.model)


def test_much_noise_is_noise_on_the_last_model() -> None:
    sifu = SIFU(made(sigma=1e3))
    last = sifu.train().model
    plan = sifu.branches.plan([4])
    assert plan.lineage == [(0, 8)]
    start = sifu.branches.start(plan, noise_seed=7)
    assert torch.equal(start, noised(last, 1e3, 7, 1))


@pytest.mark.parametrize("always", [False, True])
def test_noise_where_the_model_has_seen_no_data(always: bool) -> None:
    sifu = SIFU(made(sigma=1e-6, always_noise=always))
    sifu.train()
    plan = sifu.branches.plan([4])
    assert plan.cut == Cut(0, 0)
    assert plan.noised == always
    assert torch.equal(sifu.branches.start(plan), sifu.experiment.task.initial) != always


def test_the_noise_of_a_branch_is_not_used_for_another() -> None:
    """Client 1 moved branch 1 too far in its first round: back to its beginning, which is noised, and noised again."""
    far, near = (Turn([0, 1, 2], [0.2, 0.3, 0.5], [apart] * 3, apart) for apart in (1e3, 1e-3))
    branches = Branches(Unlearning(sigma=1.0), 3, [Table([], [near]), Table([], [far])], [Models(), Models()])
    for models in branches.models:
        for number in range(2):
            models.put(number, torch.zeros(4))
    branches.lineage, branches.requests = [Cut(0, 1)], [[0]]
    plan = branches.plan([1])
    assert plan.lineage == [Cut(0, 1), Cut(1, 0)]
    assert plan.noised
    assert float(branches.start(plan).abs().min()) > 0


def test_noise() -> None:
    """Standard deviation within 0.5 %, mean within 4 standard errors, over a million coordinates."""
    size, sigma = 1_000_000, 0.05
    for draw in (secret_normal(size), normal(key(3, "x"), size)):
        noise = sigma * draw
        assert noise.std() == pytest.approx(sigma, rel=0.005)
        assert abs(noise.mean()) < 4 * sigma / np.sqrt(size)
        assert np.mean(np.abs(noise) > 3 * sigma) == pytest.approx(0.0027, abs=3e-4)
    model = torch.zeros(1000)
    assert torch.equal(noised(model, 1.0, 7, 1), noised(model, 1.0, 7, 1))
    assert not torch.equal(noised(model, 1.0, 7, 1), noised(model, 1.0, 7, 2))  # another request
    assert not torch.equal(noised(model, 1.0, 7, 1), noised(model, 1.0, 8, 1))
    assert not torch.equal(noised(model, 1.0), noised(model, 1.0))


def test_noise_is_drawn_without_any_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the operating system alone: no global state is read, and the bytes it gives are the noise."""
    torch.manual_seed(0)
    np.random.seed(0)
    one = noised(torch.zeros(50), 1.0)
    torch.manual_seed(0)
    np.random.seed(0)
    assert not torch.equal(one, noised(torch.zeros(50), 1.0))
    asked = []

    def urandom(count: int) -> bytes:
        asked.append(count)
        return bytes([128] + [0] * 6 + [128]) * (count // 8)

    monkeypatch.setattr("turnout.core.random.os.urandom", urandom)
    assert noised(torch.zeros(50), 1.0).abs().max() < 1e-6  # 0x80...: the median
    assert asked == [400]


def test_frugal_and_thinned_storage_roll_back_to_the_same_models() -> None:
    """Frugal: the same round and bits as with everything kept, for every client, with fewer models."""
    kept: dict[Retention, Branches] = {}
    for retention in get_args(Retention):
        sifu = SIFU(made(30, sigma=0.25, retention=retention, every=4))
        sifu.train()
        kept[retention] = sifu.branches
    for retention, branches in kept.items():
        assert 0 < held(branches.models[0]) <= stored_bytes(retention, 18, 30, 8, every=4)
    rounds = {name: branches.models[0].rounds for name, branches in kept.items()}
    assert len(rounds["frugal"]) < 15
    assert len(rounds["all"]) == 31
    assert rounds["thinned"] == [*range(0, 31, 4), 30]
    cuts = []
    for client in range(8):
        plans = {name: branches.plan([client]) for name, branches in kept.items()}
        assert plans["frugal"].cut == plans["all"].cut
        model = kept["all"].models[0][plans["all"].cut.round]
        assert torch.equal(kept["frugal"].models[0][plans["frugal"].cut.round], model)
        assert plans["thinned"].cut.round == max(n for n in rounds["thinned"] if n <= plans["all"].cut.round)
        cuts.append(plans["all"].cut.round)
    assert 0 < min(cuts) < max(cuts)
    assert max(cuts) <= 30
    together = {name: branches.plan([0, 3]) for name, branches in kept.items()}
    assert together["frugal"].cut.round <= together["all"].cut.round  # of what it has, the last that is safe


def test_memory_that_storage_takes() -> None:
    """11.7 million parameters, 1000 rounds, 100 clients: 47 GB, and a tenth of it."""
    size = 11_700_000
    assert stored_bytes("all", size, 1000, 100) == pytest.approx(47e9, rel=0.01)
    assert stored_bytes("frugal", size, 1000, 100) == pytest.approx(4.7e9, rel=0.02)
    assert stored_bytes("thinned", size, 1000, 100, every=10) == pytest.approx(4.7e9, rel=0.02)


def test_fine_tuning_never_forgets() -> None:
    """X = [[1, 0, 0], [0, 1, 0]], y = (1, 2): without row 1 fine-tuning stays at distance 1 from scratch, for ever.
    In general the distance to scratch is A (theta^N - theta^0), A = (I - lr X'X)^n over the rows that stay."""
    rows = turnout.Ragged(np.array([0, 1, 2]), np.arange(2))
    people = turnout.Population(torch.eye(2, 3), torch.tensor([[1.0], [2.0]]), rows)
    task = Task(Zero, lambda outputs, targets: (outputs - targets).square().sum(1) / 2)
    local = LocalSGD(0.5, steps=1, batching="full")
    whole = Experiment(task, people, FedAvg(local, Full()), 0, Stopping(60), Evaluation(rounds=1000), Plan(threads=1))
    trained = turnout.execute(whole).model
    torch.testing.assert_close(trained, torch.tensor([1.0, 2.0, 0.0]))
    for rounds in (1, 60):
        less = replace(whole, stopping=Stopping(rounds))
        tuned = turnout.execute(retraining(less, trained, [0])).model
        scratch = turnout.execute(retraining(less, torch.zeros(3), [0])).model
        left = torch.diag(torch.tensor([1.0, 0.5**rounds, 1.0])) @ trained
        torch.testing.assert_close(tuned - scratch, left)
        assert float(left.norm()) > 0.999


class Zero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.theta).sum(1, keepdim=True)


def test_refused_requests() -> None:
    sifu = SIFU(made(2))
    sifu.train()
    sifu.forget([3])
    for clients, words in (
        ([], "no client is named"), ([8], "client 8 is not in the population of 8"), ([-1], "client -1 is not in"),
        ([3], "client 3 was forgotten before"), ([0, 1, 2, 4, 5, 6, 7], "nobody would remain"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            sifu.branches.plan(clients)
    with pytest.raises(UserError, match="was not tracked"):
        SIFU(replace(made(), unlearning=None))
    with pytest.raises(UserError, match="4 parameters to start from, the model has 18"):
        retraining(made(), torch.zeros(4), [0])


@pytest.mark.parametrize(
    ("options", "words"),
    [({"sigma": -1.0}, "sigma"), ({"retention": "some"}, "retention"), ({"bound": "tight"}, "bound"),
     ({"group_rule": "min"}, "group_rule"), ({"weights": "equal"}, "weights"), ({"every": 0}, "every"),
     ({"budget": "none"}, "budget"), ({"delta": 0.0}, "delta"), ({"smoothness": -2.0}, "smoothness"),
     ({"bound": "contracted", "retention": "frugal"}, "frugal needs unlearning.bound=plain")],
)  # fmt: skip
def test_refused_settings(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=rf"unlearning\..*{words}|{words}"):
        Unlearning(**options)
