"""Overlays with a short cycle time: star, minimum spanning tree, ring, degree-bounded trees, path in a tree's cube.

Marfoq, Xu, Neglia, Vidal, NeurIPS 2020, with the names of that paper. Weights are symmetrised delays,
w(i, j) = (d(i, j) + d(j, i)) / 2, infinite unless both can talk to each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from turnout.core.errors import UserError, unknown
from turnout.core.random import FloatArray
from turnout.peers.cycles import cycle_time, require_strongly_connected
from turnout.peers.network import BoolArray, Exchange, Network, Overlay, OverlayError, Star

CENTERS = ("best", "first", "load")


def star(network: Network, exchange: Exchange, center: str = "best") -> Star:
    """One silo serves all others. Its centre: `best` has the smallest cycle time, `first` is the first of the file (as
    in the published tables), `load` lies on most shortest routes of the underlay; or a silo by name."""
    if center == "best":
        both = network.both_ways.sum(1) == len(network) - 1
        if not both.any():
            raise OverlayError("star: no silo can talk to all others in both directions")
        stars = [Star.around(int(silo), len(network)) for silo in np.flatnonzero(both)]
        return min(stars, key=lambda star: star.delays(network, exchange).diagonal().max())
    if center in ("first", "load"):
        return Star.around(0 if center == "first" else _most_loaded(network), len(network))
    if center not in network.names:
        raise unknown("center", center, (*CENTERS, *network.names))
    return Star.around(network.names.index(center), len(network))


def _most_loaded(network: Network) -> int:
    import networkx as nx

    if network.links is None:
        raise UserError("center: load needs the links of an underlay; allowed: best, first, or the name of a silo")
    loads = nx.load_centrality(nx.from_numpy_array(network.links))
    return max(range(len(network)), key=lambda silo: loads[silo])


def mst(network: Network, exchange: Exchange) -> Overlay:
    """The minimum spanning tree: no undirected overlay is faster where access links are never the bottleneck."""
    return Overlay("mst", prim(_symmetrised(network, exchange, network.core)))


def ring(network: Network, exchange: Exchange) -> Overlay:
    """The directed tour of Christofides' algorithm, the way round that is faster: within 3 N of the optimum where the
    delays are metric. Degrees are 1, so that its weights are exact. Where some pairs cannot talk, their weight is a
    detour and a fine, and 2-opt steps lead the tour around them."""
    silos = len(network)
    weights = _symmetrised(network, exchange, network.uplink[:, None], network.downlink, network.core)
    tour = list(range(silos)) if silos <= 3 else _christofides(weights)
    overlays = []
    for way in (tour, tour[::-1]):
        graph = np.zeros((silos, silos), np.bool_)
        graph[way, way[1:] + way[:1]] = silos > 1
        if not (graph & ~network.connected).any():
            overlays.append(Overlay("ring", graph))
    if not overlays:
        raise OverlayError("ring: its tour needs silos to talk that cannot, in either direction")
    return min(overlays, key=lambda overlay: cycle_time(overlay.delays(network, exchange))[0])


def _christofides(weights: FloatArray) -> list[int]:
    import networkx as nx

    silos = len(weights)
    possible = np.isfinite(weights) | np.eye(silos, dtype=np.bool_)
    detours = closure(weights)
    lengths = np.where(possible, weights, detours + silos * detours.max())  # so much that a tour avoids it
    graph = nx.empty_graph(silos)  # its order decides between equals
    graph.add_weighted_edges_from((i, j, lengths[i, j]) for i in range(silos) for j in range(i))
    tour: list[int] = nx.approximation.christofides(graph)[:-1]
    return tour if possible.all() else _shortened(tour, lengths)


def _shortened(tour: list[int], lengths: FloatArray) -> list[int]:
    """2-opt: while that makes the tour shorter, a stretch of it is turned round."""
    here = np.array(tour)
    while True:
        after = np.roll(here, -1)
        old, new = lengths[here, after], lengths[np.ix_(here, here)] + lengths[np.ix_(after, after)]
        gains = np.triu(old[:, None] + old - new, 1)
        first, last = np.unravel_index(gains.argmax(), gains.shape)
        if gains[first, last] <= 1e-9 * old.sum():
            return [int(silo) for silo in here]
        here[first + 1 : last + 1] = here[first + 1 : last + 1][::-1].copy()


def is_metric(network: Network, exchange: Exchange) -> bool:
    """Whether the ring's weights satisfy the triangle inequality: its guarantee needs it."""
    weights = _symmetrised(network, exchange, network.uplink[:, None], network.downlink, network.core)
    finite = np.isfinite(weights)
    return bool((closure(weights)[finite] >= weights[finite] * (1 - 1e-12)).all())


