"""Who is silenced, within which budget, and what becomes of their jobs.

Su, Xu, Yang, "Federated learning in the presence of adversarial client unavailability", 2023: oracles O3 and O12.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import SIZES, conv, images, local, population, simulation
from turnout import Crashes, Detection, FedAvg, Full, Plan, Population, Stopping, Uniform, UserError
from turnout.clients.adversary import Adversary, LargestNorm, Random, Room, Silence, Starve, WorstCase
from turnout.config import config
from turnout.core.random import FloatArray, IntArray, key, normal
from turnout.engine.blocks import Block
from turnout.server.jobs import Job
from turnout.server.observer import Event, Observer, Round
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.updates import Updates
from turnout_studies.theory.unavailability import selection_bias

EVERYBODY = list(range(len(SIZES)))
ADVERSARIES: list[type[Adversary]] = [Random, LargestNorm, WorstCase, Starve]
EXACT = Plan(precision="float64", threads=1)


def make(kind: type[Adversary], budget: float, **options: Any) -> Adversary:
    return Silence(budget, EVERYBODY, **options) if kind is Silence else kind(budget, **options)


class Watch(Observer):
    """What was silenced and what came of it, round by round."""

    def __init__(self) -> None:
        self.silenced: dict[int, tuple[list[int], float]] = {}
        self.jobs: dict[int, list[Job]] = {}

    def on_event(self, server: Server, event: Event) -> None:
        if event.kind == "silenced":
            assert event.round not in self.silenced
            self.silenced[event.round] = event.facts["clients"], event.facts["share"]

    def on_round(self, server: Server, record: Round) -> None:
        self.jobs[record.number - 1] = list(record.jobs)


def watched(
    adversary: Adversary, rounds: int = 12, people: Population | None = None, **options: Any
) -> tuple[Watch, Simulation]:
    watch = Watch()
    algorithm = options.pop("algorithm", None) or FedAvg(local(), Uniform(5))
    people = replace(people or population(), adversary=adversary)
    server = simulation(algorithm, people, stopping=Stopping(rounds), observers=[watch], **options)
    server.run()
    return watch, server


# -- the budget -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.0, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("kind", [*ADVERSARIES, Silence])
def test_the_budget_is_never_exceeded_and_somebody_answers(kind: type[Adversary], budget: float) -> None:
    """O12, of clients with 1 to 25 samples: epsilon_t is what the samples say."""
    watch, _ = watched(make(kind, budget))
    assert bool(watch.silenced) == (budget > 0)
    for number, jobs in watch.jobs.items():
        silenced, share = watch.silenced.get(number, ([], 0.0))
        assert sorted(job.client for job in jobs if job.outcome == "silenced") == sorted(silenced)
        samples = sum(SIZES[client] for client in silenced)
        assert share == pytest.approx(samples / (5 * sum(SIZES) / len(SIZES)))
        assert share <= budget + 1e-9
        assert sum(job.outcome == "arrived" for job in jobs) >= 1


@pytest.mark.parametrize("kind", ADVERSARIES)
def test_equal_clients_make_it_a_number_of_clients(kind: type[Adversary]) -> None:
    """|silenced| = epsilon K exactly, although 0.7 is no binary fraction."""
    watch, _ = watched(kind(0.7), people=population((4,) * 12), algorithm=FedAvg(local(), Uniform(10)))
    if kind is WorstCase:  # the worst set need not be the largest
        assert all(len(silenced) <= 7 for silenced, _ in watch.silenced.values())
    else:
        assert [len(silenced) for silenced, _ in watch.silenced.values()] == [7] * 12


def test_importance_is_what_counts() -> None:
    """With equal importance the budget is a number of clients, whatever their samples."""
    watch, _ = watched(Random(0.4), people=population(importance="equal"))
    assert all(len(silenced) == 2 and share == pytest.approx(0.4) for silenced, share in watch.silenced.values())


def test_a_client_heavier_than_the_budget_cannot_be_silenced() -> None:
    watch, _ = watched(Silence(0.3, [4]), people=population((2, 2, 2, 2, 40)), algorithm=FedAvg(local(), Full()))
    assert watch.silenced == {}
    watch, _ = watched(Silence(0.3, [4, 0]), people=population((2, 2, 2, 2, 40)), algorithm=FedAvg(local(), Full()))
    assert {tuple(silenced) for silenced, _ in watch.silenced.values()} == {(0,)}


@pytest.mark.parametrize("leave", [0, 1, 3])
def test_some_are_left(leave: int) -> None:
    watch, _ = watched(Random(1.0, leave=leave), people=population((4,) * 8))
    assert {len(silenced) for silenced, _ in watch.silenced.values()} == {5 - leave}


def test_only_answers_that_would_have_come_are_silenced() -> None:
    """Crashed clients are neither candidates nor among those left, but K counts them."""
    people = population((4,) * 8, crashes=Crashes(0.5))
    watch, _ = watched(Random(1.0), people=people, algorithm=FedAvg(local(), Full()))
    for number, jobs in watch.jobs.items():
        outcomes = [job.outcome for job in jobs]
        silenced, share = watch.silenced[number]
        assert outcomes.count("arrived") == 1
        assert len(silenced) == 8 - outcomes.count("crashed") - 1
        assert share == pytest.approx(len(silenced) / 8)


# -- whom they choose -----------------------------------------------------------------------------------------


def choose(adversary: Adversary, deltas: FloatArray, people: Population | None = None) -> list[int]:
    """Whom it silences of everybody, whose updates are given."""
    people = people or population((4,) * len(deltas))
    server = simulation(FedAvg(local()), replace(people, adversary=adversary), plan=EXACT)
    block = Block({"delta": torch.from_numpy(deltas)})

    def attach(jobs: list[Job], ahead: bool = False) -> None:  # noqa: ARG001
        for job in jobs:
            job.result = block, job.client

    server._train_alike = attach  # type: ignore[method-assign]
    server.invite(server.population.ids, local())
    return sorted(client for client, job in server._in_flight.items() if job.outcome == "silenced")


def updates_of(clients: int, number: int) -> FloatArray:
    return normal(key(number, "updates", np.arange(clients)), 4)


@pytest.mark.parametrize("number", range(6))
def test_the_worst_set_is_the_worst(number: int) -> None:
    """Against all sets, by hand, of clients of unequal samples; and the bias is bounded as O3 says."""
    deltas, p, epsilon = updates_of(8, number), np.array(SIZES) / sum(SIZES), 0.6
    silenced = choose(WorstCase(epsilon), deltas, population())

    def loss(members: tuple[int, ...]) -> float:
        return float(np.linalg.norm(p[list(members)] @ deltas[list(members)])) if members else 0.0

    legal = [d for k in range(8) for d in itertools.combinations(range(8), k) if p[list(d)].sum() <= epsilon]
    assert loss(tuple(silenced)) == pytest.approx(max(map(loss, legal)), rel=1e-12)
    lengths = np.square(deltas).sum(1)
    for d in legal:
        assert loss(d) ** 2 <= p[list(d)].sum() * (p @ lengths) + 1e-12
    gradient = float(np.linalg.norm(p @ deltas))
    spread = math.sqrt(p @ np.square(deltas - p @ deltas).sum(1))  # B = 1 at this point
    assert loss(tuple(silenced)) <= selection_bias(epsilon, gradient, G=spread)


def test_many_clients_are_taken_greedily() -> None:
    """Of 30 clients: never worse than the longest updates of one direction, and the exact set where there is one."""
    deltas = np.zeros((30, 2))
    deltas[:, 0] = 1 + np.arange(30) % 7
    deltas[::2, 0] *= -1
    worst = choose(WorstCase(0.2), deltas)
    assert len(worst) == 6
    assert abs(deltas[worst].sum(0)[0]) == np.sort(np.abs(deltas[deltas[:, 0] > 0, 0]))[-6:].sum()


def test_greedy_stops_where_nothing_is_gained() -> None:
    """One long update, and thirteen short ones against it."""
    deltas = np.concatenate([[[10.0]], np.full((13, 1), -0.1)])
    assert choose(WorstCase(0.9), deltas) == [0]


def test_the_longest_updates() -> None:
    deltas = updates_of(10, 1)
    assert choose(LargestNorm(0.3), deltas) == sorted(np.argsort(-np.linalg.norm(deltas, axis=1))[:3].tolist())


def test_an_update_that_is_not_finite_does_not_blind_anybody() -> None:
    deltas = updates_of(10, 1)
    deltas[3] = np.nan
    assert choose(LargestNorm(0.1), deltas) == [3]
    assert 3 not in choose(WorstCase(0.3), deltas)


def test_starving_keeps_some_from_ever_being_heard() -> None:
    """Random silence of as many hears everybody soon."""
    people, algorithm = population((4,) * 12), FedAvg(local(), Uniform(6))
    found = {}
    for kind in (Starve, Random):
        _, server = watched(kind(0.5), 40, people, algorithm=algorithm)
        found[kind] = int(server.heard.sum())
        if isinstance(server.adversary, Starve):
            assert ((server.adversary.heard > 0) == server.heard).all()
            assert server.adversary.heard.sum() == 40 * 3
    assert found[Random] == 12
    assert found[Starve] <= 8


def test_a_fixed_set_begins_and_ends_when_it_is_told_to() -> None:
    watch, _ = watched(Silence(1.0, [1, 6], begins=2, ends=5), 7, algorithm=FedAvg(local(), Full()))
    assert [(number, sorted(silenced)) for number, (silenced, _) in watch.silenced.items()] == [
        (2, [1, 6]),
        (3, [1, 6]),
        (4, [1, 6]),
    ]


def test_a_fixed_set_takes_turns_where_the_budget_is_small() -> None:
    watch, _ = watched(Silence(0.2, [0, 1, 2, 3]), 20, population((4,) * 8))
    seen = [tuple(silenced) for silenced, _ in watch.silenced.values()]
    assert {len(silenced) for silenced in seen} == {1}
    assert {client for (client,) in seen} == {0, 1, 2, 3}


def test_chance_depends_on_clients_and_their_job_numbers_alone() -> None:
    """Neither on the round, nor on the run's seed, nor on the order of an invitation; but on the population's seed."""

    def silenced(version: int = 0, seed: int = 0, world: int = 0, order: int = 1) -> list[int]:
        people = population((4,) * 20, seed=world, adversary=Random(0.5))
        server = simulation(FedAvg(local()), people, seed=seed)
        server.version = version
        server.invite(people.ids[::order], local())
        return sorted(client for client, job in server._in_flight.items() if job.outcome == "silenced")

    assert silenced() == silenced(version=3) == silenced(seed=9) == silenced(order=-1)
    assert silenced() != silenced(world=1)


@pytest.mark.parametrize("option", [{"budget": 1.5}, {"budget": -0.1}, {"leave": -1}, {"begins": -1}, {"ends": -2}])
def test_options_are_checked(option: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"adversary\.{next(iter(option))}"):
        Random(**{"budget": 0.1, **option})


# -- what becomes of a silenced job ---------------------------------------------------------------------------


def silenced_job(**columns: Any) -> tuple[Simulation, Job, Job]:
    """Client 1 of two is silenced; and the job as it would have been."""
    people = population((4, 4), links=turnout.Links(down=1e5, up=1e5, latency=0.01), **columns)
    calm = simulation(FedAvg(local()), people)
    calm.invite([0, 1], local())
    server = simulation(FedAvg(local()), replace(people, adversary=Silence(1.0, [1])))
    server.invite([0, 1], local())
    return server, server._in_flight[1], calm._in_flight[1]


def test_a_silenced_job_ends_when_its_answer_would_have_come() -> None:
    server, job, calm = silenced_job()
    assert (job.outcome, job.ends_at, job.learnt) == ("silenced", calm.ends_at, True)
    assert (job.seconds, job.bytes, job.progress) == (calm.seconds, calm.bytes, 1.0)
    updates = server.wait()
    assert updates.clients.tolist() == [0]
    assert updates.failed.clients.tolist() == [1]
    assert updates.failed.reasons == ["silenced"]


def test_a_heartbeat_tells_of_it_later() -> None:
    server, job, calm = silenced_job(detection=Detection("heartbeat", 2.5))
    assert job.ends_at == calm.ends_at + round(2.5 * server.population.ticks_per_second)


def test_without_detection_nobody_ever_learns() -> None:
    server, job, _ = silenced_job(detection=Detection("none"))
    assert not job.learnt
    with pytest.raises(UserError, match="will never be heard of again"):
        server.wait()


def test_it_is_in_the_record() -> None:
    people = population((4,) * 8, adversary=Random(0.4))
    task = turnout.Task(lambda: torch.nn.Linear(5, 3), seed=1)
    result = turnout.simulate(task, people, FedAvg(local(), Uniform(5)), 4)
    rounds, jobs = result.rounds(), result.jobs()
    assert rounds["missing_share"] == pytest.approx([0, 0.4, 0.4, 0.4, 0.4])
    assert rounds["failed"].tolist() == [0, 2, 2, 2, 2]
    assert (jobs["outcome"] == "silenced").sum() == 8
    assert result.audit.failures == {"silenced": 8}
    assert result.audit.events == {"silenced": 4}
    assert result.efficiency["missing_share"] == pytest.approx(0.4)
    assert result.efficiency["missing_share_max"] == pytest.approx(0.4)


def test_reports_pass() -> None:
    """Power of choice: the candidates' losses come in; those who then train are silenced. K counts updates only."""
    algorithm = FedAvg(local(), turnout.samplers.PowerOfChoice(4, candidates=8))
    task = turnout.Task(lambda: torch.nn.Linear(5, 3), seed=1)
    result = turnout.simulate(task, population((4,) * 8, adversary=Random(0.5)), algorithm, 3)
    assert result.rounds()["arrived"].tolist() == [0, 10, 10, 10]
    assert result.rounds()["missing_share"] == pytest.approx([0, 0.5, 0.5, 0.5])


