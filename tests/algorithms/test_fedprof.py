"""FedProf and its baselines: oracles O9 to O12 and O20 to O23 of the spec, and every edge case of its section 3.9."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare
from torch import nn

import turnout
from support import Vector, algorithm, local, mlp, population, quadratic_loss, simulation
from turnout import Crashes, FedAvg, Full, LocalSGD, Observer, Plan, Population, Simulation, Stopping, Task, UserError
from turnout.aggregation.encryption import key_holder
from turnout.algorithms.cfcfm import CFCFM
from turnout.algorithms.fedavg_rp import FedAvgRP
from turnout.algorithms.fedprof import FedProf
from turnout.clients.quality import KINDS, Pool, degrade
from turnout.config.options import options_of
from turnout.core.random import FloatArray, IntArray, key, normal
from turnout.local.modifiers import Proximal
from turnout.local.profile import profile_of
from turnout.samplers import Fill
from turnout.server.observer import Event, Round
from turnout.server.server import Server
from turnout.server.state import load_state, save_state
from turnout.theory.matching import divergence, selection_probabilities
from turnout_studies.theory.fedprof_bound import preference_for_weights

EXACT = Plan(precision="float64", threads=1)
REFERENCE = normal(key(1, "test reference"), 200).reshape(40, 5)
WHOLE = LocalSGD(0.2, epochs=3, batching="full")  # no mini-batches: updates do not depend on how many jobs came before


def fedprof(work: LocalSGD | None = None, **options: Any) -> FedProf:
    return FedProf(work or local(), **{"clients_per_round": 3, "reference": REFERENCE, **options})


class Watch(Observer):
    """Models by version, events, and rounds."""

    def __init__(self) -> None:
        self.models: dict[int, torch.Tensor] = {}
        self.events: list[Event] = []
        self.rounds: list[Round] = []

    def on_start(self, server: Server) -> None:
        self.models[0] = server.model.clone()

    def on_round(self, server: Server, record: Round) -> None:
        self.models[server.version] = server.model.clone()
        self.rounds.append(record)

    def on_event(self, server: Server, event: Event) -> None:
        self.events.append(event)


def run(method: Any, people: Population | None = None, rounds: int = 5, **options: Any) -> tuple[Simulation, Watch]:
    watch = Watch()
    server = simulation(method, people, stopping=Stopping(rounds), observers=[watch], plan=EXACT, **options)
    server.run()
    return server, watch


def at_probabilities(chances: FloatArray, **options: Any) -> tuple[FedProf, Simulation]:
    """A method whose clients have these chances, before its first round."""
    size = len(chances)
    method = fedprof(preference=preference_for_weights(chances, np.ones(size)), **options)
    server = simulation(method, population((4,) * size))
    method.sampler.divergences, method.sampler.versions = np.ones(size), np.zeros(size, np.int64)
    return method, server


# -- the draw -------------------------------------------------------------------------------------------------

Q, V = np.array([0.5, 0.3, 0.2]), np.array([1.0, 4.0, -2.0])


def test_draws_are_unbiased_and_vary_as_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """O10, by enumeration of the 81 outcomes of four draws: mean 1.3, variance 1.1025."""
    method, server = at_probabilities(Q, clients_per_round=4, aggregation="partial")
    centres, chance, value = np.cumsum(Q) - Q / 2, [], []
    for outcome in itertools.product(range(3), repeat=4):
        monkeypatch.setattr("turnout.core.random.uniform", lambda *_, o=outcome: centres[list(o)])
        clients, times = method.sampler.draw(server, server.population.ids)
        chance.append(np.prod(Q[list(outcome)]))
        value.append((times / 4 * V[clients]).sum())
    mean = float(np.dot(chance, value))
    assert mean == pytest.approx(1.3)
    assert np.dot(chance, np.square(value)) - mean**2 == pytest.approx(1.1025)


def test_without_replacement_the_shares_differ() -> None:
    """O10: inclusion shares .42, .34, .24 for two of three."""
    method, server = at_probabilities(Q, clients_per_round=2, replace=False)
    counts = np.zeros(3)
    for version in range(8000):
        server.version = version
        clients, times = method.sampler.draw(server, server.population.ids)
        assert times.tolist() == [1, 1]
        counts[clients] += 1
    assert counts / 16_000 == pytest.approx(np.array([0.4196, 0.3393, 0.2411]), abs=5 * 0.5 / np.sqrt(16_000))


def test_draws_follow_the_scores() -> None:
    """O23: K T q_k draws are expected of client k; chi-square at fixed scores."""
    method, server = at_probabilities(np.array([0.4, 0.3, 0.15, 0.1, 0.05]), clients_per_round=4)
    counts = np.zeros(5)
    for version in range(1000):
        server.version = version
        clients, times = method.sampler.draw(server, server.population.ids)
        counts[clients] += times
    assert counts.sum() == 4000
    assert chisquare(counts, 4000 * method.sampler.chances(server.population.ids)).pvalue > 1e-3


def test_nobody_to_draw_from() -> None:
    method, server = at_probabilities(Q)
    for replace_ in (True, False):
        method.sampler.replace = replace_
        clients, times = method.sampler.draw(server, server.population.ids[:0])
        assert len(clients) == len(times) == 0


# -- aggregation ----------------------------------------------------------------------------------------------


def step_of(
    method: FedProf, draws: list[int], monkeypatch: pytest.MonkeyPatch, **columns: Any
) -> tuple[FloatArray, Any]:
    """What one round of these draws adds to the model, and everybody's own difference from the first model."""
    people = population((2, 6, 4), **columns)
    monkeypatch.setattr(method.sampler, "draw", lambda *_: np.unique(np.array(draws), return_counts=True))
    server, _ = run(method, people, rounds=1)
    alone = simulation(method, people, plan=EXACT)
    alone.invite(people.ids, WHOLE)
    updates = alone.wait()
    deltas = updates.deltas[np.argsort(updates.clients)].numpy()
    return (server.model - server.task.initial).numpy(), deltas


