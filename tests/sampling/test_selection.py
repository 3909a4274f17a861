"""Edge cases of selection: too many, too few, twice, never, offline, nobody."""

from __future__ import annotations

import numpy as np
import pytest
from small_server import EXAMPLE_A, drawn_law, near, population, sample, server_of, task, weights_of

import turnout
from turnout import MD, Bernoulli, FedAvg, Full, LocalSGD, Plan, Uniform, UserError
from turnout.core import random
from turnout.samplers import Fill, Renormalised
from turnout.sampling._sampler import Sampler, Selection, Subset
from turnout.server.observer import Observer, Round
from turnout.server.server import Server

SUBSETS: list[type[Subset]] = [Uniform, Fill, Renormalised]
SCHEMES: list[Sampler] = [Full(), MD(2), Uniform(2), Fill(2), Renormalised(2)]
FLOAT64 = Plan(precision="float64", threads=1)


def one_step(sampler: Sampler, server_lr: float = 1.0) -> FedAvg:
    return FedAvg(LocalSGD(0.5, steps=1, batching="full"), sampler, server_lr)


@pytest.mark.parametrize("scheme", SUBSETS)
def test_more_draws_than_clients(scheme: type[Subset]) -> None:
    """client-sampling.md 3.13: m > n is refused without replacement and legal with it."""
    server = server_of(EXAMPLE_A)
    with pytest.raises(UserError, match=r"sampler\.clients_per_round: 5 must be from 1 to the 4 clients"):
        scheme(5).sample(server)
    weights = MD(7).sample(server).weights
    assert weights.sum() == pytest.approx(1)
    assert weights * 7 == pytest.approx(np.rint(weights * 7))


def test_as_many_draws_as_clients() -> None:
    """client-sampling.md 3.13: with m = n, Uniform is full participation and MD is still random."""
    server = server_of(EXAMPLE_A)
    everybody = weights_of(Full().sample(server), 4)
    assert everybody.tolist() == list(EXAMPLE_A)
    for version in range(20):
        for scheme in SUBSETS:
            assert weights_of(sample(scheme(4), server, version), 4) == pytest.approx(everybody, rel=1e-15)
    drawn = {tuple(weights_of(sample(MD(4), server, version), 4)) for version in range(20)}
    assert len(drawn) > 5


def test_client_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """client-sampling.md 3.13: weight 2/m, trained once."""
    monkeypatch.setattr(random, "uniform", lambda *_: np.array([0.5, 0.95, 0.5]))  # clients 1, 3, 1
    chosen = MD(3).sample(server_of(EXAMPLE_A))
    assert chosen.clients.tolist() == [1, 3]
    assert chosen.weights == pytest.approx([2 / 3, 1 / 3])


def test_drawn_twice_is_one_job() -> None:
    """client-sampling.md 3.13: over a run, every client has one job a round, and the weights are multiples of 1/m."""
    people = population(EXAMPLE_A)
    jobs = turnout.simulate(task(), people, one_step(MD(6)), rounds=10).jobs()
    assert len(set(zip(jobs["round"], jobs["client"], strict=True))) == len(jobs["round"]) < 60
    assert jobs["weight"] * 6 == pytest.approx(np.rint(jobs["weight"] * 6))
    assert jobs["weight"].max() > 1 / 6 + 1e-9


def test_client_without_importance() -> None:
    """client-sampling.md 3.13: p_i = 0 is never drawn and does not count in n."""
    server = server_of([0.5, 0.0, 0.3, 0.2])
    for sampler in (Full(), MD(3), Uniform(2), Fill(2), Renormalised(2)):
        for version in range(200):
            assert 1 not in sample(sampler, server, version).clients
    assert sample(Uniform(3), server, 0).weights.sum() == pytest.approx(1)  # n = 3: all who matter
    with pytest.raises(UserError, match="from 1 to the 3 clients"):
        Uniform(4).sample(server)
    law = drawn_law(Uniform(1), server, 3000)
    assert near(law.weights, np.array([0.5, 0.0, 0.3, 0.2]))


@pytest.mark.parametrize("sampler", SCHEMES)
def test_draws_are_keyed_by_seed_and_round(sampler: Sampler) -> None:
    """Whatever was asked before, in whichever order, a round's draw is the same; another seed draws another."""
    server = server_of(EXAMPLE_A, seed=1)
    forwards = [weights_of(sample(sampler, server, version), 4).tolist() for version in range(30)]
    server.online().contains(np.array([3, 1]))
    server.online().sample(2, 9, "somebody else", 0)
    backwards = [weights_of(sample(sampler, server, version), 4).tolist() for version in reversed(range(30))]
    assert forwards == backwards[::-1]
    fresh = server_of(EXAMPLE_A, seed=1)
    assert weights_of(sample(sampler, fresh, 17), 4).tolist() == forwards[17]
    if not isinstance(sampler, Full):
        other = server_of(EXAMPLE_A, seed=2)
        assert [weights_of(sample(sampler, other, version), 4).tolist() for version in range(30)] != forwards


@pytest.mark.parametrize("algorithm", [turnout.FedProx, turnout.Scaffold, turnout.FedAdam])
def test_the_same_clients_meet_every_algorithm(algorithm: type[FedAvg]) -> None:
    """Paired draws: who is selected depends on seed and round only."""

    def selected(run: FedAvg) -> list[tuple[int, int]]:
        jobs = turnout.simulate(task(), population(EXAMPLE_A), run, rounds=6).jobs()
        return sorted(zip(jobs["round"].tolist(), jobs["client"].tolist(), strict=True))

    local = LocalSGD(0.5, steps=1, batching="full")
    assert selected(algorithm(local, MD(2))) == selected(one_step(MD(2)))


