"""Workers of the remote engine that live in this process: what is sent to them is copied, and they die when told to."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from numpy.typing import NDArray

from turnout.engine import remote
from turnout.engine.plan import Plan
from turnout.engine.remote import LostError, RemoteEngine, Worker
from turnout.engine.train import Cohort


class InProcess:
    """A pool; whoever gets a call whose number is in `deaths` dies of it."""

    def __init__(self, cohort: Cohort, workers: int, deaths: Iterable[int] = ()) -> None:
        samples = cohort.inputs.numpy(), cohort.targets.numpy()
        self.staff = [Worker(cohort.task, *samples, cohort.plan) for _ in range(workers)]
        self.workers, self.deaths = list(range(workers)), set(deaths)
        self.dead: set[int] = set()
        self.calls: list[tuple[int, str, Any]] = []
        self.ended = False

    def put(self, array: NDArray[Any]) -> Any:
        return array

    def submit(self, worker: int, method: str, *arguments: Any) -> Any:
        if len(self.calls) in self.deaths:
            self.dead.add(worker)
        lost = worker in self.dead
        answer = None if lost else getattr(self.staff[worker], method)(*copy.deepcopy(arguments))
        self.calls.append((worker, method, LostError(f"{method} was too much") if lost else answer))
        return len(self.calls) - 1

    def first(self, asked: Iterable[Any]) -> Any:
        return max(asked)  # in another order than they were asked in

    def answer(self, asked: Any) -> Any:
        answer = self.calls[asked][2]
        if isinstance(answer, LostError):
            raise answer
        return answer

    def end(self) -> None:
        self.ended = True


@contextmanager
def shared_work(workers: int, blocks: int = 3, deaths: Iterable[int] = ()) -> Iterator[list[InProcess]]:
    """Simulations made in here share their work among so many, and nothing is too small to stay with them; the pools
    they start."""
    pools: list[InProcess] = []

    def engine(cohort: Cohort, _plan: Plan) -> RemoteEngine:
        def start() -> InProcess:
            pools.append(InProcess(cohort, workers, deaths))
            return pools[-1]

        return RemoteEngine(cohort, blocks, start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "SMALL", 0)
        patch.setattr("turnout.server.simulation.engine_for", engine)
        yield pools
