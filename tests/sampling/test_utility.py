"""Samplers that follow clients' losses: AFL and Oort, by numbers computed by hand."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_server import population, server_of, task

import turnout
from turnout import Bernoulli, FedAvg, LocalSGD, Plan, UserError
from turnout.sampling._sampler import Sampler
from turnout.sampling._statistics import statistics
from turnout.sampling.afl import AFL
from turnout.sampling.oort import Oort

WORK = LocalSGD(0.5, steps=1, batching="full")
EXACT = Plan(precision="float64", threads=1)
EIGHT = [1 / 8] * 8


def inclusion(sampler: Sampler, rounds: int = 4000, clients: int = 8) -> np.ndarray:
    """How often each client is chosen."""
    server, counts = server_of([1 / clients] * clients, seed=3), np.zeros(clients)
    for version in range(rounds):
        server.version = version
        chosen = copy.deepcopy(sampler).sample(server)
        assert len(set(chosen.clients.tolist())) == len(chosen.clients)
        assert chosen.weights.sum() == pytest.approx(1)
        counts[chosen.clients] += 1
    return counts / rounds


@pytest.mark.parametrize("sampler", [AFL(3), Oort(3)])
def test_at_first_all_are_alike(sampler: Sampler) -> None:
    assert inclusion(sampler) == pytest.approx(np.full(8, 3 / 8), abs=5 * 0.5 / math.sqrt(4000))


@pytest.mark.parametrize("cls", [AFL, Oort])
def test_losses_come_beside_the_updates(cls: Any) -> None:
    """At 0, client i's loss is i^2 / 2 and it has one sample; all are asked in the first round."""
    sampler = cls(8)
    turnout.simulate(task(), population(EIGHT), FedAvg(WORK, sampler), rounds=1, plan=EXACT)
    found = sampler.values if cls is AFL else sampler.losses
    assert found == pytest.approx(np.arange(8) ** 2 / 2)


@pytest.mark.parametrize("cls", [AFL, Oort])
def test_those_away_are_not_chosen(cls: Any) -> None:
    server, sampler = server_of([1 / 12] * 12, availability=Bernoulli(0.4)), cls(5)
    for version in range(50):
        server.version = version
        chosen = sampler.sample(server)
        assert server.online().contains(chosen.clients).all()
        assert len(chosen.clients) == min(5, server.online().count)


@pytest.mark.parametrize("cls", [AFL, Oort])
def test_a_loss_that_is_not_finite_is_worth_nothing(cls: Any) -> None:
    sampler = cls(8)
    server = server_of(EIGHT)
    sampler.sample(server)

    class Answers:
        clients, samples, versions = np.arange(8), np.ones(8), np.zeros(8, int)
        arrived_at, sent_at = np.ones(8), np.zeros(8)

        def __len__(self) -> int:
            return 8

        def __getitem__(self, _: str) -> Any:
            import torch

            return torch.tensor([math.nan, math.inf, 1, 1, 1, 1, 1, 1])

    sampler.observe(Answers())
    found = sampler.values if cls is AFL else sampler.losses
    assert found.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("cls", [AFL, Oort])
def test_statistics_are_refused(cls: Any) -> None:
    with pytest.raises(UserError, match="no statistics beforehand"):
        statistics(cls(2), population(EIGHT))


# -- AFL ------------------------------------------------------------------------------------------------------


def test_afl_draws_by_softmax_of_the_values_kept() -> None:
    """Half are dropped; of the others one is drawn with P ~ exp(0.5 v)."""
    sampler = AFL(1, drop=0.5, temperature=0.5, explore=0.0)
    sampler.values = np.array([1.0, 0, 3, 2, 5, 4, 7, 6])
    expected = np.where(sampler.values >= 4, np.exp(0.5 * sampler.values), 0)
    assert inclusion(sampler) == pytest.approx(expected / expected.sum(), abs=5 * 0.5 / math.sqrt(4000))


def test_afl_values_are_losses_on_much_data() -> None:
    """sqrt(n_k) times the mean loss."""
    people = turnout.Population.of(turnout.datasets.load("digits"), 6, "gaussian_sizes", test="none")
    sampler = AFL(6)
    learner = turnout.Task(lambda: turnout.models.linear(64, 10, zero_init=True))
    turnout.simulate(learner, people, FedAvg(LocalSGD(0.1), sampler), rounds=1, plan=EXACT)
    assert sampler.values == pytest.approx(np.sqrt(people.train.counts) * math.log(10))


def test_afl_prefers_those_never_heard() -> None:
    """Infinite value: before anybody else, and not by softmax."""
    sampler = AFL(2, explore=0.0)
    sampler.values = np.array([np.inf, 9, 9, 9, 9, 9, 9, np.inf])
    assert inclusion(sampler, 50).tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
    sampler = AFL(6, explore=0.0)  # none of them is among those dropped, however many they are
    sampler.values = np.array([np.inf, 9, 9, *[np.inf] * 5])
    assert inclusion(sampler, 50).tolist() == [1, 0, 0, 1, 1, 1, 1, 1]


