"""How well clients' work is used: the measures of the SAFA thesis (Wu, Warwick, chapters 1 and 3), for any algorithm.

A round's row of the history gets

    eur, eur_with_bypass        updates used a client: those that arrived in this round, and also those from before
    sync_ratio                  models sent a client
    version_variance            of the versions that the jobs which arrived in this round began from
    work_assigned, work_lost    jobs begun, and how much of a job was later thrown away unfinished
    missing_share               by importance, how much of the jobs that ended in this round brought no update, for
                                any reason
    missing_epsilon             M / K sum of p_i over those jobs, of the K that ended; M members (Su, Xu, Yang, 2023:
                                an estimate of that share of the population, above 1 where heavy clients are missing)
    distribution_seconds        the server's own time to send its models
    round_seconds
    energy_wh, wasted_wh        where the population says what devices draw: watt hours of the jobs that ended in it,
                                and of those among them that did not count: lost, cut short, or not used
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from turnout.clients.power import Power
from turnout.server.jobs import ARRIVED, together
from turnout.server.observer import Observer, Round

if TYPE_CHECKING:
    from turnout.server.jobs import Job
    from turnout.server.server import Server
    from turnout.server.stretch import Stretch


_MEANS = (
    "eur", "eur_with_bypass", "sync_ratio", "version_variance", "round_seconds", "distribution_seconds",
    "missing_share",
)  # fmt: skip
_SUMS = ("work_assigned", "work_lost", "bytes_down", "bytes_up")
_BY_CLIENT = ("_unfinished", "_present", "_forced")  # JSON has no integer keys


def _variance(values: list[int]) -> float:
    if len(set(values)) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


def _added(total: float, values: ArrayLike) -> float:
    """Add values to a total, one after the other."""
    return float(np.cumsum(np.append(total, values))[-1])


def _missing(server: Server, ended: list[Job]) -> tuple[float, float]:
    """`missing_share` and `missing_epsilon`. Reports do not count: they were to bring no update."""
    if all(job.outcome == ARRIVED for job in ended):
        return 0.0, 0.0
    asked = [job for job in ended if "delta" in job.work.payload_shapes(server.task)]
    weights = [float(server.importance[job.client]) for job in asked]
    missing = sum(weight for job, weight in zip(asked, weights, strict=True) if job.outcome != ARRIVED)
    if not missing:
        return 0.0, 0.0
    return missing / sum(weights), missing * int(np.count_nonzero(server.importance)) / len(asked)


class Efficiency(Observer):
    """Adds its columns to every round; `findings` sums them up."""

    columns = (*_MEANS, "missing_epsilon", "work_assigned", "work_lost")

    def __init__(self) -> None:
        self._rounds, self._closed_at, self._missing_share_max = 0, 0.0, 0.0
        self._totals = dict.fromkeys((*_MEANS, *_SUMS, "finished_seconds", "forced_seconds"), 0.0)
        self._sent, self._assigned, self._lost, self._distribution = 0, 0, 0.0, 0.0  # in this round
        # where clients keep unfinished work, by client:
        self._unfinished: dict[int, float] = {}  # how far an interrupted job got that nothing has followed yet
        self._present: dict[int, tuple[int, bool]] = {}  # number of its last job, and whether a model was sent for it
        self._forced: dict[int, int] = {}  # number of its last job that began with a model sent over unfinished work

    def on_invite(self, server: Server, jobs: Sequence[Job]) -> None:
        self._assigned += len(jobs)
        if together(jobs) is not None:  # sent at no cost of time, to clients that keep nothing
            self._sent += len(jobs)
            return
        self._distribution += (jobs[0].starts_at - jobs[0].sent_at) / server.population.ticks_per_second
        self._sent += sum(job.sent for job in jobs)
        if server.algorithm.clients_keep != "nothing":
            for job in jobs:
                self._present[job.client] = job.number, job.sent
                self._follow(job.client, self._unfinished.pop(job.client, 0.0))

    def _follow(self, client: int, progress: float) -> None:
        """The present job of a client follows one that was interrupted: it goes on with it, or overwrites it."""
        number, sent = self._present[client]
        if sent and progress:
            self._lost += progress
            self._forced[client] = number

    def on_round(self, server: Server, record: Round) -> None:
        crew = together(record.jobs)
        if crew is None:
            used, new, variance, missing, epsilon = self._looked_at(server, record)
        else:
            used = new = int(np.count_nonzero(record.weights))
            variance = missing = epsilon = 0.0
            order = np.argsort(crew.number, kind="stable")
            self._totals["finished_seconds"] = _added(self._totals["finished_seconds"], crew.seconds[order, 1])
        clients = server.population.size
        record.facts |= {
            "eur": new / clients,
            "eur_with_bypass": used / clients,
            "sync_ratio": self._sent / clients,
            "version_variance": variance,
            "work_assigned": float(self._assigned),
            "work_lost": self._lost,
            "distribution_seconds": self._distribution,
            "round_seconds": record.time - self._closed_at,
            "missing_share": missing,
            "missing_epsilon": epsilon,
        }
        self._missing_share_max = max(self._missing_share_max, record.facts["missing_share"])
        for name in (*_MEANS, *_SUMS):
            self._totals[name] += record.facts[name]
        self._rounds, self._closed_at = self._rounds + 1, record.time
        self._sent, self._assigned, self._lost, self._distribution = 0, 0, 0.0, 0.0

    def on_rounds(self, server: Server, stretch: Stretch) -> None:
        clients, facts, nothing = server.population.size, stretch.facts, np.zeros(len(stretch.times))
        first = np.array([1.0, *nothing[1:]])  # what there was before counts for the first
        sizes, used = np.diff(stretch.bounds), np.array(facts["used"])
        columns = {
            "eur": used / clients,
            "eur_with_bypass": used / clients,
            "sync_ratio": (sizes + first * self._sent) / clients,
            "version_variance": nothing,
            "work_assigned": sizes + first * self._assigned,
            "work_lost": first * self._lost,
            "distribution_seconds": first * self._distribution,
            "round_seconds": np.diff(stretch.times, prepend=self._closed_at),
            "missing_share": nothing,
            "missing_epsilon": nothing,
        }
        order = np.lexsort((stretch.number, stretch.round))
        if len(order) > len(sizes):
            versions = stretch.version[order].tolist()
            of_each = [_variance(versions[begin:end]) for begin, end in pairwise(stretch.bounds.tolist())]
            columns["version_variance"] = np.array(of_each)
        facts |= {name: column.tolist() for name, column in columns.items()}
        self._totals["finished_seconds"] = _added(self._totals["finished_seconds"], stretch.seconds[order, 1])
        for name in (*_MEANS, *_SUMS):
            self._totals[name] = _added(self._totals[name], facts[name])
        self._rounds, self._closed_at = self._rounds + len(sizes), stretch.times[-1]
        self._sent, self._assigned, self._lost, self._distribution = 0, 0, 0.0, 0.0

    def _looked_at(self, server: Server, record: Round) -> tuple[int, int, float, float, float]:
        """Of jobs one by one: how many updates were used, how many are new, variance, missing share and epsilon."""
        keeps = server.algorithm.clients_keep != "nothing"
        fresh = sorted([job for job in record.jobs if not job.logged], key=attrgetter("number"))
        finished, forced = self._totals["finished_seconds"], self._totals["forced_seconds"]
        for job in fresh:
            if job.outcome == ARRIVED:
                finished += job.seconds[1]
                forced += job.seconds[1] if self._forced.get(job.client) == job.number else 0.0
            elif not keeps:
                self._lost += job.progress
            elif self._present.get(job.client, (0, True))[0] > job.number:  # cancelled, and the client is at work again
                self._follow(job.client, job.progress)
            else:
                self._unfinished[job.client] = job.progress
        self._totals["finished_seconds"], self._totals["forced_seconds"] = finished, forced
        used = [job.logged for job, weight in zip(record.jobs, record.weights.tolist(), strict=True) if weight]
        arrived = [job.version for job in fresh if job.outcome == ARRIVED]
        return len(used), used.count(False), _variance(arrived), *_missing(server, fresh)

    @property
    def findings(self) -> dict[str, float]:
        """Means over the rounds, sums of bytes and work, the largest missing share of a round, and

        `futility`: the share of the work assigned that was lost; `futility_legacy`: the share of the time of finished
        jobs that began with a forced overwrite, which is what the published tables show for SAFA.
        """
        totals, rounds = self._totals, max(1, self._rounds)
        return {
            **{name: totals[name] / rounds for name in _MEANS},
            **{name: totals[name] for name in _SUMS},
            "missing_share_max": self._missing_share_max,
            "futility": totals["work_lost"] / max(1.0, totals["work_assigned"]),
            "futility_legacy": totals["forced_seconds"] / (totals["finished_seconds"] or 1.0),
        }

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        facts = {name: value for name, value in vars(self).items() if name not in _BY_CLIENT}
        return facts | {name: list(getattr(self, name).items()) for name in _BY_CLIENT}, {}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        vars(self).update(facts | {name: dict(facts[name]) for name in _BY_CLIENT})


class Energy(Observer):
    """Adds its columns to every round; `findings` sums them up."""

    columns = ("energy_wh", "wasted_wh")

    def __init__(self, power: Power) -> None:
        self._power = power
        self.findings = dict.fromkeys(self.columns, 0.0)

    def on_round(self, server: Server, record: Round) -> None:
        crew = together(record.jobs)
        if crew is None:
            ended = [row for row, job in enumerate(record.jobs) if not job.logged]
            clients = [record.jobs[row].client for row in ended]
            seconds = np.array([record.jobs[row].seconds for row in ended]).reshape(-1, 3)
        else:
            ended, clients, seconds = list(range(len(record.jobs))), crew.client.tolist(), crew.seconds
        down, compute, up = seconds.T
        spent = self._power.watt_hours(
            {"client": clients, "download_seconds": down, "compute_seconds": compute, "upload_seconds": up}
        )
        wasted = spent[record.weights[ended] == 0]
        record.facts |= {"energy_wh": float(spent.sum()), "wasted_wh": float(wasted.sum())}
        for name in self.columns:
            self.findings[name] += record.facts[name]

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return dict(self.findings), {}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.findings = dict(facts)
