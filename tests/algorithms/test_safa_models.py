"""SAFA's models on clients whose training is known: semi-asynchronous-safa.md O13-O17, O22, O23 and the edge cases.

`Safa` has the late policy carry_over, `SafaThesis` the late policy bypass. Every test says which of them it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from toy_problems import EXACT, SELDOM, Watched, clients, point, simulate, steps

import turnout
from support import Idle, mlp, population, simulation
from turnout import (
    Algorithm,
    Crashes,
    Experiment,
    FedAvg,
    Full,
    LocalSGD,
    Population,
    Ragged,
    Safa,
    Stopping,
    Task,
    Uniform,
    devices,
)
from turnout.algorithms import FedCS, Local, SafaThesis
from turnout.core.errors import UserError
from turnout.samplers import Fill
from turnout.sampling._sampler import Sampler, Selection
from turnout.server.observer import Observer, Round
from turnout.server.server import Server

FloatArray = NDArray[np.float64]
BOTH = pytest.mark.parametrize("policy", [Safa, SafaThesis], ids=["carry_over", "bypass"])
LR, STEPS = 0.1, 3
WORK = steps(STEPS, LR)
SHRINK = (1 - LR) ** STEPS  # of the distance to the own optimum, in one job


def trained(start: Any, optimum: Any) -> Any:
    """What a job returns: full-gradient steps on 1/2 (x - optimum)^2."""
    return optimum + SHRINK * (start - optimum)


@dataclass
class Seen:
    """After a round: the model, the cache it is the average of, and who was used."""

    model: FloatArray
    cache: FloatArray  # [N]
    picked: list[int]
    bypassed: list[int]
    time: float


class Watch(Observer):
    """Model and cache of every round; the model before the first comes first."""

    def __init__(self) -> None:
        self.rounds: list[Seen] = []

    def on_round(self, server: Server, record: Round) -> None:
        used = [(job.client, job.logged) for job, weight in zip(record.jobs, record.weights, strict=True) if weight]
        cache = server.algorithm.cache[:, 0].numpy().copy() if isinstance(server.algorithm, Safa) else np.zeros(0)
        picked, bypassed = ([client for client, old in used if old is which] for which in (False, True))
        self.rounds.append(Seen(server.model.numpy().copy(), cache, picked, bypassed, record.time))


def run(algorithm: Algorithm, people: Population, rounds: int, start: float = 0.0) -> list[Seen]:
    watch = Watch()
    experiment = Experiment(point(start), people, algorithm, stopping=Stopping(rounds), plan=EXACT, evaluation=SELDOM)
    turnout.execute(experiment, observers=[watch])
    return watch.rounds


def models(seen: Sequence[Seen]) -> FloatArray:
    return np.array([round_.model[0] for round_ in seen])


def small(
    optima: Sequence[float], times: Sequence[float], crash: ArrayLike = 0.0, importance: Any = "equal", **columns: Any
) -> Population:
    crashes = Crashes(np.asarray(crash, np.float64), clock="round")
    return clients(optima, importance, devices=devices.table(times), crashes=crashes, **columns)


def unlike(size: int, crash: ArrayLike, seed: int) -> Population:
    """Clients that differ in everything."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2, size)
    optima = rng.normal(0, 3, size).astype(np.float32).astype(np.float64)  # data is single precision
    return small(optima.tolist(), (0.3 + rng.exponential(1, size)).tolist(), crash, weights / weights.sum(), seed=seed)


# -- the algorithm written down twice more, as the specification has it ------------------------------------------


