"""Peers: silos on their own time, over any network, with failures, through checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import SIZES, local, mlp, population, same, simulation
from turnout import Algorithm, Experiment, LocalSGD, Plan, Server, Stopping, Task, devices
from turnout.algorithms.dpasgd import DPASGD
from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, key, uniform
from turnout.local.sgd import ClientData, Named
from turnout.peers.network import BoolArray, Exchange, Network, Overlay, Star
from turnout.peers.peers import Peers, Silos, over_own_links, ring
from turnout_studies.theory.timeline import timeline

SILOS = len(SIZES)
PARAMETERS = 5 * 8 + 8 + 8 * 3 + 3
MICROSECOND = 1e-6


def network(silos: int = SILOS) -> Network:
    """Latencies are whole milliseconds; capacities give messages of float32 models a whole number of microseconds."""
    latency = np.round(20 * uniform(key(1, "test latency"), silos * silos)).reshape(silos, silos) / 1e3
    np.fill_diagonal(latency, 0)
    capacity = np.full(silos, 32 * PARAMETERS * 1e3)
    names = tuple(f"silo {i}" for i in range(silos))
    return Network(names, latency, np.full((silos, silos), np.inf), capacity, capacity, ~np.eye(silos, dtype=np.bool_))


def computing() -> FloatArray:
    return np.round(50 * uniform(key(1, "test compute"), SILOS) + 1) / 1e3


def people(**columns: Any) -> Population:
    return population(**{"devices": devices.table(computing()), **columns})


RING = ring(SILOS)
TREE = Overlay("tree", np.zeros((SILOS, SILOS), np.bool_))
TREE.graph[np.arange(1, SILOS), (np.arange(1, SILOS) - 1) // 2] = True
TREE.graph[(np.arange(1, SILOS) - 1) // 2, np.arange(1, SILOS)] = True


@dataclass(frozen=True, eq=False)
class Alternating(Overlay):
    """A ring in even rounds, nobody talks in odd ones."""

    def arcs(self, round: int = 0) -> BoolArray:
        return self.graph & (round % 2 == 0)


def run(algorithm: Algorithm, rounds: int = 6, who: Population | None = None, **options: Any) -> turnout.Result:
    plan = Plan(precision=options.pop("precision", "float32"), threads=1)
    experiment = Experiment(Task(mlp, seed=3), who or people(), algorithm, 5, Stopping(rounds), plan=plan)
    return turnout.execute(experiment, **options)


# -- time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", [RING, TREE, Star.around(3, SILOS), Alternating("alternating", RING.graph)])
def test_the_clock_is_the_timeline(overlay: Overlay) -> None:
    """A round closes when the last silo may start the next; every job starts and ends at its own silo's time."""
    result = run(DPASGD(local(), overlay, network()), rounds=9)
    exchange = Exchange(32.0 * PARAMETERS, computing())
    times = timeline(overlay, network(), exchange, 9)
    np.testing.assert_allclose(result.rounds()["time"], times.max(1), atol=MICROSECOND / 2)
    jobs = result.jobs()
    starts = times[jobs["round"] - 1, jobs["client"]]
    np.testing.assert_allclose(jobs["sent_at"], starts, atol=MICROSECOND / 2)
    np.testing.assert_allclose(jobs["ended_at"], starts + computing()[jobs["client"]], atol=MICROSECOND / 2)
    assert len(np.unique(starts)) > 9  # they do not wait for each other


def test_stragglers_are_the_populations_devices() -> None:
    """Every job draws its own time, the same as a job of that number takes under any other algorithm."""
    slow = people(devices=devices.lognormal(0.03, 1.0, each="job"))
    result, other = (
        run(DPASGD(local(), RING, network()), who=slow),
        run(turnout.FedAvg(local(), turnout.Full()), who=slow),
    )

    def by_job(result: turnout.Result) -> FloatArray:
        jobs = result.jobs()
        return jobs["compute_seconds"][np.lexsort((jobs["client"], jobs["job"]))].reshape(6, SILOS)

    seconds = by_job(result)
    np.testing.assert_array_equal(seconds, by_job(other))
    times = timeline(RING, network(), Exchange(32.0 * PARAMETERS), 6, lambda k: seconds[k])
    np.testing.assert_allclose(result.rounds()["time"], times.max(1), atol=6 * MICROSECOND)


