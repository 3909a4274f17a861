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
from torch import Tensor

from turnout.algorithms.werm import WERM
from turnout.core.errors import UserError, unknown
from turnout.core.files import read_json, read_tensors
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import spelt
from turnout.engine.evaluate import check_separate, sample_measures
from turnout.record.run_folder import READ, check_is_run, examine
from turnout.run.experiment import Experiment
from turnout.server.stopping import Stopping
from turnout.task.task import Task
from turnout.trust.attacks import KINDS, Leakage, attack, attack_groups, membership_scores
from turnout.trust.exposed import Exposed

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
