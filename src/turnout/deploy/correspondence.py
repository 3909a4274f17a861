"""Jobs as messages: asked of clients through Flower's Grid, and heard of again, or given up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, Message, MessageType
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from numpy.typing import ArrayLike
from torch import Tensor

from turnout.config.deployment import Deploy
from turnout.core import random
from turnout.core.errors import UserError
from turnout.deploy import screen
from turnout.deploy.measures import Summed, Told
from turnout.deploy.presence import new_jobs
from turnout.deploy.screen import (
    Evaluation,
    Failed,
    Inbox,
    Measures,
    Refused,
    RejectedError,
    Rejection,
    Reply,
    Training,
    Update,
)
from turnout.deploy.wire import ASK, MODEL, NEEDS_MODEL, NEEDS_STATE, Request, apart, encode, fingerprint, pack
from turnout.engine.blocks import Block
from turnout.server.dispatch import Invitation
from turnout.server.jobs import ARRIVED, CRASHED, OFFLINE, REFUSED, REJECTED, Job
from turnout.server.mailbox import Mailbox
from turnout.server.updates import Updates

_LIFETIME = 30 * 86400.0  # seconds of a message: clients' clocks may be wrong by days, this server's own limit decides


class Asked(NamedTuple):
    """A message that an answer is waited for."""

    client: int
    node: int
    answer: Training | Evaluation | Summed  # as it may be
    job: Job | None = None  # None: a question about a model


class Correspondence(Mailbox):
    """`Server` whose clients get messages. An update that they are asked to hold comes home at once: nobody is asked
    twice."""

    def __init__(
        self,
        *args: Any,
        grid: Grid,
        settings: Deploy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._measurement.elsewhere = True
        if self.population is not self.whole_population:
            raise UserError(f"deploy: {type(self.algorithm).__name__} trains on data that stays with the clients")
        self.grid, self.settings = grid, settings or Deploy()
        self._read, self._sleep = clock, sleep
        self._zero = clock()  # when the run began, had it never stopped
        self._looked_at = 0  # tick of the last look for answers
        self._nodes: dict[int, int] = {}  # by client, of those connected
        self._replies = Inbox(grid)
        self._waited: dict[str, Asked] = {}  # by message
        self._over: set[str] = set()  # messages that were answered or given up
        self._heard_last: Asked | None = None
        self._measured: dict[int, Measures] = {}  # by client
        self._last_named: tuple[Tensor, str] | None = None
        self._states = [""] * self.population.size  # the question after which each client's state is what it is now

    @property
    def _tick(self) -> int:
        """What the clock shows now."""
        return round((self._read() - self._zero) * self._ticks)

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
            request = self._request(job)
            content = pack(request, model)
            size = sum(len(array.data) for array in apart(content, ASK, MODEL)[1].values())
            job.bytes = job.bytes[0] + size, job.bytes[1]
            messages.append(self._message(content, self._nodes[job.client], MessageType.TRAIN))
            asked.append((job, self._answer_to(job, request, model is not None)))
        for (job, answer), message, name in zip(asked, messages, self._push(messages), strict=True):
            if name is None:
                self._over_with(job, OFFLINE)
            else:
                self._waited[name] = Asked(job.client, message.metadata.dst_node_id, answer, job)

    def _answer_to(self, job: Job, request: Request, has_model: bool) -> Training:
        """What its client may answer: it can ask for a model that it was not sent, and miss a state that it had."""
        counts = {"client": job.client, "job": job.number, "samples": job.samples, "steps": job.steps}
        needs = (*(() if has_model else (NEEDS_MODEL,)), *((NEEDS_STATE,) if request.state else ()))
        return Training(counts, job.work.sends(self.task), self.plan.dtype, needs)

    def _message(self, content: Any, node: int, kind: str) -> Message:
        return Message(content, node, kind, ttl=_LIFETIME, group_id=str(self.version))

    def _push(self, messages: list[Message]) -> list[str | None]:
        """The name of each message; None of one that nobody takes."""
        names = [name or None for name in self.grid.push_messages(messages)] if messages else []
        return names or [None] * len(messages)

    # -- hearing ----------------------------------------------------------------------------------------------

    def _poll(self, at: int | None = None) -> None:
        """Take what has arrived, as of now or of that tick; give up whom nothing was heard of for too long."""
        self._looked_at = self._tick if at is None else at
        for reply in self._replies.pull({name: asked.answer.most for name, asked in self._waited.items()}):
            self._receive(reply)
        oldest = self._looked_at - round(self.settings.reply_seconds * self._ticks)
        for job in [asked.job for asked in self._waited.values() if asked.job is not None]:
            if job.sent_at < oldest:
                self.log("gave_up", client=job.client, job=job.number)
                self._over_with(job, OFFLINE)

    def _receive(self, reply: Reply) -> None:
        asked = self._waited.get(reply.to)
        if asked is None:
            self._reject(reply, Rejection.DUPLICATE if reply.to in self._over else Rejection.UNKNOWN_JOB)
            return
        if reply.node not in (asked.node, SUPERLINK_NODE_ID):  # which tells of nodes that are gone
            self._reject(reply, Rejection.WRONG_CLIENT, asked)
            return
        self._heard_last = asked
        del self._waited[reply.to]
        self._over.add(reply.to)
        try:
            answer = screen.read(reply, asked.answer)
        except RejectedError as rejected:
            self._reject(reply, rejected.why, asked)
            if asked.job is not None:
                self._over_with(asked.job, REJECTED)
            return
        if isinstance(answer, Refused):
            self._hear_refusal(asked, answer)
        elif asked.job is not None:
            self._hear_of_job(asked.job, answer)
        elif isinstance(answer, Failed):
            self.log("not_evaluated", client=asked.client, why=answer.why)
        else:
            self._hear_measures(asked.client, answer)

    def _hear_measures(self, client: int, answer: Measures | Told) -> None:
        self._measured[client] = answer.measures if isinstance(answer, Told) else answer

    def _hear_refusal(self, asked: Asked, refused: Refused) -> None:
        """A client does not do it, and says why."""
        what = {"asked": "evaluate"} if asked.job is None else {"asked": "train", "job": asked.job.number}
        self.log("refused", client=asked.client, **what, code=refused.code, why=refused.why)
        if asked.job is not None:
            self._over_with(asked.job, REFUSED)

    def _hear_of_job(self, job: Job, answer: Update | str | Measures | Failed) -> None:
        if isinstance(answer, Failed):
            self.log("failed_job", client=job.client, job=job.number, why=answer.why)
            self._over_with(job, OFFLINE if answer.gone else CRASHED)
        elif isinstance(answer, Update):
            self._take_update(job, answer)
            self._over_with(job, ARRIVED)
        elif answer == NEEDS_STATE:
            self.log("lost_state", client=job.client, job=job.number)
            self._states[job.client] = ""
            self._over_with(job, CRASHED)
        else:
            self._send([job], whole=True)

    def _take_update(self, job: Job, update: Update) -> None:
        """Give a job its result."""
        elapsed = max(0, self._tick - job.sent_at) / self._ticks
        computed = min(max(update.seconds, 0.0), elapsed)
        job.seconds = 0.0, computed, elapsed - computed
        job.bytes = job.bytes[0], update.size
        here = {name: values.to(self.plan.device) for name, values in update.arrays.items()}
        job.result = Block(here), 0
        if self.algorithm.clients_keep == "models" and "delta" in here:
            job.local = Block({"params": job.received + here["delta"]}), 0

    def _reject(self, reply: Reply, why: Rejection, asked: Asked | None = None) -> None:
        sender = next((client for client, node in self._nodes.items() if node == reply.node), None)
        known = {"client": asked.client if asked else sender, "job": asked.job.number if asked and asked.job else None}
        who = {name: number for name, number in known.items() if number is not None}
        self.log("rejected_reply", node=reply.node, **who, why=str(why))

    def _forget(self, job: Job) -> None:
        """Wait no longer for the messages of a job."""
        for name in [name for name, asked in self._waited.items() if asked.job is job]:
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
            self._flight.queue.add([(job.ends_at, job.client, job.number)])

    def _ensure_trained(self, needed: Sequence[Job]) -> None:
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
