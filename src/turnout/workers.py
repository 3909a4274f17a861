"""Work shared by processes that cannot harm each other: one that dies takes only the piece it was at with it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from turnout.errors import UserError


@dataclass(frozen=True)
class Failed:
    """The answer of a piece that has none."""

    why: str


def share(function: Callable[..., Any], pieces: Sequence[tuple[Any, ...]], workers: int) -> Iterator[tuple[int, Any]]:
    """The number of each piece and `function(*piece)`, as they get done; with one worker, in this process.

    The processes are new ones, since CUDA does not outlive a fork, and end with this iterator."""
    if workers == 1 or len(pieces) < 2:
        for number, piece in enumerate(pieces):
            yield number, _answer(function, piece)
        return
    waiting = list(enumerate(pieces))[::-1]
    busy: dict[Connection, tuple[BaseProcess, int]] = {}

    def hand_over(line: Connection, process: BaseProcess) -> None:
        number, piece = waiting.pop()
        busy[line] = process, number
        line.send(piece)

    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                hand_over(*_hire(function))
            for line in wait(list(busy)):
                assert isinstance(line, Connection)
                process, number = busy[line]
                try:
                    answer = line.recv()
                except EOFError:
                    process.join()
                    answer = Failed(f"its process died (exit code {process.exitcode})")
                del busy[line]
                if waiting and process.is_alive():
                    hand_over(line, process)
                else:
                    line.close()
                yield number, answer
    finally:
        for process, _ in busy.values():
            process.terminate()
            process.join()


def _hire(function: Callable[..., Any]) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(function, there), daemon=True)
    process.start()
    there.close()
    return here, process


def _work(function: Callable[..., Any], line: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who shares the work out also ends it
    while True:
        try:
            piece = line.recv()
        except EOFError:
            return
        line.send(_answer(function, piece))


def _answer(function: Callable[..., Any], piece: tuple[Any, ...]) -> Any:
    try:
        return function(*piece)
    except Exception as error:
        return Failed(str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
