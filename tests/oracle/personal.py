"""Slow plain references of the personal local works: one client, flat vectors, `torch.optim.SGD`, a loop over batches.

`slope(vector, rows)` is the gradient of the client's mean loss over those samples. Each returns what the server is told
(the change of the model received) and what the client keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Slope = Callable[[Tensor, np.ndarray], Tensor]
Batches = Iterable[np.ndarray]


class Moving:
    """A vector that torch.optim moves."""

    def __init__(self, start: Tensor, options: dict[str, Any]) -> None:
        self.leaf = start.clone().requires_grad_()
        self.optimiser = torch.optim.SGD([self.leaf], **options)

    @property
    def now(self) -> Tensor:
        return self.leaf.detach().clone()

    def along(self, gradient: Tensor) -> None:
        self.leaf.grad = gradient
        self.optimiser.step()


def pulled(slope: Slope, received: Tensor, own: Tensor, batches: Batches, sgd: dict[str, Any], mu: float) -> Any:
    v = Moving(own, sgd)
    for rows in batches:
        v.along(slope(v.now, rows) + mu * (v.now - received))
    return v.now - received, v.now


def ditto(slope: Slope, received: Tensor, own: Tensor, batches: Batches, sgd: dict[str, Any], mu: float) -> Any:
    batches = list(batches)
    w = Moving(received, sgd)
    for rows in batches:
        w.along(slope(w.now, rows))
    return w.now - received, pulled(slope, received, own, batches, sgd, mu)[1]


def interpolated(
    slope: Slope,
    received: Tensor,
    own: Tensor,
    batches: Batches,
    sgd: dict[str, Any],
    alpha: float,
    adaptive: bool = False,
    frozen: bool = False,
) -> Any:
    v, w = Moving(own, sgd), Moving(received, sgd)
    for rows in batches:
        g = slope(alpha * v.now + (1 - alpha) * w.now, rows)
        turned = alpha - sgd["lr"] * float((v.now - w.now) @ g)
        v.along(alpha * g)
        if not frozen:
            w.along(slope(w.now, rows))
        alpha = min(1.0, max(0.0, turned)) if adaptive else alpha
    return w.now - received, (v.now, alpha)


def moreau(
    slope: Slope,
    received: Tensor,
    batches: Batches,
    sgd: dict[str, Any],
    mu: float,
    outer_lr: float,
    inner_steps: int,
) -> Any:
    w = theta = received
    for rows in batches:
        inner = Moving(theta, sgd)
        for _ in range(inner_steps):
            inner.along(slope(inner.now, rows) + mu * (inner.now - w))
        theta = inner.now
        w = w - outer_lr * mu * (w - theta)
    return w - received, theta


def loopless(slope: Slope, received: Tensor, own: Tensor, batches: Batches, sgd: dict[str, Any], keep: float) -> Any:
    x = Moving(received + keep * (own - received), sgd)
    for rows in batches:
        x.along(slope(x.now, rows))
    return x.now - received, x.now


def related(
    slope: Slope, received: Tensor, own: Tensor, batches: Batches, sgd: dict[str, Any], mu: float, samples: int
) -> Any:
    """After every step w is where `|w - stepped|^2 / (2 lr) + mu / (2 n) |w - received|^2` is least."""
    w = own
    for rows in batches:
        stepped = w - sgd["lr"] * slope(w, rows)
        pull = mu / samples
        w = (stepped / sgd["lr"] + pull * received) / (1 / sgd["lr"] + pull)
    return w - received, w


def with_head(
    slope: Slope,
    received: Tensor,
    own: Tensor,
    head: Tensor,
    batches: Batches,
    sgd: dict[str, Any],
    head_steps: int,
    joint: bool,
) -> Any:
    """`own` [P] has the client's head where `head` (a mask) is; an optimiser each for head and body."""
    now = torch.where(head, own, received)
    for number, rows in enumerate(batches):
        if number == 0:
            parts = {True: Moving(now[head], sgd), False: Moving(now[~head], sgd)}
        turn = (True,) if number < head_steps else (True, False) if joint else (False,)
        gradient = slope(now, rows)
        for part in turn:
            parts[part].along(gradient[head if part else ~head])
        now = now.clone()
        now[head], now[~head] = parts[True].now, parts[False].now
    return torch.where(head, 0.0, now - received), now[head]


def best_of(
    slope: Slope, losses: Callable[[Tensor], float], models: Tensor, batches: Batches, sgd: dict[str, Any]
) -> Any:
    chosen = int(np.argmin([losses(model) for model in models]))
    w = Moving(models[chosen], sgd)
    for rows in batches:
        w.along(slope(w.now, rows))
    return w.now - models[chosen], chosen
