"""Settings of the process that a device needs, so that the same work gives the same bits twice."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from turnout.engine.plan import Plan


def computing_on(plan: Plan, may_attend: bool) -> AbstractContextManager[Any]:
    """Compute on the plan's device; the current device and these settings are the process's. Where a model `may_attend`
    attention has the one form that CUDA can compute for many clients at once, and that gives the same bits twice."""
    if plan.device == "cpu":
        return nullcontext()
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    tf32 = plan.precision == "tf32"
    now: Any = None
    with suppress(RuntimeError):  # set in a way that these cannot tell
        now = (products.allow_tf32, convolutions.allow_tf32, convolutions.deterministic, convolutions.benchmark)
    if now != (tf32, tf32, True, False):
        products.allow_tf32 = convolutions.allow_tf32 = tf32
        convolutions.deterministic, convolutions.benchmark = True, False
    with ExitStack() as stack:
        if plan.device != "cuda":
            stack.enter_context(torch.cuda.device(plan.device))
        if may_attend:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        return stack.pop_all()
