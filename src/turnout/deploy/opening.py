"""What an app's ServerApp sends its clients: the initial model, and the messages to train and to evaluate.

The ServerApp is run until it has sent both, in a world where nobody answers: no client computes anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from flwr.app import ArrayRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode, MessageTypeLegacy
from flwr.common.typing import GetParametersIns
from flwr.compat.common import recorddict_compat as old_style
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg as OldFedAvg
from flwr.serverapp import Grid
from flwr.serverapp.strategy import strategy_utils
from flwr.supercore.run import Run

from turnout.core import random
from turnout.core.errors import UserError
from turnout.deploy.app import RUN_ID, App, Clients, model_in, seeded, why

SLEEPERS = (time, strategy_utils)  # modules whose `sleep` a ServerApp calls
_MOST_SLEEPS = 1000


class Ended(BaseException):
    """Leaves a ServerApp; a user's `except Exception` does not hold it back."""


@dataclass(frozen=True)
class Opening:
    """The first messages of a ServerApp, by content."""

    train: RecordDict
    evaluate: RecordDict  # that of `train`, where the app asks nobody to evaluate

    @property
    def arrays(self) -> ArrayRecord:
        record = model_in(self.train)
        if record is None:
            raise UserError("flower.app: its train message must hold one record of arrays, the model")
        return record

    def message(self, kind: str, client: int, arrays: ArrayRecord, round: int) -> Message:
        """The same message with another model, in another round."""
        content = RecordDict()
        for name, record in (self.train if kind == MessageType.TRAIN else self.evaluate).items():
            content[name] = arrays.copy() if isinstance(record, ArrayRecord) else record.copy()
        for config in content.config_records.values():
            if "server-round" in config:
                config["server-round"] = round
        return Message(content, dst_node_id=client, message_type=kind)


def opening(app: App, clients: Clients, seed: int) -> Opening:
    """Run the ServerApp until it has asked to train and to evaluate."""
    with quiet(), seeded(server_key(seed)):
        return _old_style(app, clients) if _is_old(app) else _new_style(app, clients.count)


def server_key(seed: int) -> int:
    """Of the randomness of a ServerApp."""
    return int(random.key(seed, "flower server app"))


def leads(app: App) -> None:
    """Raise unless the ServerApp can lead a run in virtual time."""
    if _is_old(app):
        raise UserError(
            "flower.app: its ServerApp is of the old style (server_fn), which keeps real time; name an algorithm "
            "with --algorithm, or write the ServerApp with @app.main()"
        )


def _is_old(app: App) -> bool:
    return app.server._main is None


# -- a ServerApp with a main function ---------------------------------------------------------------------------


class AppGrid(Grid):
    """What every grid of an app has: the one run, and messages as Flower makes them."""

    def __init__(self) -> None:
        self._run = Run.create_empty(RUN_ID)

    @property
    def run(self) -> Run:
        return self._run

    def set_run(self, run: Run) -> None:
        self._run = run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


class _Listener(AppGrid):
    """A grid on which nobody answers, and which ends the app once it has heard enough."""

    def __init__(self, clients: int) -> None:
        super().__init__()
        self.clients = clients
        self.train: RecordDict | None = None
        self.evaluate: RecordDict | None = None
        self._sleeps = 0

    def get_node_ids(self) -> Iterable[int]:
        return range(self.clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.hear(list(messages))
        return []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise Ended

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        self.hear(messages)
        nobody = Error(ErrorCode.NODE_UNAVAILABLE, "nobody answers yet")
        return [Message(nobody, reply_to=message) for message in messages]

    def sleep(self, seconds: float) -> None:
        """Nobody comes meanwhile: whoever sleeps often waits in vain."""
        self._sleeps += 1
        if self._sleeps > _MOST_SLEEPS:
            _too_few(self.clients)

    def hear(self, messages: list[Message]) -> None:
        kinds = {message.metadata.message_type: message.content for message in messages}
        if self.train is not None:
            self.evaluate = kinds.get(MessageType.EVALUATE)
            raise Ended
        self.train = kinds.get(MessageType.TRAIN)


def _new_style(app: App, clients: int) -> Opening:
    listener = _Listener(clients)
    try:
        with standing_in(listener.sleep, "sleep", *SLEEPERS):
            app.server(listener, app.context(0))
    except (Ended, UserError) as error:
        if isinstance(error, UserError) and listener.train is None:
            raise
    except Exception as error:
        if listener.train is None:  # else it does not bear that nobody answers
            raise UserError(f"flower.app: its ServerApp fails before it sends a model ({why(error)})") from error
    if listener.train is None:
        raise UserError("flower.app: its ServerApp asks nobody to train")
    return Opening(listener.train, listener.evaluate or listener.train)


def _too_few(clients: int) -> NoReturn:
    raise UserError(f"clients.count: the app's strategy waits for more than {clients} nodes; give it more clients")


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


@contextmanager
def quiet() -> Iterator[None]:
    """Flower says only what went wrong."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# -- a ServerApp with a strategy of the old style ---------------------------------------------------------------


class _Proxy(ClientProxy):
    """A client that is only ever named."""

    def _asked(self, *args: Any, **options: Any) -> Any:
        raise Ended

    get_properties = get_parameters = fit = evaluate = reconnect = _asked


class _Manager(SimpleClientManager):
    """Does not wait for clients that will never come."""

    def wait_for(self, num_clients: int, timeout: int = 86400) -> bool:
        return len(self) >= num_clients or _too_few(len(self))


def _old_style(app: App, clients: Clients) -> Opening:
    strategy: Any = app.server._strategy
    if app.server._server_fn is not None:
        strategy = app.server._server_fn(app.context(0)).strategy
    strategy = strategy or OldFedAvg()
    manager = _Manager()
    for client in range(clients.count):
        manager.register(_Proxy(str(client)))
    try:
        parameters = strategy.initialize_parameters(manager) or _asked_of_a_client(clients)
        fit = strategy.configure_fit(1, parameters, manager)
        evaluate = strategy.configure_evaluate(1, parameters, manager)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"flower.app: its strategy fails before it sends a model ({why(error)})") from error
    if not fit:
        raise UserError("flower.app: its strategy asks nobody to train")
    train = old_style.fitins_to_recorddict(fit[0][1], keep_input=True)
    if evaluate:
        return Opening(train, old_style.evaluateins_to_recorddict(evaluate[0][1], keep_input=True))
    same = ((name.replace("fitins", "evaluateins"), record) for name, record in train.items())
    return Opening(train, RecordDict(dict(same)))


def _asked_of_a_client(clients: Clients) -> Any:
    """The initial model is one that a client begins with."""
    content = old_style.getparametersins_to_recorddict(GetParametersIns({}))
    message = Message(content, dst_node_id=0, message_type=MessageTypeLegacy.GET_PARAMETERS)
    reply, _ = clients.answer(0, message, server_key(0))
    return old_style.recorddict_to_getparametersres(reply.content, keep_input=True).parameters
