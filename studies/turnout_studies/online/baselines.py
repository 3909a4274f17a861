"""What FEM-OMD is compared with: learners that play and observe as it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError
from turnout.theory.mirror import floored
from turnout_studies.online.em import em_step, federated_em
from turnout_studies.online.learner import FEMOMD, Learner
from turnout_studies.online.samples import Samples


@dataclass
class LastStep(FEMOMD):
    """Plays the weights that explain the last step: pi_{t+1} = pi~_t."""

    def foretell(self, em_weights: Tensor, samples: Samples) -> Tensor:
        return em_weights


@dataclass
class FollowTheLeader(FEMOMD):
    """Plays the best fixed weights so far. The sum of KL(p_s, q) over past mixtures p_s of the same sources is least
    where q is their mean: pi_{t+1} is the mean of pi~_s over the steps at which the client had samples."""

    explained: Tensor = field(init=False)  # [C, m] sum of pi~

    def __post_init__(self) -> None:
        super().__post_init__()
        self.explained = torch.zeros_like(self.weights)

    def join(self, count: int = 1) -> None:
        super().join(count)
        self.explained = F.pad(self.explained, (0, 0, 0, count))

    def foretell(self, em_weights: Tensor, samples: Samples) -> Tensor:
        self.explained = self.explained + em_weights * (samples.counts[:, None] > 0)
        return self.explained / self.explained.sum(1, keepdim=True).clamp(min=1)


@dataclass
class StaticFedEM(FEMOMD):
    """Takes the weights for fixed: at every step `em_steps` of EM go on from what was played, over all samples so far.

    Marfoq et al., NeurIPS 2021. It keeps every sample.
    """

    inputs: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)
    targets: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)
    counted: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)

    def learn(self, samples: Samples) -> None:
        if self.step > 1:
            samples = Samples(self.inputs, self.targets, self.counted).then(samples)
        self.inputs, self.targets, self.counted = samples
        for _ in range(self.em_steps):
            self.components, weights = em_step(self.family, self.components, self.weights, samples)
            self.weights = floored(weights, self.weight_floor)


@dataclass
class LocalEMOMD(FEMOMD):
    """FEM-OMD of each client alone: it learns its own sources, from its own samples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.components = self.initial.repeat(self.clients, 1, 1)  # [C, m, P]

    def join(self, count: int = 1) -> None:
        super().join(count)
        self.components = torch.cat([self.components, self.initial.repeat(count, 1, 1)])

    def fit(self, samples: Samples) -> tuple[Tensor, Tensor]:
        splitting = self._splits(samples)

        def alone(mine: Tensor, own: Samples) -> tuple[Tensor, Tensor]:
            components, weights = federated_em(self.family, mine, _one(own), self.em_steps, splitting)
            return components, weights[0]

        return vmap(alone)(self.components, samples)

    def ask(self, question: Callable[[Tensor, Samples], Tensor], components: Tensor, samples: Samples) -> Tensor:
        return vmap(lambda mine, own: question(mine, _one(own))[0])(components, samples)


@dataclass
class FedOMD(Learner):
    """One model for all: clients take gradient steps on their own loss from the shared model, the server averages.

    Mitra, Hassani, Pappas, "Online federated learning", CDC 2021, with the squared norm as mirror map. With rate eta
    and the projection Pi on the ball of `radius`, `local_steps` times

        theta_c  =  Pi(theta_c - eta grad of the mean of -log p(z | theta_c)),    theta = sum_c n_c theta_c / sum_c n_c
    """

    lr: float = 0.1
    local_steps: int = 1
    radius: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        POSITIVE.check("online.lr", self.lr)
        if self.radius is not None:
            POSITIVE.check("online.radius", self.radius)
        if self.sources != 1:
            raise UserError(f"online.initial: {self.sources} models; FedOMD has one for all")
        if self.local_steps < 1:
            raise UserError(f"online.local_steps: {self.local_steps} must be at least 1")

    def learn(self, samples: Samples) -> None:
        def loss(mine: Tensor, own: Samples) -> Tensor:
            log_prob = self.family.log_prob(mine[None], _one(own))[0, :, 0]
            return -(log_prob * own.counted).sum() / own.counted.sum().clamp(min=1)

        models = self.components.expand(self.clients, -1)
        for _ in range(self.local_steps):
            models = self._projected(models - self.lr * vmap(grad(loss))(models, samples))
        self.components = (samples.counts @ models / samples.counts.sum())[None]

    def _projected(self, models: Tensor) -> Tensor:
        if self.radius is None:
            return models
        return models * torch.clamp(self.radius / torch.linalg.norm(models, dim=1, keepdim=True), max=1)


def _one(own: Samples) -> Samples:
    """One client's samples as those of a federation of one."""
    return Samples(*(column[None] for column in own))
