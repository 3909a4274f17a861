"""Sources: families of distributions of which a mixture has m, with parameters in the rows of `[m, P]`.

A family says how likely a sample is and what the clients' M-steps add up to. With responsibilities w[c, i, j] and
masses a[c, j] = sum_i w[c, i, j], a client's own estimate omega[c, j] travels as a[c, j] omega[c, j]; the server
divides the sum over clients by sum_c a[c, j], and never needs an addend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from turnout.core import random
from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError
from turnout.core.random import IntArray
from turnout.task.task import Task
from turnout_studies.online.samples import Samples


class Components:
    """What an online learner asks of its family of sources."""

    gradients: ClassVar[tuple[str, ...]]  # ways to take the gradient of the weights, the default first
    averaging: ClassVar[str]  # over time, by default

    def log_prob(self, components: Tensor, samples: Samples) -> Tensor:
        """`[C, n, m]` logarithm of the density of each sample."""
        raise NotImplementedError

    def totals(self, components: Tensor, samples: Samples, shares: Tensor) -> Tensor:
        """`[m, P]` sum over the clients of a[c, j] omega[c, j], from `shares` `[C, n, m]`, 0 for padding."""
        raise NotImplementedError

    def sample(self, components: Tensor, weights: Tensor, keys: IntArray, count: int) -> Samples:
        """`count` samples of the mixture that each row of `weights` `[C, m]` makes, by the client's key."""
        raise UserError(f"online.gradient: {type(self).__name__} cannot be sampled; use {self.gradients[0]}")

    def label_log_prob(self, components: Tensor, samples: Samples) -> Tensor:
        """`[C, n, Y, m]` logarithm of the probability of each label at the inputs received."""
        raise UserError(f"online.gradient: {type(self).__name__} has no labels; use {self.gradients[0]}")


@dataclass(frozen=True)
class Gaussians(Components):
    """N(mu_j, I). The M-step is the mean of a source's samples: sums only. Components may be each client's own,
    `[C, m, d]`."""

    gradients = ("model", "samples")
    averaging = "running_mean"

    def log_prob(self, components: Tensor, samples: Samples) -> Tensor:
        dims = samples.inputs.shape[-1]
        if dims != components.shape[-1]:
            raise UserError(f"online.samples: {dims} dimensions; the means have {components.shape[-1]}")
        apart = samples.inputs[..., None, :] - components[..., None, :, :]  # [C, n, m, d]
        return -(apart.square().sum(-1) + dims * math.log(2 * math.pi)) / 2

    def totals(self, components: Tensor, samples: Samples, shares: Tensor) -> Tensor:
        return torch.einsum("cnm,cnd->md", shares, samples.inputs)

    def sample(self, components: Tensor, weights: Tensor, keys: IntArray, count: int) -> Samples:
        dims = components.shape[-1]
        luck = torch.from_numpy(random.uniform(keys, count)).to(weights)
        chosen = torch.searchsorted(weights.cumsum(1), luck).clamp(max=weights.shape[1] - 1)  # [C, n]
        means = components.expand(len(weights), -1, -1).gather(1, chosen[..., None].expand(-1, -1, dims))
        noise = random.normal(random.key(0, "gaussian noise", keys), count * dims)
        return Samples.full(means + torch.from_numpy(noise).to(weights).view_as(means))


@dataclass(frozen=True)
class Classifiers(Components):
    """p(y | x) = exp(-l(theta_j; x, y)), models of one task with a loss that is a negative logarithm, as cross entropy
    is; parameters as in `task.initials(m)`. The M-step is one step of gradient descent from the components received:

        theta[c, j] = theta[j] - lr / n_c * sum_i w[c, i, j] grad l(theta_j; s_i)
    """

    gradients = ("labels", "samples")
    averaging = "none"

    task: Task
    lr: float

    def __post_init__(self) -> None:
        POSITIVE.check("online.lr", self.lr)

    def log_prob(self, components: Tensor, samples: Samples) -> Tensor:
        inputs, targets = samples.inputs.flatten(0, 1), samples.targets.flatten(0, 1)
        losses = vmap(lambda mine: self.task.losses(mine, inputs, targets))(components)  # [m, C * n]
        return -losses.T.reshape(*samples.counted.shape, -1)

    def totals(self, components: Tensor, samples: Samples, shares: Tensor) -> Tensor:
        inputs, targets, masses = samples.inputs.flatten(0, 1), samples.targets.flatten(0, 1), shares.sum(1)
        counted = shares * (masses / samples.counts.clamp(min=1)[:, None])[:, None]

        def loss(mine: Tensor, share: Tensor) -> Tensor:
            return (self.task.losses(mine, inputs, targets) * share).sum()

        gradients: Tensor = vmap(grad(loss))(components, counted.flatten(0, 1).T)
        return masses.sum(0)[:, None] * components - self.lr * gradients

    def label_log_prob(self, components: Tensor, samples: Samples) -> Tensor:
        inputs = samples.inputs.flatten(0, 1)
        outputs = vmap(lambda mine: self.task.outputs(mine, inputs))(components)  # [m, C * n, Y]
        logs = F.log_softmax(outputs, -1).movedim(0, -1)
        return logs.view(*samples.counted.shape, *logs.shape[1:])


def aligned(estimates: Tensor, truth: Tensor) -> Tensor:
    """The estimates `[m, P]` in the order of the sources they are nearest to, as one assignment: labels may switch."""
    distances = torch.cdist(truth, estimates).numpy()
    return estimates[torch.from_numpy(np.asarray(linear_sum_assignment(distances)[1]))]
