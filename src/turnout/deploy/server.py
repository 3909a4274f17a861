"""The server over a network: the same jobs, in wall time, answered by real clients through Flower's Grid.

Decisions follow from a clock of this machine alone, which never looks at another's: it is read when the server begins
to wait and when answers are found, and `Timeline` keeps what it showed. Between two readings it stands still. So a
deployed run is a simulation whose arrivals were real, and `turnout.deploy.replay` carries it out again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from flwr.app import MessageType
from numpy.typing import ArrayLike
from torch import Tensor

from turnout.clients.online import OnlineSet
from turnout.core.errors import FailedError, UserError
from turnout.core.random import FloatArray, IntArray
from turnout.deploy import presence
from turnout.deploy.app import why
from turnout.deploy.correspondence import Asked, Correspondence
from turnout.deploy.enrol import Enrolment
from turnout.deploy.keys import as_text
from turnout.deploy.presence import Live, Timeline
from turnout.deploy.screen import Evaluation
from turnout.deploy.wire import (
    Question,
    encode,
    pack_question,
)
from turnout.local.sgd import LocalSGD, Named
from turnout.server.dispatch import Dispatch
from turnout.server.durations import Durations
from turnout.server.jobs import LEFT, NOT_KNOWN
from turnout.server.measurement import ByClient
from turnout.server.server import Server
from turnout.server.state import Facts
from turnout.server.updates import Updates

_FIRST_PAUSE = 0.01  # seconds


class Deployment(Correspondence):
    """`Server` over a Grid. An update that clients are asked to hold comes home at once: nobody is asked twice."""

    def __init__(
        self,
        *args: Any,
        enrolment: Enrolment,
        timeline: Timeline | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.enrolment, self.timeline = enrolment, timeline or Timeline()
        self.observers.append(self.timeline)
        self._dispatch = Dispatch(self.population, self.task)
        self._told: tuple[str, dict[str, ByClient]] | None = None  # what clients said last, and of which model
        self._strangers: set[bytes] = set()

    # -- the clock --------------------------------------------------------------------------------------------

    def _due(self, close: int | None) -> bool:
        pause = _FIRST_PAUSE
        while not self._comes_by(close):
            if close is not None and self._tick > close:
                self._poll(close)  # whatever is there when the server looks at the close counts
                return self._comes_by(close)
            self._poll()
            if not self._comes_by(close):
                self._sleep(pause if close is None else min(pause, max(0, close - self._tick + 1) / self._ticks))
                pause = min(2 * pause, self.settings.poll_seconds)
        return True

    def _comes_by(self, close: int | None) -> bool:
        return self._flight.queue.due(close)

    def wait(self, count: int | None = None, of: ArrayLike | None = None, seconds: float | None = None) -> Updates:
        self._poll()
        self._clock = max(self._clock + 1, self._tick)
        self.timeline.note(self.now, presence.WAIT)
        updates = super().wait(count, of, seconds)
        self._look()
        return updates

    # -- who is there -----------------------------------------------------------------------------------------

    def run(self) -> Server:
        self._zero = self._read() - self._clock / self._ticks
        self._gather()
        self.importance = self.population.importance_at(self.now)
        self._send([job for job in self._in_flight.values() if job.ends_at == NOT_KNOWN])
        try:
            return super().run()
        except UserError:
            raise
        except Exception as error:
            raise self._died(error) from error

    def _died(self, error: Exception) -> FailedError:
        """Whose answer came last is where to look first."""
        asked, last = self._heard_last, "before anybody had answered"
        if asked is not None:
            about = "a question" if asked.job is None else f"job {asked.job.number}"
            last = f"after the answer of client {asked.client} to {about}"
        with suppress(OSError):  # of a disk that is full, as the error may be
            self.log("died", why=why(error), last=last)
        return FailedError(f"the server failed in round {self.version} {last}: {why(error)}")

    def _gather(self) -> None:
        """Wait until all members are there, if that does not take too long."""
        limit, members = self._read() + self.settings.join_seconds, sum(each.member for each in self.enrolment.clients)
        self._look()
        while len(self._nodes) < members and self._read() < limit:
            self._sleep(self.settings.poll_seconds)
            self._look()
        self._zero = self._read() - self._clock / self._ticks

    def _look(self) -> None:
        """Who is connected, and who has joined or left."""
        try:
            self.enrolment.read_again()
        except (UserError, OSError) as error:
            self.log("unread_enrolment", why=str(error))
        members = self.population.members(self.population.ids, self.now)
        for client, enrolled in enumerate(self.enrolment.clients):
            if enrolled.member != members[client]:
                self._change(presence.JOINED if enrolled.member else presence.LEFT, client)
        known = {enrolled.key: client for client, enrolled in enumerate(self.enrolment.clients) if enrolled.member}
        nodes: dict[int, int] = {}
        for node in self.grid.get_nodes():
            key = as_text(node.public_key)
            if key in known:
                nodes[known[key]] = node.node_id
            elif node.public_key not in self._strangers:
                self._strangers.add(node.public_key)
                self.log("refused_node", node=node.node_id, why="its key is not enrolled")
        here, self._nodes = self.population.availability.online(0, self.population.ids, self.now), nodes
        for client in range(self.population.size):
            if here[client] != (client in nodes):
                self._change(presence.ONLINE if client in nodes else presence.OFFLINE, client)

    def _change(self, what: str, client: int) -> None:
        presence.change(self.population, what, client, self.now)
        self.timeline.note(self.now, what, client)
        if self.begun:
            self.log(what, client=client)
        job = self._in_flight.get(client)
        if what == presence.LEFT and job is not None and job.ends_at == NOT_KNOWN:
            self._over_with(job, LEFT)

    def online(self) -> OnlineSet:
        return Live(self.population, self.version, self.now, self._flight.busy)

    def durations(self, work: LocalSGD) -> Durations:
        return self._dispatch.demand(work).durations

    def push_seconds(self, copies: int, work: LocalSGD) -> float:
        return 0.0

    def backhaul_seconds(self, edges: int, work: LocalSGD) -> float:
        return 0.0

    # -- evaluation -------------------------------------------------------------------------------------------

    def client_measures(self, model: Tensor) -> dict[str, ByClient]:
        """Asked of the clients that are there; who does not answer in time has no samples this time."""
        if self.settings.evaluate == "server":
            return {}
        name = self._named(model)
        if self._told is None or self._told[0] != name:
            self._told = name, self._ask_measures(model)
        return self._told[1]

    def _ask_measures(self, model: Tensor) -> dict[str, ByClient]:
        panel = next(iter(self._measurement.evaluators.values())).clients
        asked = [client for client in panel.tolist() if client in self._nodes]
        array, kind, names = encode(model), MessageType.EVALUATE, frozenset({"loss", *self.task.metrics})
        contents = (pack_question(Question(self.version, self._states[client]), array) for client in asked)
        messages = [self._message(c, self._nodes[i], kind) for i, c in zip(asked, contents, strict=True)]
        self._measured = {}
        for client, message, name in zip(asked, messages, self._push(messages), strict=True):
            if name is not None:
                answer = Evaluation(names, self.enrolment.clients[client].splits)
                self._waited[name] = Asked(client, message.metadata.dst_node_id, answer)
        limit, pause = self._read() + self.settings.evaluation_seconds, _FIRST_PAUSE
        self._poll()
        while (open_ones := self._questions()) and self._read() < limit:
            self._sleep(pause)
            pause = min(2 * pause, self.settings.poll_seconds)
            self._poll()
        for name, client in open_ones.items():
            self.log("not_evaluated", client=client, why="no answer in time")
            del self._waited[name]
            self._over.add(name)
        splits = dict.fromkeys(split for answer in self._measured.values() for split in answer)
        return {split: self._by_client(panel, split) for split in splits}

    def _questions(self) -> dict[str, int]:
        """By message: the client whose measures are waited for."""
        return {name: asked.client for name, asked in self._waited.items() if asked.job is None}

    def _by_client(self, panel: IntArray, split: str) -> ByClient:
        names = ("loss", *self.task.metrics)
        values: dict[str, FloatArray] = {name: np.full(len(panel), np.nan) for name in names}
        counts = np.zeros(len(panel), np.int64)
        for row, client in enumerate(panel.tolist()):
            if split in self._measured.get(client, {}):
                measured, counts[row] = self._measured[client][split]
                for name in names:
                    values[name][row] = measured[name]
        return panel, values, counts

    # -- state ------------------------------------------------------------------------------------------------

    def save(self) -> tuple[Facts, Named]:
        facts, tensors = super().save()
        return facts | {"states": self._states}, tensors

    def load(self, facts: Facts, tensors: Named) -> None:
        super().load(facts, tensors)
        self._states = facts["states"]
        for at, what, client in self.timeline.rows():
            presence.change(self.population, what, client, at)
