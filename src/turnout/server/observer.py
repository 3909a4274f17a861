"""Observers: hooks with empty defaults. The loop never knows who listens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from turnout.core.names import Names, called, listed

if TYPE_CHECKING:
    from turnout.server.jobs import Job
    from turnout.server.server import Server
    from turnout.server.stretch import Stretch
    from turnout.server.updates import Updates


TRACEBACK = "traceback"  # the name of a fact that is many lines: the log has it, the display does not
_NO_WEIGHTS, _NO_STALENESS = np.zeros(0), np.zeros(0, np.int64)

# What the history says of every round, here of one in which nothing happened.
NO_FACTS: dict[str, float] = {
    "invited": 0, "arrived": 0, "failed": 0, "cancelled": 0, "used": 0, "heard": 0, "bytes_down": 0, "bytes_up": 0,
    "weight": 0.0, "staleness_mean": 0.0, "staleness_max": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Event:
    """Something that is not silent: a rejected update, an empty round, a divergence."""

    kind: str
    round: int
    time: float
    facts: dict[str, Any]

    def __str__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self.facts.items() if name != TRACEBACK)
        return f"round {self.round}, {self.time:.6g} s: {self.kind.replace('_', ' ')}" + (
            f" ({facts})" if facts else ""
        )

    def told(self, names: Names) -> str:
        """Say it with the clients' names, where they have some."""
        facts = dict(self.facts)
        if names is not None and "client" in facts:
            facts["client"] = called(names, facts["client"])
        if names is not None and isinstance(facts.get("clients"), list):
            facts["clients"] = listed(names, facts["clients"])
        return str(replace(self, facts=facts))


@dataclass
class Round:
    """One server aggregation, as the history keeps it."""

    number: int
    time: float  # virtual seconds at its close
    facts: dict[str, float] = field(default_factory=dict)  # counts, bytes, weights: a row of the history
    jobs: Sequence[Job] = ()  # jobs that ended or were used in this round
    weights: NDArray[np.float64] = field(default_factory=lambda: _NO_WEIGHTS)  # realised, a value a job
    staleness: NDArray[np.int64] = field(default_factory=lambda: _NO_STALENESS)
    linear: bool = True  # whether weights say all of the aggregation
    measures: dict[str, float] = field(default_factory=dict)  # filled when this round is evaluated


class Observer:
    """Override what you need. State that must survive a crash goes through `save` and `load`."""

    columns: ClassVar[tuple[str, ...]] = ()  # what it adds to a round's facts, for the history

    def on_start(self, server: Server) -> None: ...

    def on_invite(self, server: Server, jobs: Sequence[Job]) -> None: ...

    def on_arrival(self, server: Server, job: Job) -> None: ...

    def on_step(self, server: Server, updates: Updates, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weights that these updates are to have. An update without any is left out."""
        return weights

    def on_round(self, server: Server, record: Round) -> None: ...

    def on_rounds(self, server: Server, stretch: Stretch) -> None:
        """Learn of rounds that were passed in one go, in place of each `on_round` and whatever else happens in one; the
        server is where the last of them has left it. Only an observer that overrides this as well as those is told in
        this way: for any other every round is closed by itself."""

    def on_evaluate(self, server: Server, measures: dict[str, float]) -> None: ...

    def on_event(self, server: Server, event: Event) -> None: ...

    def on_path(self, server: Server, event: Event) -> None:
        """Learn how a kind of local work is computed, the first time: its facts are `work`, `name` and `why`."""

    def on_checkpoint(self, server: Server) -> None: ...

    def on_end(self, server: Server) -> None: ...

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Give what can be written as JSON, and tensors."""
        return {}, {}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None: ...
