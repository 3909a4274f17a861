"""What can be promised to clients that were forgotten: the sensitivities at every cut, composed over the lineage.

The paper argues each cut by itself. A client that trained in several branches of the lineage is protected by the noise
of each, and what leaks adds up: mu^2 = sum over cuts of (psi / sigma)^2, read off as epsilon at delta exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from turnout.record.branch import Cut, Table
from turnout.record.unlearning import Unlearning, achieved_delta, achieved_epsilon, composed


@dataclass(frozen=True)
class Guarantee:
    """Of some clients, for the model that came through these cuts."""

    clients: list[int]
    rule: str  # sum and joint: they leave together; max: each of them alone
    psi: list[float]  # at every cut
    mu: float
    epsilon: float  # that holds with the delta asked for
    delta: float  # that holds with the epsilon asked for
    each: dict[int, float]  # epsilon of every client alone

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def guarantee(
    settings: Unlearning, tables: Sequence[Table], lineage: Sequence[Cut], clients: Sequence[int]
) -> Guarantee:
    def at_cuts(group: Sequence[int]) -> list[float]:
        rule = settings.group_rule
        return [float(tables[branch].psi(group, rule)[number]) if number else 0.0 for branch, number in lineage]

    psi = at_cuts(clients)
    mu = total_mu(psi, settings.sigma)
    alone = {
        client: achieved_epsilon(total_mu(at_cuts([client]), settings.sigma), settings.delta) for client in clients
    }
    return Guarantee(
        sorted(clients),
        settings.group_rule,
        psi,
        mu,
        achieved_epsilon(mu, settings.delta),
        achieved_delta(mu, settings.epsilon),
        alone,
    )


def total_mu(psi: Sequence[float], sigma: float) -> float:
    return composed(0.0 if value == 0 else value / sigma if sigma else math.inf for value in psi)
