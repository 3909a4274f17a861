"""The time a round takes in the long run: the largest mean delay of a circuit.

A silo starts a round when all its in-neighbours' models are there: t_j(k+1) = max_i t_i(k) + d(i, j). Then t(k) / k
tends to

    tau = max over circuits of (sum of the delays) / (number of arcs),    throughput 1 / tau

for every silo (Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992), a loop at one silo being a
circuit. Karp, "A characterization of the minimum cycle mean in a digraph", Discrete Mathematics 1978: with D_k(v) the
longest walk of k arcs from a source to v, tau = max_v min_{k<n} (D_n(v) - D_k(v)) / (n - k).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse.csgraph import breadth_first_order

from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.peers.network import BoolArray, OverlayError


def cycle_time(delays: FloatArray, names: Sequence[str] | None = None) -> tuple[float, tuple[int, ...]]:
    """tau of delays `[N, N]` (-inf: no arc), and a circuit that attains it: each sends to the next, the last to the
    first.

    >>> cycle_time(np.array([[0.0, 1.0, -np.inf], [-np.inf, 0.0, 3.0], [4.0, -np.inf, 0.0]]))
    (2.6666666666666665, (0, 1, 2))
    """
    if not (delays < np.inf).all():
        raise UserError("cycle time: a delay is infinite or not a number; a bandwidth must be above 0")
    arcs = delays > -np.inf
    require_strongly_connected(arcs, names)
    silos = len(delays)
    if not arcs.any():
        raise UserError("cycle time: one silo without a loop has no circuit")
    longest = np.full((silos + 1, silos), -np.inf)  # D_k(v)
    before = np.zeros((silos + 1, silos), np.int64)
    longest[0, 0] = 0
    for k in range(silos):
        walks = longest[k][:, None] + delays
        before[k + 1] = walks.argmax(0)
        longest[k + 1] = walks[before[k + 1], np.arange(silos)]
    reached = np.flatnonzero(longest[-1] > -np.inf)
    means = (longest[-1, reached] - longest[:-1, reached]) / np.arange(silos, 0, -1)[:, None]
    walk = [int(reached[means.min(0).argmax()])]
    for step in before[:0:-1]:
        walk.append(int(step[walk[-1]]))
    return _heaviest_circuit(walk[::-1], delays)


def _heaviest_circuit(walk: list[int], delays: FloatArray) -> tuple[float, tuple[int, ...]]:
    """Of the circuits that a walk decomposes into: on Karp's walk all are critical, up to rounding."""
    best: tuple[float, tuple[int, ...]] = (-np.inf, ())
    path: list[int] = []
    for silo in walk:
        if silo in path:
            circuit = path[path.index(silo) :]
            del path[path.index(silo) :]
            mean = float(delays[circuit, circuit[1:] + circuit[:1]].sum() / len(circuit))
            best = max(best, (mean, tuple(circuit)), key=lambda found: found[0])
        path.append(silo)
    return best


def require_strongly_connected(arcs: BoolArray, names: Sequence[str] | None = None) -> None:
    """Raise, with a pair in the message, unless every silo reaches every other."""
    for graph, backwards in ((arcs, False), (arcs.T, True)):
        unreached = np.ones(len(arcs), np.bool_)
        unreached[breadth_first_order(graph.astype(np.float64), 0, return_predecessors=False)] = False
        if unreached.any():
            pair = (0, int(unreached.argmax()))
            sender, receiver = (names[i] if names else f"silo {i}" for i in (pair[::-1] if backwards else pair))
            raise OverlayError(f"not strongly connected: nothing that {sender} sends ever reaches {receiver}")
