"""The timeline: the max-plus recursion against a plain loop, and its rate against Karp's cycle time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from turnout.core.random import FloatArray, key, uniform
from turnout.peers.cycles import cycle_time
from turnout.peers.network import BoolArray, Exchange, Network, Overlay, Star
from turnout_studies.theory.timeline import timeline

SILOS = 7


def network(seed: int = 0, silos: int = SILOS) -> Network:
    latency = uniform(key(seed, "test latency"), silos * silos).reshape(silos, silos)
    np.fill_diagonal(latency, 0)
    up, down = 1e6 * (1 + uniform(key(seed, "test rates"), 2 * silos).reshape(2, silos))
    core = 5e5 * (1 + uniform(key(seed, "test core"), silos * silos).reshape(silos, silos))
    names = tuple(f"silo {i}" for i in range(silos))
    return Network(names, latency, core, up, down, ~np.eye(silos, dtype=np.bool_))


def exchange(seed: int = 0, steps: int = 3) -> Exchange:
    return Exchange(1e6, uniform(key(seed, "test compute"), SILOS), steps)


RING: BoolArray = np.roll(np.eye(SILOS, dtype=np.bool_), 1, axis=1)


def scattered(seed: int) -> BoolArray:
    """A ring, so that it is strongly connected, and a third of the other arcs."""
    arcs = RING | (uniform(key(seed, "test arcs"), SILOS * SILOS).reshape(SILOS, SILOS) < 1 / 3)
    np.fill_diagonal(arcs, False)
    return arcs


OVERLAYS = {
    "ring": Overlay("ring", RING),
    "cycle": Overlay("cycle", RING | RING.T),
    "complete": Overlay("complete", ~np.eye(SILOS, dtype=np.bool_)),
    "star": Star.around(2, SILOS),
    **{f"scattered {seed}": Overlay(f"scattered {seed}", scattered(seed)) for seed in range(3)},
}
every_overlay = pytest.mark.parametrize("name", OVERLAYS)


@dataclass(frozen=True, eq=False)
class Alternating(Overlay):
    """The ring in even rounds, the other way round in odd ones."""

    def arcs(self, round: int = 0) -> BoolArray:
        return self.graph.T if round % 2 else self.graph


def plain(delays: list[FloatArray]) -> FloatArray:
    """The recursion, arc by arc."""
    times = [[0.0] * SILOS]
    for matrix in delays:
        times.append(
            [max(times[-1][j] + matrix[j, i] for j in range(SILOS) if matrix[j, i] > -np.inf) for i in range(SILOS)]
        )
    return np.array(times)


@every_overlay
def test_the_recursion(name: str) -> None:
    overlay, world, cost = OVERLAYS[name], network(), exchange()
    expected = plain([overlay.delays(world, cost)] * 12)
    np.testing.assert_array_equal(timeline(overlay, world, cost, 12), expected)
    assert timeline(overlay, world, cost, 0).tolist() == [[0.0] * SILOS]


def test_an_overlay_that_changes() -> None:
    overlay, world, cost = Alternating("alternating", RING), network(), exchange()
    expected = plain([overlay.delays(world, cost, k) for k in range(9)])
    found = timeline(overlay, world, cost, 9)
    np.testing.assert_array_equal(found, expected)
    assert (found != timeline(OVERLAYS["ring"], world, cost, 9)).any()


def test_stragglers_and_jitter() -> None:
    overlay, world, cost = OVERLAYS["scattered 1"], network(), exchange()

    def compute_time(round: int) -> FloatArray:
        return uniform(key(round, "test straggler"), SILOS)

    def latency(round: int) -> FloatArray:
        return world.latency * (1 + uniform(key(round, "test jitter"), 1))

    def delays(k: int, stragglers: bool, jitter: bool) -> FloatArray:
        where = replace(world, latency=latency(k)) if jitter else world
        return overlay.delays(where, replace(cost, compute_time=compute_time(k)) if stragglers else cost)

    for stragglers, jitter in ((True, False), (False, True), (True, True)):
        found = timeline(overlay, world, cost, 8, compute_time if stragglers else None, latency if jitter else None)
        np.testing.assert_array_equal(found, plain([delays(k, stragglers, jitter) for k in range(8)]))


@every_overlay
def test_the_rate_is_karps_cycle_time(name: str) -> None:
    """Oracle O6: |t_i(k) - tau k| stays bounded, so that the mean round is within c / k of tau."""
    overlay, world, cost = OVERLAYS[name], network(1), exchange(1)
    delays = overlay.delays(world, cost)
    tau, _ = cycle_time(delays)
    times = timeline(overlay, world, cost, 4000)
    ahead = np.abs(times - tau * np.arange(4001)[:, None]).max(1)
    assert ahead.max() <= SILOS * delays.max()
    assert ahead[2000:].max() <= ahead[:2000].max() + 1e-6  # it does not grow
    assert np.abs(times[1000] / 1000 / tau - 1).max() < 0.005


@pytest.mark.parametrize("name", ["ring", "cycle", "scattered 0", "scattered 2", "star"])
def test_after_the_transient_it_is_periodic(name: str) -> None:
    """Oracle O6: t_i(k + q) - t_i(k) = q tau exactly, q the length of the critical circuit. Delays are whole numbers of
    1/8 s, so that sums are exact."""
    overlay = OVERLAYS[name]
    latency = np.round(network(2).latency * 64) / 8
    ideal = replace(network(2), latency=latency, core=np.full((SILOS, SILOS), np.inf), uplink=np.full(SILOS, 2.0**20))
    ideal = replace(ideal, downlink=ideal.uplink)
    if name == "star":
        ideal = replace(ideal, uplink=np.full(SILOS, np.inf), downlink=np.full(SILOS, np.inf))
    cost = Exchange(2.0**20, np.arange(SILOS) / 8)
    tau, circuit = cycle_time(overlay.delays(ideal, cost))
    times = timeline(overlay, ideal, cost, 400)
    q = len(circuit)
    np.testing.assert_array_equal(times[-1] - times[-1 - q], np.full(SILOS, np.rint(8 * q * tau) / 8))
    assert tau * q == pytest.approx(np.rint(8 * q * tau) / 8, abs=1e-12)


def test_nobody_is_faster_than_its_own_computing() -> None:
    """One silo far slower than all links: it sets the pace, by its loop."""
    cost = Exchange(1.0, np.array([50.0, *np.zeros(SILOS - 1)]))
    times = timeline(OVERLAYS["complete"], network(), cost, 100)
    assert times[-1].max() == pytest.approx(100 * 50.0, rel=1e-2)
    assert np.diff(times[:, 0]).tolist() == [50.0] * 100
