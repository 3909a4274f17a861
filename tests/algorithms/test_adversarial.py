"""Robust FedAvg and FedProx, MIFA and robust momenta against adversaries that silence clients, where all is known.

Numbers: Su, Xu, Yang, "Federated learning in the presence of adversarial client unavailability", 2023; the hard
instances of its lower bounds (appendix D), and what follows from them by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom
from torch import Tensor, nn
from toy_problems import EXACT, SELDOM, clients, point, simulate, steps

import turnout
from support import simulation
from turnout import Algorithm, FedAvg, FedProx, Full, LocalSGD, Population, Ragged, Result, Task, Uniform
from turnout.aggregation.rules import bucketed
from turnout.algorithms import FedAvgRP
from turnout.algorithms.mifa import Mifa
from turnout.algorithms.robust_fedavg import RobustFedAvg
from turnout.algorithms.robust_fedprox import RobustFedProx
from turnout.algorithms.robust_momentum import RobustMomentum
from turnout.clients.adversary import Adversary, LargestNorm, Random, Silence, WorstCase
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray, key, normal, permutation
from turnout.local.sgd import ClientData, Named
from turnout.samplers import Renormalised
from turnout.server.observer import Event, Observer, Round
from turnout.server.server import Server
from turnout_studies.theory.unavailability import error_floor

L = 2.0


def naive(local: LocalSGD, invited: int) -> FedAvg:
    """What most frameworks do: the mean of those who answered."""
    return FedAvg(local, Renormalised(invited), normalise="responders")


class Path(Observer):
    """The model after every round."""

    def __init__(self) -> None:
        self.models: list[FloatArray] = []

    def on_round(self, server: Server, record: Round) -> None:
        self.models.append(server.model.numpy().copy())


def path(algorithm: Algorithm, people: Population, rounds: int, start: Any = 0.0) -> FloatArray:
    """`[rounds, P]`."""
    watch = Path()
    task = point(start)
    server = simulation(
        algorithm,
        people,
        task=task,
        plan=EXACT,
        stopping=turnout.Stopping(rounds),
        evaluation=SELDOM,
        observers=[watch],
    )
    server.run()
    return np.stack(watch.models)


# -- the rule -------------------------------------------------------------------------------------------------


def balanced(adversary: Adversary | None) -> Population:
    return clients(normal(key(1, "optima", np.arange(20)), 3).tolist(), "equal", adversary=adversary)


def test_the_robust_step_is_the_naive_one_times_the_share_that_answered() -> None:
    """O1: 6 of 10 equal clients answer."""
    people, start = balanced(Random(0.4)), [0.5, -1.0, 2.0]
    robust = simulate(RobustFedAvg(steps(3, 0.1), Uniform(10)), people, 1, start)
    usual = simulate(naive(steps(3, 0.1), 10), people, 1, start)
    assert robust.rounds()["arrived"].tolist() == usual.rounds()["arrived"].tolist() == [0, 6]
    moved, expected = robust.model - torch.tensor(start), usual.model - torch.tensor(start)
    torch.testing.assert_close(moved, 0.6 * expected, rtol=1e-12, atol=0)


def test_without_absence_and_with_equal_clients_it_is_fedavg() -> None:
    """O1."""
    people = balanced(None)
    robust, usual = (simulate(a, people, 5) for a in (RobustFedAvg(steps(2, 0.1)), naive(steps(2, 0.1), 10)))
    torch.testing.assert_close(robust.model, usual.model, rtol=1e-12, atol=1e-14)


def test_amplification_multiplies_importance_over_everybody() -> None:
    people = clients([1.0, 2.0, 4.0, 8.0], [0.4, 0.3, 0.2, 0.1])
    algorithm = RobustFedAvg(steps(1, 1.0), Full(), amplification=0.5)
    assert float(simulate(algorithm, people, 1).model) == pytest.approx(0.5 * (0.4 + 0.6 + 0.8 + 0.8))


def test_the_default_amplification_follows_who_was_invited_not_who_answered() -> None:
    """beta = M / K with K = 2 of 4; one of them is silenced, and nobody counts for it."""
    people = clients([1.0] * 4, "equal", adversary=Random(0.5))
    result = simulate(RobustFedAvg(steps(1, 1.0), Uniform(2)), people, 1)
    assert float(result.model) == pytest.approx(4 / 2 / 4)
    assert result.audit.mean_weight == pytest.approx(0.5)


def test_nobody_answers_and_nothing_moves() -> None:
    people = clients([1.0] * 4, "equal", adversary=Random(1.0, leave=0))
    result = simulate(RobustFedAvg(steps(1, 1.0), Uniform(2)), people, 3, 0.25)
    assert float(result.model) == 0.25
    assert result.audit.events == {"silenced": 3, "empty_round": 3}


class Linear(nn.Module):
    """Its loss falls by the target for every unit of theta, wherever it is: every update is lr times the target."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.theta.expand(len(inputs))