@dataclass
class Plain:
    """SAFA in plain Python, one number a model: sections 3.1 to 3.4. `play` returns (models, close times)."""

    people: Population
    fraction: float
    tau: float
    lag_rule: str
    deadline: float | None
    rounds: int
    cache: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    base: list[float] = field(default_factory=list)  # the model each client works on

    def __post_init__(self) -> None:
        people, size = self.people, self.people.size
        self.optima = people.targets[:, 0].double().tolist()
        self.seconds = people.devices.seconds(people.seed, people.ids, 0, 1, 1).tolist()
        draws = [people.crashes.draw(people.seed, people.ids, number) for number in range(self.rounds)]
        self.fails = [crashed.tolist() for crashed, _ in draws]
        self.shares = [share.tolist() for _, share in draws]
        self.quota = max(1, int(np.ceil(round(self.fraction * size, 9))))
        self.cache, self.base, self.version = [0.0] * size, [0.0] * size, [0] * size

    def states(self, number: int, model: float) -> list[str]:
        """3.1: up_to_date, deprecated or tolerable; the deprecated lose their entry."""
        states = []
        for k in range(self.people.size):
            lag = number - 1 - self.version[k]
            deprecated = lag > self.tau if self.lag_rule == "more_than" else lag >= self.tau
            states.append("deprecated" if deprecated else "up_to_date" if lag == 0 else "tolerable")
            if deprecated:
                self.version[k], self.cache[k] = number - 1, model
        return states

    def average(self) -> float:
        return float(self.people.base_importance @ np.array(self.cache))

    def commit(self, arrived: Sequence[int], number: int) -> None:
        for k in arrived:
            self.cache[k], self.version[k] = trained(self.base[k], self.optima[k]), number

    def bypass(self) -> tuple[FloatArray, FloatArray]:
        model, now, last = 0.0, 0.0, set[int]()
        played, closes = [], []
        order = sorted(range(self.people.size), key=lambda k: self.seconds[k])
        for number in range(1, self.rounds + 1):
            for k, state in enumerate(self.states(number, model)):
                if state != "tolerable":
                    self.base[k] = model
            finishers = [k for k in order if not self.fails[number - 1][k]]
            limit = np.inf if self.deadline is None else self.deadline
            on_time = [k for k in finishers if self.seconds[k] <= limit]
            wanted = [k for k in on_time if k not in last] + [k for k in on_time if k in last]
            picked = wanted[: self.quota]
            full, late = len(picked) == self.quota, len(on_time) < len(finishers)
            empty = 1.0 if self.deadline is None else self.deadline
            now += max(self.seconds[k] for k in picked) if picked and (full or not late) else empty
            self.commit(picked, number)
            model = self.average()
            self.commit([k for k in finishers if k not in picked], number)
            last = set(picked)
            played.append(model)
            closes.append(now)
        return np.array(played), np.array(closes)

    def carry_over(self) -> tuple[FloatArray, FloatArray]:
        model, now, last, inbox = 0.0, 0.0, set[int](), list[int]()
        played, closes = [], []
        flying: dict[int, tuple[float, bool, float]] = {}  # when it ends, whether well, share of the work done then
        done: dict[int, float] = {}  # of those interrupted
        for number in range(1, self.rounds + 1):
            self.commit(inbox, number - 1)
            for k, state in enumerate(self.states(number, model)):
                if state == "deprecated":
                    flying.pop(k, None)
                if k in flying:
                    continue
                if state != "tolerable" or k not in done:
                    self.base[k], done[k] = model, 0.0
                rest = 1 - done.pop(k)
                fails, share = self.fails[number - 1][k], self.shares[number - 1][k]
                seconds = rest * self.seconds[k] * (share if fails else 1.0)
                flying[k] = now + seconds, not fails, 1 - rest * (1 - share)
            limit = np.inf if self.deadline is None else now + self.deadline
            first, second = list[int](), list[int]()
            while flying and len(first) < self.quota:
                hopes = [k for k in flying if k not in last]
                if not hopes and len(first) + len(second) >= self.quota:
                    break
                k = min(flying, key=lambda k: flying[k][0])
                if flying[k][0] > limit:
                    now = limit
                    break
                now, well, progress = flying.pop(k)
                if well:
                    (second if k in last else first).append(k)
                else:
                    done[k] = progress
            missing = self.quota - len(first)
            picked, inbox = first + second[:missing], second[missing:]
            if not picked:
                now = limit if self.deadline is not None else now + 1.0
            self.commit(picked, number)
            model = self.average()
            last = set(picked)
            played.append(model)
            closes.append(now)
        return np.array(played), np.array(closes)