def cube_path(network: Network, exchange: Exchange) -> Overlay:
    """A Hamiltonian path in the cube of a minimum spanning tree: degree 2, its slowest link within 3 times the best
    possible where the delays are metric."""
    rates = network.uplink[:, None], network.downlink, network.core
    return _path("cube_path", prim(_symmetrised(network, exchange, *rates)))


def delta_mbst(network: Network, exchange: Exchange, max_degree: int | None = None) -> Overlay:
    """Algorithm 3 of the paper: the fastest of cube paths and degree-bounded trees, with the delays their degrees give
    them; within 6 times the best undirected overlay where only uplinks are slow.

    The weights are tried with and without downlinks and core: neither is better on every network.
    """
    if max_degree is not None and max_degree < 2:
        raise UserError(f"max_degree: {max_degree} is unreachable; a spanning tree needs at least 2")
    bound = max_degree or max(2, len(network))
    uplink = network.uplink[:, None]
    candidates = [prim(_symmetrised(network, exchange, network.core))]
    for rates in ((uplink,), (uplink, network.downlink, network.core)):
        weights = _symmetrised(network, exchange, *rates)
        candidates.append(_path("cube_path", prim(weights)).graph)
        for degree in range(2, bound + 1):
            try:
                candidates.append(prim(weights, degree))
            except OverlayError:
                continue
            if candidates[-1].sum(1).max() < degree:  # no larger bound changes the tree
                break
    fitting = (graph for graph in candidates if graph.sum(1).max() <= bound and not (graph & ~network.connected).any())
    possible = [Overlay("delta_mbst", graph) for graph in fitting]
    if not possible:
        raise UserError(f"max_degree: {max_degree} is unreachable; no such spanning tree was found in this network")
    return min(possible, key=lambda overlay: undirected_cycle_time(overlay.delays(network, exchange)))


def undirected_cycle_time(delays: FloatArray) -> float:
    """Of a tree with both directions of every link: its circuits are links there and back, and loops."""
    return float((delays + delays.T).max() / 2)


def prim(weights: FloatArray, max_degree: int | None = None) -> BoolArray:
    """`[N, N]` a tree grown from silo 0 by the cheapest link that keeps all degrees at `max_degree` or less
    (delta-Prim); without a bound, the minimum spanning tree."""
    silos = len(weights)
    bound = max_degree or silos
    tree = np.zeros((silos, silos), np.bool_)
    offers = np.full((silos, silos), np.inf)  # from the tree to the others
    outside = np.ones(silos, np.bool_)
    offers[0], outside[0] = weights[0], False
    offers[0, 0] = np.inf
    for _ in range(silos - 1):
        one, other = np.unravel_index(offers.argmin(), offers.shape)
        if offers[one, other] == np.inf:
            raise OverlayError(f"no tree of degree {bound} or less that is grown from the first silo spans the network")
        tree[one, other] = tree[other, one] = True
        outside[other] = False
        offers[:, other] = np.inf
        offers[other] = np.where(outside, weights[other], np.inf)
        for full in (one, other):
            if tree[full].sum() >= bound:
                offers[full] = np.inf
    return tree


def hamiltonian_path(tree: BoolArray) -> list[int]:
    """In the cube of a tree: silos at even depth when a depth-first search enters them, the others when it leaves them.

    That is Sekanina's recursion, path(u) = u + the reversed path of every branch at u; neighbours are at most 3 links
    apart.
    """
    path, stack = [], [(0, 0, True, False)]
    while stack:
        silo, parent, even, leaving = stack.pop()
        if even or leaving:
            path.append(silo)
        if not leaving:
            if not even:
                stack.append((silo, parent, even, True))
            children = (int(child) for child in np.flatnonzero(tree[silo]) if child != parent)
            stack.extend((child, silo, not even, False) for child in children)
    return path


def closure(weights: FloatArray) -> FloatArray:
    """`[N, N]` lengths of shortest paths (Floyd and Warshall)."""
    lengths = weights.copy()
    for middle in range(len(lengths)):
        np.minimum(lengths, lengths[:, [middle]] + lengths[middle], out=lengths)
    return lengths


def _path(name: str, tree: BoolArray) -> Overlay:
    path = hamiltonian_path(tree)
    graph = np.zeros_like(tree)
    graph[path[:-1], path[1:]] = graph[path[1:], path[:-1]] = True
    return Overlay(name, graph)


def _symmetrised(network: Network, exchange: Exchange, *rates: ArrayLike) -> FloatArray:
    """`[N, N]` weights of s T_c(i) + l(i, j) + M / min(rates)."""
    require_strongly_connected(network.both_ways, network.names)
    slowest = np.minimum.reduce(np.broadcast_arrays(*rates, np.full(network.core.shape, np.inf)))
    delays = exchange.computing(len(network))[:, None] + network.latency + exchange.model_bits / slowest
    weights = np.where(network.both_ways, delays, np.inf)
    return np.asarray((weights + weights.T) / 2)
