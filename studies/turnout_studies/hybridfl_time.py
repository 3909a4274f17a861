"""How long are HybridFL's rounds? Without training: time needs no model.

Wu, He, Lin, Mao, "Accelerating federated learning over reliability-agnostic clients in mobile edge computing systems",
IEEE Transactions on Parallel and Distributed Systems 2021; Wu's thesis (Warwick), tables 4.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.hierfavg import HierFAVG
from turnout.algorithms.hybridfl import HybridFL
from turnout.clients.population import Population
from turnout.core.random import FloatArray
from turnout.data.partition import gaussian_sizes, split
from turnout.engine.plan import Plan
from turnout.plan.rehearsal import rehearse
from turnout.record.efficiency import Efficiency
from turnout.sampling.fill import Fill
from turnout.theory.slack import quota
from turnout_studies.hybridfl_tables import DROPOUTS, FRACTIONS, LENGTHS
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials
from turnout_studies.worlds.hybridfl import CLOUD_INTERVAL, TASKS, HybridFLTask

ROWS = {"aerofoil": 1503, "mnist": 70_000}
SCHEMES = ("fedavg", "hierfavg", "hybridfl")
KEPT = "hierfavg_kept"  # the weight of silent clients stays with the regional model
THESIS = "Wu, thesis, section 4.5"
SATURATED = ("mnist", 0.6, 0.5)  # task, drop-out rate, fraction: too few survive for the quota


@dataclass(frozen=True)
class Size:
    rounds: int | None = None  # None: those of the task
    tasks: tuple[str, ...] = tuple(TASKS)
    fractions: tuple[float, ...] = FRACTIONS
    dropouts: tuple[float, ...] = DROPOUTS
    schemes: tuple[str, ...] = SCHEMES


def algorithm(scheme: str, task: HybridFLTask, fraction: float) -> Algorithm:
    """A scheme as the tables have it: only HybridFL does not wait for those who drop out."""
    if scheme == "fedavg":
        drawn = Fill(quota(fraction, task.clients))
        return FedAvg(task.local, drawn, deadline=task.deadline, wait_for_crashed=True)
    if scheme == "hierfavg":
        return HierFAVG(task.local, task.deadline, fraction, CLOUD_INTERVAL)
    if scheme == KEPT:
        return HierFAVG(task.local, task.deadline, fraction, CLOUD_INTERVAL, idle_fallback="regional")
    return HybridFL(task.local, task.deadline, fraction)


def people(name: str, task: HybridFLTask, dropout: float, seed: int) -> Population:
    """Clients with the sizes of the task and nothing in their samples."""
    empty = torch.zeros(ROWS[name], 1)
    train, _ = split(gaussian_sizes(empty.numpy(), task.clients, seed), 1 - task.train_share, seed)
    return Population(empty, empty, train, seed=seed, **task.world(dropout, seed))


def cells(results: Results, quantity: Callable[[Measures], float], task: str, scheme: str) -> FloatArray:
    """`[seeds, drop-out rates, fractions]`."""
    size = results.setting
    return np.stack(
        [
            [
                results.each(quantity, task=task, scheme=scheme, dropout=dropout, fraction=fraction)
                for fraction in size["fractions"]
            ]
            for dropout in size["dropouts"]
        ]
    ).transpose(2, 0, 1)


def published(table: dict[str, dict[float, tuple[float, float, float]]], scheme: str, results: Results) -> FloatArray:
    """`[drop-out rates, fractions]` of a task's table."""
    size = results.setting
    return np.array(
        [[table[scheme][rate][FRACTIONS.index(share)] for share in size["fractions"]] for rate in size["dropouts"]]
    )


def whole_grid(seeds: Sequence[int], size: Size, trials: Trials) -> None:
    """Ask for every cell of the tables."""
    names = ("seed", "task", "dropout", "fraction", "scheme")
    grid = product(seeds, size.tasks, size.dropouts, size.fractions, size.schemes)
    every: list[Trial] = [dict(zip(names, values, strict=True)) for values in grid]
    trials.all(every)


def _length(measures: Measures) -> float:
    return float(measures["round_seconds"])