WORLDS = [
    (9, 0.35, 0.2, 1, "more_than", None),
    (9, 0.35, 0.5, 2, "eq37", 1.2),
    (9, 0.7, 0.8, 3, "more_than", 1.2),
    (9, 0.7, 0.3, 0, "more_than", None),
    (9, 0.35, 0.3, 0, "eq37", None),
    (9, 0.5, 1.0, np.inf, "more_than", 0.9),
    (3, 0.85, 0.5, 2, "more_than", None),
    (3, 0.85, 0.5, 2, "more_than", 0.8),
    (1, 0.5, 1.0, 1, "more_than", None),
]


@BOTH
@pytest.mark.parametrize(("size", "crash", "fraction", "tau", "lag_rule", "deadline"), WORLDS)
def test_rounds_are_those_of_the_specification(
    policy: type[Safa], size: int, crash: float, fraction: float, tau: float, lag_rule: Any, deadline: float | None
) -> None:
    """3.1 to 3.4, both: every model and every close of 30 rounds against the plain loops above."""
    people = unlike(size, crash, seed=size)
    plain = Plain(people, fraction, tau, lag_rule, deadline, 30)
    expected, closes = plain.carry_over() if policy is Safa else plain.bypass()
    seen = run(policy(WORK, fraction, tau, deadline, lag_rule=lag_rule), people, 30)
    assert models(seen) == pytest.approx(expected, abs=1e-12)
    assert [round_.time for round_ in seen] == pytest.approx(closes, abs=1e-4)
    assert len(set(np.round(expected, 9))) > 8


# -- oracles --------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("tau", [0, 1, 5, np.inf])
def test_o13_everybody_in_time_is_fedavg(policy: type[Safa], tau: float) -> None:
    """O13, both: cr = 0 and C = 1 give FedAvg with full participation, whatever the tolerance."""
    people = unlike(7, 0.0, seed=1)
    fedavg = models(run(FedAvg(WORK, Full()), people, 8))
    assert models(run(policy(WORK, 1.0, tau), people, 8)) == pytest.approx(fedavg, abs=1e-12)


def test_o13_policies_agree_where_every_job_ends_in_its_round() -> None:
    """Both: at C = 1 without a deadline nobody is late, so carry_over and bypass are the same whoever crashes."""
    people = unlike(8, 0.5, seed=2)
    carry, bypass = (models(run(policy(WORK, 1.0, 2), people, 20)) for policy in (Safa, SafaThesis))
    assert carry.tolist() == bypass.tolist()


def test_o14_bypass_delays_by_exactly_one_round() -> None:
    """O14, bypass: clients 0, 1, 2 in this order, quota 1. Client 2 is passed over in round 1: what it learnt there
    changes the model of round 2, by p (v' - v), and not that of round 1."""
    this, other = (
        run(SafaThesis(WORK, 0.3), small((1.0, -2.0, optimum), (1.0, 2.0, 3.0)), 2) for optimum in (4.0, 8.0)
    )
    assert this[0].picked == other[0].picked == [0]
    assert this[1].picked == other[1].picked == [1]
    assert this[1].bypassed == [2]
    assert this[0].model == other[0].model
    difference = trained(0.0, 8.0) - trained(0.0, 4.0)
    assert other[1].model - this[1].model == pytest.approx(difference / 3, rel=1e-12)


def test_o14_carry_over_delays_what_arrived_and_was_passed_over() -> None:
    """O14, carry_over, quota 1: client 0 is picked at 1 s and back at 2 s, where it has no priority; 1 at 2.1 s closes
    round 2, 2 at 2.5 s round 3. What 0 learnt from w1 is in w3, not in w2."""
    theta, thirds = (3.0, -6.0, 12.0), 1 / 3
    seen = run(Safa(WORK, 0.3), small(theta, (1.0, 2.1, 2.5)), 3)
    assert [round_.picked for round_ in seen] == [[0], [1], [2]]
    w1 = thirds * trained(0.0, theta[0])
    w2 = w1 + thirds * trained(0.0, theta[1])
    w3 = thirds * (trained(w1, theta[0]) + trained(0.0, theta[1]) + trained(0.0, theta[2]))
    assert models(seen) == pytest.approx([w1, w2, w3], abs=1e-12)
    assert seen[2].bypassed == [0]


