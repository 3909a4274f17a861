"""How many threads a kernel uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with `count` intra-operation threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread(*kinds: str) -> Iterator[None]:
    """Run NumPy, SciPy and scikit-learn in one thread: `blas`, of the whole process, and `openmp`, of the thread that
    calls. Where `threadpoolctl` is missing, so is scikit-learn, and what the environment says holds."""
    with ExitStack() as stack:
        try:
            from threadpoolctl import threadpool_limits
        except ImportError:
            pass
        else:
            for kind in kinds:
                stack.enter_context(threadpool_limits(1, user_api=kind))
        yield
