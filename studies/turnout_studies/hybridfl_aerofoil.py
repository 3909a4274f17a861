"""How soon is HybridFL accurate, and at what energy? Aerofoil self-noise; what the study of digits shares with it.

Wu, He, Lin, Mao, "Accelerating federated learning over reliability-agnostic clients in mobile edge computing systems",
IEEE Transactions on Parallel and Distributed Systems 2021; Wu's thesis (Warwick), tables 4.3 and 4.4, figure 4.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from turnout.clients.population import Population
from turnout.core.random import FloatArray
from turnout.data import airfoil
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.record.efficiency import Energy
from turnout.server.observer import Observer, Round
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.models import mlp
from turnout.task.task import Task
from turnout_studies import hybridfl_time
from turnout_studies.hybridfl_time import KEPT, SCHEMES, THESIS, algorithm, cells, whole_grid
from turnout_studies.safa_accuracy import relative_accuracy
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials
from turnout_studies.worlds.hybridfl import TASKS

HIERARCHIES = {"": "hierfavg", ", silent clients kept": KEPT}  # the baseline as it is, and as it may have been


@dataclass(frozen=True)
class Size(hybridfl_time.Size):
    schemes: tuple[str, ...] = (*SCHEMES, KEPT)
    lr: float = 3e-3
    target: float = 0.7
    share: float = 1.0  # of the data: every so many-th row
    stand_in: bool = False  # random numbers in the place of the data


class Progress(Observer):
    """Test accuracy, seconds and watt hours at every round."""

    def __init__(self) -> None:
        self.accuracy: list[float] = []
        self.seconds: list[float] = []
        self.energy: list[float] = []

    def on_round(self, server: Server, record: Round) -> None:
        self.accuracy.append(record.measures["test_accuracy"])
        self.seconds.append(record.time)
        self.energy.append(record.facts["energy_wh"])

    def measures(self, target: float, clients: int) -> Measures:
        """With the rounds, seconds and watt hours a device that the target took, where it was reached."""
        reached = np.flatnonzero(np.array(self.accuracy) >= target)
        spent: Measures = {}
        if len(reached):
            rounds = int(reached[0]) + 1
            energy = sum(self.energy[:rounds]) / clients
            spent = {"rounds": rounds, "seconds": self.seconds[rounds - 1], "energy": energy}
        return {"best": max(self.accuracy), "round_seconds": self.seconds[-1] / len(self.seconds), **spent}


def _of(name: str) -> Callable[[Measures], float]:
    """Infinitely much where the target was not reached."""
    return lambda measures: float(measures.get(name, np.inf))


def _seconds(rounds: int) -> Callable[[Measures], float]:
    """Until the target; where it was not reached, as long as the run lasted, which is less than it would take."""
    return lambda measures: float(measures.get("seconds", measures["round_seconds"] * rounds))


def _at_worst(
    task: str, scheme: str, quantity: Callable[[Measures], float], dropout: int = -1
) -> Callable[[Results], FloatArray]:
    """Where the fewest are asked, at a drop-out rate (of those tried, by place)."""
    return lambda results: np.asarray(cells(results, quantity, task, scheme)[:, dropout, 0])


def _ratio(
    one: Callable[[Results], FloatArray], other: Callable[[Results], FloatArray]
) -> Callable[[Results], FloatArray]:
    return lambda results: np.asarray(one(results) / other(results))


def _not_worse(task: str, hierarchy: str) -> Callable[[Results], FloatArray]:
    def values(results: Results) -> FloatArray:
        best, *rivals = (cells(results, _of("best"), task, scheme) for scheme in ("hybridfl", "fedavg", hierarchy))
        return np.asarray((best - np.maximum(*rivals)).min(axis=(1, 2)))

    return values


def _least_energy(task: str, hierarchy: str) -> Callable[[Results], FloatArray]:
    """Mean over the cells in which all reach the target; 1 where there is none."""

    def values(results: Results) -> FloatArray:
        spent, *rivals = (cells(results, _of("energy"), task, scheme) for scheme in ("hybridfl", "fedavg", hierarchy))
        ratio = spent / np.minimum(*rivals)
        known = np.isfinite(ratio)
        return np.asarray(np.where(known, ratio, 0).sum(axis=(1, 2)) / np.maximum(known.sum(axis=(1, 2)), 1))

    return values


def claims_of(task: str, faster: float, slower_rounds: int) -> Iterator[Claim]:
    """The headlines, for one task."""
    for kind, hierarchy in HIERARCHIES.items():
        yield Claim(
            f"never less accurate{kind}",
            "HybridFL's best accuracy is at least that of the others in every cell.",
            THESIS,
            f"best accuracy, HybridFL minus the better of fedavg and {hierarchy}, smallest over the grid",
            _not_worse(task, hierarchy),
            above=-0.01,
        )
    yield Claim(
        "rounds do not depend on drop-out",
        "HybridFL needs roughly as many rounds whatever the drop-out rate.",
        THESIS,
        "rounds to the target with the highest drop-out rate over those with the lowest, HybridFL, fewest asked",
        _ratio(_at_worst(task, "hybridfl", _of("rounds")), _at_worst(task, "hybridfl", _of("rounds"), 0)),
        below=1.5,
    )
    yield Claim(
        "FedAvg's rounds do",
        "FedAvg needs nearly twice as many rounds when most drop out.",
        THESIS,
        "the same, FedAvg, for which a target never reached counts as one more round",
        lambda results: np.asarray(
            np.minimum(_at_worst(task, "fedavg", _of("rounds"))(results), slower_rounds)
            / np.minimum(_at_worst(task, "fedavg", _of("rounds"), 0)(results), slower_rounds)
        ),
        above=1.5,
    )
    for rival in ("fedavg", *HIERARCHIES.values()):
        yield Claim(
            f"faster than {rival} when most drop out",
            "Where most drop out and few are asked, HybridFL reaches the target many times sooner.",
            THESIS,
            f"seconds to the target, {rival} over HybridFL; {faster:g} times is asked (half of what is published); "
            "a rival that never reaches it counts with its whole run",
            _ratio(_at_worst(task, rival, _seconds(slower_rounds - 1)), _at_worst(task, "hybridfl", _of("seconds"))),
            above=faster,
        )
    for kind, hierarchy in HIERARCHIES.items():
        yield Claim(
            f"least energy{kind}",
            "Devices spend the least until the target with HybridFL.",
            THESIS,
            f"watt hours a device to the target, HybridFL over the lower of fedavg and {hierarchy}, "
            "mean over cells where all reach it",
            _least_energy(task, hierarchy),
            below=1,
        )


class HybridFLTraining(Study):
    """What both tasks share."""

    task: str

    def dataset(self, size: Size, data: Path | None) -> Dataset:
        raise NotImplementedError

    def model_task(self, seed: int) -> Task:
        raise NotImplementedError

    def population(self, dataset: Dataset, dropout: float, seed: int) -> Population:
        raise NotImplementedError

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        task = replace(TASKS[self.task], lr=size.lr)

        @lru_cache(1)
        def dataset() -> Dataset:
            return self.dataset(size, data)

        def carry_out(trial: Trial) -> Measures:
            people = self.population(dataset(), trial["dropout"], trial["seed"])
            progress = Progress()
            assert people.power is not None
            Simulation(
                self.model_task(trial["seed"]),
                people,
                algorithm(trial["scheme"], task, trial["fraction"]),
                seed=trial["seed"],
                plan=plan,
                stopping=Stopping(size.rounds or task.rounds),
                evaluation=Evaluation(train=False),
                observers=[Energy(people.power), progress],
            ).run()
            return progress.measures(size.target, task.clients)

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        whole_grid(seeds, size, trials)
        return {}


class HybridFLAerofoil(HybridFLTraining):
    name = "hybridfl_aerofoil"
    title = "Accuracy, time and energy of HybridFL, HierFAVG and FedAvg: aerofoil self-noise"
    source = "Wu et al., HybridFL, IEEE TPDS 2021; thesis table 4.3"
    task = "aerofoil"
    setting = """\
