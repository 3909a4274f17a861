"""A network in one process: Flower's Grid with real messages, answered by real clients at times of a clock that only
moves when somebody sleeps."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

import support
from turnout import Algorithm, Evaluation, Experiment, Plan, Population, Stopping, Task
from turnout.config.deployment import Deploy
from turnout.deploy.client import Memory, Worker
from turnout.deploy.folder import (
    Enrolled,
    Enrolment,
    read_outline,
    read_shard,
    write_clients,
    write_outline,
    write_shard,
)
from turnout.deploy.keys import as_pem
from turnout.deploy.presence import Timeline
from turnout.deploy.server import Deployment
from turnout.record.history import History
from turnout.server.checkpoint import Checkpoints
from turnout.server.observer import Event, Observer

SIZES = (6, 9, 4, 12)
SECONDS = (1.0, 1.7, 2.6, 3.9)  # that clients take for a job
FIRST_NODE = 1000


class Clock:
    def __init__(self) -> None:
        self.now = 50.0  # any

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Events(Observer):
    """Everything that was logged."""

    def __init__(self) -> None:
        self.all: list[Event] = []

    def on_event(self, server: Any, event: Event) -> None:
        self.all.append(event)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.facts for event in self.all if event.kind == kind]


class FakeLink:
    """What a SuperLink keeps of replies: parts by name, as clients have sent them. `spoil` may change them."""

    def __init__(self, arrived: Callable[[], list[Message]]) -> None:
        self.arrived = arrived
        self.parts: dict[str, bytes] = {}
        self.spoil: Callable[[Message, str, dict[str, bytes]], str] = lambda _reply, root, _parts: root

    def PullMessages(self, _: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        """What has arrived by now: a careless SuperLink, which does not look at what was asked for."""
        answer = PullAppMessagesResponse()
        for reply in self.arrived():
            parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
            root = self.spoil(reply, reply.object_id, parts)
            self.parts |= parts
            about = message_to_proto(remove_content_from_message(reply))
            about.metadata.message_id = root
            answer.messages_list.append(about)
            answer.message_object_trees.append(
                ObjectTree(object_id=root, children=[ObjectTree(object_id=name) for name in parts if name != root])
            )
        return answer

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        found, part = request.object_id in self.parts, self.parts.get(request.object_id, b"")
        return PullObjectResponse(object_found=found, object_available=not found or part != b"", object_content=part)

    def ConfirmMessageReceived(self, _: ConfirmMessageReceivedRequest) -> None:  # noqa: N802
        pass


class FakeGrid(HttpGrid):
    """`tamper` may put any replies in the place of an honest one; `None` as a list of replies is silence."""

    def __init__(self, workers: list[Worker], clock: Clock, seconds: tuple[float, ...] = SECONDS) -> None:
        super().__init__(token="none")
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        self.link = FakeLink(self._arrived)
        self.workers, self.clock, self.seconds = workers, clock, seconds
        self.connected = dict.fromkeys(range(len(workers)), True)
        self.strangers: list[NodeInfo] = []
        self.tamper: Callable[[int, Message, Message], list[Message]] = lambda _client, _asked, reply: [reply]
        self.tampers_with_measures = False
        self.asked: list[tuple[int, Message]] = []  # to train, in order
        self._waiting: list[tuple[float, int, Message]] = []
        self._free_at = [0.0] * len(workers)
        self._sent = 0
        self._run = Run.create_empty(1)

    @property
    def _runtime_client(self) -> Any:
        return self.link

    def get_nodes(self) -> Iterable[NodeInfo]:
        here = [i for i, connected in self.connected.items() if connected]
        return [NodeInfo(node_id=FIRST_NODE + i, public_key=as_pem(key_of(i))) for i in here] + self.strangers

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            self._sent += 1
            message.metadata.__dict__["_message_id"] = name = f"message-{id(self)}-{self._sent}"
            names.append(name)
            self._ask(message.metadata.dst_node_id - FIRST_NODE, message)
        return names

    def _ask(self, client: int, message: Message) -> None:
        training = message.metadata.message_type == "train"
        if training:
            self.asked.append((client, message))
        takes = self.seconds[client] if training else 0.0
        self._free_at[client] = done = max(self._free_at[client] if training else 0.0, self.clock.now) + takes
        worker = self.workers[client]
        try:
            content: RecordDict | Error = getattr(worker, message.metadata.message_type)(message.content)
        except Exception as error:
            content = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error))
        reply = Message(content, reply_to=message)
        for each in self.tamper(client, message, reply) if training or self.tampers_with_measures else [reply]:
            self.deliver(each, done)

    def deliver(self, reply: Message, at: float) -> None:
        heapq.heappush(self._waiting, (at, len(self._waiting) + self._sent * 1000, reply))

    def _arrived(self) -> list[Message]:
        found = []
        while self._waiting and self._waiting[0][0] <= self.clock.now:
            found.append(heapq.heappop(self._waiting)[2])
        return found


def key_of(client: int) -> str:
    return f"key{client}" * 30


class World:
    """Four clients with their own folders, a server that has none of their data, and the same as one population."""

    def __init__(self, folder: Path, algorithm: Callable[[], Algorithm], **columns: Any) -> None:
        self.folder, self.algorithm = folder, algorithm
        self.population = support.population(SIZES, **columns)
        self.clock = Clock()
        self.workers = [self.worker(client) for client in range(len(SIZES))]
        self.grid = FakeGrid(self.workers, self.clock)
        self.enrol()
        write_outline(folder / "outline.safetensors", self.population, 3)

    @staticmethod
    def task() -> Task:
        return Task(support.mlp, seed=3)

    def experiment(self, population: Population, rounds: int = 6) -> Experiment:
        plan = Plan(threads=1)
        return Experiment(self.task(), population, self.algorithm(), 7, Stopping(rounds), Evaluation(), plan)

    def worker(self, client: int) -> Worker:
        path = self.folder / f"client{client}"
        write_shard(path / "shard.safetensors", self.population, client, 3)
        return Worker(self.experiment(read_shard(path / "shard.safetensors")[1]), Memory(path / "memory"))

    def enrol(self, members: tuple[bool, ...] = (True,) * len(SIZES)) -> None:
        rows = zip(SIZES, members, strict=True)
        tests = self.population.test.counts.tolist() if self.population.test is not None else [None] * len(SIZES)
        clients = [Enrolled(key_of(i), size, None, member, tests[i]) for i, (size, member) in enumerate(rows)]
        write_clients(self.folder / "clients.toml", clients)

    def server(self, rounds: int = 6, every: int = 5, resume: bool = False, **settings: Any) -> Deployment:
        enrolment = Enrolment(self.folder / "clients.toml")
        _, people = read_outline(self.folder / "outline.safetensors", list(SIZES), **enrolment.columns())
        built = self.experiment(people, rounds)
        self.history, self.events = History(self.folder / "run"), Events()
        self.timeline = Timeline(self.folder / "run" / "arrivals")
        server = Deployment(
            built.task,
            people,
            built.algorithm,
            seed=built.seed,
            plan=built.plan,
            stopping=built.stopping,
            observers=[self.history, self.events],
            checkpoints=Checkpoints(self.folder / "checkpoints", every),
            grid=self.grid,
            enrolment=enrolment,
            settings=Deploy(**{"poll_seconds": 0.05, "join_seconds": 1.0, **settings}),
            timeline=self.timeline,
            clock=self.clock.read,
            sleep=self.clock.sleep,
        )
        if resume:
            assert server.checkpoints is not None
            server.checkpoints.load(server)
        return server

    def jobs(self) -> dict[str, np.ndarray[Any, Any]]:
        assert self.history.jobs is not None
        return self.history.jobs.read()
