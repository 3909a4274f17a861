"""Clients that do not send what they computed: free-riders, who have nothing to send, and attackers, who harm.

Fraboni, Vidal, Lorenzi, "Free-rider attacks on model aggregation in federated learning", AISTATS 2021; Baruch, Baruch,
Goldberg, "A little is enough: circumventing defenses for distributed learning", NeurIPS 2019; Blanchard et al.,
"Machine learning with adversaries: Byzantine tolerant gradient descent", NeurIPS 2017 (Gaussian noise, signs flipped).

    >>> people = replace(people, behaviour=behaviour.DisguisedDecay(share=0.2))

Only the update is forged: what else the work sends or keeps (control variates, reports) is what an honest client would
have. A lie is told with the invitation, and depends on what its clients know then: the models that they were sent, what
they would have computed, and what others of them computed who were invited with them. Attacks on samples (labels
flipped, a backdoor) are kinds of damage in `turnout.clients.quality`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from turnout.clients.columns import check_members
from turnout.core import random
from turnout.core.allowed import Count, NotNegative, Positive, Share, WholeNumber
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt

if TYPE_CHECKING:
    from turnout.server.updates import Updates

Estimator = Literal["rms", "mean_abs"]


@dataclass
class Behaviour(Spelt):
    """Who lies: these `clients`, or a `share` of all, drawn by the population's seed. Each declares `declared_samples`
    (as many as it was dealt unless given), which its importance follows. Before round `begins` all are honest. Fields
    with `init=False` are state, as those of an algorithm.
    """

    section: ClassVar[str] = "behaviour"
    invents: ClassVar[bool] = False  # whether it sends something without a look at what it should have computed

    clients: list[int] | None = field(default=None, kw_only=True)  # ids of those who lie; none: a share of all
    share: Share | None = field(default=None, kw_only=True)  # of the clients that lies, drawn by the seed
    declared_samples: Count | None = field(default=None, kw_only=True)  # samples each says it has; none: what it has
    begins: WholeNumber = field(default=0, kw_only=True)  # first round in which they lie
    liars: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # in order
    seed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if (self.clients is None) == (self.share is None):
            raise UserError("behaviour: say who lies with either behaviour.clients or behaviour.share")

    def who(self, clients: int, seed: int) -> IntArray:
        """The liars among so many clients, in order."""
        if self.clients is None:
            count = round((self.share or 0.0) * clients)
            return np.sort(random.permutation(random.key(seed, "liars"), clients)[:count])
        return np.unique(check_members("behaviour.clients", self.clients, clients))

    def declared(self, counts: IntArray, seed: int) -> IntArray:
        """`[N]` the samples that clients say they have."""
        if self.declared_samples is None:
            return counts
        said = counts.copy()
        said[self.who(len(counts), seed)] = self.declared_samples
        return said

    def begin(self, clients: int, seed: int) -> None:
        """Before the first round."""
        self.liars, self.seed = self.who(clients, seed), seed

    def lies(self, clients: IntArray, version: int) -> NDArray[np.bool_]:
        """Which of these clients lie in that round."""
        if version < self.begins or not len(self.liars):
            return np.zeros(len(clients), bool)
        place = np.minimum(np.searchsorted(self.liars, clients), len(self.liars) - 1)
        return np.asarray(self.liars[place] == clients)

    def respond(self, updates: Updates, honest: Tensor, invited: int) -> Tensor:
        """`[k, P]` what the liars of an invitation of so many clients send in place of their honest updates `[k, P]`;
        of `updates` they know all but the vectors."""
        raise NotImplementedError

    def noise(self, updates: Updates, like: Tensor) -> Tensor:
        """`[k, P]` standard normal, a draw of its own for each client and job."""
        keys = random.key(self.seed, "lie", updates.clients, updates.numbers)
        return torch.as_tensor(random.normal(keys, like.shape[1])).to(like)


def nobody() -> None:
    """Everybody sends what it computed."""


def _column(values: FloatArray, like: Tensor) -> Tensor:
    return torch.as_tensor(values).to(like)[:, None]


# -- free-riders ------------------------------------------------------------------------------------------------


@dataclass
class FreeRider(Behaviour):
    """Sends back the model as it came; the others disguise that with noise."""

    invents = True

    def respond(self, updates: Updates, honest: Tensor, invited: int) -> Tensor:
        levels = self.levels(updates)
        return _column(levels, honest) * self.noise(updates, honest) if levels.any() else torch.zeros_like(honest)

    def levels(self, updates: Updates) -> FloatArray:
        """`[k]` phi: the standard deviation of the noise that each adds."""
        return np.zeros(len(updates))


@dataclass
class DisguisedConstant(FreeRider):
    """Noise of the same standard deviation `std` in every round."""

    std: Positive = 1e-3  # standard deviation of the noise

    def levels(self, updates: Updates) -> FloatArray:
        return np.full(len(updates), self.std)


@dataclass
class DisguisedSGDLike(FreeRider):
    """Noise as large as that of local SGD on a quadratic loss, of which it guesses `curvature` and `grad_noise`.

    The latter is sigma, the standard deviation of a sample's gradient. SGD as an Ornstein-Uhlenbeck process over n
    steps with batches of S samples, kappa the curvature and FedProx's pull together, has

        phi^2 = lr sigma^2 / (2 S kappa) (1 - exp(-2 lr kappa n)).
    """

    curvature: Positive = 1.0  # of the loss, as they guess it
    grad_noise: Positive = 1.0  # standard deviation of a sample's gradient, as they guess it

    def levels(self, updates: Updates) -> FloatArray:
        variances = []
        for job in updates.jobs:
            work = job.work.bind(job.options)
            lr = float(work.lr * work.lr_factor(job.version))
            steps = float(work.num_steps(job.samples))
            kappa = self.curvature + work.pull
            kept = math.exp(-lr * kappa * steps)
            variances.append(lr * self.grad_noise**2 / (2 * work.batch_size * kappa) * (1 - kept**2))
        return np.sqrt(variances)


@dataclass
class DisguisedDecay(FreeRider):
    """Noise of `scale * sigma * max(t, 1)^-decay`, but at least `floor`.

    sigma is what the first two models that a rider is sent differ by: the root mean square of the entries, or their
    mean absolute value, which the authors' code takes (`estimator`). Until then the noise is `first_std`. t is the
    round, or where `clock` is job the rider's how-many-eth job, for servers that do not work in rounds.
    """

    scale: Positive = 1.0  # of the noise, in units of what the first two models differ by
    decay: NotNegative = 1.0  # power of the round by which the noise falls
    first_std: NotNegative = 1e-3  # of the noise until two models are known
    floor: NotNegative = 0.0  # least standard deviation of the noise
    estimator: Estimator = "rms"  # how the difference of two models is measured
    clock: Literal["round", "job"] = "round"  # what the noise falls with
    first: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)  # [liars, P] model; NaN: none yet
    sigma: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [liars]; 0: not known

    def begin(self, clients: int, seed: int) -> None:
        super().begin(clients, seed)
        self.first, self.sigma = torch.zeros(0, 0), np.zeros(len(self.liars))

    def levels(self, updates: Updates) -> FloatArray:
        rows = np.searchsorted(self.liars, updates.clients)
        self._calibrate(rows, updates.received())
        t = updates.versions if self.clock == "round" else updates.numbers
        decayed = self.scale * self.sigma[rows] * np.maximum(t, 1.0) ** -self.decay
        return np.maximum(np.where(self.sigma[rows] > 0, decayed, self.first_std), self.floor)

    def _calibrate(self, rows: IntArray, received: Tensor) -> None:
        if not len(self.first):
            self.first = received.new_full((len(self.liars), received.shape[1]), torch.nan)
        known = self.first[rows]
        change = estimate(received - known, self.estimator)
        self.sigma[rows] = np.where(self.sigma[rows] > 0, self.sigma[rows], np.nan_to_num(change))
        self.first[rows] = torch.where(known.isnan(), received, known)


def estimate(change: Tensor, estimator: Estimator = "rms") -> FloatArray:
    """`[k]` the standard deviation of a zero-mean Gaussian fitted to the entries of each row."""
    size = change.square().mean(1).sqrt() if estimator == "rms" else change.abs().mean(1)
    return np.asarray(size.double().cpu().numpy())


@dataclass
class Replay(Behaviour):
    """Sends `scale` times what the model changed by since it was last sent it: the direction is right, nothing is new.

    The first time it sends nothing."""

    invents = True

    scale: float = 1.0  # times the last change of the model
    last: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)  # [liars, P] model; NaN: none yet

    def begin(self, clients: int, seed: int) -> None:
        super().begin(clients, seed)
        self.last = torch.zeros(0, 0)

    def respond(self, updates: Updates, honest: Tensor, invited: int) -> Tensor:
        rows, received = np.searchsorted(self.liars, updates.clients), updates.received()
        if not len(self.last):
            self.last = received.new_full((len(self.liars), received.shape[1]), torch.nan)
        change = torch.nan_to_num(received - self.last[rows])
        self.last[rows] = received
        return self.scale * change


# -- attackers --------------------------------------------------------------------------------------------------


@dataclass
class SignFlip(Behaviour):
    """Sends `factor` times what it computed: -1 flips the sign, a large one lets poisoned samples take over."""

    factor: float = -1.0  # times what it computed

    def respond(self, updates: Updates, honest: Tensor, invited: int) -> Tensor:
        return self.factor * honest


@dataclass
class GaussianNoise(Behaviour):
    """Noise, about `scale` times as long as what it computed."""

    scale: Positive = 1.0  # length of the noise, in lengths of what it computed

    def respond(self, updates: Updates, honest: Tensor, invited: int) -> Tensor:
        return _column(self.scale * estimate(honest), honest) * self.noise(updates, honest)


@dataclass
class LittleIsEnough(Behaviour):
    """Sends mean - z * std of what all liars of the invitation computed: a shift so small that it hides.

    Coordinate by coordinate, and with n invited and m liars z is the paper's,

        z = quantile of (n - m - s) / (n - m),    s = floor(n / 2 + 1) - m,

    unless given. A liar invited alone has no company to learn the spread from, and sends what it computed.
    """

    z: float | None = None  # standard deviations from the mean; none: what the paper says

    def respond(self, updates: Updates, honest: Tensor, invited: int) -> Tensor:
        spread = honest.std(0, correction=0)
        return (honest.mean(0) - self.deviations(invited, len(honest)) * spread).expand_as(honest)

    def deviations(self, invited: int, liars: int) -> float:
        """z."""
        if self.z is not None:
            return self.z
        others = max(1, invited - liars)
        supporters = invited // 2 + 1 - liars
        return float(ndtri(np.clip((others - supporters) / others, 0.5, 1 - 1e-9)))
