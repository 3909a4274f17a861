"""FEM-OMD: clients learn a few sources together, and each foretells the weights with which they will mix.

Marfoq's thesis (2023), section 4.4, algorithms 14 (any density), 15 (Gaussians) and 17 (classifiers). At every step t
client c plays the mixture (omega_t, pi_{t,c}), is judged by what it then receives, and

    omega~, pi~_c  =  K steps of federated EM on this step's samples, from omega_t and equal weights
    omega_{t+1}    =  t / (t + 1) omega_t + 1 / (t + 1) omega~
    pi_{t+1,c}     ~  pi_{t,c} exp(-eta g_c),    g_c its loss's gradient if (omega_{t+1}, pi~_c) is true
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnout.core import random
from turnout.core.errors import UserError, unknown
from turnout.theory.mirror import floored, mirror_step
from turnout_studies.online.components import Components
from turnout_studies.online.em import federated_em, mixture_log_prob, weight_gradient
from turnout_studies.online.samples import Received, Samples
from turnout_studies.online.step_sizes import Anytime, Schedule, check_floor

AVERAGING = ("running_mean", "none", "ema")


class DivergedError(UserError):
    """What was learnt is no longer finite."""


class Played(NamedTuple):
    """What the clients announce."""

    components: Tensor  # [m, P]; [C, m, P] where each client has its own
    weights: Tensor  # [C, m]


@dataclass
class Learner:
    """The protocol: `play`, then `observe`, once a step; never the other way round, which would leak.

    >>> learner = FEMOMD(Gaussians(), initial_means, clients=20)
    >>> for received in stream:                                    # {client: [n, d]}
    ...     announced = learner.play()
    ...     learner.observe(received)
    """

    family: Components
    initial: Tensor  # [m, P]
    clients: int
    components: Tensor = field(init=False)
    weights: Tensor = field(init=False)  # [C, m]
    step: int = field(default=0, init=False)  # steps observed
    playing: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.initial.ndim != 2 or not len(self.initial):
            raise UserError(f"online.initial: shape {tuple(self.initial.shape)}; one row a source is needed")
        if self.clients < 1:
            raise UserError(f"online.clients: {self.clients} must be at least 1")
        if len(torch.unique(self.initial, dim=0)) < len(self.initial):
            raise UserError("online.initial: two sources begin alike and would never part; set them apart")
        self.components = self.initial
        self.weights = self._equal(self.clients)

    @property
    def sources(self) -> int:
        return len(self.initial)

    def _equal(self, clients: int) -> Tensor:
        return self.initial.new_full((clients, self.sources), 1 / self.sources)

    def play(self) -> Played:
        """What every client announces for this step."""
        self.playing = True
        return Played(self.components, self.weights)

    def observe(self, received: Received | Samples) -> None:
        """Learn from what came after the play; clients that received nothing keep their weights."""
        if not self.playing:
            raise UserError("online.observe: nothing has been played at this step; call play first")
        samples = received if isinstance(received, Samples) else Samples.of(received, self.clients)
        if len(samples.inputs) != self.clients:
            raise UserError(f"online.observe: samples of {len(samples.inputs)} clients; there are {self.clients}")
        if not samples.counts.any():
            raise UserError("online.observe: nobody received a sample; skip the step")
        for kind in (samples.inputs, samples.targets):
            if kind.is_floating_point() and not bool(torch.isfinite(kind).all()):
                raise UserError("online.observe: samples contain NaN or infinity; clean the data first")
        self.step, self.playing = self.step + 1, False
        self.learn(samples)
        if not all(bool(torch.isfinite(part).all()) for part in (self.components, self.weights)):
            raise DivergedError(
                f"online.lr: it has diverged, nothing finite is left to play after step {self.step}; lower it"
            )

    def learn(self, samples: Samples) -> None:
        """Find components and weights to play next."""
        raise NotImplementedError

    def join(self, count: int = 1) -> None:
        """Clients that are new have equal weights; for the others nothing changes."""
        self.weights = torch.cat([self.weights, self._equal(count)])
        self.clients += count

    def ask(self, question: Callable[[Tensor, Samples], Tensor], components: Tensor, samples: Samples) -> Tensor:
        """What the family says of every client's samples."""
        return question(components, samples)

    def log_prob(self, samples: Samples) -> Tensor:
        """`[C, n]` logarithm of the density that each client plays."""
        return mixture_log_prob(self.ask(self.family.log_prob, self.components, samples), self.weights)

    def predict(self, samples: Samples) -> Tensor:
        """`[C, n, Y]` logarithm of the class probabilities that each client plays: their mixture."""
        return mixture_log_prob(self.ask(self.family.label_log_prob, self.components, samples), self.weights)

    def state_dict(self) -> dict[str, Tensor]:
        """All that changes, as tensors: with the same options the run goes on from it, bit for bit."""
        return {part.name: torch.as_tensor(getattr(self, part.name)) for part in fields(self) if not part.init}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state_dict`."""
        for name, value in state.items():
            setattr(self, name, value if value.ndim else value.item())
        self.clients = len(self.weights)


@dataclass
class FEMOMD(Learner):
    """`gradient`: the expectation is over draws of the estimated mixture (`model`), over the samples received
    (`samples`), or over all labels at the inputs received (`labels`). `averaging` over time: the `running_mean` suits
    an EM that jumps to its optimum, and stifles gradient steps, which want `none`; `ema` keeps `ema_decay` a step.
    `sample_splitting` gives each of the `em_steps` samples of its own, where every client has enough.
    """

    em_steps: int = 5
    omd_lr: Schedule = field(default_factory=Anytime)
    weight_floor: float = 0.01
    gradient: str | None = None  # the family's own way
    averaging: str | None = None
    ema_decay: float = 0.9
    sample_splitting: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.em_steps < 1:
            raise UserError(f"online.em_steps: {self.em_steps} must be at least 1: without EM nothing is estimated")
        check_floor(self.weight_floor, self.sources)
        if not 0 <= self.ema_decay < 1:
            raise UserError(f"online.ema_decay: {self.ema_decay} must be at least 0 and below 1")
        self.gradient = self.gradient or self.family.gradients[0]
        self.averaging = self.averaging or self.family.averaging
        if self.gradient not in self.family.gradients:
            raise unknown("online.gradient", self.gradient, self.family.gradients)
        if self.averaging not in AVERAGING:
            raise unknown("online.averaging", self.averaging, AVERAGING)

    def learn(self, samples: Samples) -> None:
        estimates, em_weights = self.fit(samples)
        self.components = self.components + self._rate() * (estimates - self.components)
        weights = floored(self.foretell(em_weights, samples), self.weight_floor)
        self.weights = torch.where(samples.counts[:, None] > 0, weights, self.weights)

    def fit(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """omega~ and pi~: this step's samples explained."""
        return federated_em(self.family, self.components, samples, self.em_steps, self._splits(samples))

    def foretell(self, em_weights: Tensor, samples: Samples) -> Tensor:
        """`[C, m]` pi_{t+1} from pi~, with the components of t + 1."""
        log_prob, counted = self._points(em_weights, samples)
        gradient = weight_gradient(log_prob, self.weights, counted)
        return mirror_step(self.weights, gradient, self.omd_lr(self.step, self.sources))

    def _points(self, em_weights: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
        """`[C, N, m]` log densities at the points of the gradient's expectation, and `[C, N]` what each counts."""
        if self.gradient == "labels":
            log_prob = self.ask(self.family.label_log_prob, self.components, samples)  # [C, n, Y, m]
            counted = samples.counted[..., None] * mixture_log_prob(log_prob, em_weights).exp()
            return log_prob.flatten(1, 2), counted.flatten(1)
        if self.gradient == "model":
            keys = random.key(self.seed, "online draws", np.arange(self.clients), self.step)
            samples = self.family.sample(self.components, em_weights, keys, samples.counted.shape[1])
        return self.ask(self.family.log_prob, self.components, samples), samples.counted

    def _rate(self) -> float:
        """How far the components move to this step's estimates."""
        return {"running_mean": 1 / (self.step + 1), "none": 1.0, "ema": 1 - self.ema_decay}[str(self.averaging)]

    def _splits(self, samples: Samples) -> bool:
        if not self.sample_splitting:
            return False
        fewest = int(samples.counts[samples.counts > 0].min())
        if fewest < self.em_steps:
            warnings.warn(
                f"a client has {fewest} samples for {self.em_steps} EM steps: they are not split", stacklevel=4
            )
        return fewest >= self.em_steps
