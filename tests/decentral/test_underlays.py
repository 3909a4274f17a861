"""Underlays read from files and by name, the routes over them (O12), and sentences for files that are wrong."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout.core.errors import UserError
from turnout.peers import underlays
from turnout.peers.underlays import haversine, parse, read

OWN: dict[str, Any] = {
    "name": "hospitals",
    "nodes": [
        {"name": "Turin", "lat": 45.07, "lon": 7.69, "uplink": "1Gbps", "downlink": "2Gbps", "compute": "25ms"},
        {"name": "Lyon", "lat": 45.76, "lon": 4.84, "uplink": 5e8, "compute": 0.03},
        {"name": "router 7", "silo": False},
        {"name": "Nice", "uplink": "100Mbps", "compute": "1s"},
    ],
    "links": [
        {"source": "Turin", "target": "Lyon", "capacity": "10Gbps"},
        {"source": "Lyon", "target": "router 7", "km": 100},
        {"source": "router 7", "target": "Nice", "latency_ms": 3.1, "capacity": 4e8},
    ],
}


def line(*km: float, **link: Any) -> underlays.Underlay:
    """A chain of silos, each link so long."""
    links = [{"source": i, "target": i + 1, "km": length, **link} for i, length in enumerate(km)]
    return parse({"nodes": [{"id": i} for i in range(len(km) + 1)], "links": links})


def test_o12_a_thousand_kilometres_take_twelve_and_a_half_milliseconds() -> None:
    assert line(1000).network(1e9).latency[0, 1] == pytest.approx(12.5e-3)


def test_a_route_adds_its_links() -> None:
    per_path, per_hop = line(100, 200, 300).network(1e9), line(100, 200, 300).network(1e9, latency_mode="per_hop")
    assert per_path.latency[0, 3] == pytest.approx(0.0085e-3 * 600 + 4e-3)
    assert per_hop.latency[0, 3] == pytest.approx(0.0085e-3 * 600 + 3 * 4e-3)
    assert per_path.core[0, 3] == pytest.approx(1e9 / 3)
    np.testing.assert_array_equal(per_path.latency, per_path.latency.T)
    assert np.isinf(per_path.core.diagonal()).all()
    assert per_path.links is not None
    np.testing.assert_array_equal(np.argwhere(np.triu(per_path.links)), [[0, 1], [1, 2], [2, 3]])


@pytest.mark.parametrize("tenths", range(1, 20))
def test_of_equally_long_routes_the_one_with_fewer_hops_is_taken(tenths: int) -> None:
    """Rounding makes some of the detours shorter than the direct link."""
    kilometres = {(0, 1): tenths / 10, (1, 2): 2.3, (0, 2): (tenths + 23) / 10}
    links = [{"source": source, "target": target, "km": km} for (source, target), km in kilometres.items()]
    assert parse({"nodes": [{"id": i} for i in range(3)], "links": links}).network(1e9).core[0, 2] > 0.9e9


def test_of_parallel_links_the_shortest_counts() -> None:
    links = [{"source": 0, "target": 1, "km": km, "capacity": 1e6 * km} for km in (30, 10, 20)]
    net = parse({"nodes": [{"id": 0}, {"id": 1}], "links": links}).network(1e9)
    assert net.latency[0, 1] == pytest.approx(0.0085e-3 * 10 + 4e-3)
    assert net.core[0, 1] == pytest.approx(1e7)


def test_rates_given_for_all_win_over_the_file() -> None:
    hospitals = parse(OWN)
    own, given = hospitals.network(), hospitals.network(access=3e9, core=2e9)
    np.testing.assert_allclose(own.uplink, [1e9, 5e8, 1e8])
    np.testing.assert_allclose(own.downlink, [2e9, 5e8, 1e8])
    np.testing.assert_allclose(given.uplink, 3e9)
    np.testing.assert_allclose(given.downlink, 3e9)
    assert given.core[0, 1] == pytest.approx(2e9)


def test_an_own_network_with_a_router_and_mixed_lengths() -> None:
    net = parse(OWN).network()
    assert net.names == ("Turin", "Lyon", "Nice")
    assert net.latency[1, 2] == pytest.approx(0.0085e-3 * 100 + 3.1e-3 + 4e-3)  # one length is known, one latency
    assert net.core[1, 2] == pytest.approx(1 / (1 / 1e9 + 1 / 4e8))  # 1 Gbit/s where nothing is said
    assert net.core[0, 1] == pytest.approx(1e10)
    great_circle = haversine((7.69, 45.07), (4.84, 45.76))
    assert great_circle == pytest.approx(236, abs=2)
    assert net.latency[0, 1] == pytest.approx(0.0085e-3 * great_circle + 4e-3)
    assert net.links is not None
    assert net.links[1, 2]  # only a router lies between
    assert not net.links[0, 2]
    assert net.positions is None  # Nice has none
    times = parse(OWN).compute_time()
    assert times is not None
    np.testing.assert_allclose(times, [0.025, 0.03, 1.0])


def test_measured_links_have_no_guess_added() -> None:
    links = [{"source": 0, "target": 1, "latency_ms": 7}, {"source": 1, "target": 2, "latency_ms": 5}]
    net = parse({"nodes": [{"id": i} for i in range(3)], "links": links}).network(1e9, latency_mode="per_hop")
    assert net.latency[0, 2] == pytest.approx(12e-3)


def test_haversine_around_the_globe() -> None:
    assert haversine((0, 0), (180, 0)) == pytest.approx(np.pi * underlays.EARTH_KM)
    assert haversine((10, 90), (-70, 90)) == pytest.approx(0, abs=1e-6)


GML = """graph [ Network "Zoo" directed 0
  node [ id 3 label "Oslo" Latitude 59.9 Longitude 10.7 ]
  node [ id 5 label "Oslo" Latitude 59.9 Longitude 10.8 ]
  node [ id 9 label "Bergen" Latitude 60.4 Longitude 5.3 ]
  edge [ source 3 target 9 LinkSpeedRaw 2000000000.0 ]
  edge [ source 3 target 5 ]
]"""
GRAPHML = """<?xml version="1.0" encoding="utf-8"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key attr.name="Latitude" attr.type="double" for="node" id="d0"/>
<key attr.name="Longitude" attr.type="double" for="node" id="d1"/>
<key attr.name="label" attr.type="string" for="node" id="d2"/>
<key attr.name="LinkSpeedRaw" attr.type="double" for="edge" id="d3"/>
<graph edgedefault="undirected">
<node id="0"><data key="d0">59.9</data><data key="d1">10.7</data><data key="d2">Oslo</data></node>
<node id="1"><data key="d0">60.4</data><data key="d1">5.3</data><data key="d2">Bergen</data></node>
<edge source="0" target="1"><data key="d3">2000000000.0</data></edge>
</graph></graphml>"""


def test_gml_of_the_topology_zoo(tmp_path: Path) -> None:
    (tmp_path / "zoo.gml").write_text(GML)
    zoo = read(tmp_path / "zoo.gml")
    net = zoo.network(1e9)
    assert zoo.name == "Zoo"
    assert net.names == ("Oslo", "Oslo (5)", "Bergen")
    assert net.core[0, 2] == pytest.approx(2e9)
    assert net.latency[0, 2] == pytest.approx(0.0085e-3 * haversine((10.7, 59.9), (5.3, 60.4)) + 4e-3)
    assert net.positions is not None
    np.testing.assert_allclose(net.positions, [[10.7, 59.9], [10.8, 59.9], [5.3, 60.4]])


def test_graphml_of_the_topology_zoo(tmp_path: Path) -> None:
    (tmp_path / "zoo.graphml").write_text(GRAPHML)
    net = read(tmp_path / "zoo.graphml").network(1e9)
    assert net.names == ("Oslo", "Bergen")
    assert net.core[0, 1] == pytest.approx(2e9)


def test_a_json_file_is_read_like_its_content(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps(OWN))
    assert read(tmp_path / "own.json") == parse(OWN)


@pytest.mark.parametrize(("name", "silos", "links"), [("gaia", 11, 55), ("geant", 40, 61)])
def test_bundled_underlays(name: str, silos: int, links: int) -> None:
    underlay = read(name)
    assert name in underlays.names()
    assert (len(underlay.silos), len(underlay.links)) == (silos, links)
    net = underlay.network(1e9)
    assert net.positions is not None
    for link in underlay.links:  # the map agrees with the distances, roughly: cables make detours
        one, other = (underlay.nodes[end].position for end in link.ends)
        assert one is not None and other is not None and link.km is not None
        assert 0.6 < (link.km + 100) / (haversine(one, other) + 100) < 2.2


def changed(**changes: Any) -> dict[str, Any]:
    document = deepcopy(OWN)
    for place, value in changes.items():
        part, number, field = place.split("__")
        document[part][int(number)][field] = value
    return document


WRONG: dict[str, tuple[Any, str]] = {
    "not an object": ([1], "must be an object with the lists nodes and links"),
    "no links": ({"nodes": []}, "must be an object with the lists nodes and links"),
    "a node is a word": ({"nodes": ["Turin"], "links": []}, "node 0: 'Turin' must be an object"),
    "no silo": ({"nodes": [{"name": "r", "silo": False}], "links": []}, "no node is a silo"),
    "silo is a word": (changed(nodes__0__silo="yes"), "silo: 'yes' must be true or false"),
    "name twice": (changed(nodes__1__id="Turin"), "two nodes are called 'Turin'"),
    "unknown end": (changed(links__0__target="Paris"), "link 0 ends at 'Paris', which is no node's name or id"),
    "zero bandwidth": (changed(links__0__capacity=0), "link 0: capacity: 0.0 must be above 0"),
    "zero uplink": (changed(nodes__0__uplink="0Gbps"), "node 0: uplink: '0Gbps' is not a bandwidth above 0"),
    "no unit": (changed(nodes__0__uplink="10"), "node 0: uplink: '10' is not a bandwidth"),
    "negative length": (changed(links__1__km=-3), "link 1: km: -3.0 must be at least 0"),
    "latitude": (changed(nodes__0__lat=99), "node 0: lat: 99.0 must be from -90 to 90"),
    "no length": (
        changed(links__1__km=None),
        "Lyon - router 7 has no length; it needs km, latency_ms, or lat and lon",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_underlay_is_refused_in_a_sentence(case: str) -> None:
    document, sentence = WRONG[case]
    with pytest.raises(UserError, match=sentence):
        parse(document, "mine")


def test_a_disconnected_underlay_names_a_pair() -> None:
    document = deepcopy(OWN)
    del document["links"][0]
    with pytest.raises(UserError, match="hospitals: not connected; there is no route between Turin and Lyon"):
        parse(document).network()


def test_a_missing_capacity_names_the_silo() -> None:
    with pytest.raises(UserError, match="hospitals: silo Nice has no uplink; it needs a capacity in the file, or"):
        parse(changed(nodes__3__uplink=None)).network()
    with pytest.raises(UserError, match="hospitals: silo Nice has no compute; it needs a time for every silo, or"):
        parse(changed(nodes__3__compute=None)).compute_time()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("bad.json", "bad.gml", "bad.graphml"):
        (tmp_path / name).write_text("{")
        with pytest.raises(UserError, match=f"{name}: not a valid {Path(name).suffix} file"):
            read(tmp_path / name)
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"neither bundled nor a .json.*did you mean geant"):
        read("gaent")
    with pytest.raises(UserError, match="latency_mode: unknown name 'per_mile'"):
        line(1).network(1e9, latency_mode="per_mile")  # type: ignore[arg-type]
