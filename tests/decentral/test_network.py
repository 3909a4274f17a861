"""Delays of overlays, by hand: O3, O10 and O11 of the design's oracles, and what a network must not be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_networks import network, time_of

from turnout.core.errors import UserError
from turnout.peers.network import Exchange, Overlay, OverlayError, Star

RING = np.roll(np.eye(5, dtype=np.bool_), 1, 1)
PATH = np.eye(5, k=1, dtype=np.bool_) | np.eye(5, k=-1, dtype=np.bool_)
NOTHING = np.zeros((5, 5))


def test_a_delay_is_computing_latency_and_transfer_at_the_slowest_rate() -> None:
    arcs = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 0]], np.bool_)
    net = replace(
        network(np.array([[0.0, 1, 2], [3, 0, 4], [5, 6, 0]]), np.array([8.0, 6, 2]), np.array([10.0, 12, 4])),
        core=np.array([[np.inf, 3, 100], [100, np.inf, 100], [100, 100, np.inf]]),
    )
    delays = Overlay("any", arcs).delays(net, Exchange(12.0, np.array([0.1, 0.2, 0.3]), local_steps=2))
    nothing = -np.inf
    expected = [  # 0 shares its uplink, and its downlink; so does 2 its uplink; 0 -> 1 is as slow as the core
        [0.2, 0.2 + 1 + 12 / 3, 0.2 + 2 + 12 / 4],
        [0.4 + 3 + 12 / 5, 0.4, nothing],
        [0.6 + 5 + 12 / 1, 0.6 + 6 + 12 / 1, 0.6],
    ]
    np.testing.assert_allclose(delays, expected)


@pytest.mark.parametrize("computing", [0.5, np.array([0.5, 0.1, 0.9, 0.2, 0.3])])
def test_o3_a_star_uploads_then_downloads_in_one_round(computing: Any) -> None:
    rng = np.random.default_rng(3)
    latency = rng.uniform(1, 2, (5, 5)) * ~np.eye(5, dtype=np.bool_)
    net = replace(network(latency, rng.uniform(1, 9, 5), rng.uniform(1, 9, 5)), core=rng.uniform(1, 9, (5, 5)))
    exchange, center, size = Exchange(6.0, computing, 3), 2, 6.0
    up = size / np.minimum(np.minimum(net.uplink, net.downlink[center] / 4), net.core[:, center])
    down = size / np.minimum(np.minimum(net.uplink[center] / 4, net.downlink), net.core[center])
    whole = 3 * np.broadcast_to(computing, 5) + latency[:, center] + up + latency[center] + down
    star = Star.around(center, 5)
    assert time_of(star, net, exchange) == pytest.approx(np.delete(whole, center).max())
    np.testing.assert_allclose(star.mixing(), np.full((5, 5), 0.2))


def test_the_centre_counts_with_its_own_computing_alone() -> None:
    net = network(np.ones((5, 5)) - np.eye(5))
    assert time_of(Star.around(0, 5), net, Exchange(1.0, np.array([50.0, 1, 1, 1, 1]))) == 50


def test_o10_slow_access_links_favour_small_degrees() -> None:
    net, exchange = network(NOTHING, 2.0, 2.0), Exchange(6.0)
    unit = 6.0 / 2.0
    tree = np.zeros((5, 5), np.bool_)
    tree[[0, 0, 1, 1], [1, 2, 3, 4]] = True
    assert time_of(Overlay("ring", RING), net, exchange) == pytest.approx(unit)
    assert time_of(Star.around(1, 5), net, exchange) == pytest.approx(2 * 4 * unit)
    assert time_of(Overlay("path", PATH), net, exchange) == pytest.approx(2 * unit)
    assert time_of(Overlay("tree", tree | tree.T), net, exchange) == pytest.approx(3 * unit)  # 1 has three links


def test_o10_without_downlinks_a_tree_link_takes_the_mean_of_its_degrees() -> None:
    tree = np.zeros((5, 5), np.bool_)
    tree[[0, 0, 1, 1], [1, 2, 3, 4]] = True
    time = time_of(Overlay("tree", tree | tree.T), network(NOTHING, 2.0), Exchange(6.0))
    assert time == pytest.approx((2 + 3) / 2 * 6.0 / 2.0)


def test_o11_a_fast_centre_makes_the_star_as_fast_as_a_path() -> None:
    access = np.array([np.inf, 2, 2, 2, 2])
    exchange = Exchange(6.0)
    fast_centre, all_slow = network(NOTHING, access, access), network(NOTHING, 2.0, 2.0)
    star = time_of(Star.around(0, 5), fast_centre, exchange)
    assert star == pytest.approx(2 * 6.0 / 2.0)
    assert star == pytest.approx(2 * time_of(Overlay("ring", RING), all_slow, exchange))
    assert star == pytest.approx(time_of(Overlay("path", PATH), all_slow, exchange))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "zero uplink": ({"uplink": np.array([1.0, 0, 1])}, "network.uplink: s1 has 0.0; it needs a capacity above 0"),
    "missing downlink": ({"downlink": np.array([1.0, 1, np.nan])}, "network.downlink: s2 has nan"),
    "zero core": ({"core": np.array([[1.0, 1, 1], [1, 1, 0], [1, 1, 1]])}, "network.core: s1 -> s2 has 0.0; it needs"),
    "negative latency": (
        {"latency": np.array([[0.0, -1, 1], [1, 0, 1], [1, 1, 0]])},
        "network.latency: s0 -> s1 has -1",
    ),
    "latency to itself": (
        {"latency": np.ones((3, 3))},
        "network.latency: s0 -> s0 has 1.0; it needs 0 seconds to itself",
    ),
    "names": ({"names": ("a", "a", "b")}, "no name twice"),
    "shape": ({"uplink": np.ones(2)}, r"network.uplink: shape \(2,\) for 3 silos; it must be \(3,\)"),
    "loop": ({"connected": np.ones((3, 3), np.bool_)}, "network.connected: s0 with itself"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_network_that_cannot_be_is_refused(case: str) -> None:
    columns, sentence = WRONG[case]
    with pytest.raises(UserError, match=sentence):
        replace(network(np.zeros((3, 3))), **columns)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model_bits": 0.0}, "exchange.model_bits: 0.0 must be above 0"),
        ({"model_bits": 1.0, "local_steps": -1}, "exchange.local_steps: -1 must be at least 0"),
        ({"model_bits": 1.0, "compute_time": -0.1}, "exchange.compute_time: -0.1 must be at least 0"),
    ],
)
def test_an_exchange_that_cannot_be_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Exchange(**values)


def test_an_overlay_over_silos_that_cannot_talk_is_refused() -> None:
    net = replace(network(np.zeros((5, 5))), connected=~np.eye(5, dtype=np.bool_) & ~PATH)
    with pytest.raises(OverlayError, match="overlay any: s0 cannot talk to s1 in this network"):
        Overlay("any", PATH).delays(net, Exchange(1.0))
    with pytest.raises(UserError, match="overlay any: made for 5 silos, the network has 3"):
        Overlay("any", PATH).delays(network(np.zeros((3, 3))), Exchange(1.0))
