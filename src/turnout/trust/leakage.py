"""What a model leaks: test accuracy, leakage on training data and leakage on reference data, always all three.

Kaplan, Xu, Marfoq, Neglia, Santana de Oliveira, "A cautionary tale: on the role of reference data in empirical privacy
defenses", PoPETs 2024: a defence that uses reference data can pay for its gains by leaking *them*, so that one method
is better than another only if it is better in all three.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from turnout.algorithms.werm import WERM
from turnout.core import random, trees
from turnout.core.errors import UserError, unknown
from turnout.core.files import read_json, read_tensors
from turnout.core.ragged import Ragged
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import spelt
from turnout.core.threads import threads
from turnout.engine.evaluate import Evaluator, check_separate, sample_measures
from turnout.engine.train import Cohort
from turnout.record.run_folder import READ, check_is_run, examine
from turnout.run.experiment import Experiment, execute
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.task import Task
from turnout.trust.attacks import KINDS, Leakage, attack, attack_groups, membership_scores

GROUPS = ("client", "class")
SHADOWS = 8
CHUNK = 1024  # samples scored in one go
Samples = tuple[Tensor, Tensor]  # inputs, targets


@dataclass(frozen=True)
class ThreeWay:
    """Utility, and what can be told of two sets of samples."""

    test: dict[str, float]  # mean loss and metrics of the test samples, which are the non-members
    train: Leakage
    reference: Leakage | None = None  # None: no reference data

    def as_dict(self) -> dict[str, Any]:
        reference = None if self.reference is None else self.reference.as_dict()
        return {"test": self.test, "train": self.train.as_dict(), "reference": reference}


@spelt
def three_way(
    task: Task, model: Tensor, train: Samples, test: Samples, reference: Samples | None = None, *, seed: int = 0
) -> ThreeWay:
    """Loss-threshold attacks on a model `[P]`.

    >>> found = three_way(task, result.model, (x, y), (test_x, test_y), (reference_x, reference_y))
    >>> found.test["accuracy"], found.train.accuracy, found.reference.accuracy
    """
    task = task.to()
    task.examine(*test)
    check_separate(task)
    measures = sample_measures(task, model, *test, CHUNK)

    def leakage(samples: Samples) -> Leakage:
        losses = sample_measures(task, model, *samples, CHUNK)["loss"]
        return attack(membership_scores(losses), membership_scores(measures["loss"]), seed=seed)

    return ThreeWay(_means(measures), leakage(train), None if reference is None else leakage(reference))


@dataclass(frozen=True)
class Leaks:
    """What a run leaks, on the whole and of each client or class."""

    whole: ThreeWay
    groups: dict[int, Leakage]

    def as_dict(self) -> dict[str, Any]:
        return {**self.whole.as_dict(), "groups": {name: found.as_dict() for name, found in self.groups.items()}}


@spelt
def attack_run(
    experiment: Experiment,
    model: Tensor,
    *,
    kind: str = "loss",
    by: str | None = None,
    shadows: int = SHADOWS,
    seed: int = 0,
) -> Leaks:
    """Attack the model that an experiment left behind; what clients keep to themselves is not looked at.

    Members are the training samples of the clients, those with reference data (see `WERM`) apart. Non-members are the
    test samples of the same clients, or the central ones where clients have none. `by` client or class adds an attack
    on each. Out-models, where the attack needs them, are `shadows` more runs, see `Exposed.out_losses`.
    """
    if kind not in KINDS:
        raise unknown("attack.kind", kind, KINDS)
    if by is not None and by not in GROUPS:
        raise unknown("attack.by", by, GROUPS)
    if shadows < 2 or shadows % 2:
        raise UserError(f"attack.shadows: {shadows} must be an even number of at least 2")
    exposed, people = Exposed(experiment), experiment.population
    labels = exposed.labels() if by == "class" else None
    measures = exposed.measures(model)
    out = None if kind == "loss" else exposed.out_losses(shadows, seed)
    scores = membership_scores(measures["loss"], kind, out)

    def scored(clients: IntArray) -> tuple[FloatArray, FloatArray]:
        return scores[exposed.members(clients)], scores[exposed.others(clients)]

    present = people.joined(people.ids, np.finfo(np.float64).max)  # who never joins has never trained
    everybody, reference = np.flatnonzero(present), np.zeros(people.size, bool)
    if isinstance(experiment.algorithm, WERM):
        reference = experiment.algorithm.holds_reference(people)
    private, lent = (np.flatnonzero(present & group) for group in (~reference, reference))
    tested = exposed.others(everybody)
    whole = ThreeWay(
        _means({name: values[tested] for name, values in measures.items()}),
        attack(*scored(private), seed=seed),
        attack(*scored(lent), seed=seed) if len(lent) else None,
    )
    groups = {}
    if by == "client":
        groups = {client: scored(np.array([client])) for client in everybody.tolist()}
    elif labels is not None:
        trained = exposed.members(everybody)
        for label in np.unique(labels[trained]).tolist():
            groups[label] = scores[trained[labels[trained] == label]], scores[tested[labels[tested] == label]]
    return Leaks(whole, attack_groups(groups, seed=seed))


def finished(folder: Path) -> tuple[Experiment, Tensor]:
    """The experiment of a finished run, as long as it took, and the model `[P]` that it left in its folder."""
    from turnout.config import config

    check_is_run("attack", folder)
    for sentence in examine("attack", folder, (*READ, "model.safetensors")):
        warnings.warn(sentence, stacklevel=2)
    if not (folder / "result.json").exists():
        raise UserError(f"attack: {folder} is unfinished; go on with: turnout resume {folder}")
    experiment, _, _ = config.build(config.read_run(folder))
    rounds = read_json(folder / "result.json")["rounds"]
    task = experiment.algorithm.trained_task(experiment.task)
    task = task.to(dtype=experiment.plan.dtype)
    model = task.from_state_dict(read_tensors(folder / "model.safetensors"))
    return replace(experiment, stopping=Stopping(rounds)), model


def _means(measures: dict[str, FloatArray]) -> dict[str, float]:
    return {name: float(values.mean()) if len(values) else float("nan") for name, values in measures.items()}


class Exposed:
    """The samples of an experiment as an attacker sees them, and shadow runs of it that know only half of them.

    Samples are rows of the clients' pool; where no client has test samples, those of the central set follow."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, people = experiment, experiment.population
        inputs, targets = people.inputs, people.targets
        self.held = trees.rows(inputs)
        if people.test is None and people.central is not None:
            trees.check_copy("attack: a central test set", inputs, targets, people.central)
            inputs, targets = (trees.join([*both]) for both in zip((inputs, targets), people.central, strict=True))
        task = experiment.algorithm.trained_task(experiment.task)
        self.cohort = Cohort(task, inputs, targets, experiment.plan.resolve())
        check_separate(self.cohort.task)
        self.trained = np.zeros(trees.rows(inputs), bool)
        self.trained[people.train.values] = True

    def measures(self, model: Tensor) -> dict[str, FloatArray]:
        """`[n]` loss and metrics of every sample."""
        cohort, people = self.cohort, self.experiment.population
        chunk = Evaluator(cohort, people.ids, people.train).chunk
        with threads(cohort.plan.threads):
            return sample_measures(cohort.task, model.to(cohort.task.initial), *cohort.stored, chunk)

    def members(self, clients: IntArray) -> NDArray[np.integer]:
        """What these clients train on."""
        return self.experiment.population.train.rows(clients).values

    def others(self, clients: IntArray) -> NDArray[np.integer]:
        """What they are tested on. Clients may share samples: what another trains on is left out."""
        test = self.experiment.population.test
        rows = np.arange(self.held, len(self.trained)) if test is None else test.rows(clients).values
        return rows[~self.trained[rows]]

    def labels(self) -> IntArray:
        targets = self.cohort.targets
        labels: IntArray = targets.cpu().numpy() if isinstance(targets, Tensor) else np.zeros((0, 0), np.int64)
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
        stopping = replace(experiment.stopping, target=None, judge=None, patience=None)
        evaluation = Evaluation(rounds=None, clients=1)
        return replace(experiment, population=people, seed=seed, stopping=stopping, evaluation=evaluation)

    @property
    def _holdings(self) -> tuple[IntArray, IntArray]:
        """Client and row of every sample that a client holds."""
        people = self.experiment.population
        splits = [split for split in (people.train, people.test) if split is not None]
        clients = [np.repeat(people.ids, split.counts) for split in splits]
        return np.concatenate(clients), np.concatenate([split.values for split in splits]).astype(np.int64)
