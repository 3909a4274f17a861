"""Rounds passed in one go. Where clients never fail and the policy does not look at models, it is known who will arrive
when: jobs in flight that are not trained yet are trained together, and all rounds that use nothing else follow, with
one record for all of them. Models, weights and records are those of a server that goes event by event."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.aggregation.optimisers import Step
from turnout.clients.fates import FOREVER
from turnout.core.memory import is_large
from turnout.core.random import FloatArray, IntArray
from turnout.engine.blocks import Block
from turnout.local.sgd import LocalSGD
from turnout.server.fleet import Arrivals, Fleet
from turnout.server.jobs import Costs, signature
from turnout.server.law import is_finite
from turnout.server.observer import Observer, Round
from turnout.server.policy import Policy
from turnout.server.updates import add_up, by_block
from turnout.task.arrays import EnsembleTask

if TYPE_CHECKING:
    from turnout.server.simulation import Simulation

Weigh = Callable[[IntArray, IntArray], FloatArray]  # of clients and staleness `[k]`: what each update counts `[k]`
Result = tuple[Block, int]  # what a job has brought: a block, and which of its rows
MOST = 512  # updates after which a stretch ends: observers want to know how it goes on
FEW = 4  # updates of two stretches together that are not worth their records
_OF_A_ROUND = ("on_invite", "on_arrival", "on_step", "on_round")  # what an observer is told between two rounds


@dataclass(eq=False)
class Stretch:
    """What happened in rounds passed in one go: `[n]` a round, `[k]` an update, in order of use."""

    first: int  # the number of the first
    ticks_per_second: int
    costs: Costs
    closes_at: IntArray  # [n] ticks
    client: IntArray  # [k]
    round: IntArray  # [k] which of the rounds used it, from 0
    number: IntArray  # [k] the client's how-many-eth job
    version: IntArray  # [k] it started from
    begun_at: IntArray  # [k] ticks
    ends_at: IntArray  # [k] ticks
    weights: FloatArray  # [k]
    facts: dict[str, Sequence[float]] = field(default_factory=dict)  # [n] rows of the history, by column
    measures: dict[str, float] = field(default_factory=dict)  # of the last round, where it is evaluated

    @property
    def staleness(self) -> IntArray:
        """Count the versions between, `[k]`."""
        return self.first - 1 + self.round - self.version

    @cached_property
    def times(self) -> list[float]:
        """Virtual seconds at the close of each round, `[n]`."""
        return self.in_seconds(self.closes_at)

    def in_seconds(self, ticks: IntArray) -> list[float]:
        """Convert ticks, one by one: they may be more than a float can tell."""
        return [tick / self.ticks_per_second for tick in ticks.tolist()]

    @cached_property
    def bounds(self) -> IntArray:
        """Where the updates of each round begin, and the last end: `[n + 1]`."""
        return np.searchsorted(self.round, np.arange(len(self.closes_at) + 1))

    @property
    def seconds(self) -> FloatArray:
        """Look up download, compute and upload, `[k, 3]`."""
        return self.costs.seconds[self.client]

    @property
    def last(self) -> Round:
        """Give the last round, without its jobs."""
        facts = {name: column[-1] for name, column in self.facts.items()}
        return Round(self.first + len(self.closes_at) - 1, self.times[-1], facts, measures=self.measures)


# -- who can ----------------------------------------------------------------------------------------------------


def follows(observer: object) -> bool:
    """Tell whether an observer needs no round by itself: it says what it does with a stretch, or with no round."""
    kinds = type(observer).__mro__

    def said_by(name: str) -> int:
        return next(place for place, kind in enumerate(kinds) if name in vars(kind))

    if not isinstance(observer, Observer):
        return False
    told = min(map(said_by, _OF_A_ROUND))
    return kinds[told] is Observer or said_by("on_rounds") <= told


def possible(server: Simulation) -> bool:
    """Tell whether nothing but the policy decides what happens, and nobody has to look at each round."""
    law, population, algorithm = server.law, server.population, server.algorithm
    a_sum = law.rule is None and law.weigh is None and law.remember is None and server.privacy is None
    honest = server.behaviour is None and server.adversary is None
    parameters = server.task.tail is None and not isinstance(server.task, EnsembleTask)
    known = server._dispatch.certain and not population.changes and algorithm.clients_keep == "nothing"
    return a_sum and honest and parameters and known and all(map(follows, server.observers))


def fleet_of(server: Simulation, work: LocalSGD) -> Fleet | None:
    """Find all clients at work on this, as columns."""
    flight, demand = server._flight, server._dispatch.demand(work)
    if flight.fleet is not None and flight.fleet.work is work:
        return flight.fleet
    idle = len(flight) < server.population.size or server._inbox or server._failures or server._held
    if idle or demand.keeps or server.held.tensors:
        return None
    jobs = list(flight.jobs.values())
    others = {id(job.work): job.work for job in jobs if job.work is not work}
    if any(signature(other) != signature(work) for other in others.values()):
        return None
    fleet = Fleet.of(jobs, work, demand.costs)
    if fleet is not None:
        flight.enter_fleet(fleet)
    return fleet


# -- passing them -----------------------------------------------------------------------------------------------


class Passage:
    """Pass rounds of a server one call of the engine after another, and keep what is to be recorded."""

    def __init__(self, server: Simulation, fleet: Fleet, weigh: Weigh) -> None:
        self.server, self.fleet, self.weigh = server, fleet, weigh
        self.first, self.rounds, self.updates = server.version + 1, 0, 0
        self.columns: list[tuple[NDArray[Any], ...]] = []

    def go(self, policy: Policy) -> None:
        """Go on until a round after which something is due, or which cannot be passed."""
        server, window = self.server, 0 if policy.window is None else round(policy.window * self.server._ticks)
        while self.updates < MOST and server._clock < FOREVER:
            coming = self.fleet.arrivals(policy, server._clock, window).first(MOST)
            if not len(coming.closes_at):
                return
            there = self.fleet.there(coming)
            if not len(there.closes_at):
                server.train_fleet(self.fleet, coming.first(1).client)
                there = self.fleet.there(coming)
            rounds, last = self._until_due(there.closes_at)
            if not rounds or not self._pass(there.first(rounds)) or last:
                return

    def _until_due(self, closes_at: IntArray) -> tuple[int, bool]:
        """Count the first of these rounds that can be passed now, and say whether no more can. A round that is
        evaluated is passed alone: observers know of all before it then."""
        server = self.server
        stopping, evaluation, checkpoints = server.stopping, server.evaluation, server.checkpoints
        evaluated_at, measures, version = server._rounds.evaluated_at, server.measures, server.version
        for row, tick in enumerate(closes_at.tolist()):
            version, now = version + 1, tick / server._ticks
            if stopping.reason(version, now, measures) or evaluation.due(version, now, evaluated_at):
                return max(row, int(not self.rounds)), True
            if checkpoints is not None and checkpoints.due(version):
                return row + 1, True
        return len(closes_at), False

    def _pass(self, some: Arrivals) -> bool:
        """Aggregate in rounds of which every update is there; False, and nothing is done, if that cannot be."""
        server, fleet, clients = self.server, self.fleet, some.client
        version, rounds = server.version, len(some.closes_at)
        staleness = version + some.round - fleet.version[clients]
        weights = np.array(self.weigh(clients, staleness), np.float64)
        results = [(block, row) for block, row in fleet.results(clients) if block is not None]
        if not np.isfinite(weights).all() or len(results) < len(clients):
            return False
        optimiser = copy.copy(server.law.optimiser)
        bounds = np.searchsorted(some.round, np.arange(rounds + 1)).tolist()
        blocks = {id(block): block for block, _ in results}.values()
        if type(optimiser) is Step and all(block.sums_in_order("delta") for block in blocks):
            models = _in_one_kernel(optimiser, server.model, results, weights, bounds)
        elif len(clients) > rounds:
            models = _by_sums(optimiser, server.model, results, weights, bounds)
        else:
            models = _one_by_one(optimiser, server.model, results, weights)
        model = models[-1]
        if not is_finite(model):  # and so may be one before
            return False
        numbers = server._numbers[clients]
        server._numbers[clients] = numbers + 1
        own = fleet.number, fleet.version, fleet.begun_at, fleet.ends_at
        columns = some.client, some.round + self.rounds, *(column[clients] for column in own), weights, some.closes_at
        self.columns.append(columns)
        self.rounds, self.updates = self.rounds + rounds, self.updates + len(clients)
        fleet.begin_again(some, numbers, version + 1, models)
        server.model, server.law.optimiser = model, optimiser
        server.version, server._clock = version + rounds, int(some.closes_at[-1])
        return True

    def stretch(self) -> Stretch:
        """Put together what is to be recorded."""
        client, place, number, version, begun_at, ends_at, weights, closes_at = (
            np.concatenate(column) for column in zip(*self.columns, strict=True)
        )
        ticks, costs = self.server._ticks, self.fleet.costs
        own = client, place, number, version, begun_at, ends_at, weights
        made = Stretch(self.first, ticks, costs, closes_at, *own)
        made.facts = self._facts(made)
        return made

    def _hear(self, made: Stretch) -> IntArray:
        """Note whose update has counted for the first time, and count the clients heard by the end of each round."""
        server, chosen = self.server, np.flatnonzero(made.weights)
        new = np.zeros(len(made.client), bool)
        new[chosen[np.unique(made.client[chosen], return_index=True)[1]]] = True
        new &= ~server.heard[made.client]
        heard = server._count_heard + np.cumsum(np.add.reduceat(new, made.bounds[:-1], dtype=np.int64))
        server.heard[made.client[new]] = True
        server._count_heard = int(heard[-1])
        return heard

    def _facts(self, made: Stretch) -> dict[str, Sequence[float]]:
        sizes, weights, staleness = np.diff(made.bounds), made.weights, made.staleness
        used, server = weights != 0, self.server
        before, size = server._rounds.tally, made.costs.bytes
        columns: dict[str, IntArray] = {
            "invited": sizes.copy(),
            "arrived": sizes.copy(),
            "failed": np.zeros_like(sizes),
            "cancelled": np.zeros_like(sizes),
            "bytes_down": sizes * size[0],
            "bytes_up": sizes * size[1],
        }
        for name, column in columns.items():
            column[0] += before[name]
        facts: dict[str, Sequence[float]] = {name: column.tolist() for name, column in columns.items()}
        facts["used"] = np.add.reduceat(used, made.bounds[:-1], dtype=np.int64).tolist()
        facts["heard"] = self._hear(made).tolist()
        if len(sizes) == len(weights):
            facts["weight"] = weights.tolist()
            old = np.where(used, staleness, 0)
            return facts | {"staleness_mean": (old / 1).tolist(), "staleness_max": old.tolist()}
        pairs = list(pairwise(made.bounds.tolist()))
        facts["weight"] = [math.fsum(weights[begin:end].tolist()) for begin, end in pairs]
        rows = [staleness[begin:end][used[begin:end]].tolist() for begin, end in pairs]
        facts["staleness_mean"] = [sum(row) / len(row) if row else 0.0 for row in rows]
        return facts | {"staleness_max": [max(row, default=0) for row in rows]}


def _by_sums(
    optimiser: Step, model: Tensor, results: list[Result], weights: FloatArray, bounds: list[int]
) -> list[Tensor]:
    """Compute the models `[P]` after rounds of several updates each."""
    models = []
    for begin, end in pairwise(bounds):
        model = optimiser.step(model, add_up(by_block(results[begin:end]), weights[begin:end]))
        models.append(model)
    return models


def _in_one_kernel(
    optimiser: Step, model: Tensor, results: list[Result], weights: FloatArray, bounds: list[int]
) -> list[Tensor]:
    """Compute the models `[P]` after rounds, by one kernel on a CUDA device."""
    from turnout.engine.kernels import sums

    deltas = {id(block): block["delta"] for block, _ in results}
    rows, order, begins = list[tuple[Tensor, int]](), list[int](), list[int]()
    if len(bounds) > len(results):  # one a round
        rows, order = [(deltas[id(block)], row) for block, row in results], list(range(len(results)))
        begins = [sums.BEGINS] * len(results)
    for begin, end in pairwise(bounds if not rows else ()):
        for block, there, here in by_block(results[begin:end]):
            rows += [(deltas[id(block)], row) for row in there]
            order += [begin + place for place in here]
            begins += [sums.BEGINS, *[sums.GOES_ON] * (len(there) - 1)]
    sent = np.array(begins, np.int64), weights[order], np.array(bounds, np.int64)
    return list(sums.models(model, rows, *sent, optimiser.lr).unbind())


def _one_by_one(optimiser: Step, model: Tensor, results: list[Result], weights: FloatArray) -> list[Tensor]:
    """Compute the models `[P]` after rounds of one update each; where vectors are short, without a call for each."""
    blocks = {id(block): block for block, _ in results}
    if is_large(model) or type(optimiser) is not Step or any(block.late for block in blocks.values()):
        models = []
        for place, (block, row) in enumerate(results):
            model = optimiser.step(model, block.weighted_sum("delta", [row], weights[place : place + 1]))
            models.append(model)
        return models
    rows: dict[int, Tensor | tuple[Tensor, ...]] = {name: block["delta"] for name, block in blocks.items()}
    if sum(block.rows for block in blocks.values()) < 4 * len(results):
        rows = {name: block["delta"].unbind() for name, block in blocks.items()}
    change, models, lr = torch.empty_like(model), [], optimiser.lr
    for (block, row), weight in zip(results, weights.tolist(), strict=True):
        model = torch.add(model, torch.mul(rows[id(block)][row], weight, out=change), alpha=lr)
        models.append(model)
    return models


def pass_rounds(server: Simulation, policy: Policy, work: LocalSGD, weigh: Weigh) -> bool:
    """Pass rounds as far as possible, and close them; False where the next has to be gone through event by event."""
    if server.version < server.passes_from or server._rounds.notes:  # a note is of one round
        return False
    fleet, updates = fleet_of(server, work) if not policy.restart and possible(server) else None, 0
    if fleet is not None:
        server._tell_path(work, ())
        passage = Passage(server, fleet, weigh)
        try:
            passage.go(policy)
        finally:
            if passage.rounds:
                server._rounds.close_stretch(server, passage.stretch())
        updates = passage.updates
    if server.passed + updates < FEW:  # to look at all clients, or to make a record, is not for every round
        server.passes_from = server.version + server.population.size
    server.passed = updates
    return updates > 0
