"""HybridFL: edges wake enough clients for the losses they expect; the first quota of models anywhere closes the round.

Wu, He, Lin, Mao, "Accelerating federated learning over reliability-agnostic clients in mobile edge computing systems",
IEEE Transactions on Parallel and Distributed Systems 2021; Wu's thesis (Warwick), chapter 4, algorithm 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from turnout.algorithms._regional import Regional
from turnout.core.allowed import Fraction
from turnout.core.random import FloatArray, IntArray
from turnout.server.server import Server
from turnout.server.updates import Updates
from turnout.theory.slack import Counts, Estimator, Ledger, Slack, estimator, quota, woken


@dataclass
class HybridFL(Regional):
    """Edges, then at once the cloud, over the models submitted, EDC_r the samples behind those of region r:

        w_r <- sum_k n_k / |D_r| w_k + (1 - EDC_r / |D_r|) w_r          w <- sum_r EDC_r / EDC w_r

    Who did not submit counts as its region's last model (`idle_fallback` global: as the last global one). A round
    closes at ceil(`fraction` N) models, or at the deadline. `slack` names the estimator of the share theta_r of a
    region's clients that survive, `theta_init` at first: ceil(`fraction` N_r / theta_r) of them are woken. Slow regions
    may have no model among the first, which is logged. Edges keep counts and no names. With `count_late` and `oracle_q`
    whoever is late works on and says when it is done, unless it is selected again; else the late are told to stop.
    The history has the theta_r that a round began with, `theta_0`, `theta_1`, ...
    """

    slack: Estimator = "count_late"  # how survivors are estimated
    theta_init: Fraction = 0.5  # share of a region's clients that is first thought to survive
    idle_fallback: Literal["regional", "global"] = "regional"  # whose last model who did not submit counts as
    estimator: Slack = field(init=False, repr=False)
    ledger: Ledger = field(default_factory=Ledger, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.estimator = estimator(self.slack, self.theta_init)

    def begin(self, server: Server) -> None:
        super().begin(server)
        self.estimator.begin(self.fraction, len(self.models))

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            self.learn(server)
            size = self.sizes(server)
            selected = self.select(server, size)
            until = server.now + self.limit(server, selected)
            server.invite(selected, self.local)
            enough = quota(self.fraction, int(size.sum()))
            updates = self.gather(server, selected, enough)
            full = len(updates) == enough
            if not (full and self.estimator.counts_late):
                server.cancel(selected)
                until = server.now
            self.write_down(server, until, size, selected, updates, full)
            self.reach_cloud(server)
            self.aggregate(server, server.finite(updates))

    def learn(self, server: Server) -> None:
        """Hear late survivors; estimate theta_r from the rounds whose windows have passed."""
        late = server.wait(seconds=0)
        self.ledger.ping(late.versions, self.region[late.clients], late.arrived_at)
        for counts in self.ledger.close(server.now):
            self.estimator.observe(counts)
        server.note(
            **{f"theta_{name}": float(theta) for name, theta in zip(self.names, self.estimator.theta, strict=True)}
        )

    def select(self, server: Server, size: IntArray) -> IntArray:
        """C_r N_r clients of each region; those still at work on an older model drop that."""
        selected = self.draw(server, woken(self.fraction, self.estimator.theta, size))
        dropped = server.cancel(selected)
        self.ledger.withdraw(dropped.versions, self.region[dropped.clients])
        return selected

    def write_down(
        self, server: Server, until: float, size: IntArray, selected: IntArray, updates: Updates, full: bool
    ) -> None:
        """The counts of a round that has closed, and who had no part in it."""
        told, came = (np.bincount(self.region[ids], minlength=len(size)) for ids in (selected, updates.clients))
        self.ledger.open(server.version, until, Counts(size, told, came, came, full))
        for number in np.flatnonzero((told > 0) & (came == 0)).tolist() if full else []:
            server.log("region_starved", region=int(self.names[number]))

    def aggregate(self, server: Server, updates: Updates) -> None:
        """(4.19) to (4.22)."""
        samples, region = server.importance[updates.clients], self.region[updates.clients]
        covered = np.bincount(region, samples, minlength=len(self.models))  # EDC_r
        if not covered.any():
            server.log("empty_round")
            server.publish(server.model, updates, np.zeros(len(updates)))
            return
        whole = np.maximum(self.samples(server), 1e-300)  # |D_r|
        before = self.models if self.idle_fallback == "regional" else server.model
        self.take_in(server, updates, samples / whole[region], 1 - covered / whole, before)
        weights: FloatArray = covered / covered.sum()
        server.publish(self.over_regions(weights), updates, weights[region] * samples / whole[region])
