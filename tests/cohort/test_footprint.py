"""`engine.memory_mib` is a bound: what a client's gradient holds is measured, not read off the outputs of layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from turnout import LocalSGD, Plan, Ragged, Task
from turnout.core.random import key
from turnout.engine.batches import Jobs
from turnout.engine.evaluate import Evaluator
from turnout.engine.footprint import Footprint, Live, peak
from turnout.engine.train import Cohort

MIB = 1 << 20
LONG, WIDE, CLIENTS, BATCH = 128, 8, 24, 4
SAMPLES = torch.randn(CLIENTS * BATCH, LONG, WIDE, generator=torch.Generator().manual_seed(0))
KINDS = torch.arange(len(SAMPLES)) % 3
MEMORY = 8
MATRIX = LONG * LONG * 4  # bytes of what every position says to every other, which no layer returns


class Attention(nn.Module):
    """Outputs of its layers are as long as a sample; the matrices between them are its length squared."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, 3)

    def forward(self, x: Tensor) -> Tensor:
        query, keys, values = self.into(x).chunk(3, -1)
        return self.out((query @ keys.mT).softmax(-1) @ values).mean(1)


def cohort(memory: int = MEMORY, **plan: int | str) -> Cohort:
    return Cohort(Task(Attention, seed=1), SAMPLES, KINDS, Plan(memory_mib=memory, threads=1, **plan).resolve())  # type: ignore[arg-type]


def jobs(given: Cohort, work: LocalSGD) -> Jobs:
    clients = np.arange(CLIENTS)
    rows = Ragged(np.arange(CLIENTS + 1) * BATCH, np.arange(CLIENTS * BATCH))
    return Jobs(work, key(0, "x", clients), given.task.initial[None], 0 * clients, rows, {}, {})


WORKS = {
    "plain": LocalSGD(0.1, steps=2, batch_size=BATCH),
    "momentum": LocalSGD(0.1, steps=2, batch_size=BATCH, momentum=0.5),
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_a_cohort_is_trained_within_the_bound(work: LocalSGD, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the same counter; by outputs of layers alone it holds several times as much."""
    whole = cohort(memory=1024)
    updates = whole.train(jobs(whole, work)).payload["delta"]
    bounded = cohort()
    bounded.train(jobs(bounded, work))  # what is made once is there
    assert peak(lambda: bounded.train(jobs(bounded, work))) <= MEMORY * MIB
    assert torch.allclose(bounded.train(jobs(bounded, work)).payload["delta"], updates, atol=1e-6)
    monkeypatch.setattr(Footprint, "training", lambda *_: 0)
    guessed = cohort()
    assert peak(lambda: guessed.train(jobs(guessed, work))) > 2 * MEMORY * MIB


def test_evaluation_keeps_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def scored() -> int:
        given = cohort(memory=4)
        clients = np.arange(CLIENTS)
        evaluator = Evaluator(given, clients, Ragged(np.arange(CLIENTS + 1) * BATCH, np.arange(CLIENTS * BATCH)))
        assert evaluator.chunk > 1
        return peak(lambda: evaluator.global_model(given.task.initial))

    assert scored() <= 4 * MIB
    monkeypatch.setattr(Footprint, "passes", (0, 0))
    assert scored() > 2 * 4 * MIB


def test_what_is_counted() -> None:
    """Every tensor from its first to its last moment, views once."""
    with Live() as live:
        one = torch.zeros(1000)
        view, two = one[10:], one + 1
        assert live.bytes == 8000 and live.peak == 8000
        del one, two
        assert live.bytes == 4000
        del view
        assert live.bytes == 0 and live.peak == 8000


def test_a_gradient_is_measured_with_its_matrices() -> None:
    """Those of scores, of their softmax, and of gradients of both: three at once at least, for each sample."""
    given = cohort()
    assert given.footprint.training(4) > 4 * 3 * MATRIX
    assert 3 * 4 * (given.activations + given.sample_bytes) < given.footprint.training(4)
    fixed, each = given.footprint.passes
    assert 2 * MATRIX <= each < 3 * MATRIX and fixed < MATRIX


def test_sizes_that_differ_little_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And never with fewer samples than asked for: the same whatever was asked before, so that a run that goes on cuts
    its cohorts likewise."""
    given, seen = cohort(), list[int]()
    measure = Footprint._gradient

    def gradient(self: Footprint, inputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(len(inputs))
        return measure(self, inputs, targets)

    monkeypatch.setattr(Footprint, "_gradient", gradient)
    for batch in (1, 7, 15, 17, 18, 33, 36, 37):
        given.footprint.training(batch)
    assert seen == [1, 7, 15, 18, 36, 40]
    again = cohort().footprint
    assert again.training(37) == given.footprint.training(37)


def test_an_estimate_that_is_larger_stays() -> None:
    plan, task, work = Plan(memory_mib=64), Task(Attention()), LocalSGD(0.1)
    assert plan.clients_a_call(task, work, 10**6) == plan.clients_a_call(task, work, 10**6, 3 * 10**6 - 1)
    assert plan.clients_a_call(task, work, 10**6) > plan.clients_a_call(task, work, 10**6, 6 * 10**6)
