"""Underlays: the physical network between silos, read from a file, and the `Network` that silos see of it.

`read` takes the name of a bundled one, or a `.json`, `.gml` or `.graphml` file (GML and GraphML as in the Internet
Topology Zoo: `label`, `Latitude`, `Longitude`, `LinkSpeedRaw`). The JSON of your own network:

    {"name": "hospitals",
     "nodes": [{"name": "Turin", "lat": 45.07, "lon": 7.69, "uplink": "1Gbps", "downlink": "2Gbps", "compute": "25ms"},
               {"name": "Lyon", "lat": 45.76, "lon": 4.84},
               {"name": "router 7", "silo": false}],
     "links": [{"source": "Turin", "target": "Lyon", "capacity": "10Gbps"},
               {"source": "Lyon", "target": "router 7", "km": 12},
               {"source": "Turin", "target": "router 7", "latency_ms": 3.1}]}

Everything but names and ends is optional, as long as every link has `km`, `latency_ms` or coordinates at both ends
(then it is as long as the great circle). Plain numbers are bits a second and seconds; a downlink is as fast as the
uplink unless it is stated. `id` and `label` of nodes, `distance_km` and `capacity_bps` of links are understood too.

Silos talk along the shortest route (Marfoq et al., NeurIPS 2020, and their published cycle times):

    l(i, j) = 0.0085 ms x km of the route + 4 ms,    A(i, j) = 1 / sum over its links of 1 / capacity

that is capacity / hops where all links are alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

import numpy as np

from turnout.core.allowed import Finite, Positive, Range
from turnout.core.errors import UserError, renamed, unknown
from turnout.core.random import FloatArray
from turnout.core.spelling import Spelt
from turnout.peers import quantities
from turnout.peers.network import Network

SECONDS_PER_KM = 0.0085e-3
SECONDS_PER_ROUTE = 4e-3
DETOUR = 1e-9  # seconds a hop: of equally long routes, the one with fewer hops
CORE = 1e9
EARTH_KM = 6371.0
LatencyMode = Literal["per_path", "per_hop"]
_BUNDLED = Path(__file__).with_name("measured")
_SUFFIXES = (".json", ".gml", ".graphml")
_WORDS = {
    "Latitude": "lat", "Longitude": "lon", "LinkSpeedRaw": "capacity", "distance": "km",  # the Topology Zoo's
    "distance_km": "km", "capacity_bps": "capacity",
}  # fmt: skip
_NUMBERS: dict[str, Callable[[str, str], float] | None] = {  # and who reads text with a unit
    "lon": None, "lat": None, "km": None, "latency_ms": None, "compute": quantities.seconds,
    **dict.fromkeys(("uplink", "downlink", "capacity"), quantities.rate),
}  # fmt: skip


@dataclass(frozen=True)
class Node(Spelt):
    """A silo, or a router that only forwards."""

    section: ClassVar[str] = "node"
    name: str
    silo: bool = True
    lon: Annotated[float, Range(-180, 180)] | None = None
    lat: Annotated[float, Range(-90, 90)] | None = None
    uplink: Positive | None = None  # bits a second
    downlink: Positive | None = None
    compute: Finite | None = None  # seconds of a local step

    def __post_init__(self) -> None:
        if not isinstance(self.silo, bool):
            raise UserError(f"node.silo: {self.silo!r} must be true or false")

    @property
    def position(self) -> tuple[float, float] | None:
        """Longitude and latitude."""
        return None if self.lon is None or self.lat is None else (self.lon, self.lat)


@dataclass(frozen=True)
class Link(Spelt):
    """Between two nodes, both ways; a latency is measured, or follows from the distance."""

    section: ClassVar[str] = "link"
    ends: tuple[int, int]
    km: Finite | None = None
    latency_ms: Finite | None = None
    capacity: Positive | None = None  # bits a second

    @property
    def propagation(self) -> float:
        return self.latency_ms / 1e3 if self.latency_ms is not None else SECONDS_PER_KM * cast(float, self.km)


@dataclass(frozen=True)
class Underlay:
    """Nodes and links as the file has them."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    description: str = ""

    @property
    def silos(self) -> list[int]:
        return [index for index, node in enumerate(self.nodes) if node.silo]

    def compute_time(self) -> FloatArray | None:
        """`[N]` seconds of a local step, where the file states them."""
        stated = [self.nodes[index].compute for index in self.silos]
        if all(value is None for value in stated):
            return None
        self._complete("compute", stated, "a time for every silo, or for none")
        return np.array(stated, np.float64)

    def network(
        self, access: float | None = None, core: float | None = None, latency_mode: LatencyMode = "per_path"
    ) -> Network:
        """What the silos see. A rate given here is everybody's; else the file's, and for links without one 1 Gbit/s."""
        if latency_mode not in get_args(LatencyMode):
            raise unknown("latency_mode", latency_mode, get_args(LatencyMode))
        silos = self.silos
        nodes = [self.nodes[index] for index in silos]
        uplink = [access or node.uplink for node in nodes]
        self._complete("uplink", uplink, "a capacity in the file, or give one for all silos with --access")
        downlink = [access or node.downlink or node.uplink for node in nodes]
        latency, core_rate, links = self._routes(core, latency_mode)
        positions = [node.position for node in nodes]
        return Network(
            tuple(node.name for node in nodes),
            latency,
            core_rate,
            np.array(uplink, np.float64),
            np.array(downlink, np.float64),
            ~np.eye(len(silos), dtype=np.bool_),
            links,
            np.array(positions, np.float64) if all(positions) else None,
        )

    def _complete(self, what: str, values: list[float | None], allowed: str) -> None:
        missing = [self.nodes[i].name for i, value in zip(self.silos, values, strict=True) if value is None]
        if missing:
            raise UserError(f"underlay {self.name}: silo {missing[0]} has no {what}; it needs {allowed}")

    def _routes(self, core: float | None, latency_mode: LatencyMode) -> tuple[FloatArray, FloatArray, Any]:
        """`[N, N]` latency, bandwidth, and whether a direct link or routers alone lie between two silos."""
        import networkx as nx

        graph = nx.Graph()
        graph.add_nodes_from(range(len(self.nodes)))
        for link in sorted(self.links, key=lambda link: -link.propagation):  # of parallel links the shortest stays
            graph.add_edge(*link.ends, link=link, weight=link.propagation + DETOUR)
        silos = self.silos
        latency, slowness = np.zeros((2, len(silos), len(silos)))
        adjacent = np.zeros((len(silos), len(silos)), np.bool_)
        for i, source in enumerate(silos):
            paths = nx.single_source_dijkstra_path(graph, source)
            for j, target in enumerate(silos[:i]):
                if target not in paths:
                    raise UserError(
                        f"underlay {self.name}: not connected; there is no route between "
                        f"{self.nodes[target].name} and {self.nodes[source].name}"
                    )
                path = paths[target]
                hops = [graph.edges[hop]["link"] for hop in pairwise(path)]
                estimated = sum(link.latency_ms is None for link in hops)
                fixed = SECONDS_PER_ROUTE * (min(1, estimated) if latency_mode == "per_path" else estimated)
                latency[i, j] = latency[j, i] = sum(link.propagation for link in hops) + fixed
                slowness[i, j] = slowness[j, i] = sum(1 / (core or link.capacity or CORE) for link in hops)
                routers_only = not any(self.nodes[node].silo for node in path[1:-1])
                adjacent[i, j] = adjacent[j, i] = routers_only or graph.has_edge(source, target)
        with np.errstate(divide="ignore"):
            return latency, 1 / slowness, adjacent


