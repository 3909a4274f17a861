"""Central differential privacy: updates are clipped, their weights bounded, and noise is added to the sum of a step.

McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", ICLR 2018:

    change = sum_i w_i u_i min(1, C / |u_i|) + N(0, (z C w)^2 I),    w the largest weight a client may have

Two runs are neighbours if all updates of one client are zero in one of them: a step then differs by at most C w.
Protected are the models that the server shows; the run's own record (jobs, measures, checkpoints) is not for others.

Parts of a run say of themselves whether they look at what single clients have; one that says nothing does. An algorithm
that takes nothing but the sum of a step from updates declares `reads_updates = False`; a sampler, or an adversary, that
chooses clients without a look at their data or updates declares `looks_at_data = False`. Only the class that says so is
believed, not what is derived from it: that may do otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from turnout.clients.population import Population
from turnout.core import random
from turnout.core.allowed import Finite, Positive, Range
from turnout.core.errors import UserError
from turnout.core.flat import clip_factors
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt
from turnout.local.sgd import LocalSGD
from turnout.local.transforms import Clip, Noise, noise_of
from turnout.sampling._sampler import Independent, Sampler
from turnout.sampling.fill import Fill
from turnout.sampling.full import Full
from turnout.sampling.uniform import Uniform
from turnout.server.updates import Updates

if TYPE_CHECKING:
    from turnout.algorithms._algorithm import Algorithm
    from turnout.server.law import Law
    from turnout.server.server import Server


@dataclass(frozen=True)
class Privacy(Spelt):
    """`noise` is z and `clip` is C; without noise nothing is done to the sum. `max_weight` is w: what all updates of a
    client together count at most in a step, by default the largest weight that the sampler gives.

    `delta` is that of the (epsilon, delta) reported. `amplified` counts on it that nobody knows who was sampled: keep
    `run.seed` secret. A `noise_seed` makes the noise, and the run, reproducible: then nothing is private.
    """

    section: ClassVar[str] = "privacy"

    noise: Finite = 0.0  # z: standard deviation of the noise, in clips; 0: none
    clip: Positive | None = None  # C: largest norm of an update
    max_weight: Positive | None = None  # of a client in a step; none: the sampler's largest
    delta: Annotated[float, Range(above=0, below=1)] = 1e-5  # of the (epsilon, delta) reported
    amplified: bool = False  # whether it counts that nobody knows who was sampled
    noise_seed: int | None = None  # makes the noise reproducible: nothing is private; none: it is

    def __post_init__(self) -> None:
        if self.noise and self.clip is None:
            raise UserError("privacy.clip: missing; noise hides updates of a bounded norm")

    def bound_to(self, server: Server) -> Privacy:
        """Fill in `max_weight`, once it is known that nothing else reads the updates."""
        check_unseen(server)
        sampler = getattr(server.algorithm, "sampler", None)
        if self.max_weight is not None:
            return self
        if not isinstance(sampler, Full | Uniform | Fill | Independent):
            raise UserError("privacy.max_weight: missing; say how much the updates of one client may count in a step")
        weight, _, inclusion, _, _ = sampler.moments(server)
        return replace(self, max_weight=float((weight[inclusion > 0] / inclusion[inclusion > 0]).max()))

    def bounded(self, clients: IntArray, weights: FloatArray) -> FloatArray:
        """Scale weights down where those of one client are more than `max_weight` together."""
        assert self.max_weight is not None
        names, place = np.unique(clients, return_inverse=True)
        total = np.bincount(place, np.abs(weights), len(names))
        scale = np.minimum(1.0, self.max_weight / np.maximum(total, np.finfo(float).tiny))
        return np.asarray(weights * scale[place])

    def noised_sum(self, updates: Updates, weights: FloatArray, model: Tensor, version: int) -> Tensor:
        """Add clipped updates and noise up, `[P]`; no update is a sum, too."""
        assert self.clip is not None
        assert self.max_weight is not None
        size = len(model)
        if self.noise_seed is None:
            noise = random.secret_normal(size)
        else:
            noise = random.normal(random.key(self.noise_seed, "central noise", version), size)
        total = torch.from_numpy(self.noise * self.clip * self.max_weight * noise).to(model)
        if not len(updates):
            return total
        return total + updates.weighted_sum(weights * clip_factors(updates.deltas, self.clip).double().cpu().numpy())


def prying(algorithm: Algorithm, population: Population) -> dict[str, str]:
    """Name parts that may look at single clients, such as `sampler Oort`, with the word by which one says otherwise."""
    samplers = [part for part in vars(algorithm).values() if isinstance(part, Sampler)]
    adversaries = [] if population.adversary is None else [population.adversary]
    found: dict[str, tuple[object, str]] = {f"algorithm {type(algorithm).__name__}": (algorithm, "reads_updates")}
    for kind, parts in (("sampler", samplers), ("adversary", adversaries)):
        found |= {f"{kind} {type(part).__name__}": (part, "looks_at_data") for part in parts}
    return {name: word for name, (part, word) in found.items() if vars(type(part)).get(word, True)}


def foreign(algorithm: Algorithm) -> bool:
    """Tell whether only its author knows what an algorithm does."""
    return not type(algorithm).__module__.startswith("turnout.")


def check_unseen(server: Server) -> None:
    """Raise unless nothing but the sum of a step is known to come out of updates."""
    people = server.population
    if people.size != server.whole_population.size:
        name = type(server.algorithm).__name__
        raise UserError(f"privacy.noise: algorithm {name} pools the clients, and noise for a pool hides no one of them")
    for part, word in prying(server.algorithm, people).items():
        raise UserError(
            f"privacy.noise: {part} may take more from updates than their sum, which no noise hides; a class that does "
            f"not says so of itself: {word} = False"
        )
    check_summed(server.law)


def check_summed(law: Law) -> None:
    """Raise where a step takes more from updates than their sum."""
    for part in ("rule", "remember"):
        if getattr(law, part) is not None:
            raise UserError(
                f"privacy.noise: it hides the sum of a step, and `{part}` takes more from updates; leave it out"
            )


def promised_noise(server: Server) -> tuple[Clip, Noise] | None:
    """Find the local noise that every upload is said to carry."""
    local = getattr(server.algorithm, "local", None)
    return noise_of(local.transforms) if isinstance(local, LocalSGD) else None


def hides(server: Server) -> bool:
    """Tell whether noise, central or local, is to hide what the clients send."""
    return server.privacy is not None or promised_noise(server) is not None


def check_alone(work: LocalSGD, server: Server) -> None:
    """Raise where anything but the update is sent, or an update without its noise."""
    others = sorted(work.sends(server.task).keys() - {"delta"})
    if others:
        asked = ", ".join(others)
        raise UserError(f"privacy: noise hides updates, but this algorithm or sampler also asks clients for {asked}")
    tail = server.task.tail
    if tail is not None and tail.averaged > tail.learnt:
        raise UserError(
            "privacy: clients would send running statistics of their data, which no noise hides; take task.batchnorm "
            "frozen or batch, or local_statistics with unseen own, and task.buffers frozen"
        )
    if noise_of(work.transforms) != promised_noise(server):
        raise UserError(
            "privacy: clients are to add the noise of local.modifiers, but this algorithm asks for updates without it"
        )
