"""What unlearning is compared with. Each method says where retraining on the remaining clients begins.

    scratch        the initial model
    fine-tuning    the last model as it is
    last           the last model with noise for its largest sensitivity
                   (Neel, Roth, Sharifi-Malvajerdi, "Descent-to-delete", ALT 2021)
    fedaccum       stored updates, added up again without the forgotten clients
    federaser      the same with new directions of the stored lengths
                   (Liu, Ma, Yang, Wang, Liu, "FedEraser", IWQoS 2021)
    dp             the last model of a training in which every update was clipped and noised (`clipped`)

As compared in Fraboni et al., "SIFU: sequential informed federated unlearning", AISTATS 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from turnout.algorithms._algorithm import Algorithm
from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.local.sgd import LocalSGD
from turnout.record.branch import Table
from turnout.record.unlearning import Unlearning, achieved_epsilon, noise_ratio
from turnout.run.experiment import Experiment, execute
from turnout.server.observer import Observer, Round
from turnout.server.privacy import Privacy
from turnout.server.server import Server
from turnout.server.stopping import Evaluation, Stopping
from turnout.server.updates import Updates
from turnout.trust.forget import noised, retraining


@dataclass(frozen=True)
class StoredRound:
    clients: IntArray
    weights: FloatArray
    updates: Tensor  # [k, P]

    def without(self, forgotten: Sequence[int]) -> StoredRound | None:
        """The same step by those who stay; None if nobody does."""
        stay = ~np.isin(self.clients, forgotten)
        if not stay.any():
            return None
        weights = self.weights[stay] * (self.weights.sum() / self.weights[stay].sum())
        return StoredRound(self.clients[stay], weights, self.updates[torch.from_numpy(stay)])


class Archive(Observer):
    """Keeps every update of every round: what FedAccum and FedEraser need, (participants a round) P numbers each."""

    def __init__(self) -> None:
        self.rounds: list[StoredRound] = []

    @property
    def bytes(self) -> int:
        return sum(stored.updates.numel() * stored.updates.element_size() for stored in self.rounds)

    def on_start(self, server: Server) -> None:
        self.start = server.model.cpu()

    def on_round(self, server: Server, record: Round) -> None:
        rows = np.flatnonzero(record.weights)
        jobs = [record.jobs[row] for row in rows.tolist()]
        if jobs:
            updates = Updates.computed(jobs, server.version, server.model)
            self.rounds.append(
                StoredRound(updates.clients, server.optimiser.lr * record.weights[rows], updates.deltas.cpu())
            )


def last(model: Tensor, table: Table, settings: Unlearning, clients: Sequence[int], seed: int | None = None) -> Tensor:
    """Noise for the largest sensitivity of any of these clients after any round."""
    largest = max(float(table.psi([client]).max()) for client in clients)
    sigma = noise_ratio(settings.epsilon, settings.delta, settings.calibration) * largest
    return noised(model, sigma, seed)


def fedaccum(archive: Archive, forgotten: Sequence[int]) -> Tensor:
    """`theta_0 + sum over rounds of the mean update of those who stay`; rounds with nobody left are skipped."""
    model = archive.start.clone()
    for stored in archive.rounds:
        if (stay := stored.without(forgotten)) is not None:
            model += torch.tensordot(torch.as_tensor(stay.weights).to(stay.updates), stay.updates, dims=1)
    return model


def federaser(experiment: Experiment, archive: Archive, forgotten: Sequence[int], interval: int = 2) -> Tensor:
    """The model after `FedEraser` has gone through the archive."""
    local = getattr(experiment.algorithm, "local", None)
    if not isinstance(local, LocalSGD):
        raise UserError(f"federaser: {type(experiment.algorithm).__name__} has no local work to repeat")
    kept = [stored.without(forgotten) for stored in archive.rounds[::interval]]
    rounds = [stored for stored in kept if stored is not None]
    work = replace(
        retraining(experiment, archive.start, forgotten),
        algorithm=FedEraser(local, rounds),
        stopping=Stopping(len(rounds)),
        evaluation=Evaluation(rounds=None),
        unlearning=None,
    )
    return execute(work).model


@dataclass
class FedEraser(Algorithm):
    """Those who stay take half as many steps from the new model; each goes as far as it once went, in the direction it
    goes now: `model <- model + sum_i weight_i |stored_i| new_i / |new_i|`."""

    local: LocalSGD
    rounds: list[StoredRound] = field(default_factory=list)

    def run(self, server: Server) -> None:
        for number in server.rounds():
            stored = self.rounds[number]
            counts = server.population.counts(stored.clients, np.full(len(stored.clients), server.now))
            server.invite(stored.clients, self.local.bind({"steps": np.maximum(1, self.local.num_steps(counts) // 2)}))
            updates = server.wait()
            order = np.argsort(stored.clients)
            places = order[np.searchsorted(stored.clients, updates.clients, sorter=order)]
            once = stored.updates.norm(dim=1).numpy()[places]
            now = updates.norms().cpu().numpy()
            server.step(updates, stored.weights[places] * np.divide(once, now, out=np.zeros(len(now)), where=now > 0))


def clipped(
    clip: float = 0.5,
    epsilon: float = 10.0,
    delta: float = 0.01,
    rounds: int | None = None,
    noise_seed: int | None = None,
) -> Privacy:
    """`privacy` of a training whose updates are clipped and whose steps are noised by (2 clip max weight) ratio.

    The paper's is the classic noise of (epsilon, delta) in every round, which together is much more (see `spent`). With
    `rounds` it is the exact one for all of them together."""
    if rounds is not None:
        POSITIVE.check("rounds", rounds)
    ratio = noise_ratio(epsilon, delta, "classic" if rounds is None else "analytic") * math.sqrt(rounds or 1)
    return Privacy(noise=2 * ratio, clip=clip, delta=delta, noise_seed=noise_seed)


def spent(privacy: Privacy, rounds: int) -> float:
    """The epsilon of so many rounds together, at delta, where a client's update may be another: what sampling adds to
    privacy is not counted."""
    return achieved_epsilon(2 * math.sqrt(rounds) / privacy.noise, privacy.delta)