def test_a_client_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """O20: counts once in the full mode (n_k / n; the rest keeps the model), twice in the partial one."""
    moved, deltas = step_of(fedprof(WHOLE), [1, 1, 2], monkeypatch)
    assert moved == pytest.approx(6 / 12 * deltas[1] + 4 / 12 * deltas[2])
    moved, deltas = step_of(fedprof(WHOLE, aggregation="partial"), [1, 1, 2], monkeypatch)
    assert moved == pytest.approx(2 / 3 * deltas[1] + 1 / 3 * deltas[2])


def test_everybody_drawn_is_full_participation(monkeypatch: pytest.MonkeyPatch) -> None:
    """O20."""
    moved, _ = step_of(fedprof(WHOLE), [0, 1, 2], monkeypatch)
    everybody, _ = run(FedAvg(WHOLE, Full()), population((2, 6, 4)), rounds=1)
    assert moved == pytest.approx((everybody.model - everybody.task.initial).numpy())


@pytest.mark.parametrize("aggregation", ["full", "partial"])
def test_a_fixed_point(aggregation: str) -> None:
    """O22: clients that return what they received change nothing."""
    server, _ = run(fedprof(LocalSGD(0.0), aggregation=aggregation), rounds=3)
    assert torch.equal(server.model, server.task.initial)


def test_no_preference_is_fedavg() -> None:
    """O21: alpha 0, full aggregation, no replacement draws the same clients with the same weights as FedAvg as first
    printed. Mini-batches are numbered by a client's jobs, of which a profile is one: full batches have none."""
    mine, watch = run(fedprof(WHOLE, preference=0.0, replace=False), rounds=6)
    theirs, other = run(FedAvg(WHOLE, Fill(3)), rounds=6)
    torch.testing.assert_close(mine.model, theirs.model, rtol=1e-12, atol=1e-14)
    for one, two in zip(watch.rounds, other.rounds, strict=True):
        weights = [
            {job.client: weight for job, weight in zip(r.jobs, r.weights, strict=True) if weight} for r in (one, two)
        ]
        assert weights[0] == pytest.approx(weights[1])


