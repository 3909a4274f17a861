"""Does it pay to draw clients whose data look like the server's? Gas turbines; some sensors are noisy, some random.

Wu, He, Lin, Mao, "FedProf: selective federated learning based on distributional representation profiling", IEEE
Transactions on Parallel and Distributed Systems 2023; Wu's thesis (Warwick), section 5.5, tables 5.3 and 5.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms.cfcfm import CFCFM
from turnout.algorithms.fedadam import FedAdam
from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedavg_rp import FedAvgRP
from turnout.algorithms.fedavgm import FedAvgM
from turnout.algorithms.fedprof import FedProf
from turnout.algorithms.fedprox import FedProx
from turnout.clients.population import Population
from turnout.clients.power import Power
from turnout.clients.quality import NORMAL, degrade
from turnout.core import random
from turnout.core.ragged import Ragged
from turnout.core.random import FloatArray
from turnout.data import gas_turbine
from turnout.data.dataset import Dataset
from turnout.data.partition import gaussian_sizes
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.run.experiment import Result, simulate
from turnout.sampling.afl import AFL
from turnout.sampling.fill import Fill
from turnout.sampling.md import MD
from turnout.sampling.uniform import Uniform
from turnout.server.stopping import Evaluation
from turnout.task.models import mlp
from turnout.task.task import Task
from turnout_studies.safa_accuracy import relative_accuracy
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials
from turnout_studies.worlds.fedprof import TASKS, FedProfTask

THESIS = "Wu, thesis, section 5.5"
FULL, PARTIAL = "full", "partial"
SCHEMES = {FULL: ("fedavg", "cfcfm", "fedprof"), PARTIAL: ("fedavg_rp", "fedprox", "fedadam", "afl", "fedprof")}
DECAY = 0.99  # of the learning rate, a round


@dataclass(frozen=True)
class Size:
    clients: int
    rounds: dict[str, int]  # by aggregation
    stand_in: bool = False  # random numbers in the place of the data


def algorithm(scheme: str, mode: str, work: LocalSGD, clients: int, fraction: float) -> Algorithm:
    k = draws(clients, fraction)
    made: dict[str, Callable[[], Algorithm]] = {
        "fedavg": lambda: FedAvg(work, Fill(k)),
        "cfcfm": lambda: CFCFM(work, fraction=fraction),
        "fedavg_rp": lambda: FedAvgRP(work, Uniform(k)),
        "fedprox": lambda: FedProx(work, MD(k), mu=0.01),
        "fedadam": lambda: FedAdam(work, Uniform(k)),
        "afl": lambda: FedAvgM(work, AFL(k)),
        "fedprof": lambda: FedProf(work, clients_per_round=k, aggregation="full" if mode == FULL else "partial"),
    }
    return made[scheme]()


def draws(clients: int, fraction: float) -> int:
    """K, clients a round."""
    return math.ceil(round(fraction * clients, 9))


def summary(result: Result, power: Power, tags: NDArray[np.str_], drawn: int | None) -> Measures:
    """Accuracy, time and energy at every round, what came before the first, and how often clients took part, by tag.

    With `drawn` clients a round the weights of a mean tell how often each was drawn; else trainings are counted."""
    rounds, jobs = result.rounds(), result.jobs()
    energy = power.watt_hours(jobs)
    alone = jobs["steps"] == 0
    turns = np.ones(len(alone)) if drawn is None else np.rint(jobs["weight"] * drawn)
    times = np.bincount(jobs["client"][~alone], turns[~alone], minlength=len(tags))
    return {
        "accuracy": rounds["central_accuracy"].tolist(),
        "seconds": rounds["time"].tolist(),
        "energy": np.cumsum(np.bincount(jobs["round"], energy, minlength=len(rounds["time"]))).tolist(),
        "init_energy": float(energy[alone].sum()),
        "init_seconds": float(jobs["ended_at"][alone].max(initial=0.0)),
        "turns": {str(tag): float(times[tags == tag].mean()) for tag in np.unique(tags)},
    }


# -- what is measured -----------------------------------------------------------------------------------------

Quantity = Callable[[Measures], float]
Values = Callable[[Results], FloatArray]


def best(measures: Measures, rounds: int | None = None) -> float:
    """Of these first rounds, or of all."""
    return float(max(measures["accuracy"][: None if rounds is None else rounds + 1]))


def spent(what: str, measures: Measures) -> FloatArray:
    """By the end of every round, the start included."""
    return np.asarray(range(len(measures["accuracy"])) if what == "rounds" else measures[what], np.float64)


def until(what: str, target: float) -> Quantity:
    """Spent when a model first had that accuracy after a round; infinite where none had."""

    def values(measures: Measures) -> float:
        good = np.flatnonzero(np.asarray(measures["accuracy"][1:]) >= target)
        return float(spent(what, measures)[1 + good[0]]) if len(good) else math.inf

    return values


def at_least_until(what: str, target: float) -> Quantity:
    """The same, and all that was spent where none had: less than it takes, so that a rival gains by it."""
    return lambda measures: min(until(what, target)(measures), float(spent(what, measures)[-1]))


def turns(*tags: str) -> Quantity:
    """How often a client of these kinds took part in a hundred rounds, the most of them."""
    return lambda measures: max(measures["turns"].get(tag, 0.0) for tag in tags) * 100 / (len(measures["accuracy"]) - 1)


def in_every_column(values: Values) -> Values:
    """The smallest over fractions."""
    return lambda results: np.asarray(values(results).min(axis=1))


def in_first_column(values: Values) -> Values:
    """At the smaller fraction."""
    return lambda results: values(results)[:, 0]


@dataclass(frozen=True)
class Table:
    """A table of the thesis: a row a (mode, scheme), a column a fraction C."""

    task: FedProfTask
    fractions: tuple[float, float]

    def each(self, quantity: Quantity, mode: str, scheme: str) -> Values:
        """`[seeds, fractions]`."""
        return lambda results: np.stack(
            [results.each(quantity, mode=mode, scheme=scheme, fraction=fraction) for fraction in self.fractions], axis=1
        )

    def lead(self, mode: str, *rivals: str, quantity: Quantity = best) -> Values:
        """`[seeds, fractions]` of FedProf minus the best of its rivals."""

        def values(results: Results) -> FloatArray:
            others = np.max([self.each(quantity, mode, scheme)(results) for scheme in rivals], axis=0)
            return np.asarray(self.each(quantity, mode, "fedprof")(results) - others)

        return values

    def ratio(self, what: str, one: tuple[str, str], rival: tuple[str, str]) -> Values:
        """Spent to the target by two (mode, scheme), mean over fractions; infinite where the one never gets there."""
        top = self.each(until(what, self.task.target), *one)
        bottom = self.each(at_least_until(what, self.task.target), *rival)
        return lambda results: np.asarray((top(results) / bottom(results)).mean(axis=1))

    def more_often(self, mode: str, one: str, *others: str) -> Values:
        """How much more often the one kind took part under FedProf than the most frequent of the others."""
        mine, theirs = (self.each(turns(*tags), mode, "fedprof") for tags in ((one,), others))
        return lambda results: np.asarray((mine(results) - theirs(results)).mean(axis=1))

    def claims(self, gained: str, rounds: str, energy: str, partial: str) -> Iterator[Claim]:
        """Those that both tasks have, with their published numbers."""
        target = self.task.target
        for mode, schemes in SCHEMES.items():
            yield Claim(
                f"first of all, {mode}",
                "FedProf has the best accuracy in every column.",
                THESIS,
                "best accuracy, FedProf minus the best of the others, smallest over C",
                in_every_column(self.lead(mode, *(scheme for scheme in schemes if scheme != "fedprof"))),
                above=0,
            )
        yield Claim(
            "over FedAvg-RP",
            f"Up to 2.5 points more than FedAvg-RP ({gained}).",
            THESIS,
            f"best accuracy, FedProf minus FedAvg-RP, partial, C = {self.fractions[0]}; at least half of it is asked",
            in_first_column(self.lead(PARTIAL, "fedavg_rp")),
            above=0.0125,
        )
        yield Claim(
            "rounds",
            f"Far fewer rounds to the target than FedAvg ({rounds}).",
            THESIS,
            f"rounds to {target}, FedProf over FedAvg, full, mean over C",
            self.ratio("rounds", (FULL, "fedprof"), (FULL, "fedavg")),
            below=0.6,
        )
        yield Claim(
            "energy",
            f"Less energy to the target than FedAvg-RP ({energy}).",
            THESIS,
            f"energy to {target}, first profiles included, FedProf over FedAvg-RP, partial, mean over C",
            self.ratio("energy", (PARTIAL, "fedprof"), (PARTIAL, "fedavg_rp")),
            below=1,
        )
        yield Claim(
            "partial is faster",
            f"Partial aggregation converges far faster than full ({partial}).",
            THESIS,
            f"rounds to {target}, FedProf, partial over full, mean over C",
            self.ratio("rounds", (PARTIAL, "fedprof"), (FULL, "fedprof")),
            below=0.6,
        )


COUNTED = {FULL: "times trained in 100 rounds", PARTIAL: "times drawn in 100 rounds"}


# -- the comparison -------------------------------------------------------------------------------------------


class FedProfStudy(Study):
    """FedProf and its rivals on one task. Subclasses say what the data and the model are."""

    source = "Wu et al., FedProf, IEEE TPDS 2023; thesis tables 5.3 and 5.4, figures 5.11 and 5.12"
    table: ClassVar[Table]
    quality: ClassVar[dict[str, float]]  # kinds of bad data, and their shares of the clients

    def load(self, size: Size, data: Path | None) -> Dataset:
        raise NotImplementedError

    def deal(self, data: Dataset, clients: int, seed: int) -> Ragged:
        raise NotImplementedError

    def learner(self, data: Dataset, seed: int) -> Task:
        raise NotImplementedError

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        task, clients = self.table.task, size.clients
        work = replace(task.local, lr_decay=DECAY)
        whole = lru_cache(1)(partial(self.load, size, data))

        def carry_out(trial: Trial) -> Measures:
            seed, mode, scheme, fraction = (trial[part] for part in ("seed", "mode", "scheme", "fraction"))
            world = task.world(clients, seed)
            people = Population.of(whole(), clients, self.deal, seed=seed, test="none", **world)
            people, tags = degrade(people, self.quality, seed)
            result = simulate(
                self.learner(whole(), seed),
                people,
                algorithm(scheme, mode, work, clients, fraction),
                size.rounds[mode],
                seed=seed,
                plan=plan,
                evaluation=Evaluation(train=False, clients=1),
            )
            weighed = scheme == "fedprof" and mode == PARTIAL
            return summary(result, world["power"], tags, draws(clients, fraction) if weighed else None)

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        every = [
            {"mode": mode, "scheme": scheme, "fraction": fraction, "seed": seed}
            for mode, schemes in SCHEMES.items()
            for scheme in schemes
            for fraction in self.table.fractions
            for seed in seeds
        ]
        trials.all(every)
        return {}


# -- gas turbines ---------------------------------------------------------------------------------------------

TABLE = Table(TASKS["S"], fractions=(0.2, 0.3))
NOISY, IRRELEVANT = BAD = ("gaussian_noise", "irrelevant")


def _claims() -> Iterator[Claim]:
    yield from TABLE.claims(
        gained="0.844 and 0.819 at C = 0.2",
        rounds="16 and 56, 12 and 52",
        energy="0.27 and 0.71 Wh at C = 0.2",
        partial="5 and 16 rounds",
    )
    yield Claim(
        "time",
        "4.5 times faster than FedAvg in reaching the target (701 and 3160 s at C = 0.3).",
        THESIS,
        "seconds to 0.8, first profiles included, FedProf over FedAvg, full, mean over C",
        TABLE.ratio("seconds", (FULL, "fedprof"), (FULL, "fedavg")),
        below=0.6,
    )
    for mode, counted in COUNTED.items():
        yield Claim(
            f"who takes part, {mode}",
            "Clients without valid data and noisy ones take part less than normal ones.",
            THESIS,
            f"{counted}, normal minus the more frequent of noisy and irrelevant, mean over C",
            TABLE.more_often(mode, NORMAL, *BAD),
            above=0,
        )
        yield Claim(
            f"bad clients seldom take part, {mode}",
            "Noisy and invalid clients are drawn fewer than ten times in 100 rounds (C = 0.2).",
            THESIS,
            f"{counted}, the more frequent of noisy and irrelevant, C = 0.2",
            in_first_column(TABLE.each(turns(*BAD), mode, "fedprof")),
            below=10,
        )


def stand_in(clients: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """As many inputs as the smallest trial needs, a hundred for the server first; and what can be learnt of them."""
    rows = 20 * clients + 100
    numbers = random.normal(random.key(0, "stand in"), rows * math.prod(shape))
    inputs = torch.from_numpy(numbers).float().reshape(rows, *shape)
    return inputs, inputs.flatten(1)[:, :2]


class FedProfTurbines(FedProfStudy):
    name = "fedprof"
    title = "FedProf against random, fast and loss-based selection when many clients have bad data"
    setting = """\
