"""FedAvg over data streams. data-streams.md oracles 10, 11, 13, 15, and the estimator of 3.6."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from toy_problems import EXACT, SELDOM

import turnout
from support import SIZES, mlp, population
from turnout import Full, LocalSGD, Population, Ragged, Task
from turnout.algorithms.stream_fedavg import StreamFedAvg
from turnout.clients import arriving
from turnout.clients.memories import FIFO, Latest, Memory
from turnout.core.errors import UserError
from turnout.engine.probe import probe_ratio
from turnout.server.observer import Observer, Round
from turnout.server.server import Server
from turnout.theory.streams import optimal_importance

STEP = LocalSGD(0.2, steps=1, batching="full")


class Models(Observer):
    """The model every round began with, and what it used in all."""

    def __init__(self) -> None:
        self.models: list[torch.Tensor] = []
        self.weights: list[dict[int, float]] = []

    def on_start(self, server: Server) -> None:
        self.models.append(server.model.clone())

    def on_round(self, server: Server, record: Round) -> None:
        self.models.append(server.model.clone())
        used = {job.client: float(w) for job, w in zip(record.jobs, record.weights, strict=True) if w}
        self.weights.append(used)


def run(people: Population, work: LocalSGD = STEP, rounds: int = 6, **options: Any) -> tuple[turnout.Result, Models]:
    seen = Models()
    method = StreamFedAvg(work, Full(), **options)
    result = turnout.simulate(
        Task(mlp, seed=3), people, method, rounds, plan=EXACT, evaluation=SELDOM, observers=[seen]
    )
    return result, seen


def gradient(people: Population, model: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    task = Task(mlp, seed=3).to(dtype=torch.float64)
    index = torch.as_tensor(rows)
    inputs = people.inputs[index].double()
    return task.gradient(lambda p: task.losses(p, inputs, people.targets[index]).mean(), model)


def test_with_everything_there_before_it_is_fedavg() -> None:
    """O10: bit for bit."""
    people = population().streaming(lambda _seed, samples, _period: samples, Memory())
    for work in (STEP, LocalSGD(0.1, batch_size=4)):
        streamed, _ = run(people, work)
        plain = turnout.simulate(
            Task(mlp, seed=3), replace(population(), train=people.train), turnout.FedAvg(work, Full()), 6, plan=EXACT
        )
        assert torch.equal(streamed.model, plain.model)


def test_historical_clients_alone_make_no_noise() -> None:
    """O13: one full step of clients that keep what they have is gradient descent on the weighted risk."""
    people = population().streaming(arriving.constant(1), Latest(), fresh=[0, 1, 4])
    _, seen = run(people, weighting="historical")
    old = [2, 3, 5, 6, 7]
    total = sum(SIZES[i] for i in old)
    for before, after, weights in zip(seen.models[:-1], seen.models[1:], seen.weights, strict=True):
        assert weights == pytest.approx({i: SIZES[i] / total for i in old})
        pull = sum(SIZES[i] / total * gradient(people, before, people.train.row(i)) for i in old)
        assert after == pytest.approx(before - 0.2 * pull, abs=1e-12)


def test_a_round_trains_on_the_memories_of_its_time() -> None:
    """By hand, with the weights of the optimum; rounds last a second, as periods do. Who has nothing does not
    count: p_m^(t) sums to 1 (O9)."""
    people = population().streaming(arriving.replay([1, 0, 2]), Latest(), fresh=[1, 4])
    p = optimal_importance(np.array(SIZES), np.isin(np.arange(8), [1, 4]), 0.9)
    _, seen = run(people, weighting="optimal", ratio=0.9)
    for number, (before, after) in enumerate(zip(seen.models, seen.models[1:], strict=False)):
        rows = people.samples(np.arange(8), np.full(8, float(number)))
        there = np.flatnonzero(rows.counts)
        assert (len(there) == 8) == (number % 3 != 1)
        now = p / p[there].sum()
        assert seen.weights[number] == pytest.approx({int(i): now[i] for i in there})
        pull = sum(now[i] * gradient(people, before, rows.row(i)) for i in there.tolist())
        assert after == pytest.approx(before - 0.2 * pull, abs=1e-12)


def test_weightings() -> None:
    people = population().streaming(arriving.constant(3), Latest(), fresh=[1, 4])
    n, fresh = np.array(SIZES) / sum(SIZES), np.isin(np.arange(8), [1, 4])
    expected = {
        "uniform": n,
        "fresh": np.where(fresh, n, 0) / n[fresh].sum(),
        0.25: np.where(fresh, 0.75 * n / n[fresh].sum(), 0.25 * n / n[~fresh].sum()),
        "memory": np.where(fresh, 3, SIZES) / np.where(fresh, 3, SIZES).sum(),
    }
    for weighting, importance in expected.items():
        result, seen = run(people, weighting=weighting, rounds=1)
        assert seen.weights[0] == pytest.approx({i: w for i, w in enumerate(importance.tolist()) if w})
        assert result.server.whole_population.base_importance == pytest.approx(n)  # what is evaluated


def test_mini_batches_are_unbiased() -> None:
    """O11: the mean gradient of all subsets of a memory is that of the memory, and a round draws such subsets."""
    people = population().streaming(arriving.constant(5), Latest())
    rows = people.samples(np.array([4]), np.zeros(1)).row(0)
    model = Task(mlp, seed=3).to(dtype=torch.float64).initial
    subsets = [np.array(subset) for subset in combinations(rows.tolist(), 2)]
    mean = sum(gradient(people, model, subset) for subset in subsets) / len(subsets)
    assert mean == pytest.approx(gradient(people, model, rows), abs=1e-12)
    alone = replace(people, importance=np.eye(8)[4])
    _, seen = run(alone, LocalSGD(0.2, steps=1, batch_size=2, batching="draws"), rounds=1, weighting="memory")
    drawn = (seen.models[0] - seen.models[1]) / 0.2
    errors = [float((drawn - gradient(people, model, subset)).norm()) for subset in subsets]
    assert seen.weights[0] == {4: 1.0}
    assert min(errors) < 1e-12 < sorted(errors)[1]


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.theta.expand(len(x), 2)


def toy_loss(theta: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    a, b = theta[:, 0], theta[:, 1]
    first = (a + 1) ** 2 + 0.5 * (a + b + 1) ** 2
    second = 0.5 * (a - 1) ** 2 + 0.5 * (a + b - 1) ** 2
    return torch.where(which == 0, first, second)


def test_the_error_does_not_vanish_with_a_memory_of_one() -> None:
    """O15: the averaged model tends to (1 - 2q, 0), whose excess is 2 q^2 (1 - q)^2 / (1 + q) = .0833 for q = .5."""
    rounds = 200
    people = Population(torch.zeros(2, 1), torch.tensor([0, 1]), Ragged.from_rows([[0, 1]]))
    people = people.streaming(arriving.replay([1, *[0] * (rounds // 2 - 1)]), FIFO(1), drift=1.0)
    work = LocalSGD(1 / math.sqrt(rounds), steps=5, batching="full")
    method = StreamFedAvg(work, Full(), output_of="averaged")
    task = Task(Toy, toy_loss, {})
    result = turnout.simulate(task, people, method, rounds, plan=EXACT, evaluation=SELDOM)
    average = result.model
    assert average.tolist() == pytest.approx([0.0, 0.0], abs=0.05)

    def risk(theta: torch.Tensor) -> float:
        return float(toy_loss(theta.expand(2, 2), torch.tensor([0, 1])).mean())

    best = torch.tensor([(1 - 1.5) / 1.5, 1 - 1 - (1 - 1.5) / 1.5], dtype=torch.float64)
    assert risk(best) == pytest.approx(0.25 * (4 / 1.5 + 2))
    assert risk(average) - risk(best) == pytest.approx(0.0833, abs=0.02)
    assert risk(result.server.model) - risk(best) > 0.5  # the last one has forgotten the first sample
    assert result.server.measures["train_loss"] == pytest.approx(risk(average))  # what is evaluated


def test_the_averaged_output_is_the_mean_of_the_models_by_the_weights_used() -> None:
    people = population().streaming(arriving.replay([1, 0, 2]), Latest(), fresh=[1, 4])
    result, seen = run(people, output_of="averaged")
    totals = [sum(SIZES[client] for client in weights) / sum(SIZES) for weights in seen.weights]  # q^(t)
    mean = sum(w * m for w, m in zip(totals, seen.models, strict=False)) / sum(totals)
    assert min(totals) < max(totals)
    assert result.model == pytest.approx(mean, abs=1e-12)
    assert torch.equal(result.server.model, run(people)[0].model)


def test_the_model_stays_in_its_ball() -> None:
    wild = LocalSGD(5.0, steps=2, batching="full")
    _, seen = run(population(), wild, radius=3.0)
    assert [float(m.norm()) for m in seen.models[1:]] == pytest.approx([3.0] * 6)
    _, free = run(population(), wild)
    assert float(free.models[-1].norm()) > 3


def test_the_ratio_is_estimated_from_three_numbers_a_client() -> None:
    """3.6 by hand: D, G and B over the historical clients."""
    people = population().streaming(arriving.constant(1), Latest(), fresh=[0, 1, 4])
    task = Task(mlp, seed=3)
    found = probe_ratio(task, people, STEP, steps=4, plan=EXACT)
    distances, slopes, losses = [], [], []
    double = task.to(dtype=torch.float64)
    for client in (2, 3, 5, 6, 7):
        model = double.initial
        index = torch.as_tensor(people.train.row(client))
        losses.append(float(double.losses(model, people.inputs[index].double(), people.targets[index]).mean()))
        for _ in range(4):
            slope = gradient(people, model, people.train.row(client))
            slopes.append(float(slope.norm()))
            model = model - 0.2 * slope
        distances.append(float((model - double.initial).norm()))
    assert (found.diameter, found.slope, found.loss) == pytest.approx((max(distances), max(slopes), max(losses)))
    expected = (max(losses) + math.sqrt(task.size / sum(SIZES))) / (max(slopes) * max(distances) * math.sqrt(3))
    assert found.ratio == pytest.approx(expected)


def test_bad_options() -> None:
    with pytest.raises(UserError, match=r"algorithm.weighting.*uniformly.*did you mean uniform"):
        StreamFedAvg(STEP, weighting="uniformly")
    with pytest.raises(UserError, match=r"algorithm.ratio: None with weighting optimal"):
        StreamFedAvg(STEP, weighting="optimal")
    with pytest.raises(UserError, match=r"algorithm.ratio: 0.1 with weighting fresh"):
        StreamFedAvg(STEP, weighting="fresh", ratio=0.1)
    with pytest.raises(UserError, match=r"algorithm.output_of"):
        StreamFedAvg(STEP, output_of="first")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"algorithm.radius: 0"):
        StreamFedAvg(STEP, radius=0.0)
    with pytest.raises(UserError, match="historical clients are to count 1 and have no samples"):
        run(population().streaming(arriving.constant(1), Latest()), weighting="historical")
    with pytest.raises(UserError, match="fresh"):
        probe_ratio(Task(mlp), population(), STEP)
    with pytest.raises(UserError, match="historical"):
        probe_ratio(Task(mlp), population().streaming(arriving.constant(1), Latest()), STEP)