def test_a_restart_of_one_client_passes_unless_nobody_is_left() -> None:
    def standing(leave: int) -> tuple[int, list[str]]:
        server = simulation(FedAvg(local()), population((4, 4), adversary=Random(1.0, leave=leave)))
        server.invite([0], local(), again=True)
        updates = server.wait(1, seconds=10)
        return len(updates), updates.failed.reasons

    assert standing(1) == (1, [])
    assert standing(0) == (0, ["silenced"])


def test_nothing_is_trained_for_an_adversary_who_may_silence_nobody() -> None:
    """Asynchronous restarts are still computed together."""
    server = simulation(FedAvg(local()), population((4, 4), adversary=WorstCase(1.0)))
    server.invite([0], local())
    assert server._in_flight[0].result is None
    server.invite([1], local())
    assert server._in_flight[1].result is None


def test_held_updates_are_seen_too() -> None:
    algorithm = FedAvg(local(), turnout.samplers.Optimal(3))
    watch, _ = watched(WorstCase(0.3), 4, algorithm=algorithm)
    assert len(watch.silenced) == 4


def test_a_silenced_client_keeps_the_state_it_had() -> None:
    """SCAFFOLD: what was computed for the adversary's eyes is not the client's."""
    people = population((4, 4), adversary=WorstCase(1.0))
    algorithm = turnout.Scaffold(local(), Full())
    watch, server = watched(WorstCase(1.0), 1, people, algorithm=algorithm)
    ((silenced, _),) = watch.silenced.values()
    controls = server.store.get({"control": (server.task.size,)}, np.array([0, 1]))["control"]
    assert (controls.abs().sum(1) > 0).tolist() == [client not in silenced for client in (0, 1)]