# -- profiles -------------------------------------------------------------------------------------------------


def expected_divergences(server: Simulation, watch: Watch, method: FedProf, layer: str) -> FloatArray:
    """Of every client, by the version of its profile, from models kept aside."""
    found = []
    for client, version in enumerate(method.sampler.versions.tolist()):
        rows = server.population.train.row(client)
        sets = (server.cohort.inputs[rows], torch.as_tensor(REFERENCE))
        one, other = (profile_of(server.task, watch.models[version], inputs, layer) for inputs in sets)
        found.append(float(divergence(one, other)))
    return np.array(found)


@pytest.mark.parametrize(("layer", "name"), [(None, "0"), ("2", "2")])
def test_profiles_are_compared_at_their_own_version(layer: str | None, name: str) -> None:
    """O11: after ten rounds clients have profiles of different models, each compared with the reference's profile of
    that model. The divergence is computed when the profile arrives: there is no old reference that could be missing."""
    method = fedprof(layer=layer, preference=1.0)
    server, watch = run(method, rounds=10)
    assert len(set(method.sampler.versions.tolist())) > 3
    assert method.sampler.divergences == pytest.approx(expected_divergences(server, watch, method, name), rel=1e-9)
    stale = np.flatnonzero(method.sampler.versions < 9)
    method.sampler.versions = np.full(8, 9)
    assert not np.isclose(method.sampler.divergences, expected_divergences(server, watch, method, name))[stale].any()


def test_wrong_labels_are_not_seen() -> None:
    """O12: a limit of profiles of inputs; at one and the same model."""
    people = population()
    swapped = replace(people, targets=(people.targets + 1) % 3)
    methods = fedprof(), fedprof()
    for method, clients in zip(methods, (people, swapped), strict=True):
        run(method, clients, rounds=1)
    assert np.array_equal(methods[0].sampler.divergences, methods[1].sampler.divergences)
    ids = people.ids
    assert np.array_equal(methods[0].sampler.chances(ids), methods[1].sampler.chances(ids))


