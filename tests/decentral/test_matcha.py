"""MATCHA: matchings, chances, mixing and draws (O20)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import network

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.peers.design import evaluate
from turnout.peers.matcha import activation_probabilities, edge_colouring, laplacian, matcha, matcha_plus
from turnout.peers.network import BoolArray, Exchange, Overlay, OverlayError


def complete(silos: int) -> BoolArray:
    return ~np.eye(silos, dtype=np.bool_)


def lambda_2(colours: IntArray, probabilities: FloatArray) -> float:
    return float(np.linalg.eigvalsh(laplacian(np.append(probabilities, 0.0)[colours]))[1])


def random_graph(silos: int, seed: int, density: float) -> BoolArray:
    """Connected: a path and some other links."""
    rng = np.random.default_rng(seed)
    graph = np.triu(rng.random((silos, silos)) < density, 1) | np.eye(silos, k=1, dtype=np.bool_)
    return graph | graph.T


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 20), st.integers(0, 10**6), st.floats(0, 1))
def test_links_of_one_colour_are_a_matching(silos: int, seed: int, density: float) -> None:
    graph = random_graph(silos, seed, density)
    colours = edge_colouring(graph)
    np.testing.assert_array_equal(colours >= 0, graph)
    np.testing.assert_array_equal(colours, colours.T)
    assert colours.max() + 1 <= graph.sum(1).max() + 1
    for row in colours:
        assert len(set(row[row >= 0])) == (row >= 0).sum()


@pytest.mark.parametrize("silos", [3, 11, 21])
def test_o20_the_complete_graph(silos: int) -> None:
    colours = edge_colouring(complete(silos))
    assert colours.max() + 1 == silos
    for budget in (0.2, 0.5, 1.0):
        probabilities = activation_probabilities(colours, budget)
        assert probabilities.sum() <= budget * silos + 1e-9
        assert lambda_2(colours, probabilities) == pytest.approx(budget * silos)


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 10), st.integers(0, 10**6), st.floats(0.1, 1))
def test_no_other_chances_connect_better(silos: int, seed: int, budget: float) -> None:
    colours = edge_colouring(random_graph(silos, seed, 0.2))
    probabilities = activation_probabilities(colours, budget)
    matchings = len(probabilities)
    assert ((probabilities >= -1e-12) & (probabilities <= 1 + 1e-12)).all()
    assert probabilities.sum() <= budget * matchings + 1e-9
    rng = np.random.default_rng(seed)
    others = rng.random((50, matchings)) ** rng.uniform(0, 3, (50, 1))
    others = np.minimum(others * (budget * matchings / others.sum(1, keepdims=True)), 1)
    found = lambda_2(colours, probabilities)
    assert found >= 0.99 * max(lambda_2(colours, other) for other in others)
    assert found >= lambda_2(colours, np.full(matchings, budget)) - 1e-12


def test_a_bridge_is_used_more_often_than_a_clique() -> None:
    graph = np.kron(np.eye(2), np.ones((5, 5))).astype(bool) & complete(10)
    graph[4, 5] = graph[5, 4] = True
    colours = edge_colouring(graph)
    probabilities = activation_probabilities(colours, 0.5)
    assert probabilities[colours[4, 5]] == probabilities.max()
    assert probabilities.max() > 0.9


def test_alpha_mixes_fastest() -> None:
    overlay = matcha(network(np.zeros((6, 6))), 0.4)
    second = np.zeros((6, 6))  # E[W^2] over all draws, the empty one included
    for drawn in product((0.0, 1.0), repeat=len(overlay.probabilities)):
        weights = np.eye(6) - overlay.alpha * laplacian(np.append(drawn, 0.0)[overlay.colours])
        chance = np.where(drawn, overlay.probabilities, 1 - overlay.probabilities).prod()
        second += chance * weights @ weights
    assert np.linalg.eigvalsh(second - 1 / 6)[-1] == pytest.approx(overlay.contraction())
    others = [replace(overlay, alpha=factor * overlay.alpha).contraction() for factor in (0.9, 0.97, 1.03, 1.1)]
    assert overlay.contraction() < min(others)


def test_a_round_is_a_function_of_seed_and_number() -> None:
    net = network(np.zeros((9, 9)))
    one, again, other = matcha(net, 0.3, seed=1), matcha(net, 0.3, seed=1), matcha(net, 0.3, seed=2)
    rounds = range(40)
    np.testing.assert_array_equal([one.arcs(k) for k in rounds], [again.arcs(k) for k in reversed(rounds)][::-1])
    assert any((one.arcs(k) != other.arcs(k)).any() for k in rounds)
    assert any((one.arcs(k) != one.arcs(k + 1)).any() for k in rounds)


def test_rounds_are_drawn_with_their_chances_but_never_empty() -> None:
    overlay = matcha(network(np.zeros((7, 7))), 0.5)
    drawn = np.array([overlay.active(round) for round in range(4000)])
    assert drawn.any(1).all()
    nobody = np.prod(1 - overlay.probabilities)
    np.testing.assert_allclose(drawn.mean(0), overlay.probabilities / (1 - nobody), atol=0.03)
    rare = matcha(network(np.zeros((2, 2))), 0.05)
    assert all(rare.arcs(round).any() for round in range(20))


def test_mixing_is_symmetric_and_over_the_arcs_of_the_round() -> None:
    overlay = matcha(network(np.zeros((6, 6))), 0.5)
    for round in range(10):
        weights, arcs = overlay.mixing(round), overlay.arcs(round)
        np.testing.assert_allclose(weights.sum(1), 1)
        np.testing.assert_array_equal(weights, weights.T)
        np.testing.assert_array_equal((weights != 0) & ~np.eye(6, dtype=np.bool_), arcs)


def test_o20_the_whole_budget_is_the_whole_graph_and_its_slowest_link() -> None:
    rng = np.random.default_rng(0)
    net = network(rng.uniform(0, 1, (6, 6)) * complete(6), 2.0)
    exchange = Exchange(3.0, 0.1)
    overlay = matcha(net, 1.0)
    np.testing.assert_allclose(overlay.probabilities, 1)
    found = evaluate(overlay, net, exchange)
    assert found.cycle_time == pytest.approx(Overlay("all", complete(6)).delays(net, exchange).max())
    assert found.standard_error == pytest.approx(0, abs=1e-12)


def test_what_cannot_be_matched_is_refused() -> None:
    net = network(np.zeros((4, 4)))
    for budget in (0.0, 1.1, -1.0):
        with pytest.raises(UserError, match=f"budget: {budget} must be above 0 and at most 1"):
            matcha(net, budget)
    with pytest.raises(OverlayError, match="matcha_plus: the network has no underlay"):
        matcha_plus(net)
    with pytest.raises(OverlayError, match="one silo has nobody to talk to"):
        matcha(network(np.zeros((1, 1))))
