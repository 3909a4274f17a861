"""Threads that compute while their caller goes on.

Their kernels have one thread each, and so must the caller's until they are done: how many threads a kernel has is in
part a setting of the whole process. The caller does not lend a hand: what a step needs for a moment would then lie
between what is kept for long, and the memory in between could not be used again.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Lock

import torch

from turnout.cohort.threads import threads

Compute = Callable[[slice], None]


class Part:
    """Some rows that are to be computed, once."""

    def __init__(self, rows: slice, compute: Compute) -> None:
        self.rows = rows
        self.outcome: Future[None] = Future()
        self.called_off = False
        self._compute: Compute | None = compute  # until it is done: it holds on to all that it needs
        self._untouched = Lock()

    def take(self) -> bool:
        """Compute them, unless somebody does already."""
        taken = False
        try:
            taken = self._untouched.acquire(blocking=False)
            if taken and self._compute is not None:
                with torch.no_grad():
                    self._compute(self.rows)
        except Exception as error:
            self.outcome.set_exception(error)
        except BaseException:  # an interrupt: it can be taken again
            if taken:
                self._untouched.release()
            raise
        else:
            if taken:
                self.outcome.set_result(None)
        if taken:
            self._compute = None
        return taken

    def withdraw(self) -> None:
        """Nobody wants them any more."""
        if self._untouched.acquire(blocking=False):
            self._compute = None
            self.outcome.cancel()

    @property
    def there(self) -> bool:
        return self.outcome.done() and not self.outcome.cancelled() and self.outcome.exception() is None


class Background:
    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._width = 0  # threads
        self._under_way: list[Part] = []

    def spread(self, compute: Compute, slices: Sequence[slice], width: int) -> Late:
        """Have so many threads compute these rows, after all that is under way."""
        parts, pool = [Part(rows, compute) for rows in slices], self._open(width)
        self._under_way = [*(part for part in self._under_way if not part.outcome.done()), *parts]
        for part in parts:
            pool.submit(part.take)
        return Late(parts, self)

    def _open(self, width: int) -> ThreadPoolExecutor:
        if self._pool is not None and self._width == width:
            return self._pool
        self.finish()
        self.call_off()
        self._pool, self._width = ThreadPoolExecutor(width), width
        all_here = Barrier(width)

        def begin() -> None:
            torch.get_num_threads()  # asked for it, a thread also tells the libraries that it has one
            with suppress(BrokenBarrierError):
                all_here.wait()

        try:
            with threads(1):
                wait([self._pool.submit(begin) for _ in range(width)])
        except BaseException:  # those that are here would wait for the others
            all_here.abort()
            self.call_off()
            raise
        return self._pool

    def wait(self, part: Part) -> None:
        """Until it is there; what went wrong is raised here."""
        if part.called_off:
            with threads(1):
                part.take()
        part.outcome.result()

    def finish(self) -> None:
        """Wait until nothing is under way."""
        for part in self._under_way:
            if not part.outcome.cancelled():
                self.wait(part)
        self._under_way = []

    def call_off(self) -> None:
        """Let go of what nobody has begun; who wants it after all computes it."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for part in self._under_way:
            part.called_off = True
        self._pool, self._under_way = None, []


class Late:
    """Rows of which some are still being computed; nobody does for nobody."""

    def __init__(self, parts: Sequence[Part], by: Background) -> None:
        self._parts, self._by = parts, by

    def wait(self, rows: Sequence[int] | None = None) -> None:
        """Until these are there, or all. What went wrong in computing them is raised here."""
        for part in list(self._parts) if rows is None else self._of(rows):
            self._by.wait(part)
        self._parts = [part for part in self._parts if not part.there]

    def _of(self, rows: Sequence[int]) -> list[Part]:
        """The parts of these rows that are not there yet."""
        if not self._parts:
            return []
        ends = [part.rows.stop for part in self._parts]
        near = {(place, row) for row in rows if (place := bisect(ends, row)) < len(ends)}
        places = {place for place, row in near if self._parts[place].rows.start <= row}
        return [self._parts[place] for place in sorted(places)]

    def __del__(self) -> None:
        for part in self._parts:
            part.withdraw()
