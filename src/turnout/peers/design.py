"""Who should talk to whom: every overlay with the time a round takes, and what that time is spent on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from turnout.clients.population import Population
from turnout.core.allowed import Fraction, Range
from turnout.core.errors import UserError, unknown
from turnout.core.files import as_json_text, write_text
from turnout.core.random import FloatArray
from turnout.core.spelling import Spelt
from turnout.peers import overlays, quantities, underlays
from turnout.peers.cycles import cycle_time, require_strongly_connected
from turnout.peers.matcha import Matcha, matcha, matcha_plus
from turnout.peers.mixing import contraction, mixing_matrix
from turnout.peers.network import Exchange, Network, Overlay, OverlayError, Star
from turnout.peers.peers import over_own_links
from turnout.peers.underlays import LatencyMode

NAMES = ("star", "matcha", "matcha_plus", "mst", "delta_mbst", "cube_path", "ring")
# The published settings; "bits" there are the megabytes of the models (their Table 2.4), taken as they are.
PAPER = {"sub_inaturalist": Exchange(44_961_717, 25.4e-3), "inaturalist": Exchange(161.06e6, 946.7e-3)}
DRAWS = 1000
NOT_METRIC = "delays without the triangle inequality: no guarantee"


@dataclass(frozen=True, eq=False)
class Design:
    """An overlay and its cycle time, or why there is none."""

    name: str
    overlay: Overlay | None = None
    cycle_time: float = np.inf  # seconds a round
    standard_error: float = 0.0  # of an overlay that is drawn every round
    circuit: tuple[int, ...] = ()  # silos of the critical one; of a drawn overlay, the link that is slowest most often
    shares: dict[str, float] = field(default_factory=dict)  # of the time along the circuit
    bottleneck: str = ""
    degree: int = 0  # the most messages that a silo sends in a round
    spectral_gap: float | None = None  # 1 - what is left of the disagreement between silos after mixing once
    remark: str = ""

    @property
    def throughput(self) -> float:
        """Rounds a second."""
        return 1 / self.cycle_time if self.cycle_time else np.inf

    def as_dict(self, silos: Sequence[str]) -> dict[str, Any]:
        return {
            "overlay": self.name,
            "cycle_time_ms": 1e3 * self.cycle_time,
            "standard_error_ms": 1e3 * self.standard_error,
            "rounds_per_second": self.throughput,
            "circuit": [silos[i] for i in self.circuit],
            "shares": self.shares,
            "bottleneck": self.bottleneck,
            "degree": self.degree,
            "spectral_gap": self.spectral_gap,
            "remark": self.remark,
        }


def build(
    name: str,
    network: Network,
    exchange: Exchange,
    *,
    center: str = "best",
    budget: float = 0.5,
    max_degree: int | None = None,
    seed: int = 0,
) -> Overlay:
    """The overlay of that name."""
    builders: dict[str, Callable[[], Overlay]] = {
        "star": partial(overlays.star, network, exchange, center),
        "matcha": partial(matcha, network, budget, seed),
        "matcha_plus": partial(matcha_plus, network, budget, seed),
        "mst": partial(overlays.mst, network, exchange),
        "delta_mbst": partial(overlays.delta_mbst, network, exchange, max_degree),
        "cube_path": partial(overlays.cube_path, network, exchange),
        "ring": partial(overlays.ring, network, exchange),
    }
    if name not in builders:
        raise unknown("overlay", name, builders)
    return builders[name]()


def design(network: Network, exchange: Exchange, names: Sequence[str] = NAMES, **options: Any) -> list[Design]:
    """A row an overlay, with the options of `build`; one that this network cannot carry says why."""
    require_strongly_connected(network.connected, network.names)
    rows, reasons = [], []
    for name in names:
        try:
            rows.append(evaluate(build(name, network, exchange, **options), network, exchange))
        except OverlayError as reason:
            rows.append(Design(name, remark=str(reason)))
            reasons.append(reason)
    if len(reasons) == len(rows) > 0:
        raise reasons[0]
    return rows


def evaluate(overlay: Overlay, network: Network, exchange: Exchange) -> Design:
    """The cycle time of an overlay; the mean over a thousand rounds of one that is drawn, each as long as its slowest
    link."""
    if isinstance(overlay, Matcha):
        return _evaluate_draws(overlay, network, exchange)
    delays = overlay.delays(network, exchange)
    tau, circuit = cycle_time(delays, network.names)
    hops = circuit, circuit[1:] + circuit[:1]
    shares = _shares(
        delays[hops].sum(), overlay.latency(network)[hops].sum(), exchange.computing(len(delays))[[*circuit]].sum()
    )
    route = overlay.route(circuit)
    return Design(
        overlay.name,
        overlay,
        tau,
        circuit=route,
        shares=shares,
        bottleneck=_sentence(_along(route, network, delays), shares),
        degree=int(overlay.graph.sum(1).max()),
        spectral_gap=1 - contraction(mixing_matrix(overlay)),
        remark="" if overlay.name != "ring" or overlays.is_metric(network, exchange) else NOT_METRIC,
    )


def _evaluate_draws(overlay: Matcha, network: Network, exchange: Exchange) -> Design:
    parts = np.zeros((DRAWS, 3))  # whole, latency, computing
    slowest: Counter[tuple[int, int]] = Counter()
    degree, computing = 0, exchange.computing(len(network))
    for round in range(DRAWS):
        delays = overlay.delays(network, exchange, round)
        sender, receiver = (int(i) for i in np.unravel_index(delays.argmax(), delays.shape))
        parts[round] = delays[sender, receiver], network.latency[sender, receiver], computing[sender]
        slowest[min(sender, receiver), max(sender, receiver)] += 1
        degree = max(degree, int(overlay.arcs(round).sum(1).max()))
    (link, times), shares = slowest.most_common(1)[0], _shares(*parts.sum(0))
    where = " - ".join(network.names[i] for i in link) + f", the slowest in {100 * times / DRAWS:.0f} % of rounds"
    return Design(
        overlay.name,
        overlay,
        float(parts[:, 0].mean()),
        float(parts[:, 0].std(ddof=1) / np.sqrt(DRAWS)),
        link,
        shares,
        _sentence(where, shares),
        degree,
        1 - float(np.sqrt(max(0.0, overlay.contraction()))),
    )


def _shares(whole: float, latency: float, computing: float) -> dict[str, float]:
    parts = {"latency": latency, "transfer": whole - latency - computing, "computing": computing}
    return {part: float(max(0.0, time) / whole) if whole else 0.0 for part, time in parts.items()}


def _sentence(where: str, shares: dict[str, float]) -> str:
    return f"{where}: " + ", ".join(f"{100 * share:.0f} % {part}" for part, share in shares.items())


def _along(route: tuple[int, ...], network: Network, delays: FloatArray) -> str:
    """A circuit in words; of a long one the slowest hop."""
    names = [network.names[i] for i in (*route, route[0])]
    if len(route) == 1:
        return f"{names[0]} alone"
    if len(route) <= 3:
        return " -> ".join(names)
    sender, receiver = max(pairwise((*route, route[0])), key=lambda hop: delays[hop])
    return f"a circuit of {len(route)} silos, slowest {network.names[sender]} -> {network.names[receiver]}"


def write_overlay(path: Path, chosen: Design, silos: Sequence[str]) -> None:
    """An overlay as JSON, to train with it later: silos, arcs, and what a star or MATCHA has besides."""
    overlay = chosen.overlay
    if overlay is None:
        raise UserError(f"overlay {chosen.name}: {chosen.remark}")
    document = {**chosen.as_dict(silos), "silos": list(silos), "arcs": np.argwhere(overlay.graph).tolist()}
    if isinstance(overlay, Star):
        document["center"] = overlay.center
    if isinstance(overlay, Matcha):
        links = [np.argwhere(np.triu(overlay.colours == j)).tolist() for j in range(len(overlay.probabilities))]
        drawn = {"probabilities": overlay.probabilities.tolist(), "alpha": overlay.alpha, "seed": overlay.seed}
        document["matchings"] = {"links": links, **drawn}
    write_text(path, as_json_text(document))


def read_overlay(path: str | Path) -> tuple[Overlay, tuple[str, ...]]:
    """An overlay that `write_overlay` wrote, and the names of its silos, in its order."""
    try:
        document = json.loads(Path(path).read_text("utf-8"))
        silos = tuple(document["silos"])
        graph = np.zeros((len(silos), len(silos)), np.bool_)
        graph[tuple(np.array(document["arcs"], np.int64).reshape(-1, 2).T)] = True
        if "center" in document:
            return Star(document["overlay"], graph, document["center"]), silos
        if "matchings" not in document:
            return Overlay(document["overlay"], graph), silos
        colours = np.full(graph.shape, -1)
        for colour, links in enumerate(document["matchings"]["links"]):
            one, other = np.array(links).T
            colours[one, other] = colours[other, one] = colour
        chances = np.array(document["matchings"]["probabilities"])
        alpha, seed = document["matchings"]["alpha"], document["matchings"]["seed"]
        return Matcha(document["overlay"], graph, colours, chances, alpha, seed), silos
    except OSError as error:
        raise UserError(f"overlay {path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # which one depends on what is wrong with it
        raise UserError(f"overlay {path}: not a file that `turnout topology design --out` wrote ({error!r})") from error


@dataclass(frozen=True)
class NetworkSettings(Spelt):
    """`underlay` is a bundled one by name or a file, with one silo a client; without one, clients meet over their own
    links. `access` and `core` are rates such as 10Gbps. `overlay` is designed for that network by name (`turnout
    topology design` compares them), or read from an overlay.json."""

    section: ClassVar[str] = "network"

    underlay: str | None = None  # a bundled one by name, or a file; none: the clients' own links
    access: str | None = None  # rate of a silo's access, such as 10Gbps; none: the underlay's own
    core: str | None = None  # rate of the core, such as 1Gbps; none: the underlay's own
    latency_mode: LatencyMode = "per_path"  # how latency is taken: of the whole path, or hop by hop
    overlay: str = "ring"  # ring, star, mst, ... of `turnout topology design`, or an overlay.json
    center: str = "best"  # of a star: best, first, load, or a silo's name
    budget: Fraction = 0.5  # of matcha: the share of matchings that is active
    max_degree: Annotated[int, Range(least=2, whole=True)] | None = None  # of delta_mbst; none: no limit

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
            overlay, silos = read_overlay(self.overlay)
            if self.underlay is not None and silos != network.names:
                raise UserError(f"network.overlay: {self.overlay} is for other silos than those of {self.underlay}")
            return overlay
        return build(
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
