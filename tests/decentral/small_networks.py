"""Networks small enough to try every overlay."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from turnout.core.random import FloatArray
from turnout.peers.cycles import cycle_time
from turnout.peers.network import BoolArray, Exchange, Network, Overlay

NO_SIZE = Exchange(1.0)  # with infinite rates nothing but latency is left


def network(latency: FloatArray, uplink: float | FloatArray = np.inf, downlink: float | FloatArray = np.inf) -> Network:
    """Everybody can talk to everybody; the core is never slow."""
    silos = len(latency)
    up, down = (np.broadcast_to(np.asarray(rate, np.float64), (silos,)) for rate in (uplink, downlink))
    names = tuple(f"s{i}" for i in range(silos))
    return Network(names, latency, np.full((silos, silos), np.inf), up, down, ~np.eye(silos, dtype=np.bool_))


def euclidean(places: FloatArray, uplink: float | FloatArray = np.inf) -> Network:
    return network(np.linalg.norm(places[:, None] - places, axis=-1), uplink)


def from_links(silos: int, links: dict[tuple[int, int], float]) -> FloatArray:
    """`[N, N]` the same delay both ways; no loops and -inf elsewhere."""
    delays = np.full((silos, silos), -np.inf)
    for (i, j), delay in links.items():
        delays[i, j] = delays[j, i] = delay
    return delays


def digraphs(silos: int) -> Iterator[BoolArray]:
    """Those with 2 N - 2 arcs or fewer: more arcs than strong connection needs never make a round shorter."""
    places = np.argwhere(~np.eye(silos, dtype=np.bool_))
    for count in range(silos, 2 * silos - 1):
        for chosen in combinations(range(len(places)), count):
            graph = np.zeros((silos, silos), np.bool_)
            graph[tuple(places[list(chosen)].T)] = True
            yield graph


def undirected(silos: int) -> Iterator[BoolArray]:
    """All of them: 1,024 for five silos."""
    pairs = np.array(list(combinations(range(silos), 2)))
    for chosen in product((False, True), repeat=len(pairs)):
        graph = np.zeros((silos, silos), np.bool_)
        graph[tuple(pairs[list(chosen)].T)] = True
        yield graph | graph.T


def best(graphs: Iterator[BoolArray], net: Network, exchange: Exchange) -> float:
    """The smallest cycle time of the strongly connected ones."""
    found = np.inf
    for graph in graphs:
        if np.linalg.matrix_power(graph + np.eye(len(graph)), len(graph)).all():
            found = min(found, time_of(Overlay("any", graph), net, exchange))
    return found


def time_of(overlay: Overlay, net: Network, exchange: Exchange) -> float:
    return cycle_time(overlay.delays(net, exchange))[0]
