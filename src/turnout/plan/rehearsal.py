"""A run without training: who is heard when, on which version, of any algorithm in any population."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms._arrivals import Arrivals
from turnout.clients.population import Population
from turnout.core.random import FloatArray
from turnout.core.spelling import spelt
from turnout.engine.blocks import Block
from turnout.local.sgd import LocalSGD
from turnout.server.durations import Durations
from turnout.server.jobs import Job, by_work, columns_of
from turnout.server.observer import Observer, Round
from turnout.server.policy import Schedule
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.task import Task


class _OneNumber(nn.Module):
    """The smallest model there is, for any input."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.theta.expand(len(inputs))


def _no_loss(outputs: Tensor, _targets: Tensor) -> Tensor:
    return outputs


class _Zeros(Block):
    """One row of nothing, which is everybody's: sums of it are it."""

    def weighted_sum(self, name: str, rows: Sequence[int], weights: FloatArray) -> Tensor:
        return self[name][0]


class Rehearsal(Simulation):
    """`Simulation` in which every update is zero and nothing is evaluated."""

    _trains = False
    _nothing: tuple[LocalSGD, Block] | None = None  # what comes of the work last asked for

    def _ensure_trained(self, needed: Sequence[Job], starting: Sequence[Job] = ()) -> None:
        """Compute these jobs alone: there is nothing to gain from doing more at once."""
        if (some := columns_of(needed)) is not None:
            some.wave.block = self._nothing_of(some.wave.work)
            return
        missing = [job for job in needed if job.result is None]
        for alike in by_work(missing) if missing else ():
            self._train_alike(alike)

    def _train_alike(self, jobs: list[Job], ahead: bool = False) -> None:
        work = jobs[0].work
        payload = self._zeros(work.sends(self.task), len(jobs))
        state = self._zeros(work.stored_shapes(self.task), len(jobs))
        kept = (
            {"params": torch.stack([job.received for job in jobs])} if self.algorithm.clients_keep == "models" else {}
        )
        self._attach(jobs, Block(payload), *(Block(part) if part else None for part in (state, kept)))
        for job in jobs if self.behaviour is None else ():  # a liar has a row of its own, to put another in its place
            job.result = self._nothing_of(work), 0

    def _zeros(self, shapes: dict[str, tuple[int, ...]], rows: int) -> dict[str, Tensor]:
        zero = torch.zeros((), dtype=self.plan.dtype, device=self.plan.device)
        return {name: zero.expand(rows, *shape) for name, shape in shapes.items()}

    def _nothing_of(self, work: LocalSGD) -> Block:
        if self._nothing is None or self._nothing[0] is not work:
            self._nothing = work, _Zeros(self._zeros(work.sends(self.task), 1))
        return self._nothing[1]

    def evaluate(self) -> dict[str, float]:
        return {}


class _Uses(Observer):
    """Collects the updates that counted, a row each."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, int, int, int]] = []

    def on_round(self, server: Server, record: Round) -> None:
        ticks = server.population.ticks_per_second
        for job, weight, staleness in zip(record.jobs, record.weights, record.staleness, strict=True):
            if weight:
                number = record.number - 1
                self.rows.append((job.ends_at / ticks, record.time, number, job.client, number - int(staleness)))


@spelt
def rehearse(
    algorithm: Algorithm,
    population: Population,
    rounds: int | None = None,
    seconds: float | None = None,
    *,
    task: Task | None = None,
    seed: int = 0,
    observers: Sequence[Observer] = (),
) -> Server:
    """Carry an algorithm through its rounds without training. Sizes on the wire are those of `task`, or the
    population's `model_bytes`."""
    server = Rehearsal(
        task or Task(_OneNumber(), _no_loss),
        population,
        algorithm,
        seed=seed,
        stopping=Stopping(rounds, seconds),
        evaluation=Evaluation(rounds=None, clients=1),
        observers=observers,
    )
    return server.run()


@spelt
def schedule(
    algorithm: Algorithm,
    population: Population,
    rounds: int | None = None,
    seconds: float | None = None,
    *,
    task: Task | None = None,
    seed: int = 0,
) -> Schedule:
    """The events of an algorithm without touching a model: a row for each update that counts.

    >>> turnout.schedule(turnout.FedBuff(LocalSGD(0.1), buffer_size=10), population, rounds=1000).staleness.max()

    Where the algorithm is a waiting policy and nobody fails, by the policy's own fast loop; else by a rehearsal.
    """
    population = population.seeded(seed)
    work: Any = getattr(algorithm, "local", None)
    if isinstance(work, LocalSGD):
        size = population.model_bytes or (4 if task is None else task.size * task.initial.element_size())
        durations = Durations.of(population, work, size, size)
        policy = algorithm.policy(durations)
        uses_all = all(getattr(algorithm, name, None) is None for name in ("max_staleness", "concurrency"))
        sends_models = isinstance(algorithm, Arrivals) or not (durations.down.any() or durations.up.any())
        quick = uses_all and sends_models and durations.reliable
        if policy is not None and quick and policy == algorithm.policy(durations, 1):
            return policy.schedule(durations, rounds, seconds)
    uses = _Uses()
    server = rehearse(algorithm, population, rounds, seconds, task=task, seed=seed, observers=[uses])
    arrived, closed, number, client, version = np.array(uses.rows, np.float64).reshape(-1, 5).T
    found = Schedule(
        arrived,
        closed,
        number.astype(np.int64),
        client.astype(np.int64),
        version.astype(np.int64),
        clients=population.size,
        rounds=server.version,
        seconds=server.now,
    )
    past_the_end = seconds is not None and server.now > seconds  # a run finishes the round under way
    return found.between(0, server.version - 1) if past_the_end else found
