"""The ratio c2 / c1 of the bound for data streams, estimated before training on what historical clients have.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, section 4.3.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from turnout.clients.population import Population
from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.threads import threads
from turnout.engine.batches import Jobs
from turnout.engine.plan import Plan
from turnout.engine.train import Cohort
from turnout.local.answers import Probe
from turnout.local.sgd import LocalSGD
from turnout.task.task import Task
from turnout.theory.streams import estimated_ratio


@dataclass(frozen=True)
class Probed:
    """D, G and B: largest distance a client moves by, largest gradient on the way, largest loss before."""

    diameter: float
    slope: float
    loss: float
    ratio: float


def probe_ratio(
    task: Task, population: Population, local: LocalSGD, *, steps: int = 10, plan: Plan | None = None, seed: int = 0
) -> Probed:
    """Estimate c2 / c1: every historical client takes so many local `steps` from the initial model and says three
    numbers, of which the server takes the largest. B is the loss of that untrained model: log(classes) as a rule."""
    stream = population.stream
    if stream is None or not stream.fresh.any():
        raise UserError("stream: without fresh clients there is no ratio to estimate")
    historical = np.flatnonzero(~stream.fresh)
    if not len(historical):
        raise UserError("stream.fresh: a ratio is estimated on historical clients, and there is none")
    cohort = Cohort(task, population.inputs, population.targets, (plan or Plan()).resolve())
    work = Probe.extend(local, steps=steps, optimiser_state="discarded")
    rows = population.samples(historical, np.zeros(len(historical)))
    key = random.key(seed, "probe", historical)
    with threads(cohort.plan.threads):
        jobs = Jobs(work, key, cohort.task.initial[None], np.zeros(len(historical), np.int64), rows, {}, {})
        found = {name: float(values.max()) for name, values in cohort.train(jobs).payload.items()}
    if not all(map(math.isfinite, found.values())) or not found["slope"] * found["distance"]:
        raise UserError(f"local.lr: {local.lr} gives no finite estimate ({found}); try another")
    fresh = int(stream.fresh.sum())
    ratio = estimated_ratio(
        found["loss"], found["distance"], found["slope"], task.size, int(population.train.counts.sum()), fresh
    )
    return Probed(found["distance"], found["slope"], found["loss"], ratio)
