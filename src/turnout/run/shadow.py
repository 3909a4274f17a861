"""Whom to silence, found in shadow runs: the clients whose gradients grow most, on other data of the same kind.

Su, Xu, Yang, "Federated learning in the presence of adversarial client unavailability", 2023, section 6.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.robust_momentum import RobustMomentum
from turnout.clients.adversary import Silence
from turnout.clients.availability import Always, Crashes
from turnout.clients.population import Population
from turnout.core.allowed import Range, Share, WholeNumber
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt, spelt
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import Selection
from turnout.sampling.full import Full
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.server.updates import Updates
from turnout.task.task import Task

_MOST_ROUNDS = 10_000
Round = Annotated[int, Range(1, _MOST_ROUNDS, whole=True)]


@dataclass
class Shadow(Spelt):
    """Silence clients found beforehand, in runs without an adversary on data dealt anew: those whose gradients, and of
    the others those whose momenta, grow most between rounds `first` and `last`. Unless given they are a quarter and a
    tenth of all clients. The run is then one with `silence`, and its configuration names the clients.
    """

    section: ClassVar[str] = "adversary"

    budget: Share  # epsilon: share of those invited that may be silenced, by importance
    first: Round = 5  # round from which growth is measured
    last: Round = 150  # round until which it is
    by_gradient: WholeNumber | None = None  # clients whose gradients grow most; none: a quarter of all
    by_momentum: WholeNumber | None = None  # of the others, those whose momenta do; none: a tenth of all
    leave: WholeNumber = 1  # clients of an invitation that always answer
    begins: WholeNumber = 0  # first round in which it acts
    ends: WholeNumber | None = None  # round from which it acts no more; none: never

    def find(self, task: Task, population: Population, local: LocalSGD, seed: int, plan: Plan | None = None) -> Silence:
        """Find the adversary; see `candidates`."""
        found = candidates(
            task,
            population,
            local,
            first=self.first,
            last=self.last,
            by_gradient=population.size // 4 if self.by_gradient is None else self.by_gradient,
            by_momentum=population.size // 10 if self.by_momentum is None else self.by_momentum,
            seed=seed,
            plan=plan,
        )
        return Silence(self.budget, found, leave=self.leave, begins=self.begins, ends=self.ends)


@dataclass
class _Gradients(FedAvg):
    """Remember how long everybody's update is, which is the learning rate times the sum of its gradients."""

    norms: list[FloatArray] = field(default_factory=list)

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        self.norms.append(updates.norms().double().cpu().numpy()[np.argsort(updates.clients)])
        super().aggregate(server, updates, chosen)


@dataclass
class _Momenta(RobustMomentum):
    """Remember how long everybody's momentum is."""

    norms: list[FloatArray] = field(default_factory=list)

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        super().aggregate(server, updates, chosen)
        self.norms.append(self.momenta.norm(dim=1).double().cpu().numpy())


@spelt
def candidates(
    task: Task,
    population: Population,
    local: LocalSGD,
    *,
    momentum_local: LocalSGD | None = None,
    first: Round = 5,
    last: Round = 150,
    by_gradient: WholeNumber = 25,
    by_momentum: WholeNumber = 10,
    seed: int = 0,
    plan: Plan | None = None,
) -> list[int]:
    """Find clients for `Silence`: those `by_gradient` whose local gradients grow most between rounds `first` and `last`
    of FedAvg, and of the others those `by_momentum` whose momenta grow most under centred clipping.

    Everybody takes part in both runs. `population` is the shadow's: dealt by the same law as the one attacked, with
    another seed, so that nothing of the future is known. `momentum_local` is the work of the second run, one step of
    `local` unless given.
    """
    if first >= last:
        raise UserError(f"shadow: rounds {first} and {last}; the first must be before the last")
    if by_gradient + by_momentum > population.size:
        raise UserError(f"shadow: {by_gradient} and {by_momentum} candidates of {population.size} clients")
    people = replace(population, availability=Always(), crashes=Crashes(), adversary=None)
    chosen = np.zeros(0, np.int64)
    shadows = (_Gradients(local, Full()), by_gradient), (_Momenta(momentum_local or local, Full()), by_momentum)
    for shadow, count in shadows:
        rounds, never = Stopping(last), Evaluation(rounds=None, clients=1)
        Simulation(task, people, shadow, seed=seed, plan=plan, stopping=rounds, evaluation=never).run()
        if len(shadow.norms) < last or not np.isfinite(shadow.norms[-1]).all():
            raise UserError(f"shadow: the run with learning rate {shadow.local.lr} diverged; choose a smaller one")
        chosen = np.append(chosen, _most(shadow.norms[last - 1] - shadow.norms[first - 1], count, chosen))
    return sorted(int(client) for client in chosen)


def _most(growth: FloatArray, count: int, taken: IntArray) -> IntArray:
    """Find the `count` largest, without those taken already."""
    order = np.argsort(-growth, kind="stable")
    return order[~np.isin(order, taken)][:count]
