"""The section `[network]` of a configuration: what lies between silos, and the overlay they train over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.peers import design, quantities, underlays
from turnout.peers.network import Exchange, Network, Overlay
from turnout.peers.peers import over_own_links
from turnout.peers.underlays import LatencyMode


@dataclass(frozen=True)
class NetworkSettings:
    """`underlay` is a bundled one by name or a file, with one silo a client; without one, clients meet over their own
    links. `access` and `core` are rates such as 10Gbps. `overlay` is designed for that network by name (`turnout
    topology design` compares them), or read from an overlay.json."""

    underlay: str | None = None  # a bundled one by name, or a file; none: the clients' own links
    access: str | None = None  # rate of a silo's access, such as 10Gbps; none: the underlay's own
    core: str | None = None  # rate of the core, such as 1Gbps; none: the underlay's own
    latency_mode: LatencyMode = "per_path"  # how latency is taken: of the whole path, or hop by hop
    overlay: str = "ring"  # ring, star, mst, ... of `turnout topology design`, or an overlay.json
    center: str = "best"  # of a star: best, first, load, or a silo's name
    budget: float = 0.5  # of matcha: the share of matchings that is active
    max_degree: int | None = None  # of delta_mbst: at least 2; none: no limit

    def network(self, people: Population) -> Network:
        if self.underlay is None:
            if self.access is not None or self.core is not None:
                raise UserError(
                    "network.access: it needs network.underlay; without one, links say how fast clients are"
                )
            return over_own_links(people)
        underlay = underlays.read(self.underlay)
        if self.access is None and any(underlay.nodes[silo].uplink is None for silo in underlay.silos):
            raise UserError(f"network.access: missing, and {self.underlay} states none; give one, such as 10Gbps")
        return underlay.network(
            _rate("network.access", self.access), _rate("network.core", self.core), self.latency_mode
        )

    def choose(self, network: Network, model_bits: float, computing: FloatArray, seed: int) -> Overlay:
        """The overlay, for models of that size and silos that compute so many seconds a round."""
        if Path(self.overlay).suffix == ".json":
            overlay, silos = design.read_overlay(self.overlay)
            if self.underlay is not None and silos != network.names:
                raise UserError(f"network.overlay: {self.overlay} is for other silos than those of {self.underlay}")
            return overlay
        return design.build(
            self.overlay,
            network,
            Exchange(model_bits, computing),
            center=self.center,
            budget=self.budget,
            max_degree=self.max_degree,
            seed=seed,
        )


def _rate(option: str, text: str | None) -> float | None:
    return None if text is None else quantities.rate(option, text)
