"""MATCHA: every round some matchings of a base graph, drawn at random.

Wang, Sahu, Yang, Joshi, Kar, "MATCHA: Speeding up decentralized SGD via matching decomposition sampling", ICC 2019:

1. colour the links of the base graph; the links of colour j are a matching with Laplacian L_j, j = 1..J;
2. its chance p_j: maximise lambda_2(sum_j p_j L_j) over sum_j p_j <= budget J, 0 <= p_j <= 1;
3. mix with W = I - alpha L, L the sum of the drawn L_j, alpha the smallest || E[W^2] - 1 1^T / N ||.

As in Marfoq et al., NeurIPS 2020, a round is drawn again until a matching is active. MATCHA's base graph is who can
talk to whom; MATCHA+ knows the underlay and takes its links.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise

import numpy as np
from scipy.optimize import minimize_scalar

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray, key, uniform
from turnout.peers.cycles import require_strongly_connected
from turnout.peers.network import BoolArray, Network, Overlay, OverlayError

OPTIMAL = 0.99  # of the largest lambda_2: proved by the bound that Frank and Wolfe's steps give
STEPS = 400


@dataclass(frozen=True, eq=False)
class Matcha(Overlay):
    """The links of the matchings that are active in a round; a pure function of seed and round."""

    colours: IntArray  # [N, N] the matching of a link, -1 where there is none
    probabilities: FloatArray  # [J]
    alpha: float
    seed: int = 0

    def active(self, round: int) -> BoolArray:
        """`[J]` the matchings of a round: at least one."""
        for attempt in count():
            drawn = uniform(key(self.seed, "matcha", round, attempt), len(self.probabilities)) < self.probabilities
            if drawn.any():
                break
        return drawn

    def arcs(self, round: int = 0) -> BoolArray:
        return np.append(self.active(round), False)[self.colours]

    def mixing(self, round: int = 0) -> FloatArray:
        return np.eye(len(self.graph)) - self.alpha * laplacian(self.arcs(round))

    def contraction(self) -> float:
        """|| E[W^2] - 1 1^T / N ||: what is left of the expected squared disagreement after a round."""
        return _contraction(self.alpha, *_expectations(self.colours, self.probabilities))


def matcha(network: Network, budget: float = 0.5, seed: int = 0) -> Matcha:
    """MATCHA: over all pairs that can talk in both directions."""
    return decompose("matcha", network.both_ways, budget, seed, network)


def matcha_plus(network: Network, budget: float = 0.5, seed: int = 0) -> Matcha:
    """MATCHA+: over the links of the underlay."""
    if network.links is None:
        raise OverlayError("matcha_plus: the network has no underlay; choose matcha")
    return decompose("matcha_plus", network.links & network.both_ways, budget, seed, network)


def decompose(name: str, graph: BoolArray, budget: float, seed: int, network: Network) -> Matcha:
    if not 0 < budget <= 1:
        raise UserError(f"budget: {budget} must be above 0 and at most 1")
    if len(graph) < 2:
        raise OverlayError(f"{name}: one silo has nobody to talk to")
    require_strongly_connected(graph, network.names)
    colours = edge_colouring(graph)
    probabilities = activation_probabilities(colours, budget)
    mean, spread = _expectations(colours, probabilities)
    largest = float(np.linalg.eigvalsh(mean)[-1])
    found = minimize_scalar(partial(_contraction, mean=mean, spread=spread), bounds=(0, 2 / largest), method="bounded")
    return Matcha(name, graph, colours, probabilities, float(found.x), seed)


def laplacian(weights: FloatArray | BoolArray) -> FloatArray:
    """`[N, N]` degrees on the diagonal, minus the weights elsewhere."""
    return np.asarray(np.diag(weights.sum(1)) - weights)


def edge_colouring(graph: BoolArray) -> IntArray:
    """`[N, N]` colours 0, 1, ... of the links (-1 elsewhere), none twice at a silo: at most one more than the largest
    degree.

    Misra and Gries, "A constructive proof of Vizing's theorem", Information Processing Letters 1992.
    """
    silos, most = len(graph), int(graph.sum(1).max()) + 1
    colours = np.full((silos, silos), -1)
    across = [[-1] * most for _ in range(silos)]  # across[u][c]: the silo at the other end of u's link of colour c
    free = [set(range(most)) for _ in range(silos)]

    def paint(one: int, other: int, colour: int) -> None:
        for here, there in ((one, other), (other, one)):
            colours[here, there], across[here][colour] = colour, there
            free[here].discard(colour)

    def strip(one: int, other: int) -> int:
        colour = int(colours[one, other])
        for here, there in ((one, other), (other, one)):
            colours[here, there], across[here][colour] = -1, -1
            free[here].add(colour)
        return colour

    def swap(start: int, first: int, second: int) -> None:
        """Exchange two colours along the path from a silo that begins with the first of them."""
        path, wanted = [start], first
        while across[path[-1]][wanted] >= 0:
            path.append(across[path[-1]][wanted])
            wanted = first + second - wanted
        for (one, other), old in [(hop, strip(*hop)) for hop in pairwise(path)]:
            paint(one, other, first + second - old)

    for hub, rim in np.argwhere(np.triu(graph)).tolist():
        fan = [rim]  # the colour of each blade's link to the hub is free at the blade before it
        while not free[hub] & free[fan[-1]]:
            following = [across[hub][colour] for colour in sorted(free[fan[-1]])]
            blade = next((silo for silo in following if silo >= 0 and silo not in fan), None)
            if blade is None:
                break
            fan.append(blade)
        colour = min(free[hub] & free[fan[-1]] or free[fan[-1]])
        swap(hub, colour, min(free[hub]))
        last = next(place for place, blade in enumerate(fan) if colour in free[blade])
        for blade, following_blade in pairwise(fan[: last + 1]):
            paint(hub, blade, strip(hub, following_blade))
        paint(hub, fan[last], colour)
    return np.unique(colours, return_inverse=True)[1].reshape(silos, silos) - 1


def activation_probabilities(colours: IntArray, budget: float) -> FloatArray:
    """`[J]` chances that maximise lambda_2 of the expected Laplacian, to 1 %.

    lambda_2 is the smallest of tr(Y L(p)) over density matrices Y orthogonal to 1, so that any Y bounds what every p
    can reach. Frank and Wolfe's algorithm, with Y weighting the eigenvectors by a softmin of growing sharpness.
    """
    matchings = int(colours.max()) + 1
    affordable = budget * matchings
    one, other = np.argwhere(np.triu(colours >= 0)).T
    colour = colours[one, other]
    probabilities = np.full(matchings, budget)
    best, bound = (0.0, probabilities), np.inf
    for step in range(STEPS):
        values, vectors = np.linalg.eigh(_expectations(colours, probabilities)[0])
        values, vectors = values[1:], vectors[:, 1:]
        best = max(best, (float(values[0]), probabilities), key=lambda found: found[0])
        softness = values[0] / (5 * (step + 1) ** 0.7)
        shares = np.exp((values[0] - values) / softness)
        density = (vectors * (shares / shares.sum())) @ vectors.T
        worth = density[one, one] + density[other, other] - 2 * density[one, other]
        gains = np.bincount(colour, worth, matchings)
        order = np.argsort(-gains, kind="stable")
        target = np.zeros(matchings)
        target[order] = np.clip(affordable - np.arange(matchings), 0, 1)
        bound = min(bound, float(target @ gains))
        if best[0] >= OPTIMAL * bound:
            break
        probabilities = probabilities + 2 / (step + 3) * (target - probabilities)
    return best[1]


def _expectations(colours: IntArray, probabilities: FloatArray) -> tuple[FloatArray, FloatArray]:
    """`[N, N]` sum_j p_j L_j and sum_j p_j (1 - p_j) L_j."""
    chances = np.append(probabilities, 0.0)[colours]
    return laplacian(chances), laplacian(chances * (1 - chances))


def _contraction(alpha: float, mean: FloatArray, spread: FloatArray) -> float:
    """The largest eigenvalue of E[W^2] - 1 1^T / N = I - 2 alpha mean + alpha^2 (mean^2 + 2 spread) - 1 1^T / N."""
    silos = len(mean)
    second = np.eye(silos) - 2 * alpha * mean + alpha**2 * (mean @ mean + 2 * spread) - 1 / silos
    return float(np.linalg.eigvalsh(second)[-1])