def test_links_may_jitter() -> None:
    def latency(round: int) -> FloatArray:
        return network().latency * (1 + round % 3)

    result = run(DPASGD(local(), TREE, network(), latency=latency))
    exchange = Exchange(32.0 * PARAMETERS, computing())
    times = timeline(TREE, network(), exchange, 6, latency=latency)
    np.testing.assert_allclose(result.rounds()["time"], times.max(1), atol=MICROSECOND / 2)
    assert result.rounds()["time"][-1] > run(DPASGD(local(), TREE, network())).rounds()["time"][-1]


def test_without_a_network_they_meet_over_their_own_links() -> None:
    """client i -> i + 1: latency of both, and the slower of its uplink and the other's downlink. Nothing goes to or
    through a server."""
    up, down = 1e4 * np.arange(1.0, 9), 1e4 * np.arange(9.0, 1, -1)
    links = turnout.Links(down=down, up=up, latency=np.arange(8) / 100, server=1e3)
    own = over_own_links(people(links=links))
    delays = RING.delays(own, Exchange(1e4))
    assert delays[2, 3] == pytest.approx(0.02 + 0.03 + 1e4 / min(up[2], down[3]))
    result = run(DPASGD(local()), who=people(links=links))
    times = timeline(RING, own, Exchange(32.0 * PARAMETERS, computing()), 6)
    np.testing.assert_allclose(result.rounds()["time"], times.max(1), atol=6 * MICROSECOND)
    jobs = result.jobs()
    np.testing.assert_allclose(jobs["ended_at"] - jobs["sent_at"], computing()[jobs["client"]], atol=MICROSECOND / 2)
    assert not jobs["download_seconds"].any()
    assert not jobs["upload_seconds"].any()
    assert result.efficiency["sync_ratio"] == result.efficiency["distribution_seconds"] == 0
    assert run(DPASGD(local())).rounds()["time"][-1] == pytest.approx(6 * computing().max())  # ideal links


# -- what is sent ---------------------------------------------------------------------------------------------


FORK = Overlay("fork", RING.graph | (np.arange(SILOS)[:, None] == 0) & (np.arange(SILOS) > 3))


@pytest.mark.parametrize("overlay", [RING, TREE, Star.around(3, SILOS), FORK])
def test_a_model_along_every_arc(overlay: Overlay) -> None:
    result = run(DPASGD(local(), overlay, network(), mixing="none"), rounds=2)
    rounds, jobs = result.rounds(), result.jobs()
    assert rounds["bytes_up"].tolist() == rounds["bytes_down"].tolist()
    assert rounds["bytes_up"].tolist() == [0] + [4 * PARAMETERS * int(overlay.graph.sum())] * 2
    np.testing.assert_array_equal(jobs["bytes_up"], 4 * PARAMETERS * overlay.graph.sum(1)[jobs["client"]])
    np.testing.assert_array_equal(jobs["bytes_down"], 4 * PARAMETERS * overlay.graph.sum(0)[jobs["client"]])
    assert not jobs["download_seconds"].any()
    assert not jobs["upload_seconds"].any()


def test_the_population_says_how_large_a_model_is() -> None:
    heavy = run(DPASGD(local(), RING, network()), who=people(model_bytes=8 * PARAMETERS))
    assert heavy.rounds()["bytes_up"][1] == 8 * PARAMETERS * SILOS
    times = timeline(RING, network(), Exchange(64.0 * PARAMETERS, computing()), 6)
    np.testing.assert_allclose(heavy.rounds()["time"], times.max(1), atol=MICROSECOND / 2)


# -- training and mixing --------------------------------------------------------------------------------------


@dataclass
class Steps(Algorithm):
    """Lets a test play with peers."""

    local: LocalSGD
    silos: Silos = field(default_factory=Silos, init=False)

    def run(self, server: Server) -> None:
        raise NotImplementedError


def peers(who: Population | None = None, work: LocalSGD | None = None, **options: Any) -> Peers:
    server = simulation(Steps(work or local()), who or people(), plan=Plan(precision="float64", threads=1), seed=5)
    return Peers(server, server.algorithm.silos, **options)  # type: ignore[attr-defined]


