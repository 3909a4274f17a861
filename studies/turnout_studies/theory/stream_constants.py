"""The constants of the bound for data streams, and the optimisation error behind them.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, theorem 4.3.3,
corollary 4.3.5 and appendix G. Symbols: B bounds the loss, D is the diameter of the parameters, L the smoothness of the
loss, T the rounds, E the local steps of a round, M_f the fresh clients.
"""

from __future__ import annotations

import math

from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError


def bound_constants(
    B: float, D: float, sigma0: float, pdim: float, samples: float, fresh_clients: float, rounds: int, disc: float
) -> tuple[float, float]:
    """(c1, c2) of `stream_bound`:

        c1 = sigma0 sqrt(M_f) (D + 2 / sqrt(T)),    c2 = 10 B sqrt(1 + ln(N / Pdim)) sqrt(Pdim / N) + 2 disc,

    `sigma0` how far one sample's gradient is from its client's, `pdim` the pseudo-dimension of the losses, `disc` the
    largest discrepancy of two clients' distributions, which is 0 here for a target other than n.
    """
    if not 0 < pdim <= samples:
        raise UserError(f"streams.pdim: {pdim} must be above 0 and at most the {samples} samples")
    learning = 10 * B * math.sqrt(1 + math.log(samples / pdim)) * math.sqrt(pdim / samples)
    return sigma0 * math.sqrt(fresh_clients) * (D + 2 / math.sqrt(rounds)), learning + 2 * disc


def gradient_limit(L: float, B: float) -> float:
    """sqrt(2 L B): no gradient of an L-smooth function with values in [0, B] is longer."""
    return math.sqrt(2 * L * B)


def optimisation_bound(
    noise: float, *, D: float, L: float, B: float, lr: float, steps: int, first_round: float
) -> float:
    """F(mean of the iterates) - F*, the iterates weighted by q, for convex losses, all clients and full batches:

        sigma D + q_1 D^2 / (2 h) + h sigma^2 + h C_1 + h^3 C_2,    h = lr E,  G = sqrt(2 L B),
        C_1 = G (5/2 G + L D sqrt(2 (1 - 1 / E))),    C_2 = 2 L^2 G^2 (1 - 1 / E).

    `noise` is sigma (see `noise_bound`), `first_round` the weight q_1 of the first of T rounds, 1 / T if all are alike;
    q must not increase. The first term does not vanish, however many rounds there are.
    """
    for name, value in {"D": D, "L": L, "B": B, "lr": lr, "steps": steps, "first_round": first_round}.items():
        POSITIVE.check(f"streams.{name}", value)
    h, G, again = lr * steps, gradient_limit(L, B), 1 - 1 / steps
    C1 = G * (2.5 * G + L * D * math.sqrt(2 * again))
    C2 = 2 * L**2 * G**2 * again
    return noise * D + first_round * D**2 / (2 * h) + h * (noise**2 + C1) + h**3 * C2
