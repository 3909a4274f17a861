"""CA-Fed: whom it drops, from which losses, and what it costs (correlated-availability.md, O10, O11, O13, 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_server import near, population, server_of, task, weights_of

import turnout
from turnout import Bernoulli, FedAvg, LocalSGD, Plan, UserError
from turnout.clients.chains import Markov, heterogeneous
from turnout.config import registry
from turnout.core.random import FloatArray, IntArray, generator, key
from turnout.sampling._presence import Presence
from turnout.sampling._sampler import Sampler
from turnout.sampling._statistics import statistics
from turnout.sampling.cafed import CAFed, Pruning
from turnout.sampling.unbiased import Unbiased
from turnout.server.observer import Event, Observer
from turnout.server.server import Server
from turnout_studies.theory.correlated import effective_weights, tv_distance

EXACT = Plan(precision="float64", threads=1)
WORK = LocalSGD(0.2, steps=1, batching="full")
QUARTERS = np.full(4, 0.25)
EXAMPLE = Markov(np.array([0.9, 0.9, 0.1, 0.1]), np.array([0.0, 0.9, 0.0, 0.9]))
GAPS = np.array([0.1, 0.1, 0.2, 0.6])


class Watch(Observer):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, server: Server, event: Event) -> None:
        self.events.append(event)

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]


def server(availability: Any = None, importance: Sequence[float] = tuple(QUARTERS), **options: Any) -> Server:
    return server_of(importance, availability=availability or turnout.Always(), **options)


def prepared(losses: FloatArray, where: Server, **options: Any) -> CAFed:
    """A sampler that has heard these losses, above a floor of 0."""
    sampler = CAFed(floor="zero", **options)
    sampler.begin(where)
    sampler.remember(np.arange(len(losses)), losses)
    return sampler


def proxy(importance: FloatArray, pi: FloatArray, q: FloatArray, gaps: FloatArray, bias_weight: float) -> float:
    """The proxy error, all of it at once."""
    p = effective_weights(pi, q)
    return float(gaps @ p + 4 * bias_weight * tv_distance(importance, p) ** 2 * gaps.max())


# -- O10 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bias_weight", "dropped", "error"),
    [
        (10.0, [], 0.25),
        (1.0, [], 0.25),
        (0.778, [], 0.25),
        (0.777, [3], 0.13333 + 0.15 * 0.777),
        (0.5, [3], 0.20833),
        (0.1, [3], 0.14833),
        (0.0, [2, 3], 0.1),
    ],
)
def test_o10_the_worked_example(bias_weight: float, dropped: list[int], error: float) -> None:
    where = server(EXAMPLE)
    sampler = prepared(GAPS, where, bias_weight=bias_weight)
    pi = sampler.availability(where)
    kept = sampler.keep(where, pi)
    assert np.flatnonzero(~kept).tolist() == dropped
    assert proxy(QUARTERS, pi, kept / pi, GAPS, bias_weight) == pytest.approx(error, abs=1e-5)


def test_o10_tolerance() -> None:
    """At 0.1 the gain is 0.25 - 0.14833."""
    where = server(EXAMPLE)
    for tolerance, dropped in ((0.1016, [3]), (0.1017, [])):
        sampler = prepared(GAPS, where, bias_weight=0.1, tolerance=tolerance)
        kept = sampler.keep(where, sampler.availability(where))
        assert np.flatnonzero(~kept).tolist() == dropped


def plain_prune(
    importance: FloatArray, pi: FloatArray, gaps: FloatArray, orders: list[IntArray], bias_weight: float
) -> FloatArray:
    """Algorithm 6 as printed, with the whole error computed anew for every candidate; strict, and never empty."""
    q = importance / pi
    for order in orders:
        for client in order:
            without = q.copy()
            without[client] = 0
            if q[client] > 0 and without.any():
                gain = proxy(importance, pi, q, gaps, bias_weight) - proxy(importance, pi, without, gaps, bias_weight)
                q = without if gain > 1e-12 else q
    return q


@pytest.mark.parametrize("bias_weight", [0.0, 0.01, 0.1, 1.0, 10.0])
def test_constant_time_candidates_are_those_of_the_whole_formula(bias_weight: float) -> None:
    for number in range(20):
        chance = generator(key(number, "prune"))
        importance, pi = chance.dirichlet(np.ones(12)), chance.uniform(0.05, 1, 12)
        gaps, correlation = chance.exponential(size=12), chance.uniform(0, 0.95, 12)
        where = server(Markov(pi, correlation), importance.tolist())
        sampler = prepared(gaps, where, bias_weight=bias_weight)
        orders = [np.argsort(-correlation), np.argsort(pi)]
        expected = plain_prune(importance, pi, gaps, orders, bias_weight)
        kept = sampler.keep(where, pi)
        assert kept.tolist() == (expected > 0).tolist()


def test_order_of_correlation_comes_first_and_uses_its_size() -> None:
    """Equal gaps but one small: whoever is looked at first goes, as long as going is a gain."""
    gaps = np.array([1.0, 1.0, 1.0, 0.0])
    where = server(Markov(np.array([0.6, 0.6, 0.5, 0.9]), np.array([0.2, -0.5, 0.3, 0.0])))
    sampler = prepared(gaps, where, bias_weight=0.1, max_excluded_fraction=0.25)
    assert np.flatnonzero(~sampler.keep(where, sampler.availability(where))).tolist() == [1]


def test_the_other_order_decides_ties() -> None:
    """Alike but for one quantity: the paper does not say who goes first, the order of the list should not."""
    for pi, correlation, gone in (
        ([0.9, 0.1, 0.9, 0.5], [0.9, 0.9, 0.9, 0.0], 1),
        ([0.5, 0.5, 0.5, 0.9], [0.0, 0.2, 0.5, 0.9], 2),
    ):
        where = server(Markov(np.array(pi), np.array(correlation)))
        sampler = prepared(np.array([1.0, 1.0, 1.0, 0.0]), where, bias_weight=0.1, max_excluded_fraction=0.25)
        assert np.flatnonzero(~sampler.keep(where, sampler.availability(where))).tolist() == [gone]


# -- O11: limits ------------------------------------------------------------------------------------------------


def random_pruning(number: int, bias_weight: float, most: int = 29) -> Pruning:
    chance = generator(key(number, "prune"))
    return Pruning(chance.dirichlet(np.ones(30)), chance.exponential(size=30), bias_weight, 0.0, most)


@pytest.mark.parametrize("bias_weight", [0.0, 0.05, 0.5])
def test_o11_the_error_only_falls_and_somebody_stays(bias_weight: float) -> None:
    for number in range(30):
        pruning = random_pruning(number, bias_weight)
        before = pruning.error
        gains = pruning.drop(range(30)).values()
        assert all(gain > 0 for gain in gains)
        assert pruning.error == pytest.approx(before - sum(gains))
        assert len(pruning.gone) < 30
        gaps, importance = np.array(pruning.gaps), np.array(pruning.importance)
        kept = ~np.isin(np.arange(30), list(pruning.gone))
        assert pruning.error == pytest.approx(proxy(importance, np.ones(30), importance * kept, gaps, bias_weight))


def test_o11_correlation_of_those_kept_is_no_larger() -> None:
    """Independent chains: the second eigenvalue of all is the largest one's."""
    where = server(EXAMPLE)
    sampler = prepared(GAPS, where, bias_weight=0.1)
    kept = sampler.keep(where, sampler.availability(where))
    correlation = np.abs(sampler.correlation(where))
    assert correlation[kept].max() <= correlation.max()