def test_the_population_s_own_adversary_remembers_nothing() -> None:
    """Runs do not learn from each other."""
    people = population(adversary=Starve(0.5))
    for _ in range(2):
        server = simulation(FedAvg(local(), Full()), people, stopping=Stopping(2))
        server.run()
        assert isinstance(server.adversary, Starve)
        assert isinstance(people.adversary, Starve)
        assert server.adversary.heard.sum() > 0
        assert people.adversary.heard.sum() == 0


@dataclass
class Scripted(Adversary):
    """Silences as written down, without a look at anything."""

    script: dict[int, list[int]] = field(default_factory=dict)

    def wanted(self, server: Server, updates: Updates, room: Room) -> IntArray:
        return np.flatnonzero(np.isin(updates.clients, self.script.get(server.version, [])))


def test_a_look_at_the_updates_changes_none_of_them() -> None:
    """The bits of those who answer are the same whether or not somebody looked, one client after the other."""
    plan = Plan(engine="sequential", threads=1)
    options: dict[str, Any] = {"people": images(), "task": turnout.Task(conv, seed=3), "plan": plan}
    watch, looked = watched(WorstCase(0.6), 5, **options)
    script = {number: silenced for number, (silenced, _) in watch.silenced.items()}
    assert len(script) == 5
    again, blind = watched(Scripted(0.6, script=script), 5, **options)
    assert again.silenced == watch.silenced
    assert torch.equal(looked.model, blind.model)


