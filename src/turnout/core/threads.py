"""How many threads a kernel uses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

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
        libraries = _libraries(len(sys.modules))
        for kind in kinds if libraries is not None else ():
            stack.enter_context(libraries.limit(limits=1, user_api=kind))
        yield


@lru_cache(maxsize=1)
def _libraries(_imported: int) -> Any:
    """Find the libraries with threads of their own, anew once more modules have been imported; None: nobody can."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
