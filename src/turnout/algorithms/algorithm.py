"""What every algorithm is: its options, its state, and a loop that reads as the paper writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numpy.typing import NDArray
from torch import Tensor

from turnout.local.sgd import LocalSGD
from turnout.random import IntArray
from turnout.server.optimisers import Gradient

if TYPE_CHECKING:
    from turnout.population.durations import Durations
    from turnout.population.population import Population
    from turnout.server.policy import Policy
    from turnout.server.server import Server
    from turnout.task import Task


@dataclass
class Algorithm:
    """A dataclass. Fields given to the constructor are options; fields with `init=False` are state and are saved in
    every checkpoint (numbers, strings, tensors). Between two rounds there is no other state."""

    # What clients may go on from (`KEEP`): nothing, work that was interrupted, or also the models they ended with.
    clients_keep: ClassVar[Literal["nothing", "unfinished", "models"]] = "nothing"
    # Whether it takes more from updates than the sum of a step: every class that does not declares False itself.
    reads_updates: ClassVar[bool] = True

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
