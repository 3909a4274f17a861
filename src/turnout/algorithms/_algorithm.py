"""What every algorithm is: its options, its state, and a loop that reads as the paper writes it."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numpy.typing import NDArray
from torch import Tensor

from turnout.aggregation.optimisers import Gradient
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt
from turnout.local.sgd import LocalSGD

if TYPE_CHECKING:
    from turnout.clients.population import Population
    from turnout.server.durations import Durations
    from turnout.server.policy import Policy
    from turnout.server.server import Server
    from turnout.task.task import Task


@dataclass
class Algorithm(Spelt):
    """A dataclass. Fields given to the constructor are options; fields with `init=False` are state and are saved in
    every checkpoint (numbers, strings, tensors). Between two rounds there is no other state."""

    # What clients may go on from (`KEEP`): nothing, work that was interrupted, or also the models they ended with.
    clients_keep: ClassVar[Literal["nothing", "unfinished", "models"]] = "nothing"
    # Whether it takes more from updates than the sum of a step: every class that does not declares False itself.
    reads_updates: ClassVar[bool] = True
    restarts_crashed: ClassVar[bool] = False  # whether a standing invitation outlives a crash
    sends_updates: ClassVar[bool] = True  # False: clients keep what they learn to themselves
    trains: ClassVar[type[LocalSGD] | None] = None  # what it makes of the settings of its local work; None: that work
    no_use_for: ClassVar[tuple[str, ...]] = ()  # options it inherits that would change nothing

    def __post_init__(self) -> None:
        """Raise where an option has no use, or something of the local work given would be dropped."""
        for part in (part for part in fields(self) if part.name in self.no_use_for):
            given = getattr(self, part.name)
            if given != (part.default if part.default_factory is MISSING else part.default_factory()):
                kind = type(self).__name__
                shown = given if isinstance(given, int | float) else repr(given)[:60]
                raise UserError(f"algorithm.{part.name}: {shown}, which would change nothing in {kind}; leave it out")
        local = getattr(self, "local", None)
        if not isinstance(local, LocalSGD):
            return
        if self.trains is not None:
            self.needs_plain_work(local, self.trains)
        served = type(local).predict is not LocalSGD.predict or type(local).prepare is not LocalSGD.prepare
        if served and all(part.__module__.startswith("turnout.") for part in (self.predictor, self.adaptation)):
            raise UserError(
                f"local: {type(self).__name__} would never ask {type(local).__name__} to predict; take an algorithm of "
                "your own whose `predictor` returns it"
            )

    def needs_plain_work(self, local: LocalSGD, kind: type[LocalSGD]) -> None:
        """Raise unless that kind of work can be made of the local one without loss."""
        if type(local) is not LocalSGD:
            raise local.lost_to(f"the {kind.__name__} of {type(self).__name__}")

    @property
    def time_limit(self) -> float | None:
        """Seconds that a round waits for clients once the models are out: `deadline`, where there is such an option."""
        return getattr(self, "deadline", None)

    def begin(self, server: Server) -> None:
        """Once, before the first round; never again on resume."""

    def run(self, server: Server) -> None:
        """The loop over `server.rounds()`."""
        raise NotImplementedError

    def optimiser(self) -> Gradient:
        """What the server does with the aggregated difference."""
        return Gradient()

    def policy(self, durations: Durations, version: int = 0) -> Policy | None:
        """The waiting policy that round `version` follows, where the algorithm is one."""
        return None

    def training_population(self, population: Population) -> Population:
        """Who trains; evaluation always looks at the population as given."""
        return population

    def trained_task(self, task: Task) -> Task:
        """What the server trains, where that is more than one model of the task (a mixture of several)."""
        return task

    def output(self, model: Tensor) -> Tensor:
        """What is evaluated and returned, where that is not the current model (an average of many)."""
        return model

    def about(self, server: Server, clients: IntArray) -> dict[str, NDArray[Any]]:
        """Columns of the table of clients: what a simulation knows of these and nobody sends."""
        return {}

    def predictor(self) -> LocalSGD | None:
        """The local work whose `predict` serves the clients, where they do not all serve the global model."""
        return None

    def adaptation(self, unseen: bool) -> LocalSGD | None:
        """What a client does with the global model and its own training samples before it serves, where that is more
        than to look up what it kept: it trains this work, `prepare`s and `predict`s with it, and keeps nothing of it.
        `unseen` clients have never trained. It takes no time and nothing is sent: evaluation alone asks for it."""
        return None


@dataclass
class DefaultDeadline(Algorithm):
    """Waits for `deadline` seconds, an option of the subclass; unless given, for a time taken from how long the clients
    are expected to need, which is logged and part of the result."""

    local: LocalSGD
    chosen_deadline: float | None = field(default=None, init=False)  # where none was given

    @property
    def time_limit(self) -> float | None:
        given = super().time_limit
        return self.chosen_deadline if given is None else given

    def begin(self, server: Server) -> None:
        super().begin(server)
        if super().time_limit is None:
            expected = server.durations(self.local).mean[server.population.base_importance > 0]
            self.chosen_deadline = self.default_deadline(expected)
            server.log("default_deadline", seconds=float(f"{self.chosen_deadline:.6g}"), why="no algorithm.deadline")

    def default_deadline(self, expected: FloatArray) -> float:
        """Seconds, from those that each client is expected to need."""
        raise NotImplementedError


def tell_unused(server: Server, local: LocalSGD, *names: str) -> None:
    """Say which of these options of the local work are given, though the algorithm has no use for them."""
    for name in names:
        if getattr(local, name) != getattr(LocalSGD, name):
            server.log("unused_option", option=f"local.{name}", value=getattr(local, name))