def test_uniform_draws_of_unequal_clients_are_unbiased() -> None:
    """O2: lognormal(0, 1.5) sizes, updates log n_i less their weighted mean; the sum of the steps of many rounds."""
    sizes = np.exp(1.5 * normal(key(3, "sizes", np.arange(100)), 1)[:, 0])
    p = sizes / sizes.sum()
    b = np.log(sizes) - p @ np.log(sizes)
    people = replace(clients(b.tolist(), p.tolist()), targets=torch.from_numpy(b)[:, None])
    task = turnout.Task(Linear, lambda outputs, targets: -outputs * targets[:, 0])
    means = []
    for algorithm in (RobustFedAvg(steps(1, 1.0)), naive(steps(1, 1.0), 10)):
        result = turnout.simulate(task, people, algorithm, 500, plan=EXACT, evaluation=SELDOM)
        means.append(float(result.model) / 500)
    noise = math.sqrt(100 / 10 * (p**2 @ b**2) / 500)
    assert abs(means[0]) < 4 * noise
    assert means[1] < -0.12 < -4 * noise  # -0.257 in the mean


@pytest.mark.parametrize("name", ["normalise", "amplification"])
def test_refusals(name: str) -> None:
    with pytest.raises(UserError, match=f"algorithm.{name}"):
        RobustFedAvg(steps(1, 1.0), **{name: "responders" if name == "normalise" else -1.0})  # type: ignore[arg-type]


# -- hard instances: the floor ----------------------------------------------------------------------------------


def outliers(epsilon: float, clients_: int, adversary: Adversary | None, spread: float = 1.0) -> Population:
    """O7: f = L/2 theta^2, and L/2 (theta + u/L)^2 for the first epsilon of the clients; G is `spread`, B is 1."""
    few, u = round(epsilon * clients_), spread / math.sqrt(epsilon - epsilon**2)
    return clients([-u / L] * few + [0.0] * (clients_ - few), "equal", [L] * clients_, adversary=adversary)


def squared_gradient(theta: float, epsilon: float, spread: float = 1.0) -> float:
    """|grad F|^2 of all clients."""
    return (L * theta + epsilon * spread / math.sqrt(epsilon - epsilon**2)) ** 2


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.2, 0.4])
def test_clients_silenced_for_good_cost_four_times_the_lower_bound(epsilon: float) -> None:
    """O7: robust and naive end at the optimum of those who answer."""
    people = outliers(epsilon, 20, Silence(epsilon, list(range(round(20 * epsilon)))))
    for algorithm in (RobustFedAvg(steps(1, 0.25), Full()), FedAvg(steps(1, 0.25), Full(), normalise="responders")):
        result = simulate(algorithm, people, 80, 3.0)
        error = squared_gradient(float(result.model), epsilon)
        assert error == pytest.approx({0.05: 0.05263, 0.1: 0.11111, 0.2: 0.25, 0.4: 0.66667}[epsilon], rel=1e-4)
        assert error == pytest.approx(4 * error_floor(epsilon, 1.0), rel=1e-6)
        assert len(result.audit.never_heard) == round(20 * epsilon)
    everybody = simulate(RobustFedAvg(steps(1, 0.25), Full()), replace(people, adversary=None), 80, 3.0)
    assert squared_gradient(float(everybody.model), epsilon) < 1e-12
    for theta in (-1.0, 0.0, 2.5):
        grads = L * (theta - people.targets[:, 0].double().numpy())
        assert np.square(grads).mean() == pytest.approx(grads.mean() ** 2 + 1, rel=1e-6)