def run(sampler: Presence, rounds: int = 60, **options: Any) -> turnout.Result:
    people = population([0.4, 0.3, 0.2, 0.1], [0.0, 1.0, 2.0, 3.0], Markov(np.array([0.9, 0.6, 0.3, 0.2]), 0.5))
    return turnout.simulate(task(), people, FedAvg(WORK, sampler), rounds, plan=EXACT, **options)


def test_o11_a_large_bias_weight_is_unbiased_to_the_last_bit() -> None:
    for renormalise in (True, False):
        one, other = run(CAFed(1e6, renormalise=renormalise)), run(Unbiased())
        assert torch.equal(one.model, other.model)
        assert one.rounds()["weight"].tolist() == other.rounds()["weight"].tolist()
        assert one.audit.realised.tolist() == other.audit.realised.tolist()
    assert not torch.equal(run(CAFed(0.01)).model, other.model)


def test_fewer_are_dropped_the_larger_the_bias_weight() -> None:
    mean = [run(CAFed(weight, floor="zero")).rounds()["used"][1:].mean() for weight in (0.0, 0.1, 1e6)]
    assert mean[0] < mean[1] < mean[2]


# -- O13 and 3.4: what is remembered of losses --------------------------------------------------------------------


def hearing(sampler: CAFed, *rounds: dict[int, float]) -> FloatArray:
    sampler.begin(server())
    for losses in rounds:
        sampler.remember(np.array(list(losses), int), np.array(list(losses.values())))
    return sampler.losses


