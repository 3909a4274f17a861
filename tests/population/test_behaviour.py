"""Free-riders and attackers: what they send, whom it is told by, and what becomes of the average."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch

import turnout
from support import SIZES, Idle, experiment, local, mlp, population, quadratic_loss, simulation, theta
from turnout import KEEP, FedAvg, FedProx, Full, LocalSGD, Population, Ragged, Simulation, Stopping, Task, UserError
from turnout.algorithms._algorithm import Algorithm
from turnout.clients import behaviour
from turnout.clients.adversary import LargestNorm
from turnout.clients.behaviour import Behaviour, DisguisedDecay, FreeRider, LittleIsEnough, estimate
from turnout.core.random import key, normal
from turnout.local.modifiers import Proximal
from turnout.server.observer import Observer, Round
from turnout.server.server import Server
from turnout.server.updates import Updates
from turnout_studies.theory.free_riding import FreeRiding, ou_map

WIDE = 20_000  # parameters of the model that noise is measured on


def with_liars(lies: Behaviour | None, algorithm: Algorithm, rounds: int = 1, **columns: Any) -> Simulation:
    people = population(behaviour=lies, **columns)
    plan = turnout.Plan(precision="float64", threads=1)
    server = simulation(algorithm, people, stopping=Stopping(rounds), plan=plan)
    server.run()
    return server


class Rows(Observer):
    """Keeps every update of every step."""

    def __init__(self) -> None:
        self.steps: list[tuple[np.ndarray, torch.Tensor]] = []

    def on_step(self, server: Server, updates: Updates, weights: np.ndarray) -> np.ndarray:
        self.steps.append((updates.clients, updates.deltas.clone()))
        return weights


class Near(Observer):
    """Stops where three tenths of the way from 3 to 2 is left."""

    def on_round(self, server: Server, record: Round) -> None:
        if abs(float(server.model) - 2) < 0.3:
            server.stopped = "near"


def optima(size: int = WIDE) -> torch.Tensor:
    """Of three clients with quadratics in many dimensions."""
    return torch.from_numpy(normal(key(1, "optima", np.arange(3)), size)).float()


def uploads(lies: Behaviour, rounds: int, size: int = WIDE) -> list[torch.Tensor]:
    """What each round's clients send, by client; the honest move by a tenth of the way to their optima."""
    rows = Rows()
    server = Simulation(
        Task(lambda: theta(size), quadratic_loss, metrics={}),
        Population(torch.ones(3, 1), optima(size), Ragged.from_rows([[0], [1], [2]]), behaviour=lies),
        FedAvg(LocalSGD(0.1), Full()),
        stopping=Stopping(rounds),
        observers=[rows],
        evaluation=turnout.Evaluation(rounds=None, clients=1),
    )
    server.run()
    return [deltas[np.argsort(ids)] for ids, deltas in rows.steps]