def test_afl_does_not_wait_for_those_who_never_answer() -> None:
    """Ten of forty always crash. Asked once, they are worth nothing until they answer."""
    people = replace(population("equal", clients=40), crashes=turnout.Crashes(np.repeat([0.0, 1.0], [30, 10])))
    result = turnout.simulate(task(), people, FedAvg(LocalSGD(0.1, steps=1), AFL(10)), rounds=30)
    assert (result.rounds()["arrived"][-15:] >= 6).all()


def test_afl_gives_some_places_to_anybody() -> None:
    """Two of four places are drawn from the better half, equally at this temperature, two from the other six."""
    sampler = AFL(4, drop=0.5, temperature=0.0, explore=0.5)
    sampler.values = np.arange(8.0)
    expected = np.repeat([1 / 3, 1 / 2 + 1 / 2 * 1 / 3], 4)
    assert inclusion(sampler) == pytest.approx(expected, abs=5 * 0.5 / math.sqrt(4000))


def test_afl_fills_up_when_too_few_are_kept() -> None:
    sampler = AFL(5, drop=0.75, explore=0.0)
    sampler.values = np.arange(8.0)
    found = inclusion(sampler, 200)
    assert found[6:].tolist() == [1, 1]
    assert found.sum() == pytest.approx(5)


# -- Oort -----------------------------------------------------------------------------------------------------


def tried(sampler: Oort, losses: Any, seconds: Any, last: Any) -> Oort:
    sampler.losses, sampler.seconds, sampler.last = np.array(losses, float), np.array(seconds, float), np.array(last)
    return sampler


def test_oort_utility_by_hand() -> None:
    """Round 10: loss + sqrt(0.1 ln 10 / last), times (T / t)^2 where t is above T."""
    sampler = tried(Oort(2, preferred_seconds=2.0), [1, 1, 4], [1, 4, 2], [9, 9, 1])
    bonus = math.sqrt(0.1 * math.log(10) / 9)
    expected = [1 + bonus, (1 + bonus) / 4, 4 + math.sqrt(0.1 * math.log(10))]
    assert sampler.utility(np.arange(3), 10).tolist() == pytest.approx(expected)
    assert sampler.utility(np.arange(3), 1).tolist() == pytest.approx([1, 0.25, 4])  # log 1: no bonus
    sampler.preferred_seconds = None  # the median of 1, 2 and 4
    assert sampler.utility(np.arange(3), 10).tolist() == pytest.approx(expected)


def test_oort_draws_by_utility_among_the_good_enough() -> None:
    """One place: only clients with 95 % of the best utility, in proportion to it."""
    sampler = Oort(1, explore=0.0, least_explore=0.0)
    tried(sampler, [100, 96, 94, 1, 1, 1, 1, 1], [1] * 8, [4000] * 8)
    found = inclusion(sampler)
    assert found[2:].tolist() == [0] * 6
    assert found[:2] == pytest.approx(np.array([100, 96]) / 196, abs=5 * 0.5 / math.sqrt(4000))


def test_oort_explores_less_and_less() -> None:
    """9 of 10 places, times 0.98 a round, never fewer than 2."""
    sampler, server = Oort(10), server_of([1 / 40] * 40)
    tried(sampler, [1] * 20 + [0] * 20, [1] * 40, [1] * 20 + [0] * 20)
    for version, places in ((0, 9), (10, round(9 * 0.98**10)), (200, 2)):
        server.version = version
        assert (sampler.sample(server).clients >= 20).sum() == places
    tried(sampler, [1] * 40, [1] * 40, [1] * 39 + [0])  # one new client is left
    assert 39 in sampler.sample(server).clients
    assert len(sampler.sample(server).clients) == 10


def test_oort_remembers_times_and_rounds() -> None:
    people = population(EIGHT)
    people = turnout.Population(
        people.inputs, people.targets, people.train, devices=turnout.devices.table(np.arange(1.0, 9))
    )
    sampler = Oort(8)
    turnout.simulate(task(), people, FedAvg(WORK, sampler), rounds=3, plan=EXACT)
    assert sampler.seconds == pytest.approx(np.arange(1, 9))
    assert sampler.last.tolist() == [3] * 8


@pytest.mark.parametrize(
    ("cls", "options", "words"),
    [
        (AFL, {"clients_per_round": 0}, r"sampler\.clients_per_round: 0 must be at least 1"),
        (AFL, {"drop": 1.5}, r"sampler\.drop: 1\.5 must be from 0 to 1"),
        (AFL, {"temperature": -1.0}, r"sampler\.temperature: -1\.0 must be at least 0"),
        (Oort, {"clients_per_round": 0}, r"sampler\.clients_per_round: 0 must be at least 1"),
        (Oort, {"cutoff": -0.1}, r"sampler\.cutoff: -0\.1 must be from 0 to 1"),
        (Oort, {"penalty": -2.0}, r"sampler\.penalty: -2\.0 must be at least 0"),
        (Oort, {"preferred_seconds": 0.0}, r"sampler\.preferred_seconds: 0\.0 must be above 0"),
    ],
)
def test_mistakes(cls: Any, options: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        cls(**options)
