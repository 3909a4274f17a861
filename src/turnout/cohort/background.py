"""Threads that compute while their caller goes on, who lends a hand when waiting for them.

Their kernels have one thread each, and so must the caller's until they are done: how many threads a kernel has is in
part a setting of the whole process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Barrier, Lock

import torch

from turnout.cohort.threads import threads

Compute = Callable[[slice], None]


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows that are to be computed, by whoever takes them first."""

    rows: slice
    compute: Compute
    outcome: Future[None] = field(default_factory=Future)
    untouched: Lock = field(default_factory=Lock)

    def take(self) -> bool:
        """Compute them, unless somebody does already."""
        if not self.untouched.acquire(blocking=False):
            return False
        try:
            with torch.no_grad():
                self.compute(self.rows)
        except BaseException as error:
            self.outcome.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.outcome.set_result(None)
        return True

    @property
    def there(self) -> bool:
        return self.outcome.done() and self.outcome.exception() is None


class Background:
    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._width = 1  # threads, the caller's included
        self._under_way: list[Part] = []

    def spread(self, compute: Compute, slices: Sequence[slice], width: int) -> Late:
        """Have so many threads compute these rows, after all that is under way."""
        parts = [Part(rows, compute) for rows in slices]
        self._open(width)
        if self._pool is not None:
            for part in parts:
                self._pool.submit(part.take)
        self._under_way = [*(part for part in self._under_way if not part.outcome.done()), *parts]
        return Late(parts, self)

    def _open(self, width: int) -> None:
        if self._width == width:
            return
        self.finish()
        self.call_off()
        self._width = width
        if width == 1:
            return
        self._pool, all_here = ThreadPoolExecutor(width - 1), Barrier(width - 1)

        def begin() -> None:
            torch.get_num_threads()  # asked for it, a thread also tells the libraries that it has one
            all_here.wait()

        with threads(1):
            wait([self._pool.submit(begin) for _ in range(width - 1)])

    def wait(self, part: Part) -> None:
        """Until it is there; what went wrong is raised here."""
        if not part.take():
            while not part.outcome.done() and any(other.take() for other in self._under_way):
                pass
        part.outcome.result()

    def finish(self) -> None:
        """Wait until nothing is under way."""
        while any(part.take() for part in self._under_way):
            pass
        wait(part.outcome for part in self._under_way)

    def call_off(self) -> None:
        """Let go of what nobody has begun; who wants it after all computes it."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._width, self._under_way = None, 1, []


class Late:
    """Rows of which some are still being computed."""

    def __init__(self, parts: Sequence[Part], by: Background) -> None:
        self._parts, self._by = parts, by

    def wait(self, rows: Sequence[int] | None = None) -> None:
        """Until these are there, or all. What went wrong in computing them is raised here."""
        for part in self._parts:
            if rows is None or any(part.rows.start <= row < part.rows.stop for row in rows):
                self._by.wait(part)
        if self._parts:
            self._parts = [part for part in self._parts if not part.there]
