"""Silos without a server: what lies between them, what a round costs, who sends to whom.

Marfoq, Xu, Neglia, Vidal, "Throughput-Optimal Topology Design for Cross-Silo Federated Learning", NeurIPS 2020.
From the moment silo i starts to compute until its model has reached j,

    d(i, j) = s T_c(i) + l(i, j) + M / min(C_UP(i) / out_degree(i), C_DN(j) / in_degree(j), A(i, j))
    d(i, i) = s T_c(i)

Seconds, bits and bits a second everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from turnout.core.allowed import Positive, Range, WholeNumber
from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.core.spelling import Spelt

BoolArray = NDArray[np.bool_]
PerRound = Callable[[int], FloatArray]


class OverlayError(UserError):
    """This network cannot carry that overlay; it may carry others."""


@dataclass(frozen=True, eq=False)
class Network(Spelt):
    """N silos and what lies between them."""

    names: tuple[str, ...]
    latency: FloatArray  # [N, N] seconds, i -> j
    core: FloatArray  # [N, N] bits a second of the core path i -> j; inf: never the bottleneck
    uplink: FloatArray  # [N] access capacity, bits a second
    downlink: FloatArray  # [N]
    connected: BoolArray  # [N, N] who can talk to whom (no diagonal)
    links: BoolArray | None = None  # [N, N] neighbours in the underlay
    positions: FloatArray | None = None  # [N, 2] longitude, latitude

    def __post_init__(self) -> None:
        silos = len(self.names)
        if silos == 0 or len(set(self.names)) < silos:
            raise UserError(f"network: {silos} silos {self.names!r}; there must be one, and no name twice")
        square = dict.fromkeys(("latency", "core", "connected", "links"), (silos, silos))
        for name, shape in {**square, "uplink": (silos,), "downlink": (silos,)}.items():
            column = getattr(self, name)
            if column is not None and column.shape != shape:
                raise UserError(f"network.{name}: shape {column.shape} for {silos} silos; it must be {shape}")
        if self.connected.diagonal().any():
            raise UserError(f"network.connected: {self.names[int(self.connected.diagonal().argmax())]} with itself")
        for name in ("uplink", "downlink"):
            self._require(name, ~(getattr(self, name) > 0), "a capacity above 0")
        self._require("core", self.connected & ~(self.core > 0), "a bandwidth above 0")
        self._require("latency", np.diag(self.latency.diagonal() != 0), "0 seconds to itself")
        self._require("latency", self.connected & ~((self.latency >= 0) & (self.latency < np.inf)), "0 or more seconds")

    def _require(self, column: str, wrong: BoolArray, allowed: str) -> None:
        if wrong.any():
            where = tuple(np.argwhere(wrong)[0])
            who = " -> ".join(self.names[i] for i in where)
            raise UserError(f"network.{column}: {who} has {getattr(self, column)[where]}; it needs {allowed}")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def both_ways(self) -> BoolArray:
        """`[N, N]` the pairs that can talk in both directions."""
        return self.connected & self.connected.T


@dataclass(frozen=True, eq=False)
class Exchange(Spelt):
    """What a round costs: s local steps of compute_time[i] seconds, then a message of model_bits along every arc."""

    section: ClassVar[str] = "exchange"
    model_bits: Positive
    compute_time: Annotated[FloatArray | float, Range(least=0, below=np.inf)] = 0.0  # [N] seconds of one local step
    local_steps: WholeNumber = 1

    def computing(self, silos: int) -> FloatArray:
        """`[N]` s T_c(i)."""
        return np.broadcast_to(np.asarray(self.local_steps * np.asarray(self.compute_time, np.float64)), (silos,))


@dataclass(frozen=True, eq=False)
class Overlay(Spelt):
    """Who sends to whom: the same in every round, unless a subclass says otherwise."""

    name: str
    graph: BoolArray  # [N, N], no diagonal

    def arcs(self, round: int = 0) -> BoolArray:
        """`[N, N]` arcs[i, j]: i sends to j."""
        return self.graph

    def latency(self, network: Network) -> FloatArray:
        """`[N, N]` the part of the delays that is latency."""
        return network.latency

    def delays(self, network: Network, exchange: Exchange, round: int = 0) -> FloatArray:
        """`[N, N]` d(i, j) with the degrees of that round; -inf where nothing is sent; s T_c(i) on the diagonal."""
        arcs = self.arcs(round)
        self._check(arcs, network)
        upload = network.uplink / np.maximum(arcs.sum(1), 1)
        download = network.downlink / np.maximum(arcs.sum(0), 1)
        rate = np.minimum(np.minimum(upload[:, None], download), np.where(arcs, network.core, np.inf))
        computing = exchange.computing(len(network))
        delays = np.where(arcs, computing[:, None] + network.latency + exchange.model_bits / rate, -np.inf)
        np.fill_diagonal(delays, computing)
        return delays

    def mixing(self, round: int = 0) -> FloatArray | None:
        """`[N, N]` weights, row = receiver; None: by the trainer's rule."""
        return None

    def route(self, circuit: tuple[int, ...]) -> tuple[int, ...]:
        """The silos that a message meets on a circuit of the delays."""
        return circuit

    def _check(self, arcs: BoolArray, network: Network) -> None:
        if arcs.shape != network.connected.shape:
            raise UserError(f"overlay {self.name}: made for {len(arcs)} silos, the network has {len(network)}")
        missing = np.argwhere(arcs & ~network.connected)
        if len(missing):
            sender, receiver = (network.names[i] for i in missing[0])
            raise OverlayError(f"overlay {self.name}: {sender} cannot talk to {receiver} in this network")


@dataclass(frozen=True, eq=False)
class Star(Overlay):
    """Everybody uploads to the centre, then downloads the mean from it, in one round.

        up_i = l(i, c) + M / min(C_UP(i), C_DN(c) / (N - 1), A(i, c))
        down_j = l(c, j) + M / min(C_UP(c) / (N - 1), C_DN(j), A(c, j))
        d(i, j) = s T_c(i) + up_i + down_j,    up_c = down_c = 0

    a max-plus matrix of rank one, whose cycle time is the largest s T_c(i) + up_i + down_i.
    """

    center: int = 0

    @classmethod
    def around(cls, center: int, silos: int) -> Star:
        graph = np.zeros((silos, silos), np.bool_)
        graph[center] = graph[:, center] = True
        graph[center, center] = False
        return cls("star", graph, center)

    def latency(self, network: Network) -> FloatArray:
        return np.asarray(network.latency[:, [self.center]] + network.latency[self.center])

    def delays(self, network: Network, exchange: Exchange, round: int = 0) -> FloatArray:
        computing = exchange.computing(len(network))
        hops = super().delays(network, exchange) - computing[:, None]  # 0 on the diagonal
        return np.asarray(computing[:, None] + hops[:, [self.center]] + hops[self.center])

    def mixing(self, round: int = 0) -> FloatArray:
        return np.full(self.graph.shape, 1 / len(self.graph))

    def route(self, circuit: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(hop for silo in circuit for hop in dict.fromkeys((silo, self.center)))
