"""Cycle times: closed forms (O1, O2, O5, O7, O8, O9) and Karp's algorithm against all circuits."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import from_links

from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.peers.cycles import cycle_time


def ring(delays: list[float]) -> FloatArray:
    matrix = np.full((len(delays), len(delays)), -np.inf)
    for i, delay in enumerate(delays):
        matrix[i, (i + 1) % len(delays)] = delay
    return matrix


def mean(delays: FloatArray, circuit: tuple[int, ...]) -> float:
    return float(delays[list(circuit), list(circuit[1:] + circuit[:1])].mean())


def random_delays(silos: int, seed: int, density: float, whole: bool) -> FloatArray:
    """Strongly connected: a ring, and some other arcs and loops. Whole numbers give ties."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 4, (silos, silos)).astype(float) if whole else rng.uniform(0, 9, (silos, silos))
    return np.where((rng.random((silos, silos)) < density) | np.roll(np.eye(silos, dtype=bool), 1, 1), values, -np.inf)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.integers(0, 10**6), st.floats(0, 1), st.booleans())
def test_karp_finds_the_heaviest_of_all_circuits(silos: int, seed: int, density: float, whole: bool) -> None:
    delays = random_delays(silos, seed, density, whole)
    graph = nx.DiGraph(list(map(tuple, np.argwhere(delays > -np.inf))))
    expected = max(mean(delays, tuple(circuit)) for circuit in nx.simple_cycles(graph))
    tau, circuit = cycle_time(delays)
    assert tau == pytest.approx(expected, abs=1e-12)
    assert len(set(circuit)) == len(circuit)
    assert mean(delays, circuit) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(0, 10**6))
def test_o1_a_tree_is_as_slow_as_its_slowest_link_there_and_back(silos: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    delays = np.full((silos, silos), -np.inf)
    for child in range(1, silos):
        parent = int(rng.integers(child))
        delays[parent, child], delays[child, parent] = rng.uniform(0, 9, 2)
    np.fill_diagonal(delays, rng.uniform(0, 9, silos))
    links = (delays + delays.T)[~np.eye(silos, dtype=bool)].max() / 2
    assert cycle_time(delays)[0] == pytest.approx(max(links, delays.diagonal().max()))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 9), min_size=2, max_size=12), st.floats(0, 9))
def test_o2_a_ring_takes_the_mean_of_its_delays_or_the_slowest_computing(around: list[float], loop: float) -> None:
    delays = ring(around)
    np.fill_diagonal(delays, 0)
    delays[0, 0] = loop
    tau, circuit = cycle_time(delays)
    assert tau == pytest.approx(max(np.mean(around), loop))
    assert len(circuit) in (1, len(around))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10**6), st.floats(0.1, 9))
def test_o5_scaling_and_another_arc(silos: int, seed: int, factor: float) -> None:
    delays = random_delays(silos, seed, 0.4, whole=False)
    tau = cycle_time(delays)[0]
    assert cycle_time(factor * delays)[0] == pytest.approx(factor * tau)
    more = np.where(delays > -np.inf, delays, np.where(np.eye(silos, k=1, dtype=bool), 1.0, -np.inf))
    assert cycle_time(more)[0] >= tau - 1e-12


def test_o7_a_ring_can_beat_every_tree() -> None:
    tree = from_links(3, {(0, 1): 1, (1, 2): 3})
    assert cycle_time(tree) == (3, (1, 2)) or cycle_time(tree) == (3, (2, 1))
    assert cycle_time(ring([1, 3, 4]))[0] == pytest.approx(8 / 3)


@pytest.mark.parametrize("n", [3, 10, 50])
def test_o8_lollipop(n: int) -> None:
    path = {(i, i + 1): 1.0 for i in range(n - 1)} | {(n - 1, n): float(n)}
    assert cycle_time(from_links(n + 1, path))[0] == n
    tau = cycle_time(ring([1.0] * (n - 1) + [n, 2 * n - 1]))[0]
    assert tau == pytest.approx((4 * n - 2) / (n + 1))
    assert tau < 4


@pytest.mark.parametrize("n", [3, 6])
def test_o9_a_ring_is_not_always_good(n: int) -> None:
    """The paper prints 2 / (N + 2): it counts the first silo of a circuit twice."""
    inside = np.arange(2 * n) < n
    delays = np.where(inside[:, None] & inside, 0.0, 1.0)
    overlay = np.full_like(delays, -np.inf)
    for i in range(n - 1):
        overlay[i, i + 1] = delays[i, i + 1]
    overlay[n - 1, n:] = overlay[n:, 0] = 1.0
    assert cycle_time(overlay)[0] == pytest.approx(2 / (n + 1))
    tour = cycle_time(ring([float(delays[i, (i + 1) % (2 * n)]) for i in range(2 * n)]))[0]
    assert tour == pytest.approx((n + 1) / (2 * n))  # the best tour: it leaves the cheap half once


def test_one_silo_takes_as_long_as_it_computes() -> None:
    assert cycle_time(np.array([[0.3]])) == (0.3, (0,))


def test_arcs_may_take_no_time() -> None:
    assert cycle_time(np.zeros((3, 3)))[0] == 0


def test_a_pair_that_cannot_talk_is_named() -> None:
    one_way = np.array([[0.0, 1, 1], [-np.inf, 0, 1], [-np.inf, 1, 0]])
    with pytest.raises(UserError, match="nothing that Lyon sends ever reaches Turin"):
        cycle_time(one_way, ("Turin", "Lyon", "Nice"))
    with pytest.raises(UserError, match="nothing that Turin sends ever reaches Lyon"):
        cycle_time(one_way.T, ("Turin", "Lyon", "Nice"))


@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_a_delay_without_end_is_refused(wrong: float) -> None:
    with pytest.raises(UserError, match="a bandwidth must be above 0"):
        cycle_time(np.array([[0.0, wrong], [1.0, 0.0]]))


def test_no_circuit_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="one silo without a loop"):
        cycle_time(np.array([[-np.inf]]))