def test_a_population_with_an_adversary_is_not_reliable() -> None:
    assert population().reliable
    assert not population(adversary=Random(0.1)).reliable


# -- configuration --------------------------------------------------------------------------------------------


def built(*overrides: str) -> tuple[Population, dict[str, Any]]:
    experiment, _, complete = config.build(config.read("digits", list(overrides)))
    return experiment.population, complete["adversary"]


def test_adversaries_by_name() -> None:
    assert built()[0].adversary is None
    assert built()[1] == {"name": "none"}
    people, complete = built("adversary.name=silence", "adversary.budget=0.2", "adversary.clients=[3, 4]")
    assert people.adversary == Silence(0.2, [3, 4])
    assert complete == {"name": "silence", "budget": 0.2, "clients": [3, 4], "leave": 1, "begins": 0, "ends": None}
    people, complete = built("adversary.name=starve", "adversary.budget=0.5", "adversary.begins=1")
    assert isinstance(people.adversary, Starve)
    assert "heard" not in complete


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["adversary.name=worstcase"], "adversary.name: unknown name 'worstcase'; did you mean worst_case?"),
        (["adversary.budget=0.2"], "adversary.budget: unknown option; allowed: none"),
        (["adversary.name=random"], "adversary.budget: missing; give it a value"),
        (["adversary.name=random", "adversary.budget=2"], "adversary.budget: 2.0 must be from 0 to 1"),
        (
            ["adversary.name=silence", "adversary.budget=0", "adversary.clients=x"],
            "adversary.clients: 'x' is not a list",
        ),
    ],
)
def test_mistakes(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        built(*overrides)
    assert str(error.value) == sentence


def test_clients_that_do_not_exist() -> None:
    people = replace(population(), adversary=Silence(0.5, clients=[99]))
    with pytest.raises(UserError, match=r"adversary\.clients: 99 is not one of the 8 clients"):
        simulation(turnout.FedAvg(local(), turnout.Full()), people)


def test_whom_it_spared_before_it_begins_is_remembered() -> None:
    people = replace(population(), adversary=Starve(0.5, begins=2))
    server = simulation(turnout.FedAvg(local(), turnout.Full()), people, stopping=turnout.Stopping(2))
    server.run()
    assert server.adversary.heard.tolist() == [2] * 8  # type: ignore[union-attr]
