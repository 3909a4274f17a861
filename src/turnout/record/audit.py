"""The turnout audit: whose data counted, against whose data was meant to count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core.random import FloatArray, IntArray
from turnout.server.jobs import ARRIVED, together
from turnout.server.observer import Observer, Round

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.stretch import Stretch

_MOST_NEW = 10_000
_ROUND_OFF = 1e-12  # relative
_CONCERNED = "clients of "  # a tensor's name in a checkpoint
_OF_THE_PROCESS = ("resumed", "restarted", "damaged_checkpoint", "untracked")  # events not of the training


@dataclass(frozen=True)
class Findings:
    """What the audit found. Arrays are over clients."""

    rounds: int
    intended: FloatArray  # mean importance a round
    realised: FloatArray  # mean realised weight a round
    ratio: FloatArray  # realised share / intended share; NaN where nothing was intended
    contributions: IntArray  # updates used
    never_heard: IntArray  # clients that were meant to count and never did
    chi_square: float  # sum (share - intended)^2 / intended: 0 when everybody counted as meant
    weight_variance: float  # sum over clients of the variance of their weight from round to round
    mean_weight: float  # mean sum of weights a round: 1 for a full step
    staleness: dict[int, int]  # updates used, by staleness
    failures: dict[str, int]  # jobs that brought nothing, by reason
    events: dict[str, int]  # what else was logged, by kind: how many times
    event_clients: dict[str, int]  # of how many different clients, where it was of clients
    linear: bool  # False: weights are selection counts, the rule was not a weighted sum
    names: NDArray[np.str_] | None = None  # of the clients, where they have some

    def as_dict(self) -> dict[str, Any]:
        """For scripts: everything but the per-client arrays."""
        heard = self.ratio[self.contributions > 0]
        return {
            "rounds": self.rounds,
            "clients": len(self.intended),
            "contributions": int(self.contributions.sum()),
            "never_heard": len(self.never_heard),
            "ratio_min": float(np.nanmin(heard)) if len(heard) else None,
            "ratio_max": float(np.nanmax(heard)) if len(heard) else None,
            **{name: value for name, value in vars(self).items() if not isinstance(value, np.ndarray | None)},
            "staleness": {str(k): v for k, v in sorted(self.staleness.items())},
        }

    def by_client(self) -> dict[str, list[Any]]:
        """What a person asks of each client: its name, if it has one, what it was meant to count, what it did, how
        often."""
        columns = {name: getattr(self, name).tolist() for name in ("intended", "realised", "contributions")}
        return columns if self.names is None else {"name": self.names.tolist(), **columns}


class Audit(Observer):
    """Adds up realised weights from the record of every round."""

    def __init__(self) -> None:
        self._started = False
        # not added up yet: rounds, clients, weights, staleness
        self._new: list[tuple[IntArray, list[int] | IntArray, FloatArray, IntArray]] = []
        self._rows = 0  # in them
        self._staleness: Counter[int] = Counter()
        self._failures: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._concerned: dict[str, NDArray[np.bool_]] = {}  # by kind of event: [N] whom it was about
        self._rounds = 0
        self._linear = True
        self._names: NDArray[np.str_] | None = None

    def on_start(self, server: Server) -> None:
        self._names = server.population.names
        if not self._started:
            clients = server.population.size
            self._started = True
            self._intended, self._realised, self._squares = (np.zeros(clients) for _ in range(3))
            self._contributions = np.zeros(clients, np.int64)

    def on_round(self, server: Server, record: Round) -> None:
        self._rounds += 1
        self._intended += server.importance
        self._linear &= record.linear
        crew = together(record.jobs)
        clients = [job.client for job in record.jobs] if crew is None else crew.client
        if crew is None:
            self._failures.update(job.outcome for job in record.jobs if job.outcome != ARRIVED and not job.logged)
        number = np.full(len(clients), self._rounds)
        self._keep(number, clients, record.weights.copy(), record.staleness.copy())

    def on_rounds(self, server: Server, stretch: Stretch) -> None:
        for _ in stretch.times:
            self._intended += server.importance
        self._keep(self._rounds + 1 + stretch.round, stretch.client, stretch.weights, stretch.staleness)
        self._rounds += len(stretch.times)

    def _keep(self, *rows: Any) -> None:
        self._new.append(rows)
        self._rows += len(rows[0])
        if self._rows > _MOST_NEW:
            self._add_up()

    def _add_up(self) -> None:
        """Bring the sums up to date. A client's weights in one round are one weight."""
        rounds = self._new
        self._new, self._rows = [], 0
        if not rounds:
            return
        number, client, weight, staleness = (np.concatenate([row[i] for row in rounds]) for i in range(4))
        used = weight != 0
        if not used.any():
            return
        number, client, weight, staleness = number[used], client[used].astype(np.int64), weight[used], staleness[used]
        pairs, place = np.unique(number * len(self._realised) + client, return_inverse=True)
        in_round, clients = np.bincount(place, weight), pairs % len(self._realised)
        np.add.at(self._contributions, client, 1)
        np.add.at(self._realised, clients, in_round)
        np.add.at(self._squares, clients, in_round**2)
        self._staleness.update(staleness.tolist())

    def on_event(self, server: Server, event: Any) -> None:
        if event.kind in _OF_THE_PROCESS:
            return
        self._events[event.kind] += 1
        clients = event.facts.get("clients", event.facts.get("client"))
        if "client" in event.facts or isinstance(clients, list):
            nobody = np.zeros(server.population.size, bool)
            self._concerned.setdefault(event.kind, nobody)[clients] = True

    @property
    def findings(self) -> Findings:
        self._add_up()
        rounds = max(1, self._rounds)
        intended, realised = self._intended / rounds, self._realised / rounds
        meant, total = intended > 0, realised.sum()
        share = realised / total if total else realised
        ratio = np.divide(share, intended, out=np.full(len(share), np.nan), where=meant)
        return Findings(
            rounds=self._rounds,
            intended=intended,
            realised=realised,
            ratio=ratio,
            contributions=self._contributions,
            never_heard=np.flatnonzero(meant & (self._contributions == 0)),
            chi_square=float((np.square(share - intended)[meant] / intended[meant]).sum()),
            weight_variance=_variance(self._squares / rounds, realised),
            mean_weight=float(total),
            staleness=self._staleness,
            failures=self._failures,
            events=self._events,
            event_clients={kind: int(clients.sum()) for kind, clients in self._concerned.items()},
            linear=self._linear,
            names=self._names,
        )

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        self._add_up()
        facts = {
            "rounds": self._rounds,
            "linear": self._linear,
            "staleness": sorted(self._staleness.items()),
            "failures": self._failures,
            "events": self._events,
        }
        arrays = {name: getattr(self, f"_{name}") for name in ("intended", "realised", "squares", "contributions")}
        arrays |= {f"{_CONCERNED}{kind}": clients for kind, clients in self._concerned.items()}
        return facts, {name: torch.as_tensor(value) for name, value in arrays.items()}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._started = True
        self._rounds, self._linear = facts["rounds"], facts["linear"]
        self._staleness = Counter(dict(facts["staleness"]))
        self._failures, self._events = Counter(facts["failures"]), Counter(facts["events"])
        for name, value in tensors.items():
            if name.startswith(_CONCERNED):
                self._concerned[name.removeprefix(_CONCERNED)] = value.numpy().copy()
            else:
                setattr(self, f"_{name}", value.numpy().copy())


def _variance(mean_square: FloatArray, mean: FloatArray) -> float:
    """Of weights that are always the same it is 0, whatever rounding leaves of the difference."""
    difference = mean_square - mean**2
    return float(np.where(difference > _ROUND_OFF * mean_square, difference, 0.0).sum())
