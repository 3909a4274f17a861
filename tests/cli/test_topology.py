"""`turnout topology`: the published row from the terminal, files, and one sentence for every mistake."""

from __future__ import annotations

import json

import pytest
from terminal import Terminal

from turnout.peers.design import NAMES, read_overlay

DESIGN = ("topology", "design")
SMALL = ("--preset", "sub_inaturalist")
QUICK = ("--overlays", "mst,ring")
OWN = """{"nodes": [{"name": "A"}, {"name": "B"}, {"name": "C"}],
 "links": [{"source": "A", "target": "B", "km": 100}, {"source": "B", "target": "C", "km": 50}]}"""


def test_bundled_underlays_are_listed(terminal: Terminal) -> None:
    found = terminal.done("topology", "list", "--json").json()
    assert (found["gaia"]["silos"], found["geant"]["links"]) == (11, 61)
    assert "geant" in terminal.done("topology", "list").out


def test_the_published_row_of_gaia(terminal: Terminal) -> None:
    found = terminal.done(*DESIGN, "gaia", *SMALL, "--access", "10Gbps", "--center", "first", "--json").json()
    times = {row["overlay"]: row["cycle_time_ms"] for row in found["overlays"]}
    assert tuple(times) == NAMES
    assert times["star"] == pytest.approx(391, abs=0.5)
    assert times["mst"] == pytest.approx(138, abs=0.5)
    assert times["ring"] == pytest.approx(118, abs=0.5)
    assert times["matcha"] == pytest.approx(228, abs=3)
    assert found["chosen"] == "ring"
    assert found["overlays"][0]["circuit"] == ["Singapore", "Virginia"]


def test_people_see_times_and_bottlenecks(terminal: Terminal) -> None:
    shown = terminal.done(*DESIGN, "gaia", *SMALL, "--access", "10Gbps", *QUICK).out
    for part in ("138.1 ms", "118.1 ms", "Virginia -> Sao Paulo -> Virginia", "% latency", "Chosen: ring"):
        assert part in shown


def test_options_arrive(terminal: Terminal) -> None:
    own = terminal.write("own.json", OWN)

    def time(*options: str) -> float:
        words = (*DESIGN, own, "--model-size", "1Mbit", "--access", "1Gbps", "--overlays", "mst", *options, "--json")
        return float(terminal.done(*words).json()["overlays"][0]["cycle_time_ms"])

    plain = (0.0085 * 100 + 4) + 2  # B has two neighbours: 2 Mbit at 1 Gbit/s there, and back for A
    assert time() == pytest.approx(plain)
    assert time("--compute", "30ms", "--local-steps", "2") == pytest.approx(plain + 60)
    assert time("--core", "100Mbps") == pytest.approx(plain + 8)
    ring = ("--overlays", "ring")  # A -> B -> C -> A: 300 km and four hops
    assert time(*ring) == pytest.approx((0.0085 * 300 + 12 + 1 + 1 + 2) / 3)
    assert time(*ring, "--latency-mode", "per_hop") == pytest.approx((0.0085 * 300 + 16 + 1 + 1 + 2) / 3)
    assert time("--model-size", "1Mparams") == pytest.approx(plain + 2 * 31)


@pytest.mark.parametrize("name", ["mst", None])
def test_the_chosen_overlay_is_written(terminal: Terminal, name: str | None) -> None:
    words = (*DESIGN, "gaia", *SMALL, "--access", "10Gbps", *QUICK, "--out", "found", "--json")
    found = terminal.done(*words, *(("--choose", name) if name else ())).json()
    assert found["chosen"] == (name or "ring")
    overlay, silos = read_overlay(terminal.here / "found" / "overlay.json")
    assert overlay.name == found["chosen"]
    assert list(silos) == found["silos"]
    assert f"{found['chosen']} on gaia" in (terminal.here / "found" / "overlay.svg").read_text(encoding="utf-8")
    assert sorted(path.name for path in (terminal.here / "found").iterdir()) == ["overlay.json", "overlay.svg"]


def test_an_overlay_that_cannot_be_is_a_row(terminal: Terminal) -> None:
    one = terminal.write("one.json", '{"nodes": [{"name": "A"}], "links": []}')
    words = (*DESIGN, one, "--model-size", "1MB", "--access", "1Gbps")
    assert "one silo has nobody to talk to" in terminal.done(*words).out
    rows = terminal.done(*words, "--json").json()["overlays"]
    assert [row["cycle_time_ms"] for row in rows if row["overlay"] == "matcha"] == [None]


ACCESS = ("--access", "1Gbps")
SIZE = ("--model-size", "1MB")
MISTAKES = {
    "no such underlay": (("gaja", *SIZE, *ACCESS), "unknown name 'gaja'; did you mean gaia?"),
    "no size": (("gaia", *ACCESS), "--model-size: missing; write a size, such as 45MB"),
    "size without unit": (
        ("gaia", "--model-size", "45", *ACCESS),
        "--model-size: '45' is not a size, such as 44.96Mbit",
    ),
    "size in metres": (("gaia", "--model-size", "45m", *ACCESS), "--model-size: '45m' is not a size"),
    "no access": (("gaia", *SIZE), "silo Virginia has no uplink; it needs a capacity in the file, or give one"),
    "zero bandwidth": (("gaia", *SIZE, "--access", "0Gbps"), "--access: '0Gbps' is not a bandwidth above 0"),
    "zero core": (("gaia", *SIZE, *ACCESS, "--core", "0bps"), "--core: '0bps' is not a bandwidth above 0"),
    "negative time": (("gaia", *SIZE, *ACCESS, "--compute", "-1ms"), "--compute: '-1ms' is not a time, such as 25.4ms"),
    "steps": (("gaia", *SIZE, *ACCESS, "--local-steps", "-1"), "local_steps: -1 must be at least 0"),
    "centre": (("gaia", *SIZE, *ACCESS, "--center", "Tokio"), "center: unknown name 'Tokio'; did you mean Tokyo?"),
    "budget": (("gaia", *SIZE, *ACCESS, "--budget", "2"), "budget: 2.0 must be above 0 and at most 1"),
    "degree": (("gaia", *SIZE, *ACCESS, "--max-degree", "1"), "max_degree: 1 is unreachable"),
    "mode": (("gaia", *SIZE, *ACCESS, "--latency-mode", "hop"), "latency_mode: unknown name 'hop'"),
    "preset": (("gaia", "--preset", "mnist", *ACCESS), "--preset: unknown name 'mnist'"),
    "overlay": (("gaia", *SIZE, *ACCESS, "--overlays", "rings"), "overlay: unknown name 'rings'; did you mean ring?"),
    "no overlay": (("gaia", *SIZE, *ACCESS, "--overlays", ","), "--overlays: ',' names none"),
    "choice": (("gaia", *SIZE, *ACCESS, *QUICK, "--choose", "star"), "--choose: unknown name 'star'"),
    "missing file": (("mine.gml", *SIZE, *ACCESS), "underlay mine.gml: cannot be read"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_sentence(terminal: Terminal, case: str) -> None:
    words, sentence = MISTAKES[case]
    assert sentence in terminal.refused(*DESIGN, *words, "--out", "found")
    assert not (terminal.here / "found").exists()


def test_a_disconnected_underlay_names_a_pair(terminal: Terminal) -> None:
    document = json.loads(OWN)
    del document["links"][1]
    own = terminal.write("own.json", json.dumps(document))
    assert "no route between A and C" in terminal.refused(*DESIGN, own, *SIZE, *ACCESS)