@cache
def trained() -> tuple[Task, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A small network that reads digits, and images for two halves: the reference's and a client's."""
    data = turnout.datasets.load("digits", shape="image")
    people = Population.of(data, 1, test="none")
    task = Task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), seed=1)
    result = turnout.simulate(task, people, FedAvg(LocalSGD(0.3, epochs=5), Full()), rounds=2, plan=Plan(threads=1))
    assert result.measures["central_accuracy"] > 0.9
    return task, result.model, data.inputs[:700], data.inputs[700:]


@pytest.mark.parametrize(
    ("kind", "strengths"),
    [
        ("gaussian_noise", (0.0, 0.5, 1.0, 2.0)),
        ("blur", (0.0, 0.5, 1.0, 2.0, 3.0)),
        ("salt_and_pepper", (0.0, 0.1, 0.2, 0.3, 0.5)),
        ("irrelevant", (0.0, 0.3, 0.6, 1.0)),
    ],
)
def test_worse_data_are_farther_away(kind: str, strengths: tuple[float, ...]) -> None:
    """O9: strictly, in the first dense layer of a trained network."""
    task, model, own, client = trained()
    samples = client, torch.zeros(len(client)).long()
    reference = profile_of(task, model, own, "1")
    found = []
    for strength in strengths:
        inputs, _ = KINDS[kind][0](samples, Pool(*samples), strength, key(1, "quality"))
        found.append(float(divergence(profile_of(task, model, inputs, "1"), reference)))
    assert (np.diff(found) > 0).all(), found


def test_bad_clients_are_drawn_less() -> None:
    """The point of it: digits, a third of the clients irrelevant and a third noisy, drawn by chance from their data."""
    data = turnout.datasets.load("digits", shape="image")
    clean = Population.of(data, 30, test="none", seed=2)
    people, tags = degrade(clean, {"irrelevant": 1 / 3, "gaussian_noise": 1 / 3}, seed=2)
    task = Task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), seed=1)
    method = FedProf(LocalSGD(0.2, epochs=2), clients_per_round=5, aggregation="partial")
    jobs = turnout.simulate(task, people, method, rounds=20, plan=Plan(threads=1)).jobs()
    used = np.bincount(jobs["client"], jobs["weight"] * 5, minlength=30)
    draws = {tag: used[tags == tag].mean() for tag in ("normal", "gaussian_noise", "irrelevant")}
    assert draws["normal"] > 3 * draws["gaussian_noise"]
    assert draws["normal"] > 3 * draws["irrelevant"]


# -- who has a profile ----------------------------------------------------------------------------------------


def test_everybody_is_asked_once_at_the_start() -> None:
    """A11: it takes the time of the slowest pass, and 8 q bytes up; the first model is not sent."""
    people = population(devices=turnout.devices.fixed(1.0, per="step"))
    server, watch = run(fedprof(local(epochs=2)), people, rounds=2)
    first = [job for job in watch.rounds[0].jobs if job.steps == 0]
    assert sorted(job.client for job in first) == list(range(8))
    assert {job.bytes for job in first} == {(0, 16 * 8)}  # float64 here
    assert max(job.ends_at for job in first) / 1e6 == 7  # 25 samples are 7 steps of 4
    assert all(job.steps for job in watch.rounds[1].jobs)
    trained = [job for job in watch.rounds[0].jobs if job.steps]
    assert {job.sent_at / 1e6 for job in trained} == {7}
    assert server.now > 7


def test_newcomers_send_a_profile_before_they_are_drawn() -> None:
    joined = np.array([0, 0, 0, 0, 0, 0, 0, 3.5])
    method = fedprof(preference=0.0)
    server, watch = run(method, population(joined_at=joined), rounds=12)
    jobs = [job for record in watch.rounds for job in record.jobs if job.client == 7]
    jobs.sort(key=lambda job: job.number)
    assert jobs[0].steps == 0
    assert jobs[0].bytes[0] > 0  # it cannot make the present model itself
    assert any(job.steps for job in jobs[1:])
    assert all(job.sent_at / 1e6 >= 3.5 for job in jobs)
    assert (method.sampler.versions >= 0).all()
    assert server.version == 12


def test_who_sends_no_profile_is_not_drawn() -> None:
    """The first job of everybody fails: the first round is empty, and all are asked again."""

    class FirstCrashes(Crashes):
        def draw(self, seed: int, ids: IntArray, number: Any) -> tuple[NDArray[np.bool_], FloatArray]:
            _, share = super().draw(seed, ids, number)
            return np.asarray(number) == 0, share

    _, watch = run(fedprof(), population(crashes=FirstCrashes(0.5)), rounds=2)
    assert [event.kind for event in watch.events] == ["empty_round"]
    assert [record.facts["failed"] for record in watch.rounds] == [8, 0]
    assert watch.rounds[1].facts["used"] > 0


def test_only_those_online_are_drawn() -> None:
    people = population(availability=turnout.Bernoulli(0.5))
    _, watch = run(fedprof(), people, rounds=10)
    assert {job.outcome for record in watch.rounds for job in record.jobs} == {"arrived"}


def test_old_profiles_are_refreshed() -> None:
    method = fedprof(refresh_every=3, preference=1e3)
    _, watch = run(method, rounds=9)
    assert (8 - method.sampler.versions < 3).all()
    again = [job for record in watch.rounds[1:] for job in record.jobs if not job.steps]
    assert again
    assert {job.bytes[0] for job in again} == {8 * Task(mlp).size}
    never = fedprof(preference=1e3)
    run(never, rounds=9)
    assert never.sampler.versions.min() == 0


@dataclass(frozen=True, eq=False)
class LaterCrashes(Crashes):
    """Client 1 fails in every job after its first."""

    def draw(self, seed: int, ids: IntArray, number: Any) -> tuple[NDArray[np.bool_], FloatArray]:
        _, share = super().draw(seed, ids, number)
        return (ids == 1) & (np.asarray(number) > 0), share


def test_a_client_that_fails_keeps_its_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.9: and its weight goes to those who answer."""
    method = fedprof(WHOLE, aggregation="partial")
    moved, deltas = step_of(method, [0, 1, 1, 2], monkeypatch, crashes=LaterCrashes(0.5))
    assert moved == pytest.approx((deltas[0] + deltas[2]) / 2)
    method = fedprof(preference=0.0)
    _, watch = run(method, population(crashes=LaterCrashes(0.5)), rounds=10)
    assert any(job.outcome == "crashed" for record in watch.rounds for job in record.jobs)
    assert method.sampler.versions[1] == 0
    assert method.sampler.versions[[0, 2]].min() > 0


def test_a_profile_that_is_not_finite_has_no_chance() -> None:
    """3.9: inputs so large that their variance does not fit into what is sent; logged, and nobody else is touched."""
    people, method, clean = population(), fedprof(), fedprof()
    inputs = people.inputs.clone()
    inputs[torch.as_tensor(people.train.row(2))] *= 1e30
    watch = Watch()
    simulation(method, replace(people, inputs=inputs), stopping=Stopping(1), observers=[watch]).run()
    simulation(clean, people, stopping=Stopping(1)).run()
    (event,) = [event for event in watch.events if event.kind == "rejected_profile"]
    assert event.facts == {"client": 2, "why": "infinitely far from the reference"}
    assert method.sampler.divergences[2] == np.inf
    assert method.sampler.chances(people.ids)[2] == 0
    others = np.delete(np.arange(8), 2)
    assert method.sampler.divergences[others] == pytest.approx(clean.sampler.divergences[others], rel=1e-5)


def test_a_dead_layer_is_uniform_and_said() -> None:
    """3.9: a reference of one sample has no variance at all."""
    method = fedprof(reference=REFERENCE[:1])
    _, watch = run(method, rounds=2)
    assert [event.kind for event in watch.events] == ["dead_layer"] * 2
    assert method.sampler.chances(np.arange(8)).tolist() == [1 / 8] * 8


def test_the_server_needs_data_of_its_own() -> None:
    with pytest.raises(UserError, match=r"algorithm\.reference: the server holds no data"):
        run(fedprof(reference=None))
    people = population(central=(torch.as_tensor(REFERENCE).float(), torch.zeros(40).long()))
    given, central = fedprof(), fedprof(reference=None)
    for method in (given, central):
        run(method, people, rounds=2)
    assert given.sampler.divergences == pytest.approx(central.sampler.divergences, rel=1e-5)


def test_encrypted_matching_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The divergences, and so the run, are those of plain matching; here with short keys."""
    monkeypatch.setattr("turnout.sampling.profiled.key_holder", partial(key_holder, bits=512))
    people, small = population((3, 5, 4)), dict[str, Any](clients_per_round=2, layer="2")
    models, found = [], []
    for cipher in ("plain", "additive"):
        method = fedprof(cipher=cipher, **small)
        models.append(run(method, people, rounds=2)[0].model)
        found.append(method.sampler.divergences)
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert torch.equal(*models)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggregation": "fully"}, "algorithm.aggregation: unknown name 'fully'; did you mean full"),
        ({"clients_per_round": 0}, "algorithm.clients_per_round: 0 must be at least 1"),
        ({"refresh_every": 0}, "algorithm.refresh_every: 0 must be at least 1"),
        ({"preference": -1.0}, r"algorithm.preference: -1.0 must be at least 0"),
        ({"min_prob": 1.5}, r"algorithm.min_prob: 1.5 must be from 0 to 1"),
        ({"cipher": "rsa"}, "algorithm.cipher: unknown name 'rsa'"),
    ],
)
def test_mistakes(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        fedprof(**options)


def test_a_layer_that_is_not_there() -> None:
    with pytest.raises(UserError, match="the model has no 'fc1'; its layers: 0, 1, 2"):
        run(fedprof(layer="fc1"))


def test_chances_use_the_least_one_and_own_preferences() -> None:
    method, _ = at_probabilities(Q)
    assert method.sampler.chances(np.arange(3)) == pytest.approx(Q)
    method.sampler.min_prob = 0.2
    expected = selection_probabilities(np.ones(3), method.preference, 0.2)
    assert method.sampler.chances(np.arange(3)).tolist() == expected.tolist()


# -- baselines ------------------------------------------------------------------------------------------------


def quadratic_people(optima: list[float], sizes: tuple[int, ...], **columns: Any) -> Population:
    """Clients that pull one number towards their optima."""
    targets = torch.tensor(np.repeat(optima, sizes)).float()[:, None]
    rows = turnout.Ragged(np.concatenate([[0], np.cumsum(sizes)]), np.arange(sum(sizes)))
    return Population(torch.ones(sum(sizes), 1), targets, rows, **columns)


def test_rescaled_models_are_no_fixed_point() -> None:
    """O22: FedAvg-RP returns w (N / K) sum p_k: not w, unless sizes are equal."""

    class Start(Vector):
        def __init__(self) -> None:
            super().__init__(1)
            nn.init.constant_(self.theta, 2.0)

    task = Task(Start(), quadratic_loss)
    for sizes, equal in (((1, 2, 3, 6), False), ((3, 3, 3, 3), True)):
        people = quadratic_people([0.0] * 4, sizes)
        server, watch = run(FedAvgRP(LocalSGD(0.0), turnout.Uniform(2)), people, rounds=1, task=task)
        drawn = [job.client for job in watch.rounds[0].jobs]
        assert float(server.model) == pytest.approx(2 * 4 / 2 * people.base_importance[drawn].sum())
        assert (float(server.model) == pytest.approx(2)) == equal


def test_rescaled_models_by_hand() -> None:
    """From 0, one step of 1/2 towards 4 and 8 of clients with p = 1/4 and 3/4, both drawn: 0.25 * 2 + 0.75 * 4."""
    people = quadratic_people([4.0, 8.0], (1, 3))
    method = FedAvgRP(LocalSGD(0.5, steps=1, batching="full"), turnout.Uniform(2))
    server, _ = run(method, people, rounds=1, task=Task(Vector(1), quadratic_loss))
    assert float(server.model) == pytest.approx(3.5)


def test_rescaled_models_of_those_who_answer() -> None:
    """A silent client does not shrink the model, and a round without answers leaves it."""
    people = quadratic_people([4.0, 8.0], (1, 1), crashes=LaterCrashes(0.5))
    work = LocalSGD(1.0, steps=1, batching="full")
    server, watch = run(FedAvgRP(work, turnout.Full()), people, 2, task=Task(Vector(1), quadratic_loss))
    assert float(watch.models[1]) == pytest.approx(6)
    assert float(server.model) == pytest.approx(4)
    nobody = quadratic_people([4.0, 8.0], (1, 1), crashes=Crashes(1.0))
    server, watch = run(FedAvgRP(work, turnout.Full()), nobody, 1, task=Task(Vector(1), quadratic_loss))
    assert float(server.model) == 0
    assert [event.kind for event in watch.events] == ["empty_round"]


def test_first_comers_take_turns() -> None:
    """Four clients of 1, 2, 3 and 4 seconds, two a round: whoever was picked comes last in the next one."""
    people = population((4, 4, 4, 4), devices=turnout.devices.table([1.0, 2.0, 3.0, 4.0]))
    server, watch = run(CFCFM(WHOLE, fraction=0.5), people, rounds=4)
    picked = [[job.client for job, w in zip(r.jobs, r.weights, strict=True) if w] for r in watch.rounds]
    assert picked == [[0, 1], [2, 3], [0, 1], [2, 3]]
    assert server.now == 2 + 4 + 2 + 4
    assert {float(weight) for record in watch.rounds for weight in record.weights} == {0.0, 0.25}
    assert [record.facts["cancelled"] for record in watch.rounds] == [2, 0, 2, 0]
    assert all(job.version == record.number - 1 for record in watch.rounds for job in record.jobs)


def test_first_comers_are_filled_up_by_those_picked_before() -> None:
    people = population((4, 4, 4), devices=turnout.devices.table([1.0, 2.0, 4.0]))
    _, watch = run(CFCFM(WHOLE, fraction=2 / 3), people, rounds=2)
    picked = [[job.client for job, w in zip(r.jobs, r.weights, strict=True) if w] for r in watch.rounds]
    assert picked == [[0, 1], [2, 0]]


def test_first_comers_before_a_deadline() -> None:
    people = population((4, 4, 4), devices=turnout.devices.table([1.0, 2.0, 4.0]))
    server, watch = run(CFCFM(WHOLE, fraction=1.0, deadline=3.0), people, rounds=1)
    assert server.now == 3
    assert watch.rounds[0].facts["used"] == 2
    with pytest.raises(UserError, match=r"algorithm\.fraction: 0 must be above 0"):
        CFCFM(WHOLE, fraction=0)


def test_names() -> None:
    for name, cls in (("fedprof", FedProf), ("cfcfm", CFCFM), ("fedavg_rp", FedAvgRP)):
        assert isinstance(algorithm(name), cls)
    assert "sampler" not in options_of(FedProf)


def test_profiles_that_are_late_are_not_waited_for() -> None:
    """Client 4 needs 25 samples' time, the deadline leaves 20: it is cancelled, and asked again in the next round. The
    first model follows from the seed, so no push is waited for."""
    people = replace(population(), devices=turnout.devices.fixed(1.0, per="sample"), links=turnout.Links(server=10.0))
    method = fedprof(local(epochs=1, batch_size=1), deadline=20.0)
    server = simulation(method, people, stopping=Stopping(1), plan=EXACT)
    method.begin(server)
    chosen = method.choose(server)
    assert server.now == 20.0
    assert method.sampler.versions.tolist() == [0, 0, 0, 0, -1, 0, 0, 0]
    assert 4 not in chosen.clients
    assert 4 in method.sampler._due(server)


def test_a_work_with_options_of_its_own_can_be_profiled() -> None:
    work = local().modified(Proximal(0.1))
    server, _ = run(fedprof(work), rounds=2)
    assert server.version == 2


def test_profiles_of_a_run_of_the_version_before() -> None:
    """Its checkpoints have them beside the algorithm's own state, not in a sampler's."""
    method, people = fedprof(), population()
    server = simulation(method, people, stopping=Stopping(1), plan=EXACT)
    server.run()
    facts, tensors = save_state(method)
    before = {name.removeprefix("sampler/"): value for name, value in tensors.items()}
    assert before.keys() == {"divergences@numpy", "versions@numpy", "matched@numpy"}
    again = fedprof()
    load_state(again, facts, before, "cpu")
    for name in ("divergences", "versions", "matched"):
        assert np.array_equal(getattr(again.sampler, name), getattr(method.sampler, name))


def test_another_method_takes_the_sampler() -> None:
    """`fedprof` is FedAvg with it, up to who loses the weight of the silent."""
    options: dict[str, Any] = {"clients_per_round": 3, "reference": REFERENCE, "aggregation": "partial"}
    one, _ = run(FedProf(WHOLE, **options))
    other, _ = run(turnout.FedAvg(WHOLE, turnout.samplers.Profiled(**options), normalise="responders"))
    assert torch.equal(one.model, other.model)
    with pytest.raises(UserError, match=r"sampler.preference: -1.0 must be at least 0"):
        turnout.samplers.Profiled(preference=-1.0)