@dataclass(frozen=True)
class Fresh(Population):
    """Everybody draws one of two functions anew in every round, exactly `bad` of the clients the second."""

    bad: int = 0

    def samples(self, ids: IntArray, at: FloatArray) -> Ragged:
        unlucky = permutation(key(5, "fresh", int(at[0])), self.size)[: self.bad]
        return Ragged(np.arange(len(ids) + 1), np.isin(ids, unlucky).astype(np.int64))


@pytest.mark.parametrize(("adversary", "size"), [(WorstCase, 10), (WorstCase, 40), (LargestNorm, 40)])
def test_noise_alone_is_enough_and_vanishes_neither_with_time_nor_with_clients(
    adversary: type[Adversary], size: int
) -> None:
    """O8: all clients are alike (G = 0), and whoever drew the bad function is silenced: the same floor, of sigma^2."""
    epsilon = 0.2
    u = 1 / math.sqrt(epsilon - epsilon**2)
    one = Ragged(np.arange(size + 1), np.zeros(size, np.int64))
    targets = torch.tensor([[0.0], [-u / L]])
    people = Fresh(
        torch.full((2, 1), L), targets, one, importance="equal", adversary=adversary(epsilon), bad=round(epsilon * size)
    )
    for rounds in (40, 80):
        result = simulate(RobustFedAvg(steps(1, 0.25), Full()), people, rounds, 1.0)
        assert squared_gradient(float(result.model), epsilon) == pytest.approx(4 * error_floor(epsilon, 0, 1), rel=1e-4)
        assert set(result.rounds()["missing_share"][1:].round(9)) == {epsilon}
    alone = simulate(RobustFedAvg(steps(1, 0.05), Full()), replace(people, adversary=None), 80, 1.0)
    assert squared_gradient(float(alone.model), epsilon) < 1e-6


@pytest.mark.parametrize(("start", "expected"), [(3.0, 2.640625), (0.0, 0.015625), (30.0, None)])
def test_mifa_keeps_pulling_where_silenced_clients_pulled_last(start: float, expected: float | None) -> None:
    """O9: seen once, at the start, then silent: limit -epsilon (L theta_0 + u) / ((1 - epsilon) L), worse the farther
    the start; at theta_0 = 0 better than robust FedAvg's 0.25, for it saw the silenced clients once."""
    epsilon, u = 0.2, 2.5
    people = outliers(epsilon, 20, Silence(epsilon, [0, 1, 2, 3], begins=1))
    result = simulate(Mifa(steps(1, 0.25), Full()), people, 100, start)
    limit = -epsilon * (L * start + u) / ((1 - epsilon) * L)
    assert float(result.model) == pytest.approx(limit, rel=1e-6)
    if start == 3.0:
        assert limit == pytest.approx(-1.0625)
    if expected is None:
        assert squared_gradient(float(result.model), epsilon) > 100
    else:
        assert squared_gradient(float(result.model), epsilon) == pytest.approx(expected, rel=1e-5)


def hidden_gradient(epsilon: float) -> float:
    """|grad F| where the mean step vanishes: of K = 10 of M = 100, H outliers are drawn and b = epsilon K silenced.

    Theta solves E[10 - min(H, b)] L theta + E[(H - b)+] u = 0."""
    hits, b = np.arange(11), round(10 * epsilon)
    chance = hypergeom(100, round(100 * epsilon), 10).pmf(hits)
    through, answers = chance @ np.maximum(hits - b, 0), 10 - chance @ np.minimum(hits, b)
    return (epsilon - float(through / answers)) / math.sqrt(epsilon - epsilon**2)