def names() -> list[str]:
    """Of the bundled underlays."""
    return sorted(path.stem for path in _BUNDLED.glob("*.json"))


def read(source: str | Path) -> Underlay:
    """A bundled underlay by name, or a .json, .gml or .graphml file."""
    path = _BUNDLED / f"{source}.json" if str(source) in names() else Path(source)
    if path.suffix not in _SUFFIXES:
        raise unknown(f"underlay (neither bundled nor a {', '.join(_SUFFIXES)} file)", str(source), names())
    try:
        document = _document(path)
    except OSError as error:
        raise UserError(f"underlay {source}: cannot be read ({error.strerror})") from error
    except Exception as error:  # whatever a parser raises on text that is not of its format
        raise UserError(f"underlay {source}: not a valid {path.suffix} file ({error})") from error
    return parse(document, path.stem)


def parse(document: Any, name: str = "underlay") -> Underlay:
    """An underlay from the JSON of a file."""
    if not isinstance(document, dict) or not all(isinstance(document.get(part), list) for part in ("nodes", "links")):
        raise UserError(f"underlay {name}: it must be an object with the lists nodes and links")
    name = str(document.get("name") or name)
    named: dict[Any, int] = {}
    nodes: list[Node] = []
    for number, given in enumerate(document["nodes"]):
        with renamed({"node.": f"underlay {name}: node {number}: "}):
            fields = _fields("node", given)
            label = str(next((fields[word] for word in ("name", "label", "id") if word in fields), number))
            if label in named:
                label = f"{label} ({fields.get('id', number)})"
            nodes.append(Node(**_some(fields, "silo", "lon", "lat", "uplink", "downlink", "compute"), name=label))
        for handle in {label, fields.get("id", label)}:
            if handle in named:
                raise UserError(f"underlay {name}: two nodes are called {handle!r}; every node needs its own name")
            named[handle] = number
    if not any(node.silo for node in nodes):
        raise UserError(f"underlay {name}: no node is a silo; at least one must be")
    links = []
    for number, given in enumerate(document["links"]):
        with renamed({"link.": f"underlay {name}: link {number}: "}):
            fields = _fields("link", given)
            for end in (fields.get("source"), fields.get("target")):
                if not isinstance(end, str | int) or end not in named:
                    raise UserError(f"underlay {name}: link {number} ends at {end!r}, which is no node's name or id")
            ends = named[fields["source"]], named[fields["target"]]
            if "km" not in fields and "latency_ms" not in fields:
                fields["km"] = _distance(*(nodes[end] for end in ends))
            links.append(Link(ends, **_some(fields, "km", "latency_ms", "capacity")))
    return Underlay(name, tuple(nodes), tuple(links), str(document.get("description", "")))


