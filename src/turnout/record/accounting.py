"""How much privacy a run has spent so far: the (epsilon, delta) of the noise added, round by round.

Mironov, "Renyi differential privacy", CSF 2017, by the accountant of Google's `dp-accounting` package. Composed are

- of central noise: one Gaussian event a step. With `privacy.amplified` it is sampled: Poisson where every client has a
  coin of its own (binomial, poisson_binomial), without replacement for uniform and fill where everybody can always be
  reached. There one client is replaced by another, which moves the sum twice as far.
- of local noise: one Gaussian event an upload, for the client that has sent most. Any two updates are neighbours: they
  are at most 2 C apart once clipped to C, and nobody needs to trust the server.

A run that is resumed is charged for the rounds that may have been computed and lost, too: of local noise, for as many
uploads in each as one client ever had in a round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.imports import extra, optional
from turnout.core.random import IntArray
from turnout.local.transforms import Clip, Noise
from turnout.sampling._sampler import Independent
from turnout.sampling.fill import Fill
from turnout.sampling.uniform import Uniform
from turnout.server.jobs import ARRIVED
from turnout.server.observer import Observer, Round
from turnout.server.privacy import Privacy, foreign, promised_noise

if TYPE_CHECKING:
    from turnout.server.server import Server

ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 256)  # of sampled events: whole ones are fast to compute


def accounting() -> Any:
    """The package, or a sentence that says how to get it."""
    return optional("privacy", "dp_accounting", extra("privacy"))


class Accounting(Observer):
    """Spends one event for everything that is released."""

    def __init__(self, delta: float) -> None:
        self.delta, self.epsilon = delta, 0.0
        self.spent = self.lost = 0  # events; of rounds that may have been computed before a resume
        self.words = ""  # what is composed
        self.assumes = ""  # what only the author of an algorithm knows

    def begin(self, event: Any, relation: Any, words: str) -> None:
        package = accounting()
        self._event, self.words = event, words
        orders = None if isinstance(event, package.GaussianDpEvent) else ORDERS
        self._accountant = package.rdp.RdpAccountant(orders, relation)
        self._composed = 0
        self.spend(self.spent)  # before a resume

    def lose(self, rounds: int) -> None:
        """So many rounds may have been computed and lost: each may have released something."""
        self.lost += rounds

    def spend(self, events: int) -> float:
        """Epsilon after that many events in all."""
        self.spent = events
        if events + self.lost > self._composed:
            self._accountant.compose(self._event, events + self.lost - self._composed)
            self._composed = events + self.lost
            self.epsilon = float(self._accountant.get_epsilon(self.delta))
        return self.epsilon

    @property
    def findings(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"private": True, "epsilon": self.epsilon, "delta": self.delta}
        facts |= {"events": self.spent + self.lost, "of": self.words}
        return facts | ({"assumes": self.assumes} if self.assumes else {})

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"spent": self.spent, "lost": self.lost}, {}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.spent, self.lost = facts["spent"], facts["lost"]


class CentralAccounting(Accounting):
    """Of the noise in every step of the server: versions are counted by them."""

    columns: ClassVar[tuple[str, ...]] = ("epsilon",)

    def __init__(self, settings: Privacy) -> None:
        super().__init__(settings.delta)
        self.settings = settings

    def on_start(self, server: Server) -> None:
        package, noise = accounting(), self.settings.noise
        if foreign(server.algorithm):
            name = type(server.algorithm).__name__
            self.assumes = f"{name} takes nothing from clients but the sums of its steps, as it says of itself"
        relations, gaussian = package.NeighboringRelation, package.GaussianDpEvent(noise)
        if not self.settings.amplified:
            return self.begin(gaussian, relations.REPLACE_SPECIAL, f"gaussian({noise:g})")
        sampler, people = getattr(server.algorithm, "sampler", None), server.population
        rules = (getattr(server.algorithm, name, None) for name in ("normalise", "wait_for"))
        alone = tuple(rules) == ("invited", None)  # no weight depends on who else takes part
        if alone and people.adversary is None and isinstance(sampler, Independent):
            rate = float(sampler.moments(server)[2].max())
            event = package.PoissonSampledDpEvent(rate, gaussian)
            return self.begin(event, relations.ADD_OR_REMOVE_ONE, f"poisson_sampled({rate:g}, gaussian({noise:g}))")
        if alone and people.reliable and isinstance(sampler, Uniform | Fill):
            n, m = int(np.count_nonzero(server.importance)), sampler.size(people)
            event = package.SampledWithoutReplacementDpEvent(n, m, package.GaussianDpEvent(noise / 2))
            words = f"sampled_without_replacement({m} of {n}, gaussian({noise / 2:g}))"
            return self.begin(event, relations.REPLACE_ONE, words)
        raise UserError(
            "privacy.amplified: it holds for samplers binomial and poisson_binomial, and for uniform and fill where "
            "everybody can always be reached, with weights that depend on nobody else; leave it out"
        )

    def on_round(self, server: Server, record: Round) -> None:
        record.facts["epsilon"] = self.spend(server.version)


class LocalAccounting(Accounting):
    """Of the noise in every update, for the client that has sent most."""

    columns: ClassVar[tuple[str, ...]] = ("local_epsilon",)

    def __init__(self, clip: Clip, noise: Noise, delta: float) -> None:
        super().__init__(delta)
        self.multiplier = noise.std / (2 * clip.norm)
        self.uploads: IntArray = np.zeros(0, np.int64)  # [N]
        self.busiest = 1  # uploads of one client in a round, at most so far

    def on_start(self, server: Server) -> None:
        package = accounting()
        event, relation = package.GaussianDpEvent(self.multiplier), package.NeighboringRelation.REPLACE_ONE
        self.begin(event, relation, f"gaussian({self.multiplier:g})")
        if not server.begun:
            self.uploads = np.zeros(server.population.size, np.int64)

    def on_round(self, server: Server, record: Round) -> None:
        sent = [job.client for job in record.jobs if job.outcome == ARRIVED and not job.logged]
        new = np.bincount(np.array(sent, np.int64), minlength=len(self.uploads))
        self.uploads, self.busiest = self.uploads + new, max(self.busiest, int(new.max(initial=0)))
        record.facts["local_epsilon"] = self.spend(int(self.uploads.max(initial=0)))

    def lose(self, rounds: int) -> None:
        super().lose(rounds * self.busiest)

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return super().save()[0] | {"busiest": self.busiest}, {"uploads": torch.as_tensor(self.uploads)}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load(facts, tensors)
        self.uploads, self.busiest = tensors["uploads"].numpy().copy(), facts["busiest"]


NOT_PRIVATE = {"private": False, "why": "a seed of the noise was given: whoever knows it can take the noise off"}


def accountants(server: Server, settings: Privacy | None) -> tuple[dict[str, Accounting], dict[str, dict[str, Any]]]:
    """Who counts, by the kind of noise; and what is to be said of noise that hides nothing."""
    local = promised_noise(server)
    if settings is not None and not settings.noise and local is None:
        raise UserError(
            "privacy.noise: 0 hides nothing; give a noise multiplier, or local noise with local.modifiers=clip,noise"
        )
    found: dict[str, tuple[int | None, Accounting]] = {}  # with the seed of the noise
    if server.privacy is not None:
        found["central"] = server.privacy.noise_seed, CentralAccounting(server.privacy)
    if local is not None:
        found["local"] = local[1].seed, LocalAccounting(*local, (settings or Privacy()).delta)
    counting = {kind: one for kind, (seed, one) in found.items() if seed is None}
    return counting, {kind: NOT_PRIVATE for kind in found if kind not in counting}