def test_o13_the_newest_loss_replaces_the_last() -> None:
    assert hearing(CAFed(), {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, {1: 5.0, 3: 1.0}).tolist() == [1.0, 5.0, 3.0, 1.0]


def test_o13_the_filter() -> None:
    """(1 - beta) old + beta new; who speaks for the first time had the mean of the others."""
    losses = hearing(CAFed(loss_smoothing=0.25), {0: 1.0, 1: 3.0}, {0: 5.0, 2: 6.0})
    assert losses[:3].tolist() == [0.75 * 1 + 0.25 * 5, 3.0, 0.75 * (1 + 3) / 2 + 0.25 * 6]


def test_floors() -> None:
    ids = np.arange(4)
    heard = ({0: 2.0, 1: 3.0, 2: 1.0}, {0: 4.0, 1: 1.0})
    for options, gaps in (
        ({"floor": "running_min"}, [2.0, 0.0, 0.0, 0.0]),
        ({"floor": "zero"}, [4.0, 1.0, 1.0, 2.0]),
        ({"floor": "local_optimum", "optima": np.array([1.0, 0.5, 2.0, 0.0])}, [3.0, 0.5, 0.0, 2.0]),
        ({"floor": "local_optimum", "optima": 0.5}, [3.5, 0.5, 0.5, 1.5]),
    ):
        sampler = CAFed(**options)
        hearing(sampler, *heard)
        assert sampler.gaps(ids).tolist() == gaps


# -- 3.3: edge cases --------------------------------------------------------------------------------------------


def test_the_first_round_keeps_everybody() -> None:
    where = server(optima=[0.0, 1.0, 2.0, 3.0])
    chosen = CAFed(0.0).sample(where)
    assert chosen.clients.tolist() == [0, 1, 2, 3]
    assert chosen.weights.tolist() == QUARTERS.tolist()
    assert chosen.informed


def test_losses_come_from_the_model_sent() -> None:
    """At 0, client k's loss is k^2 / 2."""
    sampler = CAFed()
    sampler.sample(server(optima=[0.0, 1.0, 2.0, 3.0]))
    assert sampler.losses.tolist() == [0.0, 0.5, 2.0, 4.5]


def test_equal_clients_are_all_kept() -> None:
    """Dropping one of several alike is a gain of exactly 0, which is none."""
    where = server(optima=[1.0, 1.0, 1.0, 1.0])
    assert len(CAFed(0.0, floor="zero").sample(where).clients) == 4


def test_all_but_one_may_go_and_never_the_last() -> None:
    where = server(optima=[4.0, 3.0, 2.0, 1.0])
    chosen = CAFed(0.0, floor="zero").sample(where)
    assert chosen.clients.tolist() == [3]
    assert chosen.weights == pytest.approx([1.0])
    alone = server_of([1.0], optima=[4.0])
    assert CAFed(0.0, floor="zero").sample(alone).clients.tolist() == [0]


@pytest.mark.parametrize(("fraction", "kept"), [(0.0, 4), (0.24, 4), (0.25, 3), (0.5, 2), (1.0, 1)])
def test_a_cap_on_exclusion(fraction: float, kept: int) -> None:
    where = server(optima=[4.0, 3.0, 2.0, 1.0])
    assert len(CAFed(0.0, floor="zero", max_excluded_fraction=fraction).sample(where).clients) == kept


def test_renormalised_weights_sum_to_1_on_average() -> None:
    """Two of four are left: the others' steps are theirs, unless the paper's weights are asked for."""
    where = server(Bernoulli(0.5), optima=[4.0, 4.0, 0.0, 0.0])
    losses = np.array([8.0, 8.0, 0.0, 0.0])
    for renormalise, total in ((True, 1.0), (False, 0.5)):
        sampler = prepared(losses, where, bias_weight=0.0, renormalise=renormalise)
        sums = []
        for version in range(1, 200):
            where.version = version
            chosen = sampler.sample(where)
            assert set(chosen.clients.tolist()) <= {2, 3}
            sums.append(weights_of(chosen, 4).sum())
        assert near(np.array(sums), total)


def test_a_client_never_online_counts_as_the_mean_of_the_others() -> None:
    where = server(Bernoulli(np.array([1.0, 1.0, 1.0, 0.0])), optima=[1.0, 2.0, 3.0, 9.0])
    sampler = CAFed(0.0, floor="zero")
    for version in range(3):
        where.version = version
        sampler.sample(where)
    assert np.isnan(sampler.losses[3])
    assert sampler.gaps(np.arange(4))[3] == pytest.approx((0.5 + 2 + 4.5) / 3)


def test_a_client_that_has_left_has_no_say() -> None:
    """Its loss, the largest by far, would make any bias too dear."""
    where = server(EXAMPLE)
    sampler = prepared(np.array([0.0, 0.0, 100.0, 1.0]), where, bias_weight=0.1)
    where.importance = np.array([0.4, 0.4, 0.0, 0.2])
    assert np.flatnonzero(~sampler.keep(where, sampler.availability(where))).tolist() == [3]


def test_nobody_online_is_an_empty_round() -> None:
    where = server(Bernoulli(0.0))
    chosen = CAFed().sample(where)
    assert len(chosen.clients) == 0


def test_a_loss_that_is_no_number_is_that_of_a_client_not_there() -> None:
    """In float32 the square of 1e30 is infinite."""
    watch = Watch()
    people = population([0.5, 0.5], [1.0, 1e30])
    algorithm = FedAvg(WORK, CAFed(floor="zero"))
    server = turnout.Simulation(task(), people, algorithm, plan=Plan(threads=1), observers=[watch])
    chosen = algorithm.sampler.sample(server)
    assert chosen.clients.tolist() == [0]
    assert [(event.kind, event.facts) for event in watch.events] == [
        ("rejected_report", {"client": 1, "why": "not finite"})
    ]
    assert np.isnan(algorithm.sampler.losses[1])  # type: ignore[attr-defined]


def test_when_all_online_are_dropped_the_model_stays() -> None:
    """Client 1 is dropped from the first round that hears both; a later round that finds only it is empty."""
    models: list[float] = [0.0]

    class Models(Watch):
        def on_round(self, server: Server, record: Any) -> None:
            models.append(float(server.model[0]))

    watch, people = Models(), population([0.5, 0.5], [2.0, 30.0], Bernoulli(0.6))
    algorithm = FedAvg(WORK, CAFed(0.0, floor="zero"))
    turnout.Simulation(task(), people, algorithm, plan=EXACT, stopping=turnout.Stopping(60), observers=[watch]).run()
    online = np.array([people.availability.online(people.seed, people.ids, number) for number in range(60)])
    first = int(np.flatnonzero(online.all(axis=1))[0])
    moved = np.diff(models) != 0
    assert (moved[first:] == online[first:, 0]).all()
    only_1 = np.flatnonzero(~online[:, 0] & online[:, 1])
    assert only_1.max() > first
    assert {event.round for event in watch.of("empty_round")} >= set(only_1[only_1 > first].tolist())


def test_what_a_round_costs() -> None:
    """Everybody online reports one number; whoever trains is not sent the model again."""
    people = population([0.5, 0.5], [0.0, 5.0])
    result = turnout.simulate(task(), people, FedAvg(WORK, CAFed(0.0, floor="zero")), 3, plan=EXACT)
    jobs = result.jobs()
    reports = (jobs["weight"] == 0) & (jobs["bytes_down"] > 0)
    assert reports.sum() == 6
    assert set(jobs["bytes_up"][reports].tolist()) == {8}
    assert jobs["bytes_down"][~reports].tolist() == [0, 0, 0]
    assert jobs["client"][~reports].tolist() == [0, 0, 0]


def test_exclusions_are_logged_when_they_change() -> None:
    where, watch = server(EXAMPLE), Watch()
    where.observers.append(watch)
    sampler = prepared(GAPS, where, bias_weight=0.1)
    pi = sampler.availability(where)
    for _ in range(3):
        sampler.keep(where, pi)
    (event,) = watch.events
    assert event.kind == "excluded"
    assert event.facts == {"client": 3, "why": "correlation 0.9, availability 0.1, gain 0.102"}
    sampler.remember(np.arange(4), np.full(4, 0.1))
    sampler.keep(where, pi)
    assert [(event.kind, event.facts) for event in watch.events[1:]] == [("readmitted", {"client": 3})]


def test_a_second_pass_drops_whom_the_first_could_not() -> None:
    """After 3 has gone, dropping 0 is a gain too, which was looked at before."""
    pruning = Pruning(QUARTERS, np.array([0.3, 0.0, 0.0, 0.9]), 0.1, 0.0, 3)
    assert list(pruning.drop([0, 1, 2, 3])) == [3]
    assert list(pruning.drop([3, 2, 1, 0])) == [0]


def test_losses_are_estimated_with_the_presence() -> None:
    """Estimators are asked once a round, by CA-Fed too."""
    sampler = CAFed(estimator="transitions")
    where = server(Bernoulli(0.5))
    for version in range(6):
        where.version = version
        sampler.sample(where)
    assert sampler.rounds.tolist() == [6] * 4
    assert sampler.transitions.sum(axis=(1, 2)).tolist() == [5] * 4


def test_the_preset_population_runs() -> None:
    """A hundred clients of the paper's simulator: some of the correlated, seldom online ones are dropped."""
    people = population("equal", np.linspace(0, 3, 40).tolist(), heterogeneous(40), clients=40)
    sampler = CAFed(0.1, floor="zero")
    result = turnout.simulate(task(), people, FedAvg(WORK, sampler), 30, plan=EXACT)
    assert result.audit.events["excluded"] > 0
    assert 0 < sampler.excluded.sum() < 40


def test_it_is_found_by_its_name() -> None:
    assert registry.find("sampler", "cafed") is CAFed


def test_what_cannot_be() -> None:
    for options, words in (
        ({"floor": "mean"}, "sampler.floor: unknown name 'mean'"),
        ({"floor": "local_optimum"}, "sampler.optima: floor local_optimum; local_optimum needs them"),
        ({"optima": 1.0}, "sampler.optima: floor running_min"),
        ({"loss_smoothing": 0.0}, r"sampler\.loss_smoothing: 0.0 must be above 0"),
        ({"bias_weight": -1.0}, r"sampler\.bias_weight: -1.0 must be at least 0"),
        ({"tolerance": np.inf}, r"sampler\.tolerance: inf"),
        ({"max_excluded_fraction": 1.2}, r"sampler\.max_excluded_fraction: 1.2"),
        ({"batch_size": 0}, r"batch_size: 0"),
    ):
        with pytest.raises(UserError, match=words):
            CAFed(**options).sample(server())
    with pytest.raises(UserError, match="cafed depends on the losses"):
        statistics(CAFed(), population([0.5, 0.5]))


def test_who_has_left_has_no_say_in_the_mean() -> None:
    """A client that never spoke counts as the mean of the members, not of those who have left."""
    sampler, where = CAFed(floor="zero"), server_of([0.25] * 4)
    sampler.sample(where)
    sampler.losses = np.array([1.0, 1.0, 100.0, np.nan])
    where.version, where.importance = 1, np.array([0.4, 0.4, 0.0, 0.2])
    sampler.ask = lambda _server, _here: (np.zeros(0, np.int64), np.zeros(0))  # type: ignore[assignment, method-assign]
    sampler.sample(where)
    assert sampler.gaps(np.arange(4))[3] == 1.0


@pytest.mark.parametrize("sampler", [CAFed(), turnout.samplers.PowerOfChoice(2, candidates=4)])
def test_reports_are_not_waited_for_beyond_the_deadline(sampler: Sampler) -> None:
    """Half of the jobs die, and nobody learns of it: only a deadline ends the wait."""
    people = replace(population([0.25] * 4), crashes=turnout.Crashes(0.5), detection=turnout.Detection("none"))
    algorithm = turnout.FedAvg(LocalSGD(0.1, steps=1, batching="full"), sampler, deadline=5.0)
    result = turnout.simulate(task(), people, algorithm, rounds=6)
    assert result.server.version == 6
    assert result.server.now <= 60
    assert result.rounds()["arrived"].sum() > 0
