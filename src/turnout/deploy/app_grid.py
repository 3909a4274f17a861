"""What every grid of an app has, and the clock that a ServerApp sees while it runs on one."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from turnout.deploy.app import RUN_ID
from turnout.deploy.flower_parts import Run, strategy_utils
from turnout.deploy.older_ways import NETWORK, Stand, in_virtual_time, standing_in

_EPOCH = 1.7e9  # seconds: when every run begins, for an app that reads the clock
_CLOCKS = ("time", "monotonic", "perf_counter")


class Ended(BaseException):
    """Leaves a ServerApp; a user's `except Exception` does not hold it back."""


class AppGrid(Grid):
    """A grid with the one run, messages as Flower makes them, and a clock of its own."""

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

    @property
    def seconds(self) -> float:
        """Tell how long the app has been running, on its own clock."""
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """Let that time pass."""
        raise NotImplementedError

    @property
    def computing(self) -> bool:
        """Tell whether a client is at work now: its time is real."""
        return False

    @contextmanager
    def in_charge(self, folder: Path) -> Iterator[None]:
        """While the ServerApp of a folder runs: whatever it waits for, it waits on the clock of this grid."""
        with ExitStack() as stack:
            for value, name, owners in [*self._clocks(folder), *in_virtual_time(self), *NETWORK]:
                stack.enter_context(standing_in(value, name, *owners))
            yield

    def _clocks(self, folder: Path) -> list[Stand]:
        """List what stands in for functions of `time`: all sleep is that of the grid, and code of the app reads its
        clock there."""
        thread = threading.get_ident()
        modules = [module for module in list(sys.modules.values()) if _is_in(folder, getattr(module, "__file__", None))]

        def owners(name: str, *more: Any) -> tuple[Any, ...]:
            real = getattr(time, name)
            return (time, *more, *(module for module in modules if vars(module).get(name) is real))

        def ours() -> bool:
            return threading.get_ident() == thread and not self.computing

        def sleep(seconds: float, real: Callable[[float], None] = time.sleep) -> None:
            (self.sleep if ours() else real)(seconds)

        def clock(real: Callable[[], float]) -> Callable[[], float]:
            def tell() -> float:
                told = ours() and _is_in(folder, sys._getframe(1).f_code.co_filename)
                return _EPOCH + self.seconds if told else real()

            return tell

        clocks: list[Stand] = [(clock(getattr(time, name)), name, owners(name)) for name in _CLOCKS]
        return [(sleep, "sleep", owners("sleep", strategy_utils)), *clocks]


def _is_in(folder: Path, file: str | None) -> bool:
    return file is not None and file.startswith(f"{folder}/")


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