@BOTH
def test_o15_a_common_optimum_is_a_fixed_point(policy: type[Safa]) -> None:
    """O15, both: where all trained models equal w the model is w, whoever crashes or lags."""
    people = small([1.5] * 6, [1.0, 1.3, 1.9, 2.5, 3.1, 8.0], 0.5, [0.1, 0.1, 0.2, 0.2, 0.3, 0.1])
    seen = run(policy(WORK, 0.4, 2), people, 15, start=1.5)
    assert models(seen) == pytest.approx([1.5] * 15, abs=1e-15)
    moved = run(policy(WORK, 0.4, 2), people, 15, start=0.0)
    assert models(moved)[-1] > 1.0


@BOTH
@pytest.mark.parametrize("crash", [0.0, 0.6])
def test_o15_the_model_is_the_average_of_the_whole_cache(policy: type[Safa], crash: float) -> None:
    """O15 and the incremental form, both: w = sum p c over all N entries, so w' - w = sum p (c' - c)."""
    people = unlike(10, crash, seed=4)
    p = people.base_importance
    assert p.sum() == pytest.approx(1, abs=1e-15)
    seen = run(policy(WORK, 0.3, 2), people, 20)
    assert models(seen) == pytest.approx([p @ round_.cache for round_ in seen], abs=1e-14)
    incremental = [now.model[0] - before.model[0] - p @ (now.cache - before.cache) for before, now in pairwise(seen)]
    assert incremental == pytest.approx(np.zeros(19), abs=1e-14)


