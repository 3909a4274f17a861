"""Flower's `Grid` over simulated clients, whose seconds are those of the simulation.

Messages to clients are jobs: devices, links, availability and crashes decide when each reply arrives or fails. A client
works on one message after the other. A message trains if it says so and holds arrays; all others are questions. A round
ends when the app sends something to train with after replies to such messages have been handed to it; what it made of
them is its own affair, so the audit counts who was used, not with which weight. An app that trains nothing is a single
round.

The model is what every message of a sending holds alike; it may have another form each time, and where it was of whole
numbers it may no longer be.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from flwr.app import ArrayRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from turnout.clients.online import OnlineSet
from turnout.core.errors import UserError
from turnout.deploy.app import layout_of, model_in
from turnout.deploy.app_grid import AppGrid, Ended
from turnout.deploy.flower_parts import ErrorCode, old_server, old_style
from turnout.deploy.older_ways import standing_in
from turnout.deploy.screen import RejectedError
from turnout.deploy.virtual import AppWork
from turnout.local.sgd import LocalSGD
from turnout.server.jobs import CRASHED, REJECTED, Job
from turnout.task.task import Task

if TYPE_CHECKING:
    from turnout.deploy.server_app import GridSimulation

_POLL = 1.0  # seconds that asking in vain takes at most
_MOST_SLEEPS = 10_000  # in a row while nobody is at work
_CODES = {CRASHED: ErrorCode.CLIENT_APP_CRASHED, REJECTED: ErrorCode.REPLY_MESSAGE_UNAVAILABLE}


@dataclass(frozen=True)
class AppQuestion(AppWork):
    """A message that asks for no model back: to evaluate, or a query. It takes as long as a pass over the samples."""

    purpose: ClassVar[str] = "flower question"

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {}


def _trains(message: Message) -> bool:
    """Tell whether there is something in a message to train with: those of a protocol around it have no arrays."""
    return message.metadata.message_type.startswith(MessageType.TRAIN) and bool(len(message.content.array_records))


def _showing(record: ArrayRecord) -> Message:
    return Message(RecordDict({"arrays": record}), 0, MessageType.EVALUATE)


class VirtualGrid(AppGrid):
    """Flower's `Grid` over simulated clients; client ids are node ids."""

    def __init__(self, server: GridSimulation, rounds: Iterator[int], local: LocalSGD) -> None:
        super().__init__()
        self.server, self.rounds, self.local = server, rounds, local
        self.question = AppQuestion(batch_size=local.batch_size)
        self.contents: dict[tuple[int, int], RecordDict] = {}  # replies by job, until they are delivered
        self.evaluated: dict[int, RecordDict] = {}  # replies by client, in this round
        self.last: ArrayRecord | None = None  # what a strategy ended with
        self._messages: dict[str, Message] = {}  # that no client has done with
        self._expires: dict[str, int] = {}  # ticks, of those that a reply is awaited to
        self._jobs: dict[tuple[int, int], str] = {}  # which message a job works on
        self._given_up: set[str] = set()  # whose replies come too late for anybody
        self._begun: dict[tuple[int, bool], int] = {}  # which of a client's trainings, or questions, was the last
        self._waiting: dict[int, deque[str]] = {}  # behind the job of a client
        self._replies: dict[str, tuple[Message, Job | None]] = {}  # in order of arrival
        self._handed: list[Job] | None = None  # since the last version
        self._published = False  # in this round
        self._pushed = self._sleeps = 0
        self._training: set[str] = set()  # messages that train
        self._thread, self._shared = threading.get_ident(), False  # whose grid it is; whether another called it
        self._shown = False  # whether there was a model yet
        self.trains = False  # whether the app ever had anybody train
        self._answers: list[Job] = []  # handed, until it had

    def _check_thread(self) -> None:
        """Raise if, or after, another thread calls: which of two comes first no virtual clock can tell."""
        self._shared |= threading.get_ident() != self._thread
        if self._shared:
            raise UserError("flower.app: its ServerApp sends messages from several threads; send them from its own")

    @property
    def seconds(self) -> float:
        return self.server.now

    @property
    def computing(self) -> bool:
        return self.server.people.working

    # -- what an app sees -------------------------------------------------------------------------------------

    def get_node_ids(self) -> Iterable[int]:
        """Who is online; after replies have been handed over, in the round that begins with the next model."""
        self._check_thread()
        server = self.server
        version = server.version + (self._handed is not None and not self._published)
        return [int(client) for client in OnlineSet(server.population, version, server.now).ids]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._check_thread()
        messages = list(messages)
        for message in messages:
            if not 0 <= message.metadata.dst_node_id < self.server.population.size:
                raise ValueError(f"there is no node {message.metadata.dst_node_id}")
        if not messages:
            return []
        self._sleeps = 0
        self._note_model(messages)
        ids = [str(self._pushed + number) for number in range(len(messages))]
        self._pushed += len(ids)
        copied: dict[int, Any] = {}  # by what it is of: what several messages share is still shared
        for name, message in zip(ids, messages, strict=True):
            message.metadata.__dict__["_message_id"] = name
            self._messages[name] = copy.deepcopy(message, copied)
            self._expires[name] = self.server.tick_in(message.metadata.ttl)
        self._training.update(name for name in ids if _trains(self._messages[name]))
        self._start(ids)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._check_thread()
        ids = set(message_ids)
        self._expire()
        if ids and not ids & self._replies.keys():
            if ids & self._expires.keys():
                self.server.advance(self.server.tick_in(_POLL))
                self._expire()
            else:
                self.sleep(_POLL)
        return self._hand(ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        ids = set(self.push_messages(messages))
        close = None if timeout is None else self.server.tick_in(timeout)
        while missing := ids - self._replies.keys():
            limit = min(self._expires[name] for name in missing)
            limit = limit if close is None else min(limit, close)
            if not self.server.advance(limit):
                self._expire()
                if limit == close:
                    self._given_up |= ids - self._replies.keys()
                    break
        return self._hand(ids)

    def sleep(self, seconds: float) -> None:
        """The app sleeps. Where clients come and go by rounds, one in which nobody is at work is over then."""
        server, end = self.server, self.server.tick_in(seconds)
        self._sleeps += server.idle
        if self._sleeps > _MOST_SLEEPS:
            raise UserError("flower.app: its ServerApp waits for more nodes than ever are online at once")
        while server.advance(end):
            pass
        if server.idle and server.population.availability.clock == "round" and self._handed is None:
            server.publish_made_of(server.model, [])
            self._next_round()

    @contextmanager
    def in_charge(self, folder: Path) -> Iterator[None]:
        """Remember, besides, what a strategy or a server of the old style ends with."""
        start, fit = Strategy.start, old_server.Server.fit

        def started(strategy: Strategy, *args: Any, **options: Any) -> Any:
            result = start(strategy, *args, **options)
            self.last = result.arrays
            return result

        def fitted(server: old_server.Server, *args: Any, **options: Any) -> Any:
            result = fit(server, *args, **options)
            self.last = old_style.parameters_to_arrayrecord(server.parameters, keep_input=True)
            return result

        with ExitStack() as stack:
            stack.enter_context(super().in_charge(folder))
            stack.enter_context(standing_in(started, "start", Strategy))
            stack.enter_context(standing_in(fitted, "fit", old_server.Server))
            yield

    # -- messages and jobs ------------------------------------------------------------------------------------

    def _start(self, names: list[str]) -> None:
        """Begin jobs at clients that are free; the others get their message later. One that nothing will ever be heard
        of again is given up."""
        groups: dict[tuple[int, bool], tuple[Tensor | None, LocalSGD, dict[int, str]]] = {}
        taken: set[int] = set()
        for name in names:
            message = self._messages[name]
            client = message.metadata.dst_node_id
            job = self.server.at_work(client)
            if job is not None and not job.learnt:
                self.server.cancel([client])
                del self._jobs[job.name]
            record, trains = model_in(message.content), name in self._training
            if client in taken or self.server.at_work(client):
                self._waiting.setdefault(client, deque()).append(name)
                continue
            taken.add(client)
            if (id(record), trains) not in groups:
                groups[id(record), trains] = self._vector(record), self.local if trains else self.question, {}
            groups[id(record), trains][2][client] = name
        for vector, work, started in groups.values():
            same = vector is None or torch.equal(vector, self.server.model)
            self.server.invite(np.array(list(started), np.int64), work, None if same else vector)
            for client, name in started.items():
                job = self.server.at_work(client)
                assert job is not None
                self._jobs[job.name] = name
                kind = client, work is self.local
                job.batches = self._begun[kind] = self._begun.get(kind, -1) + 1  # evaluating changes no training

    def _vector(self, record: ArrayRecord | None) -> Tensor | None:
        """The model in a message, where it is one."""
        try:
            return None if record is None else self.server.arrays.vector(record).to(self.server.model)
        except RejectedError:
            return None

    def message_of(self, job: Job) -> Message:
        """Give a client a copy of its own, as if it had been sent: others may share the content."""
        return copy.deepcopy(self._messages[self._jobs[job.name]])

    def deliver(self, job: Job) -> None:
        """A job has ended: its reply is there, and its client goes on with the next message that is not too old."""
        name, content = self._jobs.pop(job.name), self.contents.pop(job.name, None)
        message = self._messages.pop(name)
        if self._expires.pop(name, None) is not None and name not in self._given_up:
            code = _CODES.get(job.outcome, ErrorCode.NODE_UNAVAILABLE)
            reply = Error(code, job.outcome) if content is None else content
            self._replies[name] = Message(reply, reply_to=message), job
        waiting = self._waiting.get(job.client, deque())
        while waiting:
            if (name := waiting.popleft()) in self._expires:
                self._start([name])
                break
            del self._messages[name]

    def _expire(self) -> None:
        expired, now = Error(ErrorCode.MESSAGE_UNAVAILABLE, "expired"), self.server.tick_in(0.0)
        for name in [name for name, tick in self._expires.items() if tick <= now]:
            del self._expires[name]
            if name not in self._given_up:
                self._replies[name] = Message(expired, reply_to=self._messages[name]), None

    def _hand(self, ids: set[str]) -> list[Message]:
        """Give the app the replies that are there."""
        handed = [(name, *self._replies[name]) for name in self._replies if name in ids]
        for name, reply, job in handed:
            del self._replies[name]
            if not self.trains and job is not None:
                self._answers.append(job)
            if name in self._training:
                self._training.remove(name)
                self._handed = self._handed or []
                self._handed += [] if job is None else [job]
            elif reply.metadata.message_type.startswith(MessageType.EVALUATE) and reply.has_content():
                self.evaluated[reply.metadata.src_node_id] = reply.content
        return [reply for _, reply, _ in handed]

    # -- rounds -----------------------------------------------------------------------------------------------

    def _note_model(self, messages: list[Message]) -> None:
        """Messages show what the app has made of the replies."""
        trains, vector = _trains(messages[0]), self._model_of(messages)
        if trains and not self.trains:
            self.trains, self._answers = True, []
            self.server.forget_answers()
        if vector is not None and not self._shown:
            self.server.model, self._shown = vector, True
        if (trains or vector is not None) and self._handed is not None and not self._published:
            self._publish(self.server.model if vector is None else vector)
        if trains and self._published:
            self._next_round()

    def _model_of(self, messages: list[Message]) -> Tensor | None:
        """The model, where that is what messages hold, whatever its form."""
        record = model_in(messages[0].content)
        vector = self._vector(record)
        asks = messages[0].metadata.message_type.startswith((MessageType.TRAIN, MessageType.EVALUATE))
        if record is None or not asks or (vector is not None and not self.server.arrays.rounds(record)):
            return vector
        layout = layout_of(record)
        if layout is None or any(model_in(message.content) != record for message in messages[1:]):
            return None
        self.server.adopt(record, layout)
        return self.server.model

    def _publish(self, vector: Tensor) -> None:
        self.server.publish_made_of(vector, self._handed or [])
        self._handed, self._published = None, True

    def _next_round(self) -> None:
        if next(self.rounds, None) is None:
            raise Ended
        self.evaluated, self._published, self._handed = {}, False, None

    def end(self) -> None:
        """The ServerApp has come to its end."""
        server = self.server
        if not self.trains and self._answers:
            server.publish_made_of(server.model, self._answers)
        elif self._handed is not None and not self._published:
            last = None if self.last is None else self._model_of([_showing(self.last)])
            if last is None:
                server.log("unknown_model", why="the app ended without showing what it made of the last replies")
            self._publish(server.model if last is None else last)
        server.stopped = server.stopped or "the app has ended"
        next(self.rounds, None)
