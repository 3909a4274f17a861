"""What a model is worth: measured at every client or a panel of them, as each is served, and on central test data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core import random, trees
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.trees import Tree
from turnout.engine.evaluate import (
    Evaluator,
    Personal,
    distribution,
    evaluators,
    gathered,
    sample_measures,
    set_measures,
)
from turnout.local.exchange import NORMS
from turnout.task.examine import examine_test
from turnout.task.set_metrics import Counting
from turnout.task.sets import Sets

if TYPE_CHECKING:
    from turnout.server.server import Server

MOST_CLASSES = 100  # of which a confusion matrix is kept
ByClient = tuple[IntArray, dict[str, FloatArray], IntArray]  # clients, their measures by name, their samples


def evaluators_of(server: Server) -> dict[str, Evaluator]:
    """Prepare the evaluation of each split, `train`, `validation` and `test`, at all clients or the panel."""
    population, panel = server.whole_population, server.evaluation.clients
    if panel is not None and panel > population.size:
        raise UserError(f"evaluation.clients: a panel of {panel} out of {population.size} clients")
    clients = (
        population.ids
        if panel is None
        else np.sort(random.subset(random.key(server.seed, "panel"), panel, population.size))
    )
    if population.central is not None:
        with server.cohort.on_device():
            examine_test(server.task, *population.central)
    return evaluators(server.cohort, population, clients, server.evaluation.train)


class Measurement:
    """Measure models of a server, of which it is told: an object that knew would keep that alive."""

    def __init__(self, evaluators: dict[str, Evaluator]) -> None:
        self.evaluators = evaluators  # by split
        self.elsewhere = False  # whether samples are, with the clients of a deployment
        self._central: tuple[Tree, Tree] | None = None

    def central(self, server: Server) -> tuple[Tree, Tree]:
        """Place inputs and targets of the central test set where the engine computes."""
        if self._central is None:
            assert server.whole_population.central is not None
            inputs, targets = server.whole_population.central
            self._central = server.cohort.pool(inputs), server.cohort.pool(targets)
        return self._central

    def measure(self, server: Server, model: Tensor) -> dict[str, float]:
        """Compute federated loss and metrics of a model `[P]` by split, and those on the central test set."""
        population, measures = server.whole_population, dict[str, float]()
        for split, (clients, values, counts) in server.client_measures(model).items():
            sets, unseen = server.task.sets.names, ~population.joined(clients, server.now)
            measures |= distribution(split, values, population.importance_at(server.now)[clients], counts, sets)
            unseen_importance = unseen * population.base_importance[clients]
            measures |= distribution(f"unseen_{split}", values, unseen_importance, counts, sets)
        if population.central is not None and self.personal(server, False) is None:
            measures |= self._on_central(server, model)
        return measures

    def _on_central(self, server: Server, model: Tensor) -> dict[str, float]:
        inputs, targets = self.central(server)
        chunk = next(iter(self.evaluators.values())).chunk
        with server.cohort.all_threads():
            central = sample_measures(server.task, model, inputs, targets, chunk)
            found = {name: float(sample.mean()) for name, sample in central.items()}
            found |= set_measures(server.task, model, inputs, targets)
            if sets := server.task.sets:
                sets.check_room(trees.rows(targets), server.plan.memory_mib)
                found |= sets.measured(gathered(server.task, sets, model, inputs, targets, chunk))
        return {f"central_{name}": found[name] for name in server.task.measured}

    def confusion(self, server: Server) -> dict[str, Any] | None:
        """Count samples of each class, a row, by the class that is chosen, a column, over all clients as they are
        served: of test samples, else of those for validation or training. None where no measure of classes of a whole
        set is asked for, or there are too many."""
        sets = server.task.sets
        if self.elsewhere or not 1 < sets.classes <= MOST_CLASSES:
            return None
        split = next(split for split in ("test", "validation", "train") if split in self.evaluators)
        counting = Counting(sets.classes)
        asked = Sets(sets.loss, {counting.name: counting}, sample_bytes=sets.sample_bytes)
        with server.cohort.all_threads(), torch.no_grad():
            self._served(server, replace(self.evaluators[split], instead=asked), server.output)
        whole = counting.counts.astype(np.int64)
        return {"split": split, "counts": (whole if (whole == counting.counts).all() else counting.counts).tolist()}

    def by_client(self, server: Server, model: Tensor) -> dict[str, ByClient]:
        """Give, by split, the clients evaluated, their measures, and how many samples of it they have."""
        found = self.evaluators.items()
        return {split: (each.clients, self._served(server, each, model), each.index.counts) for split, each in found}

    def _served(self, server: Server, evaluator: Evaluator, model: Tensor) -> dict[str, FloatArray]:
        """Evaluate each client as the algorithm serves it, `[clients]` by measure; who should adapt and has no sample
        to do it with is served without."""
        population, ids = server.whole_population, evaluator.clients
        unseen, adapts = ~population.joined(ids, server.now), population.has_samples(ids, server.now)
        values: dict[str, FloatArray] = {}
        rules = {(new, able): self.personal(server, new, able) for new in (False, True) for able in (False, True)}
        for (new, able), personal in rules.items():
            rows = (unseen == new) & (adapts == able)
            if rows.all() or not any(rules.values()):
                return self._serve(server, evaluator, model, personal)
            part = self._serve(server, evaluator.some(rows), model, personal) if rows.any() else {}
            for name, column in part.items():
                values.setdefault(name, np.empty(len(ids)))[rows] = column
        return values

    @staticmethod
    def _serve(server: Server, evaluator: Evaluator, model: Tensor, personal: Personal | None) -> dict[str, FloatArray]:
        if personal is None:
            return evaluator.global_model(model)
        with server.cohort.all_threads():
            return evaluator.personal_models(personal, model, server._store)

    @staticmethod
    def personal(server: Server, unseen: bool, adapts: bool = True) -> Personal | None:
        """Find what makes a client's own model of the global one, for clients that are unseen or able to adapt; None:
        they are served the global model."""
        algorithm = server.algorithm
        adapted, kept = algorithm.served(unseen)
        adapted, people = adapted if adapts else None, server.whole_population
        size = getattr(getattr(algorithm, "local", None), "batch_size", 32)
        return Personal.of(adapted, kept, people, server.version, server.now, server.seed, server.task.tail, size)

    def table(self, server: Server) -> dict[str, NDArray[Any]]:
        """Give a row for each client evaluated: its measures under the output, whether it is unseen, and what the
        algorithm knows of it."""
        first = next(iter(self.evaluators.values()))
        unseen = ~server.whole_population.joined(first.clients, server.now)
        table: dict[str, NDArray[Any]] = {"client": first.clients, "unseen": unseen}
        if (names := server.whole_population.names) is not None:
            table["name"] = names[first.clients]
        with server.cohort.all_threads(), torch.no_grad():
            for split, (_, measures, counts) in server.client_measures(server.output).items():
                table |= {f"{split}_{name}": values for name, values in measures.items()}
                table[f"{split}_samples"] = counts
            if (tail := server.task.tail) is not None and tail.keeps:  # rounds since a client's own were trained
                trained = server._store.get({NORMS[1]: ()}, first.clients)[NORMS[1]].double().cpu().numpy()
                table["statistics_age"] = np.where(trained > 0, server.version - (trained - 1), np.nan)
            return table | server.algorithm.about(server, first.clients)
