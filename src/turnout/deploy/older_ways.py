"""How Flower's older servers and workflows reach clients, without threads and clocks of their own.

A manager of clients looks up who is there when it is asked, not every five seconds; it waits in the seconds of the
grid; and what a server would send from a pool of threads is sent at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import flwr.client
import flwr.server
from flwr.app import Message
from flwr.server.client_manager import SimpleClientManager
from flwr.serverapp import Grid

from turnout.core.errors import UserError
from turnout.deploy.flower_parts import app_utils, default_workflows, old_app, old_server

_POLL = 1.0  # seconds between two looks for who is there

Event = threading.Event
Stand = tuple[Any, str, tuple[Any, ...]]  # a value, and by which name who calls it


@contextmanager
def standing_in(value: Any, name: str, *owners: Any) -> Iterator[None]:
    """Let a value stand in for what owners, which have the same, call by that name."""
    before = getattr(owners[0], name)
    for owner in owners:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner in owners:
            setattr(owner, name, before)


def _refused(name: str) -> Stand:
    """Make what stands in for a function that would open a connection and wait for others."""

    def refuse(*_args: Any, **_options: Any) -> Any:
        raise UserError(
            f"flower.app: it calls {name}, which opens a network connection; let it make a ServerApp and a ClientApp, "
            "which are run here"
        )

    return refuse, name, (flwr.server if name == "start_server" else flwr.client,)


NETWORK = [_refused(name) for name in ("start_server", "start_client", "start_numpy_client")]


class _Heard(BaseException):
    """What a call would have sent."""

    def __init__(self, messages: list[Message]) -> None:
        super().__init__()
        self.messages = messages


def in_virtual_time(grid: Any) -> list[Stand]:
    """List what stands in for Flower's own while an app runs on this grid."""

    def wait_for(manager: SimpleClientManager, num_clients: int, timeout: int = 86400) -> bool:
        end = grid.seconds + timeout
        while manager.num_available() < num_clients:
            if grid.seconds >= end:
                return False
            grid.sleep(_POLL)
        return True

    return [
        (_registered, "start_update_client_manager_thread", (old_app, default_workflows)),
        (wait_for, "wait_for", (SimpleClientManager,)),
        (_Calls(grid), "concurrent", (old_server,)),
    ]


def _registered(grid: Grid, manager: Any) -> tuple[threading.Thread, Event, Event]:
    """Let a manager look up who is there whenever it is asked: the thread has ended before it would look by itself."""
    stop, done = Event(), Event()
    stop.set()
    thread = threading.Thread(target=app_utils._update_client_manager, args=(grid, manager, stop, done))
    thread.start()
    thread.join()
    return thread, stop, done


class _Calls:
    """Stands in for `concurrent`, of whose `futures` an old server uses a pool, and waits for all that it was given.

    Every call sends at most one bunch of messages: first it is heard what each would send, then all is sent, and each
    call is made again with its reply, in order of arrival."""

    def __init__(self, grid: Any) -> None:
        self.grid, self.futures = grid, self
        self._given: list[tuple[Future[Any], Callable[[], Any]]] = []

    def ThreadPoolExecutor(self, max_workers: int | None = None) -> AbstractContextManager[_Calls]:  # noqa: N802
        return nullcontext(self)

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._given.append((future, partial(call, *args)))
        return future

    def wait(self, fs: Iterable[Future[Any]], timeout: float | None = None) -> tuple[list[Future[Any]], list[Any]]:
        given, self._given = self._given, []
        done: list[Future[Any]] = []
        waiting: list[tuple[Message, Future[Any], Callable[[], Any]]] = []
        for future, call in given:
            try:
                with self._answered_by(_hear):
                    _settle(future, call)
                done.append(future)
            except _Heard as heard:
                waiting.append((heard.messages[0], future, call))
        replies = self.grid.send_and_receive([message for message, _, _ in waiting]) if waiting else []
        asked = {message.metadata.message_id: (future, call) for message, future, call in waiting}
        for reply in replies:
            future, call = asked[reply.metadata.reply_to_message_id]
            with self._answered_by(partial(_give, reply)):
                _settle(future, call)
            done.append(future)
        return done, []

    @contextmanager
    def _answered_by(self, send_and_receive: Callable[..., Any]) -> Iterator[None]:
        self.grid.send_and_receive = send_and_receive
        try:
            yield
        finally:
            del self.grid.send_and_receive


def _hear(messages: Iterable[Message], **_: Any) -> list[Message]:
    raise _Heard(list(messages))


def _give(reply: Message, messages: Iterable[Message], **_: Any) -> list[Message]:  # noqa: ARG001
    return [reply]


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
