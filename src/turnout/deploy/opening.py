"""What a ServerApp begins with: the model, and the messages it sends to train and to evaluate.

The ServerApp is run until it has sent both, in a world where nobody answers: no client computes anything. One that is
to lead by itself may begin in any other way; then nothing is known beforehand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from flwr.app import ArrayRecord, Context, Error, Message, MessageType, RecordDict
from flwr.server import ServerAppComponents
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg as OldFedAvg

from turnout.core import random
from turnout.core.errors import UserError
from turnout.deploy.app import App, Arrays, Clients, layout_of, model_in, seeded, why
from turnout.deploy.app_grid import AppGrid, Ended, quiet
from turnout.deploy.flower_parts import ErrorCode, GetParametersIns, MessageTypeLegacy, old_style
from turnout.deploy.older_ways import standing_in

_MOST_SLEEPS = 1000


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
        if not Arrays(record).size:
            raise UserError("flower.app: its model must be arrays of numbers; it holds none")
        return record

    @property
    def known(self) -> bool:
        """Tell whether the app has shown a model."""
        return _shows_model(self.train)

    def message(self, kind: str, client: int, arrays: ArrayRecord, round: int) -> Message:
        """The same message with another model, in another round."""
        content = RecordDict()
        for name, record in (self.train if kind == MessageType.TRAIN else self.evaluate).items():
            content[name] = arrays.copy() if isinstance(record, ArrayRecord) else record.copy()
        for config in content.config_records.values():
            if "server-round" in config:
                config["server-round"] = round
        return Message(content, dst_node_id=client, message_type=kind)


UNKNOWN = Opening(RecordDict(), RecordDict())  # of an app that begins with anything but a model to train


def _shows_model(content: RecordDict) -> bool:
    record = model_in(content)
    layout = None if record is None else layout_of(record)
    return layout is not None and layout.size > 0


def opening(app: App, clients: Clients, seed: int, leads: bool = False) -> Opening:
    """Run the ServerApp until it has asked to train and to evaluate. Where it is to lead, it need not: a first message
    that holds no model is the end of this, and what goes wrong will go wrong again when it leads."""
    is_old = app.server._main is None
    with quiet(), seeded(server_key(seed)):
        try:
            found = _of_strategy(app, clients) if is_old else _of_main(app, clients.count, leads)
        except _NoOpeningError as error:
            if not leads:
                raise UserError(str(error)) from error.__cause__
            return UNKNOWN
    return UNKNOWN if leads and not found.known else found


class _NoOpeningError(Exception):
    """Why there is no first model: one sentence."""


def server_key(seed: int) -> int:
    """Of the randomness of a ServerApp."""
    return int(random.key(seed, "flower server app"))


# -- a ServerApp with a main function ---------------------------------------------------------------------------


class _Listener(AppGrid):
    """A grid on which nobody answers, and which ends the app once it has heard enough."""

    def __init__(self, clients: int, leads: bool) -> None:
        super().__init__()
        self.clients, self.leads = clients, leads
        self.train: RecordDict | None = None
        self.evaluate: RecordDict | None = None
        self._sleeps, self._seconds = 0, 0.0

    @property
    def seconds(self) -> float:
        return self._seconds

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
        self._sleeps, self._seconds = self._sleeps + 1, self._seconds + seconds
        if self._sleeps > _MOST_SLEEPS:
            _too_few(self.clients)

    def hear(self, messages: list[Message]) -> None:
        if self.leads and self.train is None and not any(_shows_model(message.content) for message in messages):
            raise Ended
        kinds = {message.metadata.message_type: message.content for message in messages}
        if self.train is not None:
            self.evaluate = kinds.get(MessageType.EVALUATE)
            raise Ended
        self.train = kinds.get(MessageType.TRAIN)


def _of_main(app: App, clients: int, leads: bool) -> Opening:
    listener = _Listener(clients, leads)
    try:
        with listener.in_charge(app.folder), standing_in(_still_given, "initialize_parameters", OldFedAvg):
            app.server(listener, app.context(0))
    except (Ended, UserError) as error:
        if isinstance(error, UserError) and listener.train is None:
            raise
    except (Exception, SystemExit) as error:
        if listener.train is None:  # else it does not bear that nobody answers
            raise _NoOpeningError(
                f"flower.app: its ServerApp fails before it sends a model ({why(error, app.folder)})"
            ) from error
    if listener.train is None:
        raise _NoOpeningError("flower.app: its ServerApp asks nobody to train")
    return Opening(listener.train, listener.evaluate or listener.train)


def _still_given(strategy: OldFedAvg, client_manager: Any) -> Any:  # noqa: ARG001
    """Give a strategy's first model as it does, and leave it there: the app may have to lead with the same strategy."""
    return strategy.initial_parameters


def _too_few(clients: int) -> NoReturn:
    raise UserError(f"clients.count: the app's strategy waits for more than {clients} nodes; give it more clients")


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


def _of_strategy(app: App, clients: Clients) -> Opening:
    parts: Any = app.server
    strategy, server = parts._strategy, parts._server
    if parts._server_fn is not None:
        given = _given_by(parts._server_fn, app)
        strategy, server = given.strategy, given.server
    strategy = (
        copy.deepcopy(strategy or (server and server.strategy)) or OldFedAvg()
    )  # the app's own has still to begin
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
        raise _NoOpeningError(
            f"flower.app: its strategy fails before it sends a model ({why(error, app.folder)})"
        ) from error
    if not fit:
        raise _NoOpeningError("flower.app: its strategy asks nobody to train")
    train = old_style.fitins_to_recorddict(fit[0][1], keep_input=True)
    if evaluate:
        return Opening(train, old_style.evaluateins_to_recorddict(evaluate[0][1], keep_input=True))
    same = ((name.replace("fitins", "evaluateins"), record) for name, record in train.items())
    return Opening(train, RecordDict(dict(same)))


def _given_by(server_fn: Callable[[Context], Any], app: App) -> ServerAppComponents:
    """Call the function that makes a strategy or a server."""
    try:
        given = server_fn(app.context(0))
    except (Exception, SystemExit) as error:
        raise _NoOpeningError(f"flower.app: its server_fn fails ({why(error, app.folder)})") from error
    if not isinstance(given, ServerAppComponents):
        raise UserError(f"flower.app: its server_fn returns {type(given).__name__}; it must return ServerAppComponents")
    return given


def _asked_of_a_client(clients: Clients) -> Any:
    """The initial model is one that a client begins with."""
    content = old_style.getparametersins_to_recorddict(GetParametersIns({}))
    message = Message(content, dst_node_id=0, message_type=MessageTypeLegacy.GET_PARAMETERS)
    reply, _ = clients.answer(0, message, server_key(0))
    return old_style.recorddict_to_getparametersres(reply.content, keep_input=True).parameters
