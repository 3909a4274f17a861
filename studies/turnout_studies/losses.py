"""What studies of waiting policies measure: the loss of every client at chosen virtual times, and what follows from it.

Measures are `times` [E] and `losses` [E][clients]; an evaluation that a diverged run never reached is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from torch import nn

from turnout.algorithms._algorithm import Algorithm
from turnout.clients import devices
from turnout.clients.population import Population
from turnout.core.random import FloatArray
from turnout.data.dataset import Dataset
from turnout.engine.evaluate import Evaluator
from turnout.engine.plan import Plan
from turnout.server.observer import Observer, Round
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.task import Task
from turnout_studies.study import Measures

EARLY = (0.01, 0.02, 0.05)  # of the horizon
MIDDLE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
LATE = 10  # evaluations in the last tenth of the horizon, or the last ten units of time if that is longer
GOLDEN = (math.sqrt(5) - 1) / 2
USELESS = 2 * math.log(10)  # twice the loss of guessing among ten classes: what a diverged model counts as
RATES = tuple(float(f"{digit}e{power}") for power in range(-4, 1) for digit in (1, 2, 5))  # the source's 1-2-5 grid


def evaluation_times(horizon: float) -> FloatArray:
    """Fixed delays repeat every unit of time, so the late evaluations fall on ever other phases of the unit."""
    length = max(0.1 * horizon, LATE)
    number = np.arange(LATE)
    late = horizon - length + number * length / LATE + (GOLDEN * (number + 1)) % 1
    between = [share * horizon for share in EARLY + MIDDLE if share * horizon < horizon - length or share in EARLY]
    return np.concatenate([between, late])


class ClientLosses(Observer):
    """Looks at every client's training loss at given times, and ends a run whose loss is no longer finite."""

    def __init__(self, times: FloatArray) -> None:
        self.times = times
        self.rows: list[list[float]] = []

    def on_start(self, server: Server) -> None:
        population = server.whole_population
        self._evaluator = Evaluator(server.cohort, population.ids, population.train)
        self._model = server.model  # in force since the round before

    def on_round(self, server: Server, record: Round) -> None:
        self._look(server, record.time)
        self._model = server.model

    def on_end(self, server: Server) -> None:
        if not (server.stopped or "").startswith("diverged"):
            self._look(server, math.inf)

    def _look(self, server: Server, before: float) -> None:
        due = int(np.searchsorted(self.times, before)) - len(self.rows)
        if due:
            losses = self._evaluator.global_model(self._model)["loss"]
            self.rows += [[float(f"{loss:.7g}") for loss in losses]] * due
            if not np.isfinite(losses).all():
                server.stopped = "diverged: the loss is no longer finite"

    def measures(self) -> Measures:
        missing = [[math.nan] * len(self.rows[0] if self.rows else [0.0])] * (len(self.times) - len(self.rows))
        return {"times": self.times.tolist(), "losses": self.rows + missing}


def federation(dataset: Dataset, clients: int, alpha: float, percent: float, seed: int) -> Population:
    """Equal clients with Dirichlet class mixtures and equal importance, in the FX scenario."""
    return Population.of(
        dataset,
        clients,
        "dirichlet_equal",
        seed=seed,
        test="none",
        partition_options={"alpha": alpha},
        importance="equal",
        devices=devices.fx(percent, clients),
    )


def train(
    model: Callable[[], nn.Module], population: Population, algorithm: Algorithm, seed: int, horizon: float, plan: Plan
) -> Measures:
    """The losses of one run of so many units of virtual time."""
    losses = ClientLosses(evaluation_times(horizon))
    Simulation(
        Task(model, seed=seed),
        population,
        algorithm,
        seed=seed,
        plan=plan,
        stopping=Stopping(None, horizon),
        evaluation=Evaluation(rounds=None),
        observers=[losses],
    ).run()
    return losses.measures()


# -- what follows from the losses -----------------------------------------------------------------------------


def federated(measures: Measures, weights: FloatArray | None = None) -> FloatArray:
    """`[E]` sum of weight_i L_i, equal weights by default; NaN once diverged."""
    return np.asarray(np.average(_losses(measures), axis=1, weights=weights))


def spread(measures: Measures, weights: FloatArray | None = None) -> FloatArray:
    """`[E]` the weighted standard deviation over clients."""
    losses = _losses(measures)
    mean = np.average(losses, axis=1, weights=weights, keepdims=True)
    return np.asarray(np.sqrt(np.average((losses - mean) ** 2, axis=1, weights=weights)))


def _losses(measures: Measures) -> FloatArray:
    return np.array(measures["losses"], np.float64)  # null becomes NaN


def late(curve: FloatArray) -> float:
    """Mean of the last evaluations."""
    return float(curve[-LATE:].mean())


def early(curve: FloatArray) -> float:
    """Mean of the first evaluations."""
    return float(curve[: len(EARLY)].mean())


def late_loss(measures: Measures) -> float:
    """The federated loss at the end; NaN once diverged."""
    return late(federated(measures))


def bounded_loss(measures: Measures) -> float:
    """The same for comparing learning rates: a diverged or useless model is not told from a worse one."""
    loss = late_loss(measures)
    return min(loss, USELESS) if math.isfinite(loss) else USELESS


def unrest(measures: Measures) -> float:
    """How far the federated loss strays at the end from the straight line through its last values."""
    curve, time = federated(measures)[-LATE:], np.asarray(measures["times"][-LATE:])
    return float((curve - np.polyval(np.polyfit(time, curve, 1), time)).std())


def climb(loss: Callable[[float], float], start: float, rates: Sequence[float] = RATES) -> float:
    """The learning rate whose neighbours in the grid are both worse, found by walking from `start`."""
    best = list(rates).index(start)
    for step in (1, -1):
        while 0 <= best + step < len(rates) and loss(rates[best + step]) < loss(rates[best]):
            best += step
    return rates[best]