Gas turbine emissions (CO and NOx from nine sensors; task S), 50 clients of about 514 rows, MLP 9-64-32-2, 100 rounds of
2 epochs, batch 32, lr 1e-2 times 0.99 a round, alpha 10, first dense layer; 10 % of the clients hold uniform random
numbers, 40 % inputs with noise of one standard deviation; the server holds 30 % of the rows. Accuracy
1 - |y - y'| / max(y, y'), mean of both targets. Devices, links and energy of the thesis. The profiles of all clients at
the start are charged. A run that never reaches the target has spent infinitely much where FedProf is judged, and all
that it spent where its rival is.
Other than in the source: the best model is reported and not carried over between rounds; FedProx with mu 0.01, AFL with
momentum 0.9; the strength of the noise and the batch are not published; several seeds. Full aggregation counts who
trains; draws of the same client in a round are not told apart there."""
    small_data = "random numbers in the place of the gas turbine's sensors"
    sizes = {
        "small": Size(10, {FULL: 2, PARTIAL: 2}, stand_in=True),
        "default": Size(50, TABLE.task.rounds),
    }
    claims = tuple(_claims())
    table = TABLE
    quality = {IRRELEVANT: 0.1, NOISY: 0.4}

    def load(self, size: Size, data: Path | None) -> Dataset:
        """Inputs and targets standardised, 30 % for the server."""
        if not size.stand_in:
            return gas_turbine.load(folder=data, test_fraction=0.3)
        inputs, targets = stand_in(size.clients, (9,))
        facts: dict[str, object] = {"target_offset": np.array([5.0, 5.0]), "target_scale": np.array([1.0, 1.0])}
        return Dataset("stand_in", inputs[100:], targets[100:], None, inputs[:100], targets[:100], facts=facts)

    def deal(self, data: Dataset, clients: int, seed: int) -> Ragged:
        return gaussian_sizes(data, clients, seed)

    def learner(self, data: Dataset, seed: int) -> Task:
        offset, scale = (torch.as_tensor(data.facts[f"target_{part}"]) for part in ("offset", "scale"))

        def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
            """Of CO and NOx as they are measured."""
            shift, unit = offset.to(outputs), scale.to(outputs)
            return relative_accuracy(outputs * unit + shift, targets * unit + shift)

        return Task(partial(mlp, 9, [64, 32], 2), "mse", {"accuracy": accuracy}, seed=seed)


STUDY = FedProfTurbines()
