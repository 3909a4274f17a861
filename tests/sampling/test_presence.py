"""Who is online how often, and the weights made of it (correlated-availability.md, O6 to O8, O12, O16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from small_server import near, population, sample, server_of, task, weights_of

import turnout
from turnout import Bernoulli, FedAvg, LocalSGD, Plan, UserError
from turnout.clients.chains import Markov
from turnout.config import registry
from turnout.core.random import FloatArray, IntArray
from turnout.sampling._presence import Presence, beta_estimate, transition_estimate
from turnout.sampling._sampler import Sampler
from turnout.sampling.adafed import AdaFed
from turnout.sampling.f3ast import F3AST
from turnout.sampling.more_available import MoreAvailable
from turnout.sampling.unbiased import Unbiased
from turnout.server.server import Server
from turnout_studies.theory.correlated import effective_weights

ALPHA = np.array([0.4, 0.3, 0.2, 0.1])
PI = np.array([0.9, 0.2, 0.6, 0.1])
EXACT = Plan(precision="float64", threads=1)


@dataclass(frozen=True)
class Timetable:
    """Online in the rounds said: rows are rounds, from round `first` on, over and over."""

    table: NDArray[np.bool_]
    first: int = 0
    clock: ClassVar[Any] = "round"
    probability: ClassVar[None] = None
    correlation: ClassVar[None] = None

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> NDArray[np.bool_]:
        rows = (np.broadcast_to(np.asarray(at, np.int64), len(ids)) - self.first) % len(self.table)
        return self.table[rows, ids]

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return np.full(len(ids), np.inf)

    online_from = online_until


def server(availability: Any = None, alpha: FloatArray = ALPHA, seed: int = 0) -> Server:
    return server_of(alpha.tolist(), seed, availability=availability or Bernoulli(PI))


def watch(sampler: Presence, where: Server, rounds: int) -> None:
    for version in range(rounds):
        where.version = version
        sampler.watch(where)


# -- O12: estimators ------------------------------------------------------------------------------------------


def test_o12_worked_numbers() -> None:
    assert beta_estimate(np.array([3]), np.array([10])) == pytest.approx(4 / 12)
    pi, correlation = transition_estimate(np.array([[[8, 2], [1, 9]]]))
    assert (pi[0], correlation[0]) == pytest.approx((0.6, 9 / 12 + 10 / 12 - 1))


def test_o12_as_counted_in_rounds() -> None:
    """Three of ten rounds online, as 0 1 1 0 0 0 1 0 0 0: c00 4, c01 2, c10 2, c11 1."""
    table = np.array([[0, 1, 1, 0, 0, 0, 1, 0, 0, 0]], bool).T
    sampler = Unbiased(estimator="beta")
    where = server(Timetable(table), np.ones(1))
    watch(sampler, where, 10)
    assert sampler.transitions[0].tolist() == [[4, 2], [2, 1]]
    assert sampler.availability(where) == pytest.approx(4 / 12)
    sampler.estimator = "transitions"
    p0, p1 = 5 / 8, 2 / 5
    assert sampler.availability(where) == pytest.approx((1 - p0) / (2 - p0 - p1))
    assert sampler.correlation(where) == pytest.approx(p0 + p1 - 1)


def test_priors() -> None:
    where = server(Timetable(np.ones((1, 1), bool)), np.ones(1))
    sampler = Unbiased(estimator="beta", prior=(3.0, 5.0), transition_prior=(2.0, 7.0))
    watch(sampler, where, 4)
    assert sampler.availability(where) == pytest.approx(7 / 12)
    assert sampler.correlation(where) == pytest.approx(2 / 9 + 5 / 12 - 1)


def test_o12_errors_vanish_and_correlation_takes_longer() -> None:
    pi, correlation, clients = 0.3, 0.8, 300
    where = server(Markov(pi, correlation), np.full(clients, 1 / clients))
    sampler, errors = Unbiased(estimator="transitions"), []
    for version in range(2000):
        where.version = version
        sampler.watch(where)
        if version + 1 in (20, 200, 2000):
            found = (sampler.availability(where) - pi, sampler.correlation(where) - correlation)
            errors.append([float(np.sqrt(np.square(error).mean())) for error in found])
    (few_pi, few), (some_pi, some), (many_pi, many) = errors
    assert few_pi > some_pi > many_pi
    assert few > some > many
    assert many_pi < 0.04  # sqrt(0.21 * 9 / 2000) = 0.031
    assert many < 0.03
    assert few > few_pi


def test_which_of_the_two_is_harder_depends_on_the_chain() -> None:
    """O12 ends with "the error of lambda exceeds that of pi". In the long run the variances are, a round,
    pi (1 - pi) (1 + lambda) / (1 - lambda) of pi and p0 (1 - p0) / (1 - pi) + p1 (1 - p1) / pi of lambda: so it does
    for coin flips, and does not for a strongly correlated chain."""
    for correlation, of_pi, of_lambda in ((0.0, 0.25, 1.0), (0.9, 4.75, 0.19)):
        where = server(Markov(0.5, correlation), np.full(400, 1 / 400))
        sampler = Unbiased(estimator="transitions")
        watch(sampler, where, 2000)
        assert 2000 * np.var(sampler.availability(where)) == pytest.approx(of_pi, rel=0.3)
        assert 2000 * np.var(sampler.correlation(where)) == pytest.approx(of_lambda, rel=0.3)


def test_rounds_before_the_first_are_watched() -> None:
    """Twelve rounds ago to the last, then this one: the same counts as in a run that began then."""
    table = np.array([Markov(0.5, 0.6).online(0, np.arange(4), number) for number in range(13)])
    early, late = Unbiased(estimator="beta"), Unbiased(estimator="beta", observed=12)
    watch(early, server(Timetable(table)), 13)
    watch(late, server(Timetable(table, first=-12)), 1)
    for name in ("rounds", "online_rounds", "before", "transitions"):
        assert np.array_equal(getattr(early, name), getattr(late, name))
    assert late.rounds.tolist() == [13] * 4


def test_rounds_ago_need_a_clock_of_rounds() -> None:
    with pytest.raises(UserError, match=r"sampler\.observed: 3 rounds ago"):
        Unbiased(estimator="beta", observed=3).sample(server(Bernoulli(0.5, clock="seconds")))
    Unbiased(estimator="oracle", observed=3).sample(server(Bernoulli(0.5, clock="seconds")))  # it has no need to look


def test_another_run_begins_anew() -> None:
    sampler, where = Unbiased(estimator="beta"), server()
    watch(sampler, where, 9)
    watch(sampler, where, 5)
    assert sampler.rounds.tolist() == [5] * 4


def test_whoever_has_not_joined_is_not_watched() -> None:
    where, sampler = server(Timetable(np.ones((1, 4), bool))), AdaFed(estimator="beta")
    member = np.array([0.5, 0.5, 0.0, 0.0])
    for version, importance in enumerate([member, member, ALPHA, ALPHA]):
        where.version, where.importance = version, importance
        chosen = sampler.sample(where)
        assert chosen.clients.tolist() == np.flatnonzero(importance).tolist()
    assert sampler.rounds.tolist() == [4, 4, 2, 2]
    assert sampler.transitions[2].tolist() == [[0, 0], [0, 1]]


def test_f3ast_does_not_forget_whoever_has_not_joined() -> None:
    where, sampler = server(turnout.Always()), F3AST(clients_per_round=4, smoothing=0.5)
    where.importance = np.array([0.5, 0.5, 0.0, 0.0])
    for version in range(6):
        where.version = version
        sampler.sample(where)
    assert sampler.rate.tolist() == [1.0] * 4


def test_more_available_goes_on_when_those_often_online_have_left() -> None:
    where, sampler = server(turnout.Bernoulli(np.array([0.9, 0.9, 0.4, 0.4]))), MoreAvailable()
    sampler.sample(where)
    where.version, where.importance = 1, np.array([0.0, 0.0, 0.5, 0.5])
    assert not len(sampler.sample(where).clients)
    with pytest.raises(UserError, match=r"sampler.threshold: no client is online 0.5 of the time"):
        MoreAvailable().sample(server(turnout.Bernoulli(0.4)))


# -- what the oracle knows --------------------------------------------------------------------------------------


def test_the_oracle_asks_the_population() -> None:
    sampler, where = Unbiased(), server()
    sampler.watch(where)
    assert sampler.availability(where).tolist() == PI.tolist()
    assert sampler.correlation(where).tolist() == [0.0] * 4
    correlation = np.array([0.0, 0.9, -0.1, 0.5])
    assert sampler.correlation(server(Markov(PI, correlation))).tolist() == correlation.tolist()
    assert Unbiased().availability(server(turnout.Always())).tolist() == [1.0] * 4


def test_an_oracle_with_nothing_to_say() -> None:
    sampler = Unbiased()
    with pytest.raises(UserError, match="oracle, but the probability of a timetable is not known; use beta or"):
        sampler.sample(server(Timetable(np.ones((1, 4), bool))))


def test_a_client_that_is_never_online_has_a_weight() -> None:
    """After t rounds 1 / (t + 2) stands for a share of 0."""
    where = server(Bernoulli(np.array([0.0, 0.5, 1.0, 0.7])))
    sampler = Unbiased()
    for version in (0, 7):
        where.version = version
        assert sampler.availability(where) == pytest.approx([1 / (version + 3), 0.5, 1.0, 0.7])
    counted = Unbiased(estimator="beta", prior=(0.0, 1.0))
    watch(counted, where, 5)
    assert counted.availability(where)[[0, 2]] == pytest.approx([1 / 7, 5 / 6])


def test_options_that_cannot_be() -> None:
    for options, words in (
        ({"estimator": "orakle"}, "sampler.estimator: unknown name 'orakle'; did you mean oracle"),
        ({"observed": -1}, "sampler.observed: -1 must be at least 0"),
        ({"prior": (0.0, 0.0)}, "sampler.prior: .* not both 0"),
        ({"prior": (-1.0, 2.0)}, "sampler.prior"),
        ({"transition_prior": (1.0, 0.0)}, "sampler.transition_prior: .* above 0"),
    ):
        with pytest.raises(UserError, match=words):
            Unbiased(**options)


# -- weights ----------------------------------------------------------------------------------------------------


def by_round(sampler: Sampler, where: Server, rounds: int) -> FloatArray:
    """`[rounds, n]` weights; 0 for those not chosen."""
    return np.array([weights_of(sample(sampler, where, version), len(where.importance)) for version in range(rounds)])


def test_o6_unbiased() -> None:
    sampler, where = Unbiased(), server()
    assert effective_weights(PI, sampler.weights(ALPHA, PI)) == pytest.approx(ALPHA, abs=1e-15)
    weights = by_round(sampler, where, 4000)
    assert near(weights, ALPHA)
    online = weights > 0
    assert np.allclose(weights[online], np.broadcast_to(ALPHA / PI, weights.shape)[online])


def test_more_available() -> None:
    where = server()
    weights = by_round(MoreAvailable(renormalise=False), where, 500)
    assert (weights[:, [1, 3]] == 0).all()
    assert weights.max(0) == pytest.approx(ALPHA / PI * [1, 0, 1, 0])
    assert by_round(MoreAvailable(threshold=0.15), where, 500).max(0)[3] == 0


def test_renormalised_weights_sum_to_1_on_average() -> None:
    """sum_k pi_k q_k = 1: dropping clients does not shorten the step."""
    q = MoreAvailable().weights(ALPHA, PI)
    assert PI @ q == pytest.approx(1)
    assert q == pytest.approx(np.array([0.4 / 0.9, 0, 0.2 / 0.6, 0]) / 0.6)
    assert PI @ MoreAvailable(renormalise=False).weights(ALPHA, PI) == pytest.approx(0.6)


def test_nobody_is_more_available() -> None:
    with pytest.raises(UserError, match=r"sampler\.threshold: no client is online 0\.95 of the time"):
        MoreAvailable(0.95).sample(server())
    with pytest.raises(UserError, match=r"sampler\.threshold: 1\.5"):
        MoreAvailable(1.5)
    empty = MoreAvailable(0.95, estimator="beta").sample(server())  # it may yet learn of one
    assert len(empty.clients) == 0


def test_o16_adafed_sums_to_1() -> None:
    weights = by_round(AdaFed(), server(), 300)
    somebody = weights.any(axis=1)
    assert weights[somebody].sum(1) == pytest.approx(np.ones(somebody.sum()))
    ratio = weights[(weights[:, 0] > 0) & (weights[:, 2] > 0)]
    assert ratio[:, 2] / ratio[:, 0] == pytest.approx(0.2 / 0.6 * 0.9 / 0.4)
    assert not by_round(AdaFed(), server(Bernoulli(0.0)), 2).any()


def test_o16_f3ast_takes_the_least_seen() -> None:
    sampler, where, rate = F3AST(2, smoothing=0.1), server(), PI.copy()
    online = server()
    for version in range(200):
        chosen = sample(sampler, where, version)
        online.version = version
        here = online.online().contains(np.arange(4))
        rate = 0.9 * rate + 0.1 * here
        expected = sorted(np.flatnonzero(here), key=lambda k: -((ALPHA[k] / rate[k]) ** 2))[:2]
        assert chosen.clients.tolist() == sorted(expected)
        assert chosen.weights == pytest.approx((ALPHA / rate)[chosen.clients])


def test_f3ast_options() -> None:
    with pytest.raises(UserError, match=r"sampler\.clients_per_round: 0"):
        F3AST(0)
    with pytest.raises(UserError, match=r"sampler\.smoothing: 0"):
        F3AST(smoothing=0.0)


# -- O7 and O8 in the simulator -----------------------------------------------------------------------------------


@dataclass
class Decaying(FedAvg):
    """Learning rate lr t^-0.6."""

    def work(self, server: Server) -> LocalSGD:
        return self.local.bind({"lr": self.local.lr * (server.version + 1) ** -0.6})


@pytest.mark.parametrize(("name", "expected"), [("full", 0.1), ("unbiased", 0.5), ("more_available", 0.0)])
def test_o7_o8_where_training_leads(name: str, expected: float) -> None:
    """Optima 0 and 1, online 0.9 and 0.1 of the rounds: q = alpha leads to sum p c = 0.1, q = alpha / pi to 0.5."""
    people = population([0.5, 0.5], [0.0, 1.0], Bernoulli(np.array([0.9, 0.1])))
    algorithm = Decaying(LocalSGD(0.4, steps=1, batching="full"), registry.find("sampler", name)())
    never = turnout.Evaluation(rounds=None)
    result = turnout.simulate(task(), people, algorithm, 600, seed=2, plan=EXACT, evaluation=never)
    assert float(result.model[0]) == pytest.approx(expected, abs=0.08)


def mean_square_distance(correlation: float, rounds: int = 400, runs: int = 400) -> float:
    """The same toy from 0.5 with q = alpha / pi: the mean over runs of (w - 0.5)^2, where w is the mean of the iterates
    weighted by learning rates. Each run has two chains of its own."""
    alpha, pi = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    q, chains, ids = Unbiased().weights(alpha, pi), Markov(np.tile(pi, runs), correlation), np.arange(2 * runs)
    w, total, rates = np.full(runs, 0.5), np.zeros(runs), 0.1 * np.arange(1, rounds + 1) ** -0.6
    for number, rate in enumerate(rates):
        total += rate * w
        online = chains.online(8, ids, number).reshape(runs, 2)
        w = w + rate * (online * q * (np.array([0.0, 1.0]) - w[:, None])).sum(1)
    return float(np.square(total / rates.sum() - 0.5).mean())


def test_o8_correlation_slows_convergence() -> None:
    found = [mean_square_distance(correlation) for correlation in (0.0, 0.5, 0.9, 0.99)]
    assert found == pytest.approx([0.0027, 0.0055, 0.0166, 0.0433], rel=0.25)
    assert found == sorted(found)
