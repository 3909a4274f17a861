"""The samples of an experiment as an attacker sees them, and shadow runs of it that know only half of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.ragged import Ragged
from turnout.core.random import FloatArray, IntArray
from turnout.core.threads import threads
from turnout.engine.evaluate import Evaluator, check_separate, sample_measures
from turnout.engine.train import Cohort
from turnout.run.experiment import Experiment, execute
from turnout.server.stopping import Evaluation


class Exposed:
    """Samples are rows of the clients' pool; where no client has test samples, those of the central set follow."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, people = experiment, experiment.population
        inputs, targets = people.inputs, people.targets
        self.held = len(inputs)
        if people.test is None and people.central is not None:
            inputs, targets = torch.cat([inputs, people.central[0]]), torch.cat([targets, people.central[1]])
        task = experiment.algorithm.trained_task(experiment.task)
        self.cohort = Cohort(task, inputs, targets, experiment.plan.resolve())
        check_separate(self.cohort.task)
        self.trained = np.zeros(len(inputs), bool)
        self.trained[people.train.values] = True

    def measures(self, model: Tensor) -> dict[str, FloatArray]:
        """`[n]` loss and metrics of every sample."""
        cohort, people = self.cohort, self.experiment.population
        chunk = Evaluator(cohort, people.ids, people.train).chunk
        with threads(cohort.plan.threads):
            return sample_measures(cohort.task, model.to(cohort.task.initial), cohort.inputs, cohort.targets, chunk)

    def members(self, clients: IntArray) -> NDArray[np.integer]:
        """What these clients train on."""
        return self.experiment.population.train.rows(clients).values

    def others(self, clients: IntArray) -> NDArray[np.integer]:
        """What they are tested on. Clients may share samples: what another trains on is left out."""
        test = self.experiment.population.test
        rows = np.arange(self.held, len(self.trained)) if test is None else test.rows(clients).values
        return rows[~self.trained[rows]]

    def labels(self) -> IntArray:
        labels: IntArray = self.cohort.targets.cpu().numpy()
        if labels.ndim != 1 or labels.dtype.kind != "i":
            raise UserError("attack.by: class needs one label a sample, which these data do not have; use client")
        return labels

    def out_losses(self, shadows: int, seed: int) -> FloatArray:
        """`[shadows, n]` losses by models trained on half of all samples, each two on complementary halves; NaN where a
        model was trained on the sample."""
        sides = [self.half(number // 2, seed) == number % 2 for number in range(shadows)]
        runs = [self.shadow(side, int(random.key(seed, "shadow", number))) for number, side in enumerate(sides)]
        losses = (self.measures(execute(shadow).model)["loss"] for shadow in runs)
        return np.stack([np.where(side, np.nan, loss) for side, loss in zip(sides, losses, strict=True)])

    def half(self, pair: int, seed: int) -> IntArray:
        """`[n]` 0 or 1: each client's samples are dealt alternately, in an order drawn for this pair of shadows."""
        client, row = self._holdings
        owner = np.full(len(self.trained), self.experiment.population.size)
        owner[row] = client  # of a sample that several hold, one
        drawn = random.uniform(random.key(seed, "half", pair, np.arange(len(owner))), 1)[:, 0]
        order = np.lexsort((drawn, owner))
        sides = np.empty(len(owner), np.int64)
        sides[order] = (np.arange(len(owner)) - np.searchsorted(owner[order], owner[order])) % 2
        return sides

    def shadow(self, half: NDArray[np.bool_], seed: int) -> Experiment:
        """The same experiment in which clients train on those of their samples, test samples too, that are in `half`;
        evaluated as little as can be."""
        experiment, (client, row) = self.experiment, self._holdings
        client, row = client[half[row]], row[half[row]]
        if (stream := experiment.population.stream) is not None:  # what arrives keeps its time
            order = np.argsort(stream.period[row], kind="stable")
            client, row = client[order], row[order]
        dealt = Ragged.from_owner(client, experiment.population.size)
        if not dealt.counts.all():
            raise UserError("attack.kind: a client has too few samples to train shadows on half of them; use loss")
        train = Ragged(dealt.offsets, row[dealt.values])
        people = replace(experiment.population, train=train, test=None, validation=None)
        stopping = replace(experiment.stopping, target=None)
        evaluation = Evaluation(rounds=None, clients=1)
        return replace(experiment, population=people, seed=seed, stopping=stopping, evaluation=evaluation)

    @property
    def _holdings(self) -> tuple[IntArray, IntArray]:
        """Client and row of every sample that a client holds."""
        people = self.experiment.population
        splits = [split for split in (people.train, people.test) if split is not None]
        clients = [np.repeat(people.ids, split.counts) for split in splits]
        return np.concatenate(clients), np.concatenate([split.values for split in splits]).astype(np.int64)