Aerofoil self-noise scaled to [0, 1], 15 clients on 3 edges with Gaussian sizes, a fifth of each for testing; 5-64-32-1
ReLU network, 600 rounds of 5 full-batch steps, lr 3e-3; C = 0.1, 0.3, 0.5; mean drop-out rates 0.1, 0.3, 0.6; devices,
links, drop-outs and energy of the thesis. Accuracy is 1 - mean |y - y'| / max(y, y'), the target 0.7.
Other than in the source: hidden sizes, batch and split are not published; lr 3e-3 with the whole batch instead of 1e-4
with an unknown one, chosen on a seed outside of the study so that FedAvg needs about as many rounds as published where
few drop out; slack estimated by `count_late`; HierFAVG both with the average of those who answered and with the weight
of the silent left at the regional model, as the source does not say; several seeds."""
    small_data = "invented numbers in the place of the measurements"
    sizes = {
        "small": Size(
            rounds=3, tasks=("aerofoil",), fractions=(0.1, 0.5), dropouts=(0.1, 0.6), target=0.0, stand_in=True
        ),
        "default": Size(tasks=("aerofoil",)),
    }
    claims = tuple(claims_of("aerofoil", faster=2, slower_rounds=TASKS["aerofoil"].rounds + 1))

    def dataset(self, size: Size, data: Path | None) -> Dataset:
        if not size.stand_in:
            return airfoil.load(folder=data, normalise="minmax", test_fraction=0.0)
        inputs = torch.linspace(0, 1, 150 * 5).reshape(150, 5)
        return Dataset("airfoil", inputs, inputs[:, :1], None)

    def model_task(self, seed: int) -> Task:
        return Task(lambda: mlp(5, [64, 32], 1), "mse", {"accuracy": relative_accuracy}, seed=seed)

    def population(self, dataset: Dataset, dropout: float, seed: int) -> Population:
        task = TASKS[self.task]
        return Population.of(
            dataset,
            task.clients,
            "gaussian_sizes",
            seed=seed,
            test_fraction=1 - task.train_share,
            **task.world(dropout, seed),
        )


STUDY = HybridFLAerofoil()
