"""Keep freed memory for the next training step.

glibc gives large freed blocks back to the system, and the next step pays a page fault for every four kilobytes of them.
"""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # mallopt's parameters


@cache
def keep_freed_memory() -> bool:
    """Tell this process's allocator to keep what is freed, where it is glibc's; whether it was told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 << 20))
    return all(mallopt(name, value) for name, value in settings)