def _fields(kind: str, given: Any) -> dict[str, Any]:
    """What a node or link states, in our words; numbers as such, also where they are text with a unit. Whatever is no
    number is refused by who needs one."""
    if not isinstance(given, dict):
        raise UserError(f"{kind}.{given!r} must be an object with named fields")
    fields: dict[str, Any] = {_WORDS.get(name) or name: value for name, value in given.items() if value is not None}
    for name in fields.keys() & _NUMBERS.keys():
        unit, value = _NUMBERS[name], fields[name]
        if unit is not None and isinstance(value, str):
            fields[name] = unit(f"{kind}.{name}", value)
        else:
            with suppress(TypeError, ValueError):
                fields[name] = float(value)
    return fields


def _some(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _distance(one: Node, other: Node) -> float:
    """Kilometres between two nodes whose places are known."""
    if one.position is None or other.position is None:
        raise UserError(
            f"link.{one.name} - {other.name} has no length; it needs km, latency_ms, or lat and lon at both ends"
        )
    return haversine(one.position, other.position)


def haversine(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Kilometres along the great circle between two (longitude, latitude)."""
    (lon1, lat1), (lon2, lat2) = (map(math.radians, place) for place in (one, other))
    half = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * EARTH_KM * math.asin(min(1.0, math.sqrt(half)))


def _document(path: Path) -> Any:
    """The JSON of a file; of a graph, in the Topology Zoo's words or in ours, what that would be."""
    if path.suffix == ".json":
        return json.loads(path.read_text("utf-8"))
    import networkx as nx

    graph = nx.read_gml(path, label="id") if path.suffix == ".gml" else nx.read_graphml(path)

    nodes = [{**fields, "id": node} for node, fields in graph.nodes(data=True)]
    links = [{**fields, "source": one, "target": other} for one, other, fields in graph.edges(data=True)]
    return {"name": graph.graph.get("Network"), "nodes": nodes, "links": links}
