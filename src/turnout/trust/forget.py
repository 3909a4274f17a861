"""Forgetting clients: roll back, add noise once, retrain with those who stay.

IFU (one request) and SIFU (a series): Fraboni et al., "SIFU: sequential informed federated unlearning", AISTATS 2024;
Fraboni's thesis (2023), algorithms 6 and 7.

    >>> sifu = SIFU(turnout.Experiment(task, population, algorithm, unlearning=Unlearning(sigma=0.1)))
    >>> sifu.train()
    >>> result = sifu.forget([3, 7])

Where the model rolled back to is the initial one, which has seen no data, no noise is added unless asked for. Clients
that never took part are forgotten as they are: the model stays.

The paper argues each cut by itself. A client that trained in several branches of the lineage is protected by the noise
of each, and what leaks adds up: mu^2 = sum over cuts of (psi / sigma)^2, read off as epsilon at delta exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.record.branch import Bound, Cut, Models, Table, alive, roll_back
from turnout.record.sensitivity import check_forgettable
from turnout.record.unlearning import Unlearning, achieved_delta, achieved_epsilon, composed
from turnout.run.experiment import Experiment, Result, execute


@dataclass(frozen=True)
class Guarantee:
    """What can be promised to some clients, for the model that came through the cuts of a lineage."""

    clients: list[int]
    rule: str  # sum and joint: they leave together; max: each of them alone
    psi: list[float]  # at every cut
    mu: float
    epsilon: float  # that holds with the delta asked for
    delta: float  # that holds with the epsilon asked for
    each: dict[int, float]  # epsilon of every client alone


def guarantee(
    settings: Unlearning, tables: Sequence[Table], lineage: Sequence[Cut], clients: Sequence[int]
) -> Guarantee:
    """Compose the sensitivities of clients at every cut."""
    rule, sigma = settings.group_rule, settings.sigma

    def at_cuts(group: Sequence[int]) -> list[float]:
        return [float(tables[branch].psi(group, rule)[number]) if number else 0.0 for branch, number in lineage]

    def total_mu(psi: Sequence[float]) -> float:
        return composed(0.0 if value == 0 else value / sigma if sigma else math.inf for value in psi)

    psi = at_cuts(clients)
    mu = total_mu(psi)
    alone = {client: achieved_epsilon(total_mu(at_cuts([client])), settings.delta) for client in clients}
    epsilon, delta = achieved_epsilon(mu, settings.delta), achieved_delta(mu, settings.epsilon)
    return Guarantee(sorted(clients), rule, psi, mu, epsilon, delta, alone)


@dataclass(frozen=True)
class Rollback:
    """The answer to a request, before anything is done."""

    request: int  # from 1 on
    clients: list[int]
    lineage: list[Cut]  # O(r); the last cut is where to roll back to
    guarantee: Guarantee
    noised: bool
    absent: bool = False  # none of them ever took part: nothing is to be done

    @property
    def cut(self) -> Cut:
        return self.lineage[-1]


@dataclass
class Branches:
    """What a server must have kept to answer the next request."""

    settings: Unlearning
    clients: int
    tables: list[Table] = field(default_factory=list)
    models: list[Models] = field(default_factory=list)
    lineage: list[Cut] = field(default_factory=list)
    requests: list[list[int]] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)  # of the branches; of none: nobody is known to be absent

    @property
    def forgotten(self) -> list[int]:
        return sorted(client for request in self.requests for client in request)

    def plan(self, clients: Iterable[int], from_scratch: bool = False) -> Rollback:
        """Where a request rolls back to, and what is promised then."""
        asked = sorted(set(clients))
        self._check(asked)
        absent = not from_scratch and not any(self.took_part(client) for client in asked)
        lineage = [Cut(0, 0)] if from_scratch else self.lineage if absent else self._rolled_back(asked)
        promised = guarantee(self.settings, self.tables, lineage, asked)
        noised = not from_scratch and not absent and (self.settings.always_noise or lineage[-1] != Cut(0, 0))
        return Rollback(len(self.requests) + 1, asked, lineage, promised, noised, absent)

    def _rolled_back(self, asked: list[int]) -> list[Cut]:
        """Find the lineage once these clients are forgotten."""
        for branch in {*(cut.branch for cut in self.lineage), len(self.models) - 1}:
            if 0 not in self.models[branch].rounds:
                raise UserError(f"unlearn: the models of branch {branch} are gone; restore the files of its rounds")
        stored = [models.rounds for models in self.models]
        bound, *earlier = (self._bound(group) for group in (asked, *self.requests))
        budget, threshold = self.settings.budget, self.settings.threshold
        return roll_back(self.lineage, stored, bound, threshold, budget=budget, earlier=earlier)

    def took_part(self, client: int) -> bool:
        """Whether a client may have had a part in the model: by an update, or by a choice that its data decided."""
        current = len(self.tables) - 1
        way = [*(cut for cut in self.lineage if cut.round), Cut(current, len(self.tables[current]))]
        if len(self.facts) < len(self.tables) or any(self.facts[cut.branch].get("prying", True) for cut in way):
            return True
        turns = [turn for cut in way for turn in self.tables[cut.branch].turns[: cut.round]]
        return any(client in turn.clients or (turn.moved > 0 and not turn.clients) for turn in turns)

    def start(self, rollback: Rollback, noise_seed: int | None = None) -> Tensor:
        """The model that retraining begins with."""
        branch, number = rollback.cut
        model = self.models[branch][number]
        if not rollback.noised:
            return model
        return noised(model, self.settings.sigma, noise_seed, rollback.request)

    def accept(self, rollback: Rollback) -> None:
        self.lineage, self.requests = rollback.lineage, [*self.requests, rollback.clients]

    def drop_dead(self) -> None:
        """Let go of every model that no later request can roll back to."""
        for branch, models in enumerate(self.models):
            for number in models.rounds:
                if not alive(self.lineage, branch, number):
                    models.drop(number)

    def _bound(self, clients: Sequence[int]) -> Bound:
        @cache
        def psi(branch: int) -> FloatArray:
            return self.tables[branch].psi(clients, self.settings.group_rule)

        return lambda branch, number: float(psi(branch)[number]) if number else 0.0

    def _check(self, clients: Sequence[int]) -> None:
        gone = set(self.forgotten)
        if not clients:
            raise UserError("unlearn: no client is named; say whom to forget with --client")
        for client in clients:
            if not 0 <= client < self.clients:
                raise UserError(f"unlearn: client {client} is not in the population of {self.clients} clients")
            if client in gone:
                raise UserError(f"unlearn: client {client} was forgotten before; name others")
        if len(gone) + len(clients) >= self.clients:
            raise UserError("unlearn: nobody would remain to train with; forget fewer clients")


def noised(model: Tensor, sigma: float, seed: int | None = None, request: int = 0) -> Tensor:
    """The model with noise N(0, sigma^2) on every parameter. With a seed anybody can take the noise off again."""
    draw = (
        random.secret_normal if seed is None else partial(random.normal, random.key(seed, "unlearning noise", request))
    )
    noise = torch.from_numpy(sigma * draw(model.numel())).view_as(model).to(model.device)
    return (model.double() + noise).to(model.dtype)


def tracked_settings(experiment: Experiment) -> Unlearning:
    """The settings of a run that was tracked, and can forget."""
    if experiment.unlearning is None or not experiment.unlearning.track:
        raise UserError(
            "unlearn: the run was not tracked (unlearning.track=true); it can still forget exactly, by --from-scratch"
        )
    check_forgettable(experiment.algorithm, experiment.task, experiment.population)
    return experiment.unlearning


def retraining(experiment: Experiment, model: Tensor, forgotten: Sequence[int]) -> Experiment:
    """The same experiment from that model on, with those who stay."""
    return replace(
        experiment,
        task=experiment.task.starting_from(model),
        population=experiment.population.without(forgotten),
    )


class SIFU:
    """Answers requests one after the other, in memory."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.branches = Branches(tracked_settings(experiment), experiment.population.size)
        self._last: Result | None = None

    def train(self) -> Result:
        """Branch 0, with everybody."""
        self.branches = Branches(self.branches.settings, self.branches.clients)
        return self._branch(self.experiment)

    def forget(self, clients: Iterable[int], noise_seed: int | None = None) -> Result:
        """Roll back, add noise, and train the next branch; the last result, where nobody of these ever took part."""
        rollback = self.branches.plan(clients)
        if rollback.absent and self._last is not None:
            self.branches.accept(rollback)
            return self._last
        start = self.branches.start(rollback, noise_seed)
        self.branches.accept(rollback)
        self.branches.drop_dead()
        return self._branch(retraining(self.experiment, start, self.branches.forgotten))

    def _branch(self, experiment: Experiment) -> Result:
        result = execute(experiment)
        assert result.sensitivity is not None
        self.branches.tables.append(result.sensitivity.table)
        self.branches.models.append(result.sensitivity.models)
        self.branches.facts.append(result.sensitivity.facts)
        self._last = result
        return result
