"""Overlays against every other overlay of small networks: O13 to O17."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import NO_SIZE, best, digraphs, euclidean, from_links, network, time_of, undirected

from turnout.core.errors import UserError
from turnout.peers import overlays, underlays
from turnout.peers.cycles import cycle_time
from turnout.peers.network import BoolArray, Exchange, Network, OverlayError
from turnout.peers.overlays import hamiltonian_path, prim

SEEDS = st.integers(0, 10**6)


def random_tree(silos: int, seed: int) -> BoolArray:
    rng = np.random.default_rng(seed)
    tree = np.zeros((silos, silos), np.bool_)
    for child in range(1, silos):
        parent = int(rng.integers(child))
        tree[parent, child] = tree[child, parent] = True
    return tree


def plane(silos: int, seed: int, uplink: float = np.inf) -> tuple[Network, Exchange]:
    """Silos in the unit square, each with its own computing time; a message takes as long as a side, or no time."""
    rng = np.random.default_rng(seed)
    net = euclidean(rng.random((silos, 2)), uplink * rng.uniform(0.5, 2, silos))
    return net, Exchange(1.0, rng.uniform(0, 0.3, silos))


@settings(max_examples=3, deadline=None)
@given(SEEDS)
def test_o13_no_undirected_overlay_beats_the_tree_where_access_is_fast(seed: int) -> None:
    rng = np.random.default_rng(seed)
    net = network(rng.uniform(0, 9, (5, 5)) * ~np.eye(5, dtype=np.bool_))
    exchange = Exchange(1.0, rng.uniform(0, 2, 5))
    assert time_of(overlays.mst(net, exchange), net, exchange) == pytest.approx(best(undirected(5), net, exchange))


@settings(max_examples=2, deadline=None)
@given(SEEDS, st.sampled_from([np.inf, 1.0]))
def test_o14_the_ring_is_within_3n_of_the_best(seed: int, uplink: float) -> None:
    net, exchange = plane(4, seed, uplink)
    tau = time_of(overlays.ring(net, exchange), net, exchange)
    optimum = best(digraphs(4), net, exchange)
    assert optimum - 1e-9 <= tau <= 3 * 4 * optimum


@settings(max_examples=3, deadline=None)
@given(SEEDS)
def test_o14_delta_mbst_is_within_6_of_the_best_undirected(seed: int) -> None:
    net, exchange = plane(5, seed, 1.0)
    optimum = best(undirected(5), net, exchange)
    overlay = overlays.delta_mbst(net, exchange)
    tau = time_of(overlay, net, exchange)
    assert optimum - 1e-9 <= tau <= 6 * optimum
    assert tau == pytest.approx(overlays.undirected_cycle_time(overlay.delays(net, exchange)))
    alone = exchange.computing(5)[:, None] + net.latency + exchange.model_bits / net.uplink[:, None]
    weights = (alone + alone.T) / 2  # of Lemma C.4: nobody shares an uplink
    np.fill_diagonal(weights, np.inf)
    assert weights[prim(weights)].max() <= optimum + 1e-9


@pytest.mark.parametrize(
    ("links", "optimum"),
    [
        ([(0, 1), (1, 2), (2, 3), (3, 0)], 1.5),  # has a Hamiltonian cycle: (N + 2) / N
        ([(0, 1), (1, 2), (2, 3)], 1.75),
        ([(0, 1), (0, 2), (0, 3)], 2.0),
    ],
)
def test_o15_the_fastest_overlay_tells_a_hamiltonian_cycle(links: list[tuple[int, int]], optimum: float) -> None:
    cheap = from_links(4, dict.fromkeys(links, 1.0)) > 0
    latency = np.where(cheap, 1.0, 2.0)
    latency[0] += 1
    latency[:, 0] += 1
    np.fill_diagonal(latency, 0)
    assert best(digraphs(4), network(latency), NO_SIZE) == pytest.approx(optimum)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), SEEDS)
def test_o16_a_path_in_the_cube_of_a_tree(silos: int, seed: int) -> None:
    tree = random_tree(silos, seed)
    path = hamiltonian_path(tree)
    apart = dict(nx.all_pairs_shortest_path_length(nx.from_numpy_array(tree)))
    assert sorted(path) == list(range(silos))
    assert all(apart[one][other] <= 3 for one, other in pairwise(path))


def test_o16_of_a_star_and_of_a_long_path() -> None:
    star = np.zeros((30, 30), np.bool_)
    star[7] = star[:, 7] = True
    star[7, 7] = False
    assert sorted(hamiltonian_path(star)) == list(range(30))
    chain = np.eye(1000, k=1, dtype=np.bool_) | np.eye(1000, k=-1, dtype=np.bool_)
    path = hamiltonian_path(chain)
    assert sorted(path) == list(range(1000))
    assert np.abs(np.diff(path)).max() <= 3


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_o16_the_slowest_link_of_a_cube_path_is_within_3_of_the_best(seed: int) -> None:
    net, _ = plane(8, seed)
    path, tree = (build(net, NO_SIZE).graph for build in (overlays.cube_path, overlays.mst))
    assert net.latency[path].max() <= 3 * net.latency[tree].max() + 1e-12
    assert path.sum(1).max() == 2


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 25), st.integers(2, 6), SEEDS)
def test_o17_prim_with_and_without_a_bound(silos: int, degree: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0, 9, (silos, silos))
    weights = weights + weights.T
    np.fill_diagonal(weights, np.inf)
    graph = nx.Graph()
    graph.add_weighted_edges_from((i, j, weights[i, j]) for i in range(silos) for j in range(i))
    lightest = nx.minimum_spanning_tree(graph).size("weight")
    for tree, bound in ((prim(weights), silos), (prim(weights, silos), silos), (prim(weights, degree), degree)):
        assert nx.is_tree(nx.from_numpy_array(tree))
        assert tree.sum(1).max() <= bound
        if bound == silos:
            assert weights[tree].sum() / 2 == pytest.approx(lightest)
        else:
            assert weights[tree].sum() / 2 >= lightest - 1e-9


def test_a_ring_of_few_silos() -> None:
    latency = np.array([[0.0, 1, 5], [4, 0, 2], [3, 6, 0]])
    two, one = network(latency[:2, :2]), network(np.zeros((1, 1)))
    assert time_of(overlays.ring(two, NO_SIZE), two, NO_SIZE) == 2.5
    assert time_of(overlays.ring(one, Exchange(1.0, 7.0)), one, Exchange(1.0, 7.0)) == 7
    three = network(latency)
    assert time_of(overlays.ring(three, NO_SIZE), three, NO_SIZE) == 2  # 0 -> 1 -> 2 -> 0, not the other way round
    mirrored = network(latency.T)
    assert time_of(overlays.ring(mirrored, NO_SIZE), mirrored, NO_SIZE) == 2


def test_a_ring_where_some_cannot_talk() -> None:
    around = np.roll(np.eye(6, dtype=np.bool_), 1, 1)
    net = network(np.ones((6, 6)) - np.eye(6))
    circle = replace(net, connected=around | around.T)
    assert time_of(overlays.ring(circle, NO_SIZE), circle, NO_SIZE) == 1
    tree = replace(net, connected=random_tree(6, 0))
    with pytest.raises(OverlayError, match="ring: its tour needs silos to talk that cannot"):
        overlays.ring(tree, NO_SIZE)
    np.testing.assert_array_equal(overlays.mst(tree, NO_SIZE).graph, tree.connected)
    np.testing.assert_array_equal(overlays.delta_mbst(tree, NO_SIZE).graph, tree.connected)
    apart = replace(net, connected=np.kron(np.eye(2), np.ones((3, 3))).astype(bool) & ~np.eye(6, dtype=np.bool_))
    for build in (overlays.mst, overlays.ring, overlays.delta_mbst, overlays.cube_path):
        with pytest.raises(OverlayError, match="nothing that s0 sends ever reaches s3"):
            build(apart, NO_SIZE)


@pytest.mark.parametrize("seed", range(8))
def test_a_ring_finds_its_way_around_pairs_that_cannot_talk(seed: int) -> None:
    net, exchange = plane(15, seed)
    apart = np.random.default_rng(seed).random((15, 15)) < 0.15
    patchy = replace(net, connected=net.connected & ~(apart | apart.T))
    tour = overlays.ring(patchy, exchange)
    assert (tour.graph.sum(0) == 1).all()
    assert len(cycle_time(tour.delays(patchy, exchange))[1]) == 15


def test_the_triangle_inequality_is_looked_at() -> None:
    net, exchange = plane(6, 1)
    assert overlays.is_metric(net, exchange)
    detour = net.latency.copy()
    detour[0, 1] = detour[1, 0] = 99
    assert not overlays.is_metric(replace(net, latency=detour), exchange)


def test_a_degree_bound() -> None:
    net, exchange = plane(8, 2, 1e3)
    for bound in (2, 3):
        assert overlays.delta_mbst(net, exchange, bound).graph.sum(1).max() <= bound
    with pytest.raises(UserError, match="max_degree: 1 is unreachable; a spanning tree needs at least 2"):
        overlays.delta_mbst(net, exchange, 1)
    star = np.zeros((8, 8), np.bool_)
    star[3] = star[:, 3] = True
    star[3, 3] = False
    with pytest.raises(UserError, match="max_degree: 2 is unreachable; no such spanning tree was found"):
        overlays.delta_mbst(replace(net, connected=star), exchange, 2)
    with pytest.raises(OverlayError, match="no tree of degree 3 or less"):
        prim(np.where(star, 1.0, np.inf), 3)


def test_the_centre_of_a_star() -> None:
    net, exchange = plane(7, 5, 1.0)
    times = [time_of(overlays.star(net, exchange, name), net, exchange) for name in net.names]
    assert time_of(overlays.star(net, exchange), net, exchange) == pytest.approx(min(times))
    assert overlays.star(net, exchange, "first").center == 0
    with pytest.raises(UserError, match="center: load needs the links of an underlay"):
        overlays.star(net, exchange, "load")
    with pytest.raises(UserError, match="center: unknown name 'bst'; did you mean best"):
        overlays.star(net, exchange, "bst")
    alone = net.connected.copy()
    alone[np.arange(7), np.roll(np.arange(7), 1)] = False
    with pytest.raises(OverlayError, match="no silo can talk to all others"):
        overlays.star(replace(net, connected=alone), exchange)
    geant = underlays.read("geant").network(10e9)
    assert geant.names[overlays.star(geant, exchange, "load").center] == "DE"
