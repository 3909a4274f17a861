"""Memory that is used again, where the allocator is glibc's.

It gives large freed blocks back to the system, unless told otherwise, and the next step pays a page fault for every
four kilobytes of them. And it does not always find a freed block again for as much aligned memory, which is what torch
asks for: a little that was cut off at its ends has become something else. A run that replaces one model after another
would grow to several times what it holds. Nor does a thread find again what others have freed, unless all have one
heap.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import torch
from torch import Tensor

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8  # mallopt's parameters
_LINE = 64  # bytes: the alignment of torch's own memory
_LARGE = 1 << 20  # bytes: less is not worth the while


@cache
def keep_freed_memory() -> bool:
    """Tell this process's allocator to keep what is freed, where it is glibc's; whether it was told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 << 20), (_ARENA_MAX, 1))
    return all(mallopt(name, value) for name, value in settings)


def is_large(vector: Tensor) -> bool:
    """Tell whether room for such a vector is worth the while."""
    return vector.device.type == "cpu" and vector.numel() * vector.element_size() >= _LARGE


def room_like(vector: Tensor) -> Tensor:
    """Room for another such vector; once it is let go it can be used again for a third. It is aligned here, not by the
    allocator."""
    if not is_large(vector):
        return torch.empty_like(vector)
    size = vector.numel() * vector.element_size()
    room = torch.from_numpy(np.empty(size + _LINE, np.uint8))
    begin = -room.data_ptr() % _LINE
    return room[begin : begin + size].view(vector.dtype).view(vector.shape)
