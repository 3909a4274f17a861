"""What is proved of a memory mixed with a global model: its expected error at a client.

Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022 (theorem 3.6.1
in Marfoq's thesis), for binary labels, one neighbour, a convex loss in [0, 1] and keys in [0, 1]^p. Far too loose to
choose lambda by: it shows what helps.
"""

from __future__ import annotations

import math

from turnout.core.errors import UserError


def nearest_distance(n_t: int, p: int) -> float:
    """r = sqrt(p) n_t^(-1 / (p + 1)); the expected distance to the nearest of n_t / 2 stored keys is below 6 r."""
    return math.sqrt(p) * math.pow(n_t, -1 / (p + 1))


def knn_generalisation_bound(
    lam: float,
    n_t: int,
    n: int,
    p: int,
    vc_dim: float,
    disc: float,
    gamma1: float,
    gamma2: float,
    *,
    best_risk: float = 0.0,
    merged: bool = True,
) -> float:
    """With r as above, R = sqrt(d / n) sqrt(c4 + log(n / d)) for the VC dimension d, and `best_risk` that of the
    client's best model:

        (1 + lam) best_risk + 2 (1 - lam) disc + c2 lam r (disc + 1) + 4 (1 - lam) R + 24 gamma2 lam r R

    where c2 = max(12 gamma2, 6 gamma1) and c4 = max(4 / sqrt(d), 1). `disc` is how much the client's labels differ from
    those of all clients together. |eta(x) - eta(x')| <= d(x, x') (gamma1 + gamma2 excess risk of the global model) is
    assumed of the representation. Not `merged`, the third term is the tighter 6 gamma1 lam r + 12 gamma2 lam r disc.
    """
    if not 0 <= lam <= 1:
        raise UserError(f"lam: {lam} must be between 0 and 1")
    if not (1 <= n_t <= n and p >= 1 and 0 < vc_dim <= n):
        raise UserError("knn_generalisation_bound: needs 1 <= n_t <= n, p >= 1 and 0 < vc_dim <= n")
    r = nearest_distance(n_t, p)
    R = math.sqrt(vc_dim / n) * math.sqrt(max(4 / math.sqrt(vc_dim), 1) + math.log(n / vc_dim))
    memory = max(12 * gamma2, 6 * gamma1) * (disc + 1) if merged else 6 * gamma1 + 12 * gamma2 * disc
    shared = 2 * disc + 4 * R
    return (1 + lam) * best_risk + (1 - lam) * shared + lam * r * (memory + 24 * gamma2 * R)
