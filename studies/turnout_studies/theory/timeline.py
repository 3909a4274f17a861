"""When every silo starts every round: the max-plus recursion of synchronous training without a server.

    t_i(0) = 0,    t_i(k + 1) = max over j that send to i, and i itself, of t_j(k) + d(j, i)

Marfoq, Xu, Neglia, Vidal, "Throughput-Optimal Topology Design for Cross-Silo Federated Learning", NeurIPS 2020. In the
long run a round takes `cycle_time` of the delays.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from turnout.core.random import FloatArray
from turnout.peers.network import BoolArray, Exchange, Network, Overlay, PerRound


def timeline(
    overlay: Overlay,
    network: Network,
    exchange: Exchange,
    rounds: int,
    compute_time: PerRound | None = None,
    latency: PerRound | None = None,
) -> FloatArray:
    """`[rounds + 1, N]` seconds: row k is when each silo starts round k.

    `compute_time(round)` gives `[N]` seconds of a local step for stragglers, `latency(round)` gives `[N, N]` seconds
    for jitter; without them every round is as the exchange and the network say.
    """
    times = np.zeros((rounds + 1, len(network)))
    arcs: BoolArray | None = None
    for k in range(rounds):
        before, arcs = arcs, overlay.arcs(k)
        if compute_time is not None:
            exchange = replace(exchange, compute_time=compute_time(k))
        if latency is not None:
            network = replace(network, latency=latency(k))
        if arcs is not before or compute_time is not None or latency is not None:
            delays = overlay.delays(network, exchange, k)
        times[k + 1] = (times[k][:, None] + delays).max(0)
    return times
