"""How a task makes its own module: it is built, and copied for every thread."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from turnout.core.errors import UserError, reason


def built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Have a function build a module, whose first weights are drawn by a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: Any = build() if callable(build) else build
    if not isinstance(module, nn.Module):
        what = f"the function given returns {type(module).__name__}" if callable(build) else f"{module!r} is given"
        raise UserError(f"model: {what}; allowed: a torch.nn.Module, or a function without arguments that builds one")
    return module


def copied(
    module: nn.Module,
    trained: Collection[str],
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    steady: Collection[str] = (),
) -> nn.Module:
    """Copy a module, on another device or in another precision. Parameters that are not trained, and buffers that are
    `steady`, are the same tensors in every copy; those of another precision than what is trained keep theirs."""
    own = {id(module.get_parameter(name)) for name in trained}
    main = next((part.dtype for part in module.parameters() if id(part) in own), None)
    kept = {id(part) for part in module.parameters()} - own | {id(module.get_buffer(name)) for name in steady}
    memo: dict[int, Any] = {}
    for part in [*module.parameters(), *module.buffers()]:
        moved = part.detach().to(device=device, dtype=dtype if part.dtype == main else None)
        same = moved.data_ptr() == part.data_ptr()
        if same and id(part) in kept and moved.dtype == part.dtype:
            memo[id(part)] = part
            continue
        moved = moved.clone() if same else moved
        memo[id(part)] = nn.Parameter(moved, requires_grad=False) if isinstance(part, nn.Parameter) else moved
    try:
        return copy.deepcopy(module, memo)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"model: it cannot be copied, and every thread needs its own: {reason(error)}") from error
