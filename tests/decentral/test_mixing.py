"""Mixing matrices: closed-form contractions, double stochasticity, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, key
from turnout.core.random import uniform as draw
from turnout.peers.mixing import MIXINGS, contraction, fdla, local_degree, mixing_matrix, none, uniform
from turnout.peers.network import BoolArray, Overlay, Star

SIZES = (5, 8, 13)


def edges(silos: int, *pairs: tuple[int, int]) -> BoolArray:
    arcs = np.zeros((silos, silos), np.bool_)
    for i, j in pairs:
        arcs[i, j] = arcs[j, i] = True
    return arcs


def directed_ring(silos: int) -> BoolArray:
    return np.roll(np.eye(silos, dtype=np.bool_), 1, axis=1)


def cycle(silos: int) -> BoolArray:
    return edges(silos, *((i, (i + 1) % silos) for i in range(silos)))


def path(silos: int) -> BoolArray:
    return edges(silos, *((i, i + 1) for i in range(silos - 1)))


def star(silos: int) -> BoolArray:
    return edges(silos, *((0, i) for i in range(1, silos)))


def complete(silos: int) -> BoolArray:
    return ~np.eye(silos, dtype=np.bool_)


def random_tree_and_more(silos: int, seed: int) -> BoolArray:
    draws = draw(key(seed, "test graph"), 2 * silos)
    parents = [(i, int(draws[i] * i)) for i in range(1, silos)]
    more = [(int(draws[silos + i] * silos), i) for i in range(0, silos, 3)]
    return edges(silos, *parents, *(pair for pair in more if pair[0] != pair[1]))


GRAPHS = {"directed ring": directed_ring, "cycle": cycle, "path": path, "star": star, "complete": complete}


@pytest.mark.parametrize("silos", SIZES)
def test_contraction_of_local_degree_weights(silos: int) -> None:
    """Oracle O18."""
    expected = {
        "directed ring": np.cos(np.pi / silos),
        "cycle": 1 / 3 + 2 / 3 * np.cos(2 * np.pi / silos),
        "path": 1 / 3 + 2 / 3 * np.cos(np.pi / silos),
        "star": 1 - 1 / silos,
        "complete": 0.0,
    }
    for name, graph in GRAPHS.items():
        assert contraction(local_degree(graph(silos))) == pytest.approx(expected[name], abs=1e-12), name


def test_local_degree_by_hand() -> None:
    """Degrees 1, 2, 1."""
    expected = [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]]
    np.testing.assert_allclose(local_degree(path(3)), expected, atol=1e-15)
    np.testing.assert_allclose(local_degree(directed_ring(3)), [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])


@pytest.mark.parametrize("rule", MIXINGS)
@pytest.mark.parametrize("graph", [*GRAPHS, "random 1", "random 2"])
def test_doubly_stochastic_and_the_sum_stays(rule: str, graph: str) -> None:
    """Oracle O19. The weights of `fdla` may be negative, those of the others lie in [0, 1]."""
    arcs = GRAPHS[graph](9) if graph in GRAPHS else random_tree_and_more(9, int(graph[-1]))
    if rule == "fdla" and graph == "directed ring":
        return
    weights = MIXINGS[rule](arcs)
    np.testing.assert_allclose(weights.sum(0), 1, atol=1e-12)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-12)
    if rule != "fdla":
        assert weights.min() >= 0
        assert weights.max() <= 1
    if rule != "uniform":
        assert not weights[~(arcs.T | np.eye(9, dtype=np.bool_))].any()
    models = draw(key(3, "test models"), 9 * 7).reshape(9, 7)
    np.testing.assert_allclose((weights @ models).sum(0), models.sum(0), rtol=1e-13)


def test_the_row_is_the_receiver() -> None:
    """Silo 0 sends to 1: it is 1 that takes something of 0."""
    weights = local_degree(directed_ring(4))
    assert weights[1, 0] == 0.5
    assert weights[0, 1] == 0


@pytest.mark.parametrize("silos", [4, 9, 20])
@pytest.mark.parametrize("graph", [cycle, path, star, complete])
def test_fdla_where_one_weight_for_all_edges_is_best(graph: Callable[[int], BoolArray], silos: int) -> None:
    """On edge-transitive graphs, and on paths, the best is I - 2 L / (l_2 + l_N), which contracts by
    (l_N - l_2) / (l_N + l_2): l are the eigenvalues of the Laplacian (Xiao, Boyd, 2004, section 4.1)."""
    arcs = graph(silos)
    values = np.linalg.eigvalsh(np.diag(arcs.sum(1)) - arcs)
    best = (values[-1] - values[1]) / (values[-1] + values[1])
    assert best - 1e-12 <= contraction(fdla(arcs)) <= best + 1e-5


@pytest.mark.parametrize("seed", range(6))
def test_fdla_is_faster_than_the_rules_of_thumb(seed: int) -> None:
    arcs = random_tree_and_more(12, seed)
    weights = fdla(arcs)
    np.testing.assert_allclose(weights, weights.T, atol=1e-15)
    laplacian = np.diag(arcs.sum(1)) - arcs
    values = np.linalg.eigvalsh(laplacian)
    constant = np.eye(12) - 2 / (values[1] + values[-1]) * laplacian
    assert contraction(weights) < min(contraction(local_degree(arcs)), contraction(constant)) - 1e-4
    for i, j in np.argwhere(np.triu(arcs)):  # and no small change makes it better
        for step in (0.02, -0.02):
            other = weights.copy()
            other[[i, j], [j, i]] += step
            other[[i, j], [i, j]] -= step
            assert contraction(other) >= contraction(weights) - 1e-5


def test_a_single_silo_mixes_with_nobody() -> None:
    alone = np.zeros((1, 1), np.bool_)
    for rule in MIXINGS:
        np.testing.assert_array_equal(MIXINGS[rule](alone), [[1.0]])


# -- which matrix an overlay gets -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Own(Overlay):
    """With a mixing of its own, another in every round."""

    def mixing(self, round: int = 0) -> FloatArray:
        return none(self.graph) if round % 2 else uniform(self.graph)


def test_the_rule_then_the_overlay_then_local_degree() -> None:
    plain, own = Overlay("cycle", cycle(5)), Own("own", cycle(5))
    np.testing.assert_array_equal(mixing_matrix(plain), local_degree(cycle(5)))
    np.testing.assert_array_equal(mixing_matrix(plain, rule="none"), np.eye(5))
    np.testing.assert_array_equal(mixing_matrix(own), uniform(cycle(5)))
    np.testing.assert_array_equal(mixing_matrix(own, 1), np.eye(5))
    np.testing.assert_array_equal(mixing_matrix(own, 1, "local_degree"), local_degree(cycle(5)))
    np.testing.assert_array_equal(mixing_matrix(Star.around(2, 5)), np.full((5, 5), 0.2))
    np.testing.assert_array_equal(mixing_matrix(Star.around(2, 5), rule="uniform"), np.full((5, 5), 0.2))


def test_what_is_refused() -> None:
    lopsided = directed_ring(4)
    lopsided[0, 2] = True
    with pytest.raises(UserError, match="local_degree over overlay lopsided would move the average of the models"):
        mixing_matrix(Overlay("lopsided", lopsided))
    with pytest.raises(UserError, match="uniform needs everybody to hear everybody, which overlay ring does not give"):
        mixing_matrix(Overlay("ring", directed_ring(4)), rule="uniform")
    with pytest.raises(UserError, match="fdla is for overlays whose arcs go both ways; use local_degree"):
        mixing_matrix(Overlay("ring", directed_ring(4)), rule="fdla")
    with pytest.raises(UserError, match=r"algorithm.mixing: unknown name 'fdl'; did you mean fdla\?"):
        mixing_matrix(Overlay("cycle", cycle(4)), rule="fdl")
