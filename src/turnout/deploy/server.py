"""The server over a network: the same jobs, in wall time, answered by real clients through Flower's Grid.

Decisions follow from a clock of this machine alone, which never looks at another's: it is read when the server begins
to wait and when answers are found, and `Timeline` keeps what it showed. Between two readings it stands still. So a
deployed run is a simulation whose arrivals were real, and `turnout.deploy.replay` carries it out again.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from numpy.typing import ArrayLike
from torch import Tensor

from turnout import random
from turnout.cohort.blocks import Block
from turnout.deploy import presence, screen
from turnout.deploy.enrol import Enrolment
from turnout.deploy.jobs import new_jobs
from turnout.deploy.keys import as_text
from turnout.deploy.presence import Live, Timeline
from turnout.deploy.screen import RejectedError, Rejection
from turnout.deploy.settings import Deploy
from turnout.deploy.wire import ANSWER, NEEDS_STATE, Question, Request, encode, fingerprint, pack, pack_question
from turnout.errors import UserError
from turnout.local.sgd import LocalSGD, Named
from turnout.population.durations import Durations
from turnout.random import FloatArray, IntArray
from turnout.server.dispatch import Dispatch, Invitation
from turnout.server.mailbox import NOT_KNOWN, Mailbox
from turnout.server.server import ByClient, OnlineSet, Server
from turnout.server.state import Facts
from turnout.server.updates import ARRIVED, CRASHED, LEFT, OFFLINE, REJECTED, Job, Updates

_UNREACHABLE = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
_LIFETIME = 30 * 86400.0  # seconds of a message: clients' clocks may be wrong by days, this server's own limit decides
_FIRST_PAUSE = 0.01  # seconds


class Deployment(Mailbox):
    """`Server` over a Grid. An update that clients are asked to hold comes home at once: nobody is asked twice."""

    def __init__(
        self,
        *args: Any,
        grid: Grid,
        enrolment: Enrolment,
        settings: Deploy | None = None,
        timeline: Timeline | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if self.population is not self.whole_population:
            raise UserError(f"deploy: {type(self.algorithm).__name__} trains on data that stays with the clients")
        self.grid, self.enrolment, self.settings = grid, enrolment, settings or Deploy()
        self.timeline = timeline or Timeline()
        self.observers.append(self.timeline)
        self._read, self._sleep = clock, sleep
        self._zero = clock()  # when the run began, had it never stopped
        self._looked_at = 0  # tick of the last look for answers
        self._dispatch = Dispatch(self.population, self.task)
        self._nodes: dict[int, int] = {}  # by client, of those connected
        self._waited: dict[str, tuple[Job, int]] = {}  # by message: the job and the node asked
        self._questions: dict[str, tuple[int, int]] = {}  # by message: client and node asked for measures
        self._told: tuple[str, dict[str, ByClient]] | None = None  # what clients said last, and of which model
        self._last_named: tuple[Tensor, str] | None = None
        self._measured: dict[int, dict[str, tuple[dict[str, float], int]]] = {}
        self._over: set[str] = set()  # messages that were answered or given up
        self._strangers: set[bytes] = set()
        self._states = [""] * self.population.size  # the question after which each client's state is what it is now

    # -- the clock --------------------------------------------------------------------------------------------

    @property
    def _tick(self) -> int:
        """What the clock shows now."""
        return round((self._read() - self._zero) * self._ticks)

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
        return bool(self._events) and (close is None or self._events[0][0] <= close)

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
        return super().run()

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
        return Live(self.population, self.version, self.now, self._busy)

    def durations(self, work: LocalSGD) -> Durations:
        return self._dispatch.durations(work)

    def push_seconds(self, copies: int, work: LocalSGD) -> float:
        return 0.0

    def backhaul_seconds(self, edges: int, work: LocalSGD) -> float:
        return 0.0

    # -- asking -----------------------------------------------------------------------------------------------

    def _begin(self, invitation: Invitation) -> list[Job]:
        jobs = new_jobs(invitation, self._clock, self.population.declared)
        self._send(jobs)
        return jobs

    def _request(self, job: Job) -> Request:
        stateful = bool(job.work.stored_shapes(self.task))
        every = self.checkpoints.every if self.checkpoints is not None else 1
        return Request(
            client=job.client,
            number=job.number,
            version=job.version,
            key=int(random.key(self.seed, "local work", job.client, job.batches)),
            work=job.work,
            options=job.options,
            model=self._named(job.received),
            state=self._states[job.client] if stateful else "",
            memory=2 + (2 * every if stateful else 0),
            goes_on=self.algorithm.clients_keep == "models",
        )

    def _named(self, model: Tensor) -> str:
        """Its fingerprint; as a rule many ask for the same."""
        if self._last_named is None or self._last_named[0] is not model:
            self._last_named = model, fingerprint(model)
        return self._last_named[1]

    def _send(self, jobs: Sequence[Job], whole: bool = False) -> None:
        """Ask these clients; `whole` sends the model to those, too, who should have it."""
        asked, messages, arrays = [], [], dict[int, Array]()
        for job in jobs:
            if job.client not in self._nodes:
                self._over_with(job, OFFLINE)
                continue
            model = arrays.setdefault(id(job.received), encode(job.received)) if job.sent or whole else None
            content = pack(self._request(job), model)
            size = sum(len(array.data) for record in content.array_records.values() for array in record.values())
            job.bytes = job.bytes[0] + size, job.bytes[1]
            messages.append(self._message(content, self._nodes[job.client], MessageType.TRAIN))
            asked.append(job)
        for job, message, name in zip(asked, messages, self._push(messages), strict=True):
            if name is None:
                self._over_with(job, OFFLINE)
            else:
                self._waited[name] = job, message.metadata.dst_node_id

    def _message(self, content: Any, node: int, kind: str) -> Message:
        return Message(content, node, kind, ttl=_LIFETIME, group_id=str(self.version))

    def _push(self, messages: list[Message]) -> list[str | None]:
        names: list[str | None] = list(self.grid.push_messages(messages)) if messages else []
        return names or [None] * len(messages)

    # -- hearing ----------------------------------------------------------------------------------------------

    def _poll(self, at: int | None = None) -> None:
        """Take what has arrived, as of now or of that tick; give up whom nothing was heard of for too long."""
        self._looked_at = self._tick if at is None else at
        names = [*self._waited, *self._questions]
        for reply in self.grid.pull_messages(names) if names else ():
            self._receive(reply)
        oldest = self._looked_at - round(self.settings.reply_seconds * self._ticks)
        for job in [job for job, _ in self._waited.values() if job.sent_at < oldest]:
            self.log("gave_up", client=job.client, job=job.number)
            self._over_with(job, OFFLINE)

    def _receive(self, reply: Message) -> None:
        name = reply.metadata.reply_to_message_id
        job, node = self._waited.get(name, (None, None))
        if name in self._questions:
            self._hear_measures(name, reply)
            return
        if job is None:
            self._reject(reply, Rejection.DUPLICATE if name in self._over else Rejection.UNKNOWN_JOB)
            return
        if reply.has_error():
            self.log("failed_job", client=job.client, job=job.number, why=_first_line(reply.error.reason))
            self._over_with(job, OFFLINE if reply.error.code in _UNREACHABLE else CRASHED)
            return
        if reply.metadata.src_node_id != node:
            self._reject(reply, Rejection.WRONG_CLIENT, job)
            return
        try:
            needs = self._take_answer(job, reply)
        except RejectedError as rejected:
            self._reject(reply, rejected.why, job)
            self._over_with(job, REJECTED)
            return
        if needs is None:
            self._over_with(job, ARRIVED)
        elif needs == NEEDS_STATE:
            self.log("lost_state", client=job.client, job=job.number)
            self._states[job.client] = ""
            self._over_with(job, CRASHED)
        else:
            self._forget(job)
            self._send([job], whole=True)

    def _take_answer(self, job: Job, reply: Message) -> str | None:
        """Give a job its result, or return what the client needs for it; raises `RejectedError`."""
        said = reply.content.config_records.get(ANSWER)
        needs = None if said is None else said.get("needs")
        if isinstance(needs, str):
            return needs
        said, payload = screen.payload(reply, job.work.sends(self.task), self.plan.dtype)
        asked = {"client": job.client, "job": job.number, "samples": job.samples, "steps": job.steps}
        screen.counts(said, asked)
        elapsed = max(0, self._tick - job.sent_at) / self._ticks
        computed = screen.seconds(said, elapsed)
        job.seconds = 0.0, computed, elapsed - computed
        size = sum(len(array.data) for record in reply.content.array_records.values() for array in record.values())
        job.bytes = job.bytes[0], size
        here = {name: values.to(self.plan.device) for name, values in payload.items()}
        job.result = Block(here), 0
        if self.algorithm.clients_keep == "models" and "delta" in here:
            job.local = Block({"params": job.received + here["delta"]}), 0
        return None

    def _reject(self, reply: Message, why: Rejection, job: Job | None = None) -> None:
        who = {} if job is None else {"client": job.client, "job": job.number}
        self.log("rejected_reply", node=reply.metadata.src_node_id, **who, why=str(why))

    def _forget(self, job: Job) -> None:
        """Wait no longer for the messages of a job."""
        for name in [name for name, (other, _) in self._waited.items() if other is job]:
            del self._waited[name]
            self._over.add(name)

    def _over_with(self, job: Job, outcome: str) -> None:
        """The end of a job is known: an event."""
        self._forget(job)
        job.outcome, job.ends_at = outcome, max(self._looked_at, self._clock + 1)  # never in the past
        if outcome != ARRIVED:
            job.result = job.local = None
            job.progress = job.done
        if self._in_flight.get(job.client) is job:
            heapq.heappush(self._events, (job.ends_at, job.client, job.number))

    def _train(self, needed: Sequence[Job]) -> None:
        assert not needed, "a deployed job has its result when it arrives"

    def _delivered(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.work.stored_shapes(self.task):
                self._states[job.client] = self._request(job).name

    def _stop(self, job: Job) -> bool:
        self._forget(job)
        job.seconds = 0.0, max(0, self._clock - job.sent_at) / self._ticks, 0.0
        return True

    def fetch(self, clients: ArrayLike) -> Updates:
        ids = np.unique(np.asarray(clients, np.int64)).tolist()
        missing = [client for client in ids if client not in self._held]
        if missing:
            raise UserError(f"fetch: client {missing[0]} holds no update")
        jobs = [self._held.pop(client) for client in ids]
        for job in jobs:
            job.hold = False
        return self._handed(sorted(jobs, key=lambda job: (job.ends_at, job.client)))

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
        panel = next(iter(self._evaluators.values())).clients
        asked = [client for client in panel.tolist() if client in self._nodes]
        array, kind = encode(model), MessageType.EVALUATE
        contents = (pack_question(Question(self.version, self._states[client]), array) for client in asked)
        messages = [self._message(c, self._nodes[i], kind) for i, c in zip(asked, contents, strict=True)]
        self._measured = {}
        for client, message, name in zip(asked, messages, self._push(messages), strict=True):
            if name is not None:
                self._questions[name] = client, message.metadata.dst_node_id
        limit, pause = self._read() + self.settings.evaluation_seconds, _FIRST_PAUSE
        self._poll()
        while self._questions and self._read() < limit:
            self._sleep(pause)
            pause = min(2 * pause, self.settings.poll_seconds)
            self._poll()
        for name, (client, _) in self._questions.items():
            self.log("not_evaluated", client=client, why="no answer in time")
            self._over.add(name)
        self._questions = {}
        splits = dict.fromkeys(split for answer in self._measured.values() for split in answer)
        return {split: self._by_client(panel, split) for split in splits}

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

    def _hear_measures(self, name: str, reply: Message) -> None:
        client, node = self._questions[name]
        if reply.has_error():
            self.log("not_evaluated", client=client, why=_first_line(reply.error.reason))
        elif reply.metadata.src_node_id != node:
            self._reject(reply, Rejection.WRONG_CLIENT)
            return
        else:
            try:
                self._measured[client] = screen.measures(reply, {"loss", *self.task.metrics})
            except RejectedError as rejected:
                self.log("rejected_reply", node=node, client=client, why=str(rejected.why))
        del self._questions[name]
        self._over.add(name)

    # -- state ------------------------------------------------------------------------------------------------

    def save(self) -> tuple[Facts, Named]:
        facts, tensors = super().save()
        return facts | {"states": self._states}, tensors

    def load(self, facts: Facts, tensors: Named) -> None:
        super().load(facts, tensors)
        self._states = facts["states"]
        for at, what, client in self.timeline.rows():
            presence.change(self.population, what, client, at)


def _first_line(text: str | None) -> str:
    return (text or "no reason given").strip().splitlines()[-1][:200]