# -- plain free-riders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedAvg, FedProx])
def test_a_plain_round_is_a_mixture_of_the_fair_average_and_the_model(kind: type[FedAvg]) -> None:
    """O1 and O2: the free-riders' share of the declared samples stays where it was, which can be undone."""
    riders = [1, 4]
    lies = FreeRider(clients=riders, declared_samples=40)
    attacked = with_liars(lies, kind(local(), Full()))
    honest = np.array([size if i not in riders else 0 for i, size in enumerate(SIZES)], float)
    fair = with_liars(None, kind(local(), Full()), importance=honest / honest.sum())
    start, share = attacked.task.initial, 80 / (honest.sum() + 80)
    assert attacked.importance[riders].sum() == pytest.approx(share)
    torch.testing.assert_close(attacked.model, (1 - share) * fair.model + share * start, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close((attacked.model - share * start) / (1 - share), fair.model, rtol=1e-9, atol=1e-12)


def test_nobody_but_free_riders_leaves_the_model_where_it_is() -> None:
    """O12."""
    server = with_liars(FreeRider(share=1.0), FedAvg(local(), Full()), 3)
    assert torch.equal(server.model, server.task.initial)


def test_free_riders_slow_training_down_as_predicted() -> None:
    """O13: rounds until three tenths of the distance is left, when a round goes a little of the way: 2 and 10 times."""
    rounds = {}
    for riders in (0, 5, 45):
        targets = torch.cat([torch.arange(5.0), torch.zeros(riders)])[:, None]
        people = Population(
            torch.ones(5 + riders, 1),
            targets,
            Ragged.from_rows([[i] for i in range(5 + riders)]),
            behaviour=FreeRider(clients=list(range(5, 5 + riders))),
        )
        task = Task(theta, quadratic_loss, metrics={}).starting_from(torch.tensor([3.0]))
        server = Simulation(
            task, people, FedAvg(LocalSGD(0.05), Full()), stopping=Stopping(5000), observers=[Near()],
            plan=turnout.Plan(precision="float64", threads=1), evaluation=turnout.Evaluation(rounds=None, clients=1),
        )  # fmt: skip
        server.run()
        rounds[riders] = server.version
    predicted = FreeRiding([1] * 5, 0.95, 0.0, range(5), [1] * 45)
    assert rounds[45] == math.ceil(predicted.rounds_to(0.3))
    assert rounds[5] == pytest.approx(2 * rounds[0], rel=0.15)
    assert rounds[45] == pytest.approx(10 * rounds[0], rel=0.15)


# -- disguises ----------------------------------------------------------------------------------------------------


def test_disguise_noise() -> None:
    """O10: mean 0, standard deviation phi(t) = sigma max(t, 1)^-gamma, independent between riders and rounds; the
    honest client's update is left alone. sigma is the root mean square of what the model first changed by."""
    many = 100_000
    sent = uploads(DisguisedDecay(clients=[1, 2], decay=0.5, scale=3.0), 3, many)
    sigma = float(sent[0].mean(0).square().mean().sqrt())
    assert float(sent[0][1].std()) == pytest.approx(1e-3, rel=0.01)
    for t, rows in enumerate(sent[1:], 1):
        for rider in (1, 2):
            assert float(rows[rider].std()) == pytest.approx(3 * sigma * t**-0.5, rel=0.01)
            assert abs(float(rows[rider].mean())) < 4 * float(rows[rider].std()) / math.sqrt(many)
    noise = torch.stack([rows[rider] for rows in sent for rider in (1, 2)])
    correlations = torch.corrcoef(noise)[~torch.eye(len(noise), dtype=torch.bool)]
    assert float(correlations.abs().max()) < 4 / math.sqrt(many)
    torch.testing.assert_close(sent[0][0], 0.1 * optima(many)[0], rtol=1e-5, atol=1e-6)


def test_estimators() -> None:
    """O11."""
    change = torch.from_numpy(normal(key(1, "change"), 1_000_000))[None] * 0.3
    assert estimate(change)[0] == pytest.approx(0.3, rel=0.005)
    assert estimate(change, "mean_abs")[0] == pytest.approx(0.7979 * 0.3, rel=0.005)


def test_other_disguises() -> None:
    """Constant noise, that of SGD under a guess, and a floor under noise that falls."""
    constant = uploads(behaviour.DisguisedConstant(clients=[0], std=0.02), 2)
    assert [float(rows[0].std()) for rows in constant] == pytest.approx([0.02, 0.02], rel=0.03)
    lies = behaviour.DisguisedSGDLike(clients=[0], curvature=2.0, grad_noise=3.0, declared_samples=64)
    expected = ou_map(0.1, 2.0, 2, 3.0, 32).variance  # 64 samples declared: two batches of 32
    assert float(uploads(lies, 1)[0][0].var()) == pytest.approx(expected, rel=0.05)
    floored = uploads(DisguisedDecay(clients=[0], floor=0.5), 3)
    assert float(floored[2][0].std()) == pytest.approx(0.5, rel=0.03)


def test_sgd_like_noise_knows_of_fedprox() -> None:
    lies = behaviour.DisguisedSGDLike(clients=[0], curvature=2.0)
    lies.begin(3, 0)
    server = simulation(Idle(), population((9, 9, 9)))
    server.invite([0], local(lr_decay=0.5).modified(Proximal(4.0)))
    (level,) = lies.levels(server.wait())
    assert level**2 == pytest.approx(ou_map(0.1, 2.0, 6, 1.0, 4, 4.0).variance)


def test_time_is_the_round_or_the_riders_own() -> None:
    """A rider that is asked for the second time in round 3 goes by either clock."""

    def level(clock: Literal["round", "job"]) -> float:
        lies = DisguisedDecay(clients=[0], clock=clock)
        server = simulation(Idle(), replace(population(), behaviour=lies))
        server.invite([0], local())
        server.wait()
        server.version, server.model = 3, server.model + 1
        server.invite([0], local())
        deltas = server.wait().deltas
        assert server.behaviour is not None
        return float(deltas.std())

    assert level("job") == pytest.approx(3 * level("round"), rel=1e-5)


def test_replay_sends_what_it_has_seen() -> None:
    sent = uploads(behaviour.Replay(clients=[2], scale=2.0), 3)
    assert not sent[0][2].any()
    for before, now in pairwise(sent):
        torch.testing.assert_close(now[2], 2 * before.mean(0), rtol=1e-4, atol=1e-5)


# -- attackers ----------------------------------------------------------------------------------------------------


def test_signs_and_gaussian_noise() -> None:
    honest = uploads(FreeRider(clients=[0]), 1)[0]
    flipped = uploads(behaviour.SignFlip(clients=[1], factor=-2.0), 1)[0]
    torch.testing.assert_close(flipped[1], -2 * honest[1])
    noisy = uploads(behaviour.GaussianNoise(clients=[1], scale=5.0), 1)[0]
    assert float(noisy[1].norm()) == pytest.approx(5 * float(honest[1].norm()), rel=0.03)
    assert abs(float(torch.cosine_similarity(noisy[1], honest[1], 0))) < 4 / math.sqrt(WIDE)


def test_little_is_enough() -> None:
    """All liars send the same, z standard deviations off their own mean; the paper's z for 50 invited and 24 liars is
    that of 26 - 2 of 26: 1.43. Alone, a liar sends what it computed."""
    honest = uploads(FreeRider(clients=[0]), 1)[0][1:]
    lies = LittleIsEnough(clients=[1, 2], z=0.5)
    for row in uploads(lies, 1)[0][1:]:
        torch.testing.assert_close(row, honest.mean(0) - 0.5 * honest.std(0, correction=0))
    assert LittleIsEnough(share=0.5).deviations(50, 24) == pytest.approx(1.426, abs=1e-3)
    assert LittleIsEnough(share=0.5).deviations(10, 2) == 0
    alone = uploads(LittleIsEnough(clients=[1], z=0.5), 1)[0]
    torch.testing.assert_close(alone[1], honest[0])


# -- who, when, and with whom -------------------------------------------------------------------------------------


def test_who_lies() -> None:
    lies = FreeRider(share=0.25)
    assert len(lies.who(8, 1)) == 2
    assert not all(np.array_equal(lies.who(8, 1), lies.who(8, seed)) for seed in range(2, 6))
    assert FreeRider(clients=[4, 1, 4]).who(8, 1).tolist() == [1, 4]
    assert not len(FreeRider(share=0.0).who(8, 1))


def test_lies_begin_in_their_round() -> None:
    sent = uploads(FreeRider(clients=[1], begins=2), 3)
    assert [bool(rows[1].any()) for rows in sent] == [True, True, False]


def test_declared_samples_count_in_importance_and_in_updates() -> None:
    people = population(behaviour=FreeRider(clients=[0], declared_samples=18))
    assert people.base_importance[0] == pytest.approx(18 / (sum(SIZES) - 3 + 18))
    assert people.declared.tolist() == [18, *SIZES[1:]]
    server = simulation(Idle(), people)
    server.invite([0, 1], local())
    assert dict(zip((found := server.wait()).clients.tolist(), found.samples.tolist(), strict=True)) == {0: 18, 1: 17}


def test_a_rider_that_keeps_its_model_goes_on_from_what_it_sent() -> None:
    server = simulation(Idle(), replace(population(), behaviour=FreeRider(clients=[0])))
    for model in (None, KEEP):
        server.invite([0], local(), model)
        updates = server.wait()
        assert torch.equal(updates.returned()[0], server.task.initial)


def test_an_adversary_sees_what_is_sent() -> None:
    """The longest update is silenced: that of the liar, who made it long."""
    people = population(
        behaviour=behaviour.SignFlip(clients=[3], factor=-1000.0), importance="equal", adversary=LargestNorm(0.2)
    )
    server = simulation(Idle(), people)
    server.invite(server.population.ids, local())
    assert server.wait().failed.clients.tolist() == [3]


def test_reports_pass() -> None:
    """Updates are forged, reports are not: a sampler that asks for losses hears the same."""
    plan = experiment(
        "fedavg", 2, algorithm=turnout.FedAvg(local(), turnout.samplers.PowerOfChoice(3)), people=population()
    )
    lies = replace(plan.population, behaviour=FreeRider(share=1.0))
    result = turnout.execute(replace(plan, population=lies))
    assert torch.equal(result.model, Task(mlp, seed=3).initial)


def test_mistakes() -> None:
    for make, words in (
        (lambda: FreeRider(), "either behaviour.clients or behaviour.share"),
        (lambda: FreeRider(clients=[1], share=0.1), "either"),
        (lambda: FreeRider(share=1.5), "from 0 to 1"),
        (lambda: FreeRider(share=0.5, declared_samples=0), "declared_samples: 0"),
        (lambda: FreeRider(share=0.5, begins=-1), "at least 0"),
        (lambda: DisguisedDecay(share=0.5, decay=-1.0), "behaviour.decay"),
        (lambda: DisguisedDecay(share=0.5, estimator="std"), "behaviour.estimator"),  # type: ignore[arg-type]
        (lambda: DisguisedDecay(share=0.5, clock="seconds"), "behaviour.clock"),  # type: ignore[arg-type]
        (lambda: behaviour.DisguisedConstant(share=0.5, std=0.0), "behaviour.std"),
        (lambda: behaviour.DisguisedSGDLike(share=0.5, curvature=0.0), "behaviour.curvature"),
        (lambda: behaviour.GaussianNoise(share=0.5, scale=-1.0), "behaviour.scale"),
        (lambda: simulation(Idle(), population(behaviour=FreeRider(clients=[8]))), "8 is not one of the 8 clients"),
    ):
        with pytest.raises(UserError, match=words):
            make()
