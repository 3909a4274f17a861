"""Work shared by processes that cannot harm each other: one that dies takes only the piece it was at with it. They are
on this machine, or on those of a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from turnout.core.errors import UserError


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


def share_on_cluster(
    function: Callable[..., Any], pieces: Sequence[tuple[Any, ...]], address: str, workers: int = 0
) -> Iterator[tuple[int, Any]]:
    """`share` by as many processes as the cluster at this address has cores, or by so many; they work in a folder of
    the same name as this one's. What has not begun when this iterator ends never will."""
    from turnout.engine.ray_pool import connect

    ray = connect("--ray", address)
    task = ray.remote(num_cpus=1, max_retries=0)(_answer_in)
    waiting = list(enumerate(pieces))[::-1]
    busy: dict[Any, int] = {}
    try:
        while waiting or busy:
            while waiting and (not workers or len(busy) < workers):
                number, piece = waiting.pop()
                busy[task.remote(os.getcwd(), function, piece)] = number
            done = ray.wait(list(busy), num_returns=1)[0][0]
            number = busy.pop(done)
            try:
                answer = ray.get(done)
            except ray.exceptions.RayError as error:
                answer = Failed(f"its process died ({type(error).__name__})")
            yield number, answer
    finally:
        for unfinished in busy:
            ray.cancel(unfinished, force=True)


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


def _answer_in(folder: str, function: Callable[..., Any], piece: tuple[Any, ...]) -> Any:
    os.chdir(folder)
    return _answer(function, piece)


def _answer(function: Callable[..., Any], piece: tuple[Any, ...]) -> Any:
    try:
        return function(*piece)
    except Exception as error:
        return Failed(str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