def _error(task: str, scheme: str) -> Callable[[Results], FloatArray]:
    """Largest relative difference from the table."""

    def values(results: Results) -> FloatArray:
        ratio = cells(results, _length, task, scheme) / published(LENGTHS[task], scheme, results)
        return np.asarray(np.abs(ratio - 1).max(axis=(1, 2)))

    return values


def _factor(task: str) -> Callable[[Results], FloatArray]:
    """Largest factor between HybridFL's rounds and the table, either way."""

    def values(results: Results) -> FloatArray:
        ratio = cells(results, _length, task, "hybridfl") / published(LENGTHS[task], "hybridfl", results)
        return np.asarray(np.exp(np.abs(np.log(ratio)).max(axis=(1, 2))))

    return values


def _shorter(task: str) -> Callable[[Results], FloatArray]:
    """The rival's round over HybridFL's, smallest over the cells where the quota can be met."""

    def values(results: Results) -> FloatArray:
        hybrid = cells(results, _length, task, "hybridfl")
        rivals = np.minimum(*(cells(results, _length, task, scheme) for scheme in ("fedavg", "hierfavg")))
        ratio = rivals / hybrid
        if task == SATURATED[0]:
            ratio[:, -1, -1] = np.inf
        return np.asarray(ratio.min(axis=(1, 2)))

    return values


def _saturated(results: Results) -> FloatArray:
    task, dropout, fraction = SATURATED
    return results.each(_length, task=task, scheme="hybridfl", dropout=dropout, fraction=fraction)


def _claims() -> Iterator[Claim]:
    for task, most in (("aerofoil", 0.1), ("mnist", 0.01)):
        for scheme in ("fedavg", "hierfavg"):
            yield Claim(
                f"{scheme} as published, {task}",
                "Table of mean round lengths.",
                THESIS,
                "largest |measured / published - 1| over the grid",
                _error(task, scheme),
                below=most,
            )
        yield Claim(
            f"hybridfl as published, {task}",
            "Table of mean round lengths.",
            THESIS,
            "largest factor between measured and published, either way, over the grid",
            _factor(task),
            below=2,
        )
        yield Claim(
            f"hybridfl is shorter, {task}",
            "HybridFL's rounds are the shortest, except where too few survive to meet the quota.",
            THESIS,
            "the shorter of FedAvg's and HierFAVG's rounds over HybridFL's, smallest over the grid",
            _shorter(task),
            above=1,
        )
    yield Claim(
        "saturation, mnist",
        "With C = 0.5 and six in ten dropping out, every round of HybridFL lasts to its deadline: 380.42 s.",
        THESIS,
        "seconds a round of HybridFL",
        _saturated,
        above=380.3,
        below=380.5,
    )


class HybridFLTime(Study):
    name = "hybridfl_time"
    title = "Round lengths of HybridFL, HierFAVG and FedAvg when clients drop out"
    source = "Wu et al., HybridFL, IEEE TPDS 2021; thesis tables 4.3 and 4.4"
    setting = """\
Both tasks (15 clients on 3 edges, 500 on 10) with the devices, links and drop-outs of the thesis, C = 0.1, 0.3, 0.5 and
mean drop-out rates 0.1, 0.3, 0.6, for 600 and 400 rounds without training. FedAvg and HierFAVG wait for the deadline
when somebody drops out; HybridFL estimates how many survive by `count_late`, starting from 0.5.
Other than in the source: several seeds; the estimator of the source never leaves its first value."""
    small_data = "the same clients without data, for few rounds"
    sizes = {
        "small": Size(rounds=3, fractions=(0.1, 0.5), dropouts=(0.6,)),
        "default": Size(),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        def carry_out(trial: Trial) -> Measures:
            task, found = TASKS[trial["task"]], Efficiency()
            world = people(trial["task"], task, trial["dropout"], trial["seed"])
            chosen = algorithm(trial["scheme"], task, trial["fraction"])
            rehearse(chosen, world, size.rounds or task.rounds, seed=trial["seed"], observers=[found])
            return dict(found.findings)

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        whole_grid(seeds, size, trials)
        return {}


STUDY = HybridFLTime()