@pytest.mark.parametrize("sampler", SCHEMES)
def test_only_online_clients_are_selected(sampler: Sampler) -> None:
    """With Bernoulli availability nobody offline is selected, and whoever is online and asked for is."""
    presence = Bernoulli(0.5)
    server = server_of("equal", availability=presence, clients=8)
    for version in range(200):
        online = np.flatnonzero(presence.online(server.population.seed, np.arange(8), version))
        chosen = sample(sampler, server, version)
        assert set(chosen.clients.tolist()) <= set(online.tolist())
        wanted = len(online) if isinstance(sampler, Full) else min(2, len(online))
        if isinstance(sampler, MD):
            assert chosen.weights.sum() == pytest.approx(1 if len(online) else 0)
        else:
            assert len(chosen.clients) == wanted


def test_uniform_stays_unbiased_when_everybody_is_absent_alike() -> None:
    """Equal availability q: E[omega_i] = p_i P(somebody is online) = p_i (1 - (1 - q)^n), however few are online.

    Given k > 0 online, min(m, k) are drawn with weight n p_i / min(m, k), and P(i drawn) = min(m, k) / n.
    """
    p = np.array(EXAMPLE_A)
    law = drawn_law(Uniform(3), server_of(EXAMPLE_A, availability=Bernoulli(0.4)), 6000)
    assert near(law.weights, p * (1 - 0.6**4))


def test_md_redraws_the_absent() -> None:
    """Given who is online, MD draws i with probability p_i / (importance online)."""
    presence = Bernoulli(0.6)
    server, p = server_of(EXAMPLE_A, availability=presence), np.array(EXAMPLE_A)
    law = drawn_law(MD(2), server, 6000)
    online = np.array([presence.online(0, np.arange(4), version) for version in range(6000)])
    share = np.where(online, p, 0) / np.maximum((online @ p)[:, None], 1e-300)
    assert near(law.weights - share, 0.0)


@pytest.mark.parametrize("sampler", SCHEMES)
def test_nobody_online_is_an_empty_round(sampler: Sampler) -> None:
    """client-sampling.md 3.13: an empty selection keeps the model and is logged; the clock goes on by `retry`."""
    people = population(EXAMPLE_A, availability=Bernoulli(0.0))
    algorithm = one_step(sampler)
    algorithm.retry = 2.5
    point = task()
    result = turnout.simulate(point, people, algorithm, rounds=3)
    assert result.audit.events == {"empty_round": 3}
    assert result.model.equal(point.initial)
    assert result.rounds()["time"].tolist() == [0, 2.5, 5, 7.5]
    assert result.rounds()["invited"].tolist()[1:] == [0, 0, 0]
    assert result.audit.never_heard.tolist() == [0, 1, 2, 3]


class Moves(Observer):
    """What the model did in every round, and the sum of weights it did it with."""

    def __init__(self) -> None:
        self.before = 0.0
        self.rows: list[tuple[float, float]] = []

    def on_round(self, server: Server, record: Round) -> None:
        self.rows.append((float(server.model[0]) - self.before, float(record.weights.sum())))
        self.before = float(server.model[0])


@pytest.mark.parametrize("sampler", SCHEMES)
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_equal_updates(sampler: Sampler, server_lr: float) -> None:
    """client-sampling.md O14: if all updates are v, MD moves by server_lr v, Uniform by that times sum omega."""
    moves, v = Moves(), 0.5 * 3.0  # one step of rate 1/2 from 0 towards 3
    experiment = turnout.Experiment(
        task(), population(EXAMPLE_A, optima=[3.0] * 4), one_step(sampler, server_lr), seed=2, plan=FLOAT64
    )
    experiment.stopping = turnout.Stopping(1)
    turnout.execute(experiment, observers=[moves])
    (moved, total), *_ = moves.rows
    assert moved == pytest.approx(server_lr * v * total, rel=1e-15)
    if isinstance(sampler, MD | Full | Renormalised):
        assert total == pytest.approx(1, rel=1e-15)
    else:
        assert abs(total - 1) > 1e-3


def test_fill_is_uniform_with_a_smaller_rate() -> None:
    """client-sampling.md 3.11: Fill is Uniform with server_lr = m / n, bit for bit when that is a power of 2."""
    people = population(EXAMPLE_A)
    fill = turnout.simulate(task(), people, one_step(Fill(2)), rounds=25, plan=FLOAT64)
    uniform = turnout.simulate(task(), people, one_step(Uniform(2), server_lr=0.5), rounds=25, plan=FLOAT64)
    assert fill.model.equal(uniform.model)
    assert 0 < float(fill.model[0]) < 3


def test_weights_follow_the_clients_that_answered() -> None:
    selection = Selection(np.array([7, 2, 5]), np.array([0.7, 0.2, 0.5]))
    assert selection.weights_of(np.array([5, 7])).tolist() == [0.5, 0.7]
    assert selection.weights_of(np.array([], np.int64)).tolist() == []


def test_md_when_everybody_has_left() -> None:
    """All members gone: MD selects nobody, as Full does."""
    server = server_of(EXAMPLE_A)
    people = population(EXAMPLE_A)
    server.population = turnout.Population(
        people.inputs, people.targets, people.train, importance=EXAMPLE_A, left_at=np.zeros(4)
    )
    server.importance = server.population.importance_at(1.0)
    assert len(Full().sample(server).clients) == 0
    assert len(MD(2).sample(server).clients) == 0