@dataclass
class Slowing(RobustFedAvg):
    """With the learning rate 2 / (L (t + 8))."""

    def work(self, server: Server) -> LocalSGD:
        return replace(self.local, lr=2 / (L * (server.version + 8)))


def test_the_floor_grows_with_the_budget() -> None:
    """O10 in the limit: the figures measured for T = 20,000 (10 %), increasing, below epsilon / (1 - epsilon)."""
    budgets = (0.1, 0.2, 0.3, 0.4)
    floors = [hidden_gradient(epsilon) ** 2 for epsilon in budgets]
    assert floors == pytest.approx([0.047, 0.133, 0.251, 0.408], rel=0.1)
    assert floors == sorted(floors)
    assert all(floor < epsilon / (1 - epsilon) for floor, epsilon in zip(floors, budgets, strict=True))


@pytest.mark.parametrize("epsilon", [0.1, 0.4])
def test_the_floor_is_reached_and_does_not_fall_with_time(epsilon: float) -> None:
    """O10: K = 10 of M = 100 with a decreasing learning rate."""
    people = outliers(epsilon, 100, Silence(epsilon, list(range(round(100 * epsilon)))))
    models = path(Slowing(steps(1, 1.0), Uniform(10)), people, 1000, 1.0)[:, 0]
    u = 1 / math.sqrt(epsilon - epsilon**2)
    gradient = L * models + epsilon * u
    for rounds in (500, 1000):  # a draw bends the step by less than sqrt(u^2 epsilon / 10)
        noise = math.sqrt(4 / 3 * u**2 * epsilon / 10 / rounds)
        assert abs(gradient[rounds - 1] - hidden_gradient(epsilon)) < 4 * noise < hidden_gradient(epsilon)


def test_the_robust_step_damps_the_noise_of_few_answers() -> None:
    """O11: 8 of 10 silenced at random; the stationary variance is 1 - epsilon of the naive one, in 200 dimensions."""
    optima = normal(key(2, "optima", np.arange(100)), 200)
    optima /= optima.std(0)
    start = optima.mean(0).tolist()
    people = clients(optima.tolist(), "equal", adversary=Random(0.8))
    variances = []
    for algorithm in (RobustFedAvg(steps(1, 0.05), Uniform(10)), naive(steps(1, 0.05), 10)):
        models = path(algorithm, people, 600, start)
        variances.append(float(np.square(models[300:] - optima.mean(0)).mean()))
    assert variances[1] == pytest.approx(0.0130, rel=0.1)
    assert variances[0] / variances[1] == pytest.approx(0.2, rel=0.15)


# -- reductions and costs -----------------------------------------------------------------------------------------


def test_everybody_and_one_step_is_gradient_descent() -> None:
    """O14: epsilon = 0 and K = M is FedAvg over all; s = 1 is a gradient step of length beta lr."""
    people = clients([1.0, 2.0, 4.0, 8.0], [0.4, 0.3, 0.2, 0.1], [1.0, 2.0, 0.5, 1.5])
    robust, full = (
        simulate(a, people, 4) for a in (RobustFedAvg(steps(5, 0.1), Full()), FedAvg(steps(5, 0.1), Full()))
    )
    assert torch.equal(robust.model, full.model)
    one = simulate(RobustFedAvg(steps(1, 0.1), Full(), amplification=2.0), people, 1, 3.0)
    gradient = 0.4 * 1.0 * 2 + 0.3 * 2.0 * 1 + 0.2 * 0.5 * -1 + 0.1 * 1.5 * -5
    assert float(one.model) == pytest.approx(3.0 - 2.0 * 0.1 * gradient)


@pytest.mark.parametrize("eta", [0.01, 1.0])
def test_robust_fedprox_solves_the_proximal_problem(eta: float) -> None:
    """O14 and O5: P(theta) = theta / (1 + eta L) on L/2 theta^2, which for small eta is one gradient step."""
    people = clients([0.0] * 4, "equal", [L] * 4, adversary=Random(0.5))
    mu = 1 / eta
    algorithm = RobustFedProx(steps(400, 0.9 / (L + mu)), Uniform(2), mu=mu, amplification=2.0)
    moved = 2.0 * 0.25 * (1.5 / (1 + eta * L) - 1.5)  # one of two answers
    result = simulate(algorithm, people, 1, 1.5)
    assert float(result.model) - 1.5 == pytest.approx(moved, rel=1e-9)
    if eta == 0.01:
        assert moved == pytest.approx(-0.5 * eta * L * 1.5, rel=2 * eta * L)