@BOTH
@pytest.mark.parametrize(("lag_rule", "tau", "misses"), [("more_than", 2, 3), ("eq37", 2, 2), ("more_than", 0, 1)])
def test_o16_entry_of_a_client_that_always_crashes(policy: type[Safa], lag_rule: Any, tau: int, misses: int) -> None:
    """O16, both: its entry becomes w of the round before in every J-th round, and stays in between."""
    people = small((5.0, 1.0, 2.0), (1.0, 1.5, 1.7), (1.0, 0.0, 0.0))
    seen = run(policy(WORK, 1.0, tau, lag_rule=lag_rule), people, 3 * misses + 1)
    w = [0.0, *models(seen)]
    entries = [round_.cache[0] for round_ in seen]
    assert entries == [w[(number - 1) // misses * misses] for number in range(1, len(seen) + 1)]
    assert len(set(entries)) == 4
    assert all(0 not in round_.picked + round_.bypassed for round_ in seen)


def test_o16_without_end_of_tolerance_the_entry_stays_for_ever() -> None:
    """3.6, tau infinite, both: it goes on voting for the first model."""
    people = small((5.0, 1.0, 2.0), (1.0, 1.5, 1.7), (1.0, 0.0, 0.0))
    for policy in (Safa, SafaThesis):
        assert {round_.cache[0] for round_ in run(policy(WORK, 1.0, np.inf), people, 10)} == {0.0}


@dataclass
class Replay(Sampler):
    """The clients that somebody else picked, each with its importance."""

    picks: list[list[int]] = field(default_factory=list)

    def sample(self, server: Server) -> Selection:
        chosen = np.array(self.picks[server.version], np.int64)
        return Selection(chosen, server.importance[chosen])


@BOTH
@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_o17_without_any_tolerance_it_is_fedavg_over_the_picked(policy: type[Safa], fraction: float) -> None:
    """O17, both: eq37 with tau = 0 resets every entry that is not picked, so w' = w + sum over picked p (v - w): FedAvg
    that keeps the global model for the absent. Nothing comes through the bypass, and nothing is said to."""
    people = unlike(8, 0.0, seed=5)
    seen = run(policy(WORK, fraction, 0, lag_rule="eq37"), people, 10)
    fedavg = run(FedAvg(WORK, Replay([round_.picked for round_ in seen])), people, 10)
    assert models(seen) == pytest.approx(models(fedavg), abs=1e-12)
    assert all(not round_.bypassed for round_ in seen)
    tolerant = run(policy(WORK, fraction, 1, lag_rule="eq37"), people, 10)
    assert np.abs(models(tolerant) - models(seen)).max() > 1e-3


@BOTH
def test_lag_rules_are_the_same_but_for_one(policy: Any) -> None:
    """3.1, both: more_than tau and eq37 tau + 1 give the same bits."""
    people = unlike(9, 0.6, seed=6)
    prose, printed, shifted = (
        models(run(policy(WORK, 0.4, tau, lag_rule=rule), people, 25)).tolist()
        for tau, rule in ((2, "more_than"), (3, "eq37"), (3, "more_than"))
    )
    assert prose == printed
    assert prose != shifted


def regression(sizes: Sequence[int]) -> tuple[Population, FloatArray, FloatArray]:
    rng = np.random.default_rng(3)
    inputs, targets = rng.normal(size=(sum(sizes), 3)).astype(np.float32), rng.normal(size=(sum(sizes), 1))
    targets = targets.astype(np.float32)
    rows = Ragged(np.concatenate([[0], np.cumsum(sizes)]), np.arange(sum(sizes)))
    people = Population(torch.from_numpy(inputs), torch.from_numpy(targets), rows)
    return people, inputs.astype(np.float64), targets[:, 0].astype(np.float64)


def linear() -> nn.Module:
    return nn.Linear(3, 1, bias=False)


def slope(w: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Gradient of the mean squared error."""
    return np.asarray(2 * x.T @ (x @ w - y) / len(y))


@pytest.mark.parametrize(("sizes", "equal"), [((6, 6, 6), True), ((2, 5, 11), False)])
def test_o22_local_gradients_average_to_the_central_one(sizes: Sequence[int], equal: bool) -> None:
    """O22, FedAvg: with n_k / n always, with the plain mean only where all have as many samples."""
    people, x, y = regression(sizes)
    algorithm, task = Watched(steps(1, 0.05)), Task(linear, "mse", seed=2)
    ended = turnout.simulate(task, people, algorithm, rounds=1, plan=EXACT)
    w = task.initial.double().numpy()
    central = -0.05 * slope(w, x, y)
    deltas = algorithm.seen[0]["deltas"]
    assert np.allclose(deltas.mean(0), central, rtol=0, atol=1e-14) is equal
    assert people.base_importance @ deltas == pytest.approx(central, abs=1e-14)
    assert ended.model.numpy() - w == pytest.approx(central, abs=1e-14)


@pytest.mark.parametrize("algorithm", [Safa, SafaThesis, FedAvg])
def test_o23_averaging_models_is_averaging_accumulated_gradients(algorithm: type[Algorithm]) -> None:
    """O23, both and FedAvg: E local steps from one start average to w - eta sum of the gradients met on the way."""
    people, x, y = regression((4, 4, 4))
    task = Task(linear, "mse", seed=2)
    work = {"fraction": 1.0} if algorithm is not FedAvg else {"sampler": Full()}
    ended = turnout.simulate(task, people, algorithm(steps(5, 0.05), **work), rounds=1, plan=EXACT)  # type: ignore[arg-type, call-arg]
    start, total = task.initial.double().numpy(), np.zeros(3)
    for client in range(3):
        mine, w = slice(4 * client, 4 * client + 4), start
        for _ in range(5):
            gradient = slope(w, x[mine], y[mine])
            w, total = w - 0.05 * gradient, total + gradient / 3
    assert ended.model.numpy() == pytest.approx(start - 0.05 * total, abs=1e-14)


# -- carry_over -----------------------------------------------------------------------------------------------


def test_carry_over_a_straggler_brings_what_it_learnt_from_its_old_model() -> None:
    """carry_over: client 2 needs 2.6 s, in which four rounds close; in the fifth enters what it learnt from w0."""
    theta, third = (3.0, -6.0, 12.0), 1 / 3
    seen = run(Safa(WORK, 0.3), small(theta, (1.0, 1.1, 2.6)), 5)
    assert [round_.picked for round_ in seen] == [[0], [1], [0], [1], [2]]
    late = seen[4]
    assert late.time == 2.6
    assert late.cache[2] == pytest.approx(trained(0.0, 12.0), abs=1e-14)
    assert late.model[0] == pytest.approx(third * late.cache.sum(), abs=1e-14)


def test_carry_over_a_deprecated_straggler_begins_anew_from_the_new_model() -> None:
    """carry_over, tau = 1: at the start of round 3 it lags by 2 and its work is dropped. Its entry is w2 then, and w2
    is what it works on from there; with one more round of patience it would have come."""
    people, watch = small((3.0, -6.0, 12.0), (1.0, 1.0, 2.5)), Watch()
    experiment = Experiment(point(), people, Safa(WORK, 0.3, 1), stopping=Stopping(4), plan=EXACT, evaluation=SELDOM)
    server = turnout.execute(experiment, observers=[watch]).server
    w = [0.0, *models(watch.rounds)]
    assert [round_.cache[2] for round_ in watch.rounds] == [0.0, 0.0, w[2], w[2]]
    assert w[2] != 0
    job = server._in_flight[2]  # type: ignore[attr-defined]
    assert (job.received.tolist(), job.version, job.done) == ([w[2]], 2, 0.0)
    patient = run(Safa(WORK, 0.3, 2), people, 3)
    assert patient[2].cache[2] == pytest.approx(trained(0.0, 12.0), abs=1e-14)


def test_carry_over_an_interrupted_job_ends_with_what_it_would_have_learnt() -> None:
    """Both: going on after a crash loses nothing; it returns what it would have without, from its old base."""
    people = small((4.0, -1.0), (10.0, 1.0), (0.5, 0.0), seed=3)
    assert [bool(people.crashes.draw(3, people.ids, number)[0][0]) for number in (0, 1)] == [True, False]
    for policy in (Safa, SafaThesis):
        seen = run(policy(WORK, 1.0), people, 2)
        assert seen[1].cache[0] == pytest.approx(trained(0.0, 4.0), abs=1e-14)
        assert seen[1].cache[1] == pytest.approx(trained(seen[0].model[0], -1.0), abs=1e-14)


def test_mini_batches_of_an_interrupted_job_stay_the_same() -> None:
    """Both: with random mini-batches too, a job that was interrupted and went on returns what it would have."""
    people = population(
        (12, 9), devices=devices.table([10.0, 1.0]), crashes=Crashes(np.array([0.5, 0.0]), "round"), seed=3
    )
    reliable = population((12, 9), devices=devices.table([10.0, 1.0]))
    work = LocalSGD(0.1, epochs=2, batch_size=4)
    for policy in (Safa, SafaThesis):
        caches = []
        for world, rounds in ((people, 2), (reliable, 1)):
            algorithm = policy(work, 1.0)
            turnout.simulate(Task(mlp, seed=3), world, algorithm, rounds, plan=EXACT, evaluation=SELDOM)
            caches.append(algorithm.cache[0])
        assert caches[0] == pytest.approx(caches[1], abs=1e-13)


# -- edge cases about models (3.6) ----------------------------------------------------------------------------


@BOTH
def test_edge_rounds_in_which_everyone_crashes(policy: type[Safa]) -> None:
    """3.6, both: still aggregated; entries stay but for deprecated ones, so the model stays where none is."""
    seen = run(policy(WORK, 0.5, np.inf, deadline=50.0), unlike(3, 0.85, seed=3), 40)
    idle = [(before, now) for before, now in pairwise(seen) if not now.picked and not now.bypassed]
    assert len(idle) > 10
    assert all(before.model[0] == now.model[0] and (before.cache == now.cache).all() for before, now in idle)
    nobody = run(policy(WORK, 0.5, 1, deadline=5.0), small((1.0, 2.0), (1.0, 1.0), 1.0), 6, start=0.75)
    assert models(nobody).tolist() == [0.75] * 6


@BOTH
def test_edge_a_round_that_merges_what_there_is(policy: type[Safa]) -> None:
    """3.6, both: deadline, quota 3 of 3, one in time: its entry counts a third, the others' are the first model."""
    seen = run(policy(WORK, 1.0, deadline=10.0), small((3.0, 6.0, 9.0), (1.0, 50.0, 60.0)), 1)
    assert models(seen) == pytest.approx([trained(0.0, 3.0) / 3], abs=1e-15)


def test_edge_first_round() -> None:
    """3.6, both: the cache is full of the first model, versions are 0, nobody was picked."""
    for policy in (Safa, SafaThesis):
        algorithm = policy(WORK, 0.5)
        server = simulation(algorithm, small((3.0, 6.0), (1.0, 2.0)), task=point(0.25), plan=EXACT)
        algorithm.begin(server)
        assert algorithm.cache.tolist() == [[0.25], [0.25]]
        assert algorithm.versions.tolist() == [0, 0]
        assert not algorithm.last_picked.any()


def test_edge_a_client_without_data_is_refused() -> None:
    rows = Ragged(np.array([0, 2, 2]), np.arange(2))
    with pytest.raises(UserError, match="client 1 has no training sample"):
        Population(torch.zeros(2, 1), torch.zeros(2, 1), rows)


def test_edge_counters_of_batchnorm_are_refused() -> None:
    """3.6 would copy integers from the latest entry; here such a model is refused before anything runs."""
    with pytest.raises(UserError, match="BatchNorm"):
        Task(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), "mse")


def test_edge_models_of_another_size_are_refused() -> None:
    """3.6: unequal shapes cannot be averaged; nothing is sent, nothing is published."""
    server = simulation(Idle(), small((3.0, 6.0), (1.0, 2.0)), task=point(), plan=EXACT)
    with pytest.raises(UserError, match="invite: a model of shape"):
        server.invite([0], WORK, torch.zeros(2, dtype=torch.float64))
    with pytest.raises(UserError, match="publish: a model of shape"):
        server.publish(torch.zeros(2, dtype=torch.float64), server.wait(0), [])


# -- the conventions of the tables ----------------------------------------------------------------------------


def with_tests(optima: Sequence[float]) -> Population:
    people = small(optima, [1.0] * len(optima))
    return Population(people.inputs, people.targets, people.train, people.train, devices=people.devices)


def test_keep_best_undoes_rounds_that_are_worse() -> None:
    """bypass: steps so long that every round overshoots more than the last; the first model published is the best."""
    people, wild = with_tests((1.0, 2.0)), steps(1, 2.5)  # x - optimum is multiplied by -1.5 in a job
    free = run(SafaThesis(wild, 1.0), people, 5)
    assert (np.diff(np.abs(models(free) - 1.5)) > 0).all()
    kept = run(SafaThesis(wild, 1.0, keep_best="revert"), people, 5)
    assert models(kept).tolist() == [models(free)[0]] * 5


def test_keep_best_lets_progress_through() -> None:
    people = with_tests((1.0, 2.0))
    free, kept = (run(SafaThesis(WORK, 1.0, keep_best=choice), people, 5) for choice in ("no", "revert"))
    assert models(kept).tolist() == models(free).tolist()


def test_warm_start_lets_everybody_train_one_epoch_first() -> None:
    """bypass: round 1 is everybody's, one epoch of a sample each; from round 2 on the quota and the work are as set."""
    people = small((3.0, -6.0, 12.0), (1.0, 2.0, 3.0))
    work = LocalSGD(0.1, epochs=4, batch_size=1)
    seen = run(SafaThesis(work, 0.3, warm_start=True), people, 2)
    assert sorted(seen[0].picked) == [0, 1, 2]
    assert seen[0].model[0] == pytest.approx(0.1 * 3.0, abs=1e-14)  # a tenth of the way to the mean optimum
    assert len(seen[1].picked) == 1
    start, k = seen[0].model[0], seen[1].picked[0]
    optimum = (3.0, -6.0, 12.0)[k]
    assert seen[1].cache[k] == pytest.approx(optimum + 0.9**4 * (start - optimum), abs=1e-14)


def test_bypass_says_that_it_knows_the_future() -> None:
    """bypass: the log has it, for a result is used before it exists."""
    kinds: list[str] = []

    class Events(Observer):
        def on_event(self, server: Server, event: Any) -> None:
            kinds.append(event.kind)

    for policy, expected in ((SafaThesis, ["foresight"]), (Safa, [])):
        kinds.clear()
        experiment = Experiment(point(), small((1.0, 2.0), (1.0, 2.0)), policy(WORK), stopping=Stopping(2), plan=EXACT)
        turnout.execute(experiment, observers=[Events()])
        assert kinds == expected


# -- baselines ------------------------------------------------------------------------------------------------


def test_fedavg_that_fills_keeps_the_global_model_for_the_absent() -> None:
    """3.5, full aggregation, keep-global: w' = sum over answered p v + (rest of p) w."""
    people = small((3.0, -6.0, 12.0), (1.0, 2.0, 50.0), importance=(0.5, 0.3, 0.2))
    seen = run(FedAvg(WORK, Fill(3), deadline=10.0), people, 2, start=1.0)
    w = 1.0
    for round_ in seen:
        w = 0.5 * trained(w, 3.0) + 0.3 * trained(w, -6.0) + 0.2 * w
        assert round_.model[0] == pytest.approx(w, abs=1e-14)


def test_fedcs_weighs_as_fedavg_would() -> None:
    """FedCS: the slow left out, the others keep the weights of the draw."""
    people = small((3.0, -6.0, 12.0), (1.0, 2.0, 50.0), importance=(0.5, 0.3, 0.2))
    fedcs = models(run(FedCS(WORK, Fill(3), deadline=10.0), people, 3, start=1.0))
    fedavg = models(run(FedAvg(WORK, Fill(3), deadline=10.0), people, 3, start=1.0))
    assert fedcs == pytest.approx(fedavg, abs=1e-14)


@pytest.mark.parametrize("needed", [1, 2, 4])
def test_over_selection_scales_the_first_answers_up(needed: int) -> None:
    """FedAvg, wait_for k of the m invited: weights are m / k times those of the draw, to stand for all invited."""
    theta = np.array([3.0, -6.0, 12.0, 1.0])
    people = small(theta.tolist(), (1.0, 2.0, 3.0, 4.0))
    seen = run(FedAvg(WORK, Uniform(4), wait_for=needed), people, 1, start=1.0)
    assert seen[0].model[0] == pytest.approx(trained(1.0, theta)[:needed].mean(), abs=1e-14)


def test_over_selection_that_is_not_reached_scales_nothing() -> None:
    """FedAvg: three are needed, two survive: each counts as in the draw."""
    people = small((3.0, -6.0, 12.0, 1.0), (1.0, 2.0, 3.0, 4.0), (0.0, 0.0, 1.0, 1.0))
    seen = run(FedAvg(WORK, Uniform(4), wait_for=3), people, 1, start=1.0)
    expected = 1 + sum(trained(1.0, optimum) - 1 for optimum in (3.0, -6.0)) / 4
    assert seen[0].model[0] == pytest.approx(expected, abs=1e-14)


def test_one_shot_average_of_own_models() -> None:
    """Local with average: after every round the n_k / n mean of what each client would have on its own."""
    theta, p = np.array([3.0, -6.0, 12.0]), np.array([0.5, 0.3, 0.2])
    people = small(theta.tolist(), (1.0, 2.0, 3.0), importance=p)
    own = theta + SHRINK ** np.arange(1, 6)[:, None] * (1.0 - theta)
    assert models(run(Local(WORK, average=True), people, 5, start=1.0)) == pytest.approx(own @ p, abs=1e-13)
    assert models(run(Local(WORK), people, 5, start=1.0)).tolist() == [1.0] * 5


def test_one_shot_average_counts_the_idle_with_what_they_have() -> None:
    """Local with average, two of three a round: a client that never trained votes for the first model."""
    theta = np.array([3.0, -6.0, 12.0])
    people = small(theta.tolist(), (1.0, 2.0, 3.0))
    algorithm = Local(WORK, Uniform(2), average=True)
    ended = simulate(algorithm, people, 4, start=1.0)
    jobs = np.bincount(ended.jobs()["client"], minlength=3)
    assert jobs.sum() == 8
    own: Tensor = ended.server.store.get({"model": (1,), "started": ()}, people.ids)["model"]
    expected = np.where(jobs > 0, theta + SHRINK**jobs * (1.0 - theta), 1.0)
    assert float(ended.model[0]) == pytest.approx(expected.mean(), abs=1e-13)
    assert own.numpy()[jobs > 0, 0] == pytest.approx(expected[jobs > 0], abs=1e-13)
