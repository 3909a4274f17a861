"""Threads that compute while their caller goes on.

Their kernels have one thread each, and so must the caller's until they are done: how many threads a kernel has is in
part a setting of the whole process. The caller does not lend a hand: what a step needs for a moment would then lie
between what is kept for long, and the memory in between could not be used again.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError

import torch

from turnout.core.threads import threads

Compute = Callable[[slice], None]


@dataclass(eq=False)
class Part:
    """Some rows that a thread computes."""

    rows: slice
    compute: Compute | None  # until it has: it holds what they are made of
    begun: Future[None] = field(default_factory=Future)

    @torch.no_grad()
    def run(self) -> None:
        assert self.compute is not None
        self.compute(self.rows)
        self.compute = None

    @property
    def there(self) -> bool:
        return self.begun.done() and not self.begun.cancelled() and self.begun.exception() is None

    def wait(self) -> None:
        """Wait until the rows are there, and raise what went wrong; compute rows that were called off."""
        if not self.begun.cancelled():
            self.begun.result()
        elif self.compute is not None:
            with threads(1):
                self.run()


class Background:
    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._width = 0  # threads
        self._under_way: list[Future[None]] = []

    def spread(self, compute: Compute, slices: Sequence[slice], width: int) -> Late:
        """Have `width` threads compute these rows, after all that is under way."""
        pool = self._open(width)
        parts = [Part(rows, compute) for rows in slices]
        for part in parts:
            part.begun = pool.submit(part.run)
        self._under_way = [*(one for one in self._under_way if not one.done()), *(part.begun for part in parts)]
        return Late(parts)

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

    def finish(self) -> None:
        """Wait until nothing is under way, and raise what went wrong."""
        for one in self._under_way:
            with suppress(CancelledError):
                one.result()
        self._under_way = []

    def call_off(self) -> None:
        """Drop what no thread has begun."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._under_way = None, []


class Late:
    """Rows of which some are still being computed; rows that nobody refers to any more are not computed."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def wait(self, rows: Sequence[int] | None = None) -> None:
        """Wait for these rows, or for all, and raise what went wrong in computing them."""
        wanted = self._parts if rows is None else self._of(rows)
        for part in wanted:
            part.wait()
        done = set(wanted)
        self._parts = [part for part in self._parts if part not in done and not part.there]

    def _of(self, rows: Sequence[int]) -> list[Part]:
        """Find the parts of these rows that are not there yet."""
        if not self._parts:
            return []
        ends = [part.rows.stop for part in self._parts]
        near = {(place, row) for row in rows if (place := bisect(ends, row)) < len(ends)}
        places = {place for place, row in near if self._parts[place].rows.start <= row}
        return [self._parts[place] for place in sorted(places)]

    def __del__(self) -> None:
        for part in self._parts:
            part.begun.cancel()
