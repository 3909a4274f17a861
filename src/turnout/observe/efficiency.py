"""How well clients' work is used: the measures of the SAFA thesis (Wu, Warwick, chapters 1 and 3), for any algorithm.

A round's row of the history gets

    eur, eur_with_bypass        updates used a client: those that arrived in this round, and also those from before
    sync_ratio                  models sent a client
    version_variance            of the versions that the jobs which arrived in this round began from
    work_assigned, work_lost    jobs begun, and how much of a job was later thrown away unfinished
    distribution_seconds        the server's own time to send its models
    round_seconds
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from turnout.observe.observer import Observer, Round
from turnout.server.updates import ARRIVED

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.updates import Job

_MEANS = ("eur", "eur_with_bypass", "sync_ratio", "version_variance", "round_seconds", "distribution_seconds")
_SUMS = ("work_assigned", "work_lost", "bytes_down", "bytes_up")


class Efficiency(Observer):
    """Adds its columns to every round; `findings` sums them up."""

    def __init__(self) -> None:
        self._rounds, self._closed_at = 0, 0.0
        self._totals = dict.fromkeys((*_MEANS, *_SUMS, "finished_seconds", "forced_seconds"), 0.0)
        self._sent, self._assigned, self._lost, self._distribution = 0, 0, 0.0, 0.0  # in this round
        self._unfinished: dict[int, float] = {}  # progress of interrupted jobs, by client
        self._forced: set[int] = set()  # clients whose present job began with a model sent over unfinished work

    def on_invite(self, server: Server, jobs: Sequence[Job]) -> None:
        self._assigned += len(jobs)
        self._distribution += (jobs[0].starts_at - jobs[0].sent_at) / server.population.ticks_per_second
        for job in jobs:
            if job.sent:
                self._sent += 1
                if job.client in self._unfinished:
                    self._lost += self._unfinished.pop(job.client)
                    self._forced.add(job.client)

    def on_round(self, server: Server, record: Round) -> None:
        keeps = server.algorithm.clients_keep != "nothing"
        fresh = [job for job in record.jobs if not job.logged]
        for job in fresh:
            if job.outcome == ARRIVED:
                self._totals["finished_seconds"] += job.seconds[1]
                self._totals["forced_seconds"] += job.seconds[1] * (job.client in self._forced)
            elif keeps:
                self._unfinished[job.client] = job.progress
            else:
                self._lost += job.progress
            self._forced.discard(job.client)
        used = record.weights != 0
        new = np.array([not job.logged for job in record.jobs], bool)
        arrived = [job.version for job in fresh if job.outcome == ARRIVED]
        clients = server.population.size
        record.facts |= {
            "eur": float((used & new).sum()) / clients,
            "eur_with_bypass": float(used.sum()) / clients,
            "sync_ratio": self._sent / clients,
            "version_variance": float(np.var(arrived)) if arrived else 0.0,
            "work_assigned": float(self._assigned),
            "work_lost": self._lost,
            "distribution_seconds": self._distribution,
            "round_seconds": record.time - self._closed_at,
        }
        for name in (*_MEANS, *_SUMS):
            self._totals[name] += record.facts[name]
        self._rounds, self._closed_at = self._rounds + 1, record.time
        self._sent, self._assigned, self._lost, self._distribution = 0, 0, 0.0, 0.0

    @property
    def findings(self) -> dict[str, float]:
        """Means over the rounds, sums of bytes and work, and

        `futility`: the share of the work assigned that was lost; `futility_legacy`: the share of the time of finished
        jobs that began with a forced overwrite, which is what the published tables show for SAFA.
        """
        totals, rounds = self._totals, max(1, self._rounds)
        return {
            **{name: totals[name] / rounds for name in _MEANS},
            **{name: totals[name] for name in _SUMS},
            "futility": totals["work_lost"] / max(1.0, totals["work_assigned"]),
            "futility_legacy": totals["forced_seconds"] / (totals["finished_seconds"] or 1.0),
        }

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        facts = {name: getattr(self, name) for name in vars(self) if name not in ("_unfinished", "_forced")}
        return facts | {"_unfinished": list(self._unfinished.items()), "_forced": sorted(self._forced)}, {}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        vars(self).update(facts)
        self._unfinished = {int(client): progress for client, progress in facts["_unfinished"]}
        self._forced = set(facts["_forced"])