def test_all_begin_with_the_same_model() -> None:
    found = peers()
    assert found.models.shape == (SILOS, PARAMETERS)
    assert all(torch.equal(model, found.server.task.initial) for model in found.models)
    assert found.consensus_distance() == 0


def test_mixing_takes_everybodys_model_of_before() -> None:
    found = peers(overlay=RING)
    found.train(local())
    before, rows = found.models.clone(), np.arange(SILOS)
    found.mix(found.mixing())
    torch.testing.assert_close(found.models, (before + before[rows - 1]) / 2, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(found.average(), before.mean(0), rtol=1e-12, atol=1e-15)
    distance = sum(float((model - before.mean(0)).norm()) ** 2 for model in found.models)
    assert found.consensus_distance() == pytest.approx(distance, rel=1e-12)


def test_what_was_sent_is_not_changed_afterwards() -> None:
    """The jobs of a round keep the models that they began from."""
    found = peers()
    found.train(local())
    before = found.models.clone()
    updates = found.train(local())
    found.mix(found.mixing())
    assert torch.equal(updates.received(), before[updates.clients])


def test_the_difference_may_be_scaled() -> None:
    plain, scaled = peers(), peers()
    scale = np.linspace(0.5, 2, SILOS)
    initial = plain.models
    plain.train(local())
    scaled.train(local(), scale)
    expected = initial + torch.as_tensor(scale)[:, None] * (plain.models - initial)
    torch.testing.assert_close(scaled.models, expected, rtol=1e-13, atol=1e-15)


def test_a_round_may_have_two_jobs() -> None:
    """Each has its own batches and its own time."""
    found = peers(people(devices=devices.lognormal(0.03, 1.0, each="job")))
    one, two = (found.train(local()) for _ in range(2))
    assert one.numbers.tolist() == [0] * SILOS
    assert two.numbers.tolist() == [1] * SILOS
    ends = np.zeros(SILOS)
    ends[two.clients] = two.arrived_at
    np.testing.assert_array_equal(found.silos.times, np.rint(ends * 1e6))
    assert not torch.equal(one.deltas[np.argsort(one.clients)], two.deltas[np.argsort(two.clients)])


def test_numbers_of_the_work_may_differ_between_silos() -> None:
    rates: Any = np.linspace(0.0, 0.2, SILOS)
    found = peers(work=replace(local(), lr=rates))
    updates = found.train(replace(local(), lr=rates))
    norms = updates.norms().numpy()[np.argsort(updates.clients)]
    assert norms[0] == 0
    assert (norms[1:] > 0).all()


# -- failures -------------------------------------------------------------------------------------------------


def test_a_silo_that_fails_passes_on_what_it_has() -> None:
    """Client 2 is away in the first two rounds: its model stays, its weight is lost, all others go on."""

    @dataclass(frozen=True)
    class Away(turnout.Always):
        clock = "round"

        def online(self, seed: int, ids: Any, at: Any) -> BoolArray:
            return (ids != 2) | (np.asarray(at) > 1)

    whole, found = peers(), peers(people(availability=Away()))
    whole.train(local())
    updates = found.train(local())
    assert sorted(updates.clients.tolist()) == [0, 1, 3, 4, 5, 6, 7]
    others = np.delete(np.arange(SILOS), 2)
    torch.testing.assert_close(found.models[others], whole.models[others], rtol=1e-12, atol=1e-15)
    assert torch.equal(found.models[2], found.server.task.initial)
    np.testing.assert_array_equal(found.silos.times, whole.silos.times)  # the others wait for it none the less
    result = run(DPASGD(local(), RING, network()), who=people(availability=Away()), rounds=3)
    assert result.rounds()["weight"].tolist() == [0, 7 / 8, 7 / 8, 1]
    assert result.audit.failures == {"offline": 2}
    jobs = result.jobs()
    away = jobs["outcome"] == "offline"
    start = timeline(RING, network(), Exchange(32.0 * PARAMETERS, computing()), 1)[1]
    assert jobs["client"][away].tolist() == [2, 2]
    assert jobs["sent_at"][away].tolist() == jobs["ended_at"][away].tolist() == [0, pytest.approx(start[2])]
    assert start[2] < start.max()  # the round before was still open
    assert jobs["bytes_up"][away].tolist() == [4 * PARAMETERS] * 2


@pytest.mark.parametrize(
    "detection", [turnout.Detection(), turnout.Detection("heartbeat", 9.0), turnout.Detection("none")]
)
def test_however_failures_are_learnt_of_the_models_are_the_same(detection: turnout.Detection) -> None:
    shaky = {"crashes": turnout.Crashes(0.4), "availability": turnout.Bernoulli(0.7, clock="seconds", interval=0.02)}
    sure = run(DPASGD(local(), TREE, network()), who=people(**shaky))
    found = run(DPASGD(local(), TREE, network()), who=people(**shaky, detection=detection))
    assert torch.equal(found.model, sure.model)
    np.testing.assert_array_equal(found.rounds()["time"], sure.rounds()["time"])
    assert found.audit.failures
    np.testing.assert_array_equal(found.audit.realised, sure.audit.realised)


@dataclass(frozen=True)
class Poisoned(LocalSGD):
    """Clients with one sample answer NaN."""

    def finish(
        self, task: Task, received: torch.Tensor, params: torch.Tensor, carry: Any, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        payload, state = super().finish(task, received, params, carry, state, data)
        return {"delta": torch.where(data.count == 1, torch.nan, payload["delta"])}, state


def test_a_nan_never_reaches_a_neighbour() -> None:
    result = run(DPASGD(Poisoned.extend(local()), RING, network()), rounds=3)
    assert result.audit.events == {"rejected_update": 3}
    assert bool(torch.isfinite(result.server.algorithm.silos.models).all())  # type: ignore[attr-defined]
    assert result.rounds()["weight"].tolist() == [0, 7 / 8, 7 / 8, 7 / 8]


# -- state ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", [RING, Alternating("alternating", RING.graph)])
def test_resume_from_every_round(overlay: Overlay, tmp_path: Path) -> None:
    world = people(devices=devices.lognormal(0.03, 1.0, each="job"), crashes=turnout.Crashes(0.2))
    whole = run(DPASGD(local(), overlay, network()), 5, world)
    for stop in range(5):
        folder = tmp_path / str(stop)
        run(DPASGD(local(), overlay, network()), stop, world, folder=folder, checkpoint_every=1)
        resumed = run(DPASGD(local(), overlay, network()), 5, world, folder=folder, checkpoint_every=1, resume=True)
        silos = [result.server.algorithm.silos for result in (whole, resumed)]  # type: ignore[attr-defined]
        assert torch.equal(silos[0].models, silos[1].models)
        assert silos[0].times.tolist() == silos[1].times.tolist()
        assert same(whole.rounds(), resumed.rounds())
        assert same(whole.jobs(), resumed.jobs())


def test_a_rehearsal_has_the_same_times() -> None:
    """Nothing is trained, the clock is the same."""
    real = run(DPASGD(local(), RING, network()))
    schedule = turnout.schedule(DPASGD(local(), RING, network()), people(), 6, task=Task(mlp, seed=3), seed=5)
    assert schedule.seconds == real.server.now
    assert len(schedule.client) == 6 * SILOS


# -- what is refused ------------------------------------------------------------------------------------------


def test_networks_and_overlays_must_fit() -> None:
    with pytest.raises(UserError, match="network: it has 5 silos and there are 8 clients"):
        run(DPASGD(local(), network=network(5)))
    with pytest.raises(UserError, match="overlay ring: made for 5 silos, the network has 8"):
        run(DPASGD(local(), ring(5)))
    apart = replace(network(), connected=network().connected & ~np.eye(SILOS, k=1, dtype=np.bool_))
    with pytest.raises(UserError, match="overlay ring: silo 0 cannot talk to silo 1 in this network"):
        run(DPASGD(local(), RING, apart))


def test_one_silo_is_a_ring_of_its_own() -> None:
    alone = run(DPASGD(local()), who=population((12,)))
    other = run(turnout.FedAvg(local(), turnout.Full()), who=population((12,)))
    torch.testing.assert_close(alone.model, other.model)
    assert not ring(1).graph.any()
    assert ring(2).graph.tolist() == [[False, True], [True, False]]
