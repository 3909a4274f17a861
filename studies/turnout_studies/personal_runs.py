"""What studies of personal models share: their trials, what is measured of each client, how learning rates are chosen.

A trial is a part (a dataset, dealt in one way), a method, a learning rate and a seed. A fifth of the clients never
train. At the end every client is served as its method serves it, and tested on its own samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from turnout.algorithms._algorithm import Algorithm
from turnout.clients.population import Population
from turnout.config import registry
from turnout.core.random import FloatArray
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.sampling.full import Full
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.task import Task
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

RIVALS = ("local", "fedavg", "fedprox", "fedavg_plus", "clustered_fl", "pfedme", "ditto", "apfl", "fedrep")
METHODS = (*RIVALS, "fedem", "knn_per")
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)  # 10^-2.5 to 10^-0.5
UNSEEN = 0.2
Values = Callable[[Results], FloatArray]


@dataclass(frozen=True)
class Size:
    rounds: int = 100
    clients: int = 100
    batch_size: int = 128
    rates: tuple[float, ...] = RATES
    methods: tuple[str, ...] = METHODS
    stand_in: bool = False  # bundled or generated data in the place of the real ones


def algorithm(method: str, lr: float, size: Size) -> Algorithm:
    """With one local epoch a round, everybody taking part, and the method's own defaults."""
    kind = registry.find("algorithm", method)
    local = LocalSGD(lr, batch_size=size.batch_size)
    sampler = {"sampler": Full()} if "sampler" in {field.name for field in fields(kind) if field.init} else {}
    made: Algorithm = kind(local, **sampler)
    return made


def of_clients(table: dict[str, Any]) -> Measures:
    """From a row a client: mean test accuracy (weighted by test samples), the (T/10)-th worst, that of clients never
    seen, of the thirds with the fewest and the most training samples, and the mean on held-back samples."""
    seen, counts = ~table["unseen"], table["test_samples"]

    def mean(rows: Any, name: str = "test") -> float:
        rows = rows & (table[f"{name}_samples"] > 0)
        return float(np.average(table[f"{name}_accuracy"][rows], weights=table[f"{name}_samples"][rows]))

    tested = np.sort(table["test_accuracy"][seen & (counts > 0)])
    low, high = np.quantile(table["train_samples"][seen], (1 / 3, 2 / 3))
    return {
        "accuracy": mean(seen),
        "worst_decile": float(tested[max(0, len(tested) // 10 - 1)]),
        "unseen": mean(~seen),
        "small": mean(seen & (table["train_samples"] <= low)),
        "large": mean(seen & (table["train_samples"] >= high)),
        "validation": mean(seen, "validation"),
    }


class PersonalStudy(Study):
    """Subclasses say which parts there are, and give each its task and population."""

    parts: tuple[str, ...]

    def world(self, part: str, size: Size, data: Path | None, seed: int) -> tuple[Task, Population]:
        raise NotImplementedError

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(2)
        def world(part: str, seed: int) -> tuple[Task, Population]:
            return self.world(part, size, data, seed)

        def carry_out(trial: Trial) -> Measures:
            task, people = world(trial["part"], trial["seed"])
            server = Simulation(
                task,
                people,
                algorithm(trial["method"], trial["lr"], size),
                seed=trial["seed"],
                plan=plan,
                stopping=Stopping(size.rounds),
                evaluation=Evaluation(size.rounds),
            )
            server.run()
            return of_clients(server.clients())

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        """Every method at its own learning rate, by the validation accuracy of the first seed."""
        cells = [{"part": part, "method": method} for part in self.parts for method in size.methods]
        return trials.tune(cells, size.rates, seeds)


def of(quantity: str, part: str, method: str) -> Values:
    def values(results: Results) -> FloatArray:
        lr = results.tuned[f"{part} {method}"]
        return results.each(lambda measures: float(measures[quantity]), part=part, method=method, lr=lr)

    return values


def ahead(quantity: str, part: str, method: str, rival: str) -> Values:
    """How far a method is ahead of a rival."""
    return lambda results: of(quantity, part, method)(results) - of(quantity, part, rival)(results)


def _more_for_the_small(part: str, method: str) -> Values:
    """The gain over local training of the clients with few samples, minus that of those with many."""
    return lambda results: (
        ahead("small", part, method, "local")(results) - ahead("large", part, method, "local")(results)
    )


def claims_of(part: str, method: str, rivals: Sequence[str], source: str, name: str) -> Iterator[Claim]:
    """A method is ahead of its rivals on average, for the (T/10)-th worst client and for unseen ones."""
    for rival in rivals:
        yield Claim(
            f"{method} over {rival}, {part}",
            f"{name} has the highest average accuracy.",
            source,
            f"test accuracy, weighted by test samples, {method} minus {rival}",
            ahead("accuracy", part, method, rival),
            above=0,
        )
    yield Claim(
        f"{method} is fairer than fedavg, {part}",
        f"{name} has the highest accuracy at the bottom decile.",
        source,
        f"accuracy of the (T/10)-th worst client, {method} minus fedavg",
        ahead("worst_decile", part, method, "fedavg"),
        above=0,
    )
    yield Claim(
        f"{method} for unseen clients, {part}",
        f"{name} is the best for clients that never trained.",
        source,
        f"test accuracy of unseen clients, {method} minus fedavg",
        ahead("unseen", part, method, "fedavg"),
        above=0,
    )
    yield Claim(
        f"{method}: most for clients with little data, {part}",
        "Who has little data gains most from the others.",
        source,
        f"test accuracy, {method} minus local, of the third with the fewest samples minus the third with the most",
        _more_for_the_small(part, method),
        above=0,
    )
