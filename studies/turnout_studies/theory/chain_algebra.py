"""The algebra of finite Markov chains, and of the two-state chain of one client: offline (0), online (1).

Levin, Peres, Wilmer, "Markov Chains and Mixing Times", 2009, chapters 1, 4 and 12. A client online a share pi of the
time, lambda the correlation of two successive steps:

    P = [[1 - (1 - lambda) pi,       (1 - lambda) pi         ],
         [(1 - lambda) (1 - pi),     lambda + (1 - lambda) pi]],    eigenvalues 1 and lambda.

>>> transition_matrix(0.1, 0.9)
array([[0.99, 0.01],
       [0.09, 0.91]])
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from turnout.clients.chains import feasible, lowest_correlation
from turnout.core.errors import UserError
from turnout.core.random import FloatArray


def transition_matrix(probability: float, correlation: float) -> FloatArray:
    """`[2, 2]` P of a client online a share `probability` of the time."""
    if not 0 <= probability <= 1:
        raise UserError(f"transition_matrix: probability is {probability}; it must be between 0 and 1")
    if not feasible(probability, correlation):
        lowest = lowest_correlation(probability)
        raise UserError(f"transition_matrix: correlation is {correlation}; it must be from {lowest:.6g} to below 1")
    renewed = 1 - correlation
    to_online, to_offline = min(1.0, renewed * probability), min(1.0, renewed * (1 - probability))
    return np.array([[1 - to_online, to_online], [to_offline, 1 - to_offline]])


def from_transitions(stays_offline: float, stays_online: float) -> tuple[float, float]:
    """(pi, lambda) of the chain that stays where it is with these probabilities p0, p1:
    lambda = p0 + p1 - 1, pi = (1 - p0) / (2 - p0 - p1)."""
    if not (0 <= stays_offline <= 1 and 0 <= stays_online <= 1) or stays_offline + stays_online == 2:
        raise UserError(f"from_transitions: {stays_offline} and {stays_online} must be between 0 and 1, and not both 1")
    return (1 - stays_offline) / (2 - stays_offline - stays_online), stays_offline + stays_online - 1


def product_chain(*chains: FloatArray) -> FloatArray:
    """Independent chains side by side: their Kronecker product. Eigenvalues multiply."""
    return reduce(lambda one, other: np.asarray(np.kron(one, other)), chains)


def stationary(chain: FloatArray) -> FloatArray:
    """`[M]` the law that a step does not change: rho P = rho, sum rho = 1."""
    states = len(chain)
    equations = np.vstack([chain.T - np.eye(states), np.ones(states)])
    return np.asarray(np.linalg.lstsq(equations, np.append(np.zeros(states), 1.0))[0])


def slem(chain: FloatArray) -> float:
    """The second largest eigenvalue modulus: the factor by which a step brings any law nearer to the stationary one."""
    return float(np.sort(np.abs(np.linalg.eigvals(chain)))[-2])


def hitting_times(chain: FloatArray, target: int) -> FloatArray:
    """`[M]` expected steps from each state to `target`: h = 1 + P h outside it. 1 / ((1 - lambda) pi) from offline."""
    others = np.arange(len(chain)) != target
    times = np.zeros(len(chain))
    times[others] = np.linalg.solve((np.eye(len(chain)) - chain)[np.ix_(others, others)], np.ones(others.sum()))
    return times


def mixing_time(chain: FloatArray, distance: float = 0.25) -> int:
    """The first step at which, from any state, the law is within `distance` of the stationary one in total variation.

    By powers of two, then bit by bit, for the distance never grows. With t_rel = 1 / (1 - slem), a reversible chain has
    (t_rel - 1) ln(1 / (2 distance)) <= t_mix <= t_rel ln(1 / (distance min rho)).
    """
    if not distance >= 1e-9:
        raise UserError(f"mixing_time: a distance of {distance}; it must be at least 1e-9")
    if slem(chain) > 1 - 1e-12:
        raise UserError("mixing_time: the chain never forgets where it began; it must be irreducible and aperiodic")
    limit = stationary(chain)

    def far(power: FloatArray) -> bool:
        return float(np.abs(power - limit).sum(1).max()) / 2 > distance

    powers = [chain]
    while far(powers[-1]):
        powers.append(powers[-1] @ powers[-1])
    steps, reached = 0, np.eye(len(chain))  # the last step that is still too far
    for exponent in reversed(range(len(powers))):
        further = reached @ powers[exponent]
        if far(further):
            steps, reached = steps + 2**exponent, further
    return steps + 1 if far(np.eye(len(chain))) else 0


def relaxation_time(chain: FloatArray) -> float:
    """1 / (1 - slem)."""
    gap = 1 - slem(chain)
    return 1 / gap if gap > 0 else math.inf
