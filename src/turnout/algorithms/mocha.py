"""MOCHA: personal linear models, and how they are related, learnt in turns.

Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NeurIPS 2017; the relation is that of Zhang and
Yeung, "A convex formulation for learning task relationships in multi-task learning", UAI 2010.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from turnout.algorithms._algorithm import LAW
from turnout.algorithms._personalised import Personalised
from turnout.core.allowed import Positive
from turnout.core.errors import UserError
from turnout.local.own import RelatedSGD
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import FloatArray, IntArray, Selection
from turnout.server.server import ModelChoice, Server
from turnout.server.updates import Updates


@dataclass
class Mocha(Personalised):
    """Minimises `sum of the losses of all samples + penalty tr(W Omega W')`, W = [w_1 ... w_T], in turns over W and

        Omega = Sigma^-1,    Sigma = (W'W)^1/2 / tr (W'W)^1/2 + epsilon I.

    Given Omega, client i has the pull of all others as it was when the round began, bounded by `penalty s |w - a_i|^2`
    with s the largest eigenvalue of Omega and a_i = w_i - (W Omega)_i / s. A client of which the server has not heard,
    also one never seen, is pulled as strongly towards the average of all, the server's own model, and begins there.
    Convex for linear models, a heuristic for others. Memory: N models, and a matrix over the clients.
    """

    cannot = dict.fromkeys((*LAW, "serve"), "solves for all models together")
    trains = RelatedSGD
    no_use_for = ("normalise",)

    penalty: Positive = 1.0  # strength of the pull of the related models
    epsilon: Positive = 1e-3  # added to the relation: what keeps it invertible
    models: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)  # [N, P] W'
    strength: float = field(default=0.0, init=False)  # s

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_lr != 1:
            raise UserError(f"algorithm.server_lr: {self.server_lr} must be 1: the server's model is an average")

    def begin(self, server: Server) -> None:
        self.models = server.model.repeat(server.population.size, 1)

    def invitation(self, server: Server, clients: IntArray) -> tuple[LocalSGD, ModelChoice]:
        members = np.flatnonzero(server.importance)
        known = members[server.heard[members]]
        models, anchors = self.models[known], server.model.repeat(len(self.models), 1)
        self.strength = 1 / (1 / max(1, len(members)) + self.epsilon)  # of clients that are not related
        if len(known):
            omega = relation(models.double().cpu().numpy(), self.epsilon)
            self.strength = float(np.linalg.norm(omega, 2))
            anchors[known] = models - torch.as_tensor(omega / self.strength).to(models) @ models
        return self.pulled(self.local), (anchors, clients)

    def pulled(self, local: LocalSGD) -> RelatedSGD:
        return RelatedSGD.extend(local, mu=2 * self.penalty * self.strength)

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        updates = server.finite(updates)
        if not len(updates):
            server.log("empty_round")
        self.models[updates.clients] = updates.returned()
        importance = torch.as_tensor(server.importance).to(self.models)
        average = importance @ self.models if server.importance.any() else server.model
        server.publish(average, updates, server.importance[updates.clients])

    def predictor(self) -> RelatedSGD:
        return self.pulled(self.local)

    def adaptation(self, unseen: bool) -> RelatedSGD | None:
        return self.pulled(self.tuning) if unseen else None


def relation(models: FloatArray, epsilon: float) -> FloatArray:
    """`[T, T]` Omega of models `[T, P]`."""
    axes, lengths, _ = np.linalg.svd(models, full_matrices=False)  # the lengths are the roots of W'W
    shares = lengths / max(lengths.sum(), np.finfo(float).tiny)
    return np.asarray(np.eye(len(models)) / epsilon + axes * (1 / (shares + epsilon) - 1 / epsilon) @ axes.T)
