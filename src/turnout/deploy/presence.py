"""What a server knows of real clients: who is connected, as it has seen it, and of a job its beginning. The record of
that, with the jobs, is all that a replay needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from turnout.clients.availability import BoolArray, Clock
from turnout.clients.online import OnlineSet
from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.record.history import Table
from turnout.server.dispatch import Invitation
from turnout.server.jobs import ARRIVED, NOT_KNOWN, Job
from turnout.server.observer import Observer

if TYPE_CHECKING:
    from turnout.server.server import Server

ONLINE, OFFLINE, JOINED, LEFT, WAIT = "online", "offline", "joined", "left", "wait"
_COLUMNS = ("time", "outcome", "client")


@dataclass(frozen=True, eq=False)
class Connected:
    """Presence of the moment: nobody knows of another."""

    clock: ClassVar[Clock] = "seconds"
    probability: ClassVar[None] = None
    correlation: ClassVar[None] = None

    here: BoolArray = field(repr=False)  # [N]

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> BoolArray:
        return self.here[ids]

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return np.full(len(ids), np.inf)

    def online_from(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return np.full(len(ids), at)


def nobody(size: int) -> dict[str, Any]:
    """Make the columns of a population of whom none is there yet."""
    never = {name: np.full(size, np.inf) for name in ("joined_at", "left_at")}
    return {"availability": Connected(np.zeros(size, bool)), **never}


class Live(OnlineSet):
    """Who can be invited now, where anybody may appear at any time."""

    def back_at(self, ids: IntArray) -> FloatArray:
        return np.full(len(ids), self._now)


def change(population: Population, what: str, client: int, at: float) -> None:
    """A client has come or gone, for a while or for good."""
    availability = population.availability
    assert isinstance(availability, Connected)
    assert population.joined_at is not None
    assert population.left_at is not None
    if what in (ONLINE, OFFLINE):
        availability.here[client] = what == ONLINE
    elif what == JOINED:
        population.joined_at[client], population.left_at[client] = at, np.inf
    elif what == LEFT:
        population.left_at[client] = at


class Timeline(Observer):
    """`arrivals`: a row for each change of presence, and one for each time the server began to wait: real time passes
    while a server computes, and what it decides by the clock follows from when it next looked at it."""

    def __init__(self, folder: Path | None = None) -> None:
        self.table = Table(folder)

    def note(self, time: float, what: str, client: int = -1) -> None:
        self.table.append(_COLUMNS, [(time, what, client)])

    def rows(self) -> list[tuple[float, str, int]]:
        columns = self.table.read()
        return list(zip(*(columns[name].tolist() for name in _COLUMNS), strict=True)) if columns else []

    def on_checkpoint(self, server: Server) -> None:
        self.table.flush()

    def on_end(self, server: Server) -> None:
        self.table.flush()

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"segments": self.table.segments, "rows": self.table.columns if self.table.folder is None else {}}, {}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.table.cut_back(facts["segments"], facts["rows"])


def new_jobs(invitation: Invitation, clock: int, declared: IntArray) -> list[Job]:
    """Jobs of which nothing is known but their beginning."""
    if invitation.among is not None:
        raise UserError("deploy: clients of this algorithm exchange models with each other; a deployment has a server")
    samples = declared[invitation.ids]
    steps = invitation.work.bind(invitation.options).num_steps(samples).tolist()
    return [
        Job(
            client=client,
            number=int(invitation.numbers[row]),
            version=invitation.versions[row],
            received=invitation.received[row],
            work=invitation.work,
            options={name: float(values[row]) for name, values in invitation.options.items()},
            batches=int(invitation.batches[row]),
            sent_at=clock,
            starts_at=clock,
            ends_at=NOT_KNOWN,
            outcome=ARRIVED,
            samples=int(samples[row]),
            steps=int(steps[row]),
            seconds=(0.0, 0.0, 0.0),
            bytes=(0, 0),
            done=float(invitation.done[row]),
            hold=invitation.hold,
            again=invitation.again,
            sent=invitation.keep is None,
        )
        for row, client in enumerate(invitation.ids.tolist())
    ]