def test_robust_fedprox_takes_the_clients_of_fedprox() -> None:
    people = clients([1.0, 2.0, 4.0, 8.0], "equal")
    robust, usual = (simulate(kind(steps(3, 0.1), Uniform(2), mu=0.7), people, 3) for kind in (RobustFedProx, FedProx))
    assert torch.equal(robust.model, usual.model)


def state(algorithm: Algorithm) -> int:
    """Numbers the algorithm remembers."""
    values = [*vars(algorithm).values(), *(vars(algorithm.remember).values() if algorithm.remember else ())]
    return sum(value.numel() for value in values if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("size", [4, 40])
def test_only_the_robust_rule_needs_no_memory_of_clients(size: int) -> None:
    """O15, of a model of one number."""
    people = clients([1.0] * size, "equal")
    found = {}
    for kind in (RobustFedAvg, RobustFedProx, Mifa, RobustMomentum):
        algorithm = kind(steps(1, 0.1), Uniform(2))
        simulate(algorithm, people, 2)
        found[kind.__name__] = state(algorithm)
    assert found == {"RobustFedAvg": 0, "RobustFedProx": 0, "Mifa": size, "RobustMomentum": size + 1}


# -- MIFA and robust momenta by hand --------------------------------------------------------------------------


def test_mifa_by_hand() -> None:
    """Two clients, optima 1 and 3, lr 1 and one step: updates are optimum - model. Round 1 hears both, then only 0."""
    people = clients([1.0, 3.0], [0.75, 0.25], adversary=Silence(1.0, [1], begins=1))
    result = simulate(Mifa(steps(1, 1.0), Full(), server_lr=0.5), people, 2)
    first = 0.5 * (0.75 * 1 + 0.25 * 3)
    assert float(result.model) == pytest.approx(first + 0.5 * (0.75 * (1 - first) + 0.25 * 3))
    assert result.audit.realised * 2 == pytest.approx([1.5, 0.25])


def test_mifa_asks_everybody_once_or_starts_from_zero() -> None:
    people = clients([1.0] * 6, "equal")
    invited = {}
    for first in ("everybody", "zero"):
        result = simulate(Mifa(steps(1, 1.0), Uniform(2), first_round=first), people, 2)
        invited[first] = result.rounds()["invited"].tolist()
        if first == "zero":
            assert float(simulate(Mifa(steps(1, 1.0), Uniform(2), first_round=first), people, 1).model) == (
                pytest.approx(2 / 6)
            )
    assert invited == {"everybody": [0, 6, 2], "zero": [0, 2, 2]}
    with pytest.raises(UserError, match=r"algorithm\.first_round"):
        Mifa(steps(1, 1.0), first_round="all")  # type: ignore[arg-type]


def momenta(people: Population, rounds: int, **options: Any) -> Result:
    return simulate(RobustMomentum(steps(7, 0.1), Full(), momentum=0.5, **options), people, rounds, 1.0)


def test_remembered_momenta_by_hand() -> None:
    """Curvature 1, optima 0 and 3, from 1, mean rule; client 1 is heard once. One local step, whatever `local` says."""
    people = clients([0.0, 3.0], "equal", adversary=Silence(1.0, [1], begins=1))
    m = np.array([0.5 * 1.0, 0.5 * -2.0])
    theta = 1.0 - 0.1 * m.mean()
    m[0] = 0.5 * m[0] + 0.5 * theta
    theta -= 0.1 * m.mean()
    result = momenta(people, 2, rule="mean")
    assert float(result.model) == pytest.approx(theta, rel=1e-12)
    assert not result.audit.linear
    assert set(result.jobs()["steps"].tolist()) == {1}


def test_clipping_starts_from_the_last_direction() -> None:
    """Radius 0.1 in gradient units, momenta as above but of one client: v moves by 0.1 a round towards m."""
    people = clients([0.0], [1.0])
    result = momenta(people, 2, radius=0.1)
    assert float(result.model) == pytest.approx(1.0 - 0.1 * (0.1 + 0.2))
    wide = momenta(people, 2)  # radius 10 / (1 - 0.5): nothing is clipped
    assert float(wide.model) == pytest.approx(float(momenta(people, 2, rule="mean").model))


def test_the_median_ignores_one_of_many() -> None:
    """Momenta of 7 clients at 1 and one at -1000: the median stays at 0.5, the mean does not. In buckets of 4 the
    outlier hides in one of the two."""
    people = clients([0.0] * 7 + [1001.0], "equal")
    moved = {
        (rule, buckets): (1.0 - float(momenta(people, 1, rule=rule, buckets=buckets).model)) / 0.1
        for rule in ("mean", "geometric_median", "centred_clipping")
        for buckets in (0, 2)
        if (rule, buckets) != ("mean", 2)
    }
    with pytest.raises(UserError, match=r"algorithm\.buckets: 2, but the mean of buckets' means is the mean"):
        momenta(people, 1, rule="mean", buckets=2)
    assert moved["mean", 0] == pytest.approx((3.5 - 500) / 8)
    assert moved["geometric_median", 0] == pytest.approx(0.5, abs=0.02)
    assert moved["centred_clipping", 0] == pytest.approx((3.5 - 20) / 8)
    assert moved["centred_clipping", 2] == pytest.approx((0.5 - 20) / 2)


@pytest.mark.parametrize(
    ("option", "value"), [("rule", "median"), ("momentum", 1.0), ("buckets", -1), ("radius", 0.0), ("iterations", 0)]
)
def test_momentum_options_are_checked(option: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"algorithm\.{option}"):
        RobustMomentum(steps(1, 0.1), **{option: value})
    with pytest.raises(UserError, match=r"local\.lr"):
        RobustMomentum(steps(1, 0.0))


@dataclass(frozen=True)
class Lies(LocalSGD):
    """A client whose optimum is 3 answers NaN."""

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Any, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        payload, state = super().finish(task, received, params, carry, state, data)
        broken = (data.targets[data.index[0]] == 3).any()
        return {"delta": torch.where(broken, torch.nan, payload["delta"])}, state


@pytest.mark.parametrize("kind", [Mifa, RobustMomentum, FedAvgRP])
def test_a_nan_never_enters_a_memory(kind: type[FedAvg]) -> None:
    """It is rejected with an event; what the others sent counts."""
    events: list[Event] = []

    class Watch(Observer):
        def on_event(self, server: Server, event: Event) -> None:
            events.append(event)

    people = clients([1.0, 3.0], "equal")
    work = Lies.extend(steps(1, 0.5))
    result = simulate(kind(work, Full()), people, 3, observers=[Watch()])
    assert [(event.kind, event.facts["client"]) for event in events] == [("rejected_update", 1)] * 3
    assert bool(torch.isfinite(result.model).all())
    assert float(result.model[0]) > 0


def test_buckets_are_dealt_anew_in_every_round() -> None:
    """Ten clients that answer with their own optimum, one round each: bucket means differ between rounds."""
    seen: list[list[float]] = []

    class Watching(RobustMomentum):
        def robust_mean(self, server: Server) -> Tensor:
            who = key(server.seed, "buckets", server.version)
            rows, _ = bucketed(self.momenta, torch.full((10,), 0.1, dtype=torch.float64), 2, who)
            seen.append(sorted(rows[:, 0].tolist()))
            return super().robust_mean(server)

    people = clients([float(i) for i in range(10)], "equal")
    simulate(Watching(steps(1, 1e-9), Full(), momentum=0.0, buckets=2), people, 4)
    assert len({tuple(round(value, 6) for value in row) for row in seen}) > 1
