"""Running statistics, and other buffers that are averaged, under the law: they do not move by differences.

With weights w_i of those that count, W their sum and S_i what client i returned,

    S  <-  (1 - a) S + a sum_i w_i / W S_i,    a = min(1, server_lr W)

Differences from what was received would not do: of a late update they can make a variance negative. Where a
`rule` takes the place of the sum, the median of what was returned takes that of the average, whichever the rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from turnout.aggregation.optimisers import Adaptive, Step
from turnout.aggregation.rules import Mean, Rule, coordinate_median
from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.server.updates import Updates
from turnout.task.norms import BatchNorm

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.task.norms import Tail

_MEMORY, _REPORTED = "statistics", "reported"  # among what the law keeps: [N, S], and [N] whether a client is there


def check(server: Server) -> None:
    """Raise where statistics would have no one to belong to, or more would be remembered than there is memory for."""
    if (tail := server.task.tail) is None:
        return
    kind, choice = type(server.algorithm).__name__, tail.choice
    if server.population.size != server.whole_population.size and (tail.keeps or choice.own_pass):
        raise UserError(
            f"task.batchnorm: {kind} pools the clients, and {type(choice).__name__} is for clients with statistics of "
            "their own; take averaged"
        )
    if choice.remembers:
        numbers = server.population.size * (tail.averaged - tail.learnt)
        needed, limit = numbers * server.model.element_size() / 2**20, server.plan.memory_mib
        if needed > limit:
            raise UserError(
                f"task.averaged.remembered: statistics of all clients take {needed:.0f} MiB, and engine.memory_mib is "
                f"{limit}; raise it, or leave remembered out"
            )


def check_published(server: Server) -> None:
    """Raise for a method that averages whole models, where another average was asked for."""
    tail = server.task.tail
    choice = BatchNorm() if tail is None else tail.choice
    for option in ["pooled"] * choice.pooled + ["remembered"] * choice.remembers:
        raise UserError(
            f"task.averaged: {type(server.algorithm).__name__} averages whole models, and {option} statistics are for "
            "methods whose server takes steps by updates; leave it out"
        )


def averaged(server: Server, updates: Updates, weights: FloatArray, step: Step, rule: Rule | None) -> Tensor:
    """Average the statistics of those that count: the numbers behind what is learnt, `[P - learnt]`, after a server's
    step by an optimiser and perhaps a rule."""
    tail, model, total = server.task.tail, server.model, float(weights.sum())
    assert tail is not None
    if not total > 0 or (weights < 0).any() or tail.averaged == tail.learnt:
        return model[tail.learnt :]
    sent = slice(tail.learnt, tail.averaged)
    returned = torch.stack([job.received[sent] for job in updates.jobs]) + updates.deltas[:, sent]
    returned = tail.real(returned)
    if tail.choice.remembers:
        return _remembered(server, tail, updates, returned)
    shares = torch.as_tensor(weights / total).to(returned)
    rate = 1.0 if isinstance(step, Adaptive) else step.lr  # which is no share of the way there
    if not isinstance(rule, Mean | None):
        returned, shares = middle(rule, returned, shares)[None], torch.ones_like(shares[:1])
    return tail.average(model, returned, shares, min(1.0, rate * total))


def middle(rule: Rule | None, rows: Tensor, shares: Tensor) -> Tensor:
    """Find the average of rows `[k, S]` with shares `[k]`, or their median where a rule is to resist some of them."""
    return shares @ rows if isinstance(rule, Mean | None) else coordinate_median(rows, shares)


def _remembered(server: Server, tail: Tail, updates: Updates, returned: Tensor) -> Tensor:
    """Average the last statistics of every client that ever reported, by importance."""
    kept, people = server.law.last, server.population.size
    memory = kept.setdefault(_MEMORY, returned.new_zeros(people, returned.shape[1]))
    reported = kept.setdefault(_REPORTED, returned.new_zeros(people))
    for row, finite in enumerate(updates.finite().tolist()):  # of two of one client the later stays
        if finite:
            memory[updates.clients[row]], reported[updates.clients[row]] = returned[row], 1
    there = np.flatnonzero(reported.cpu().numpy())
    if not len(there):
        return server.model[tail.learnt :]
    shares = torch.as_tensor(server.importance[there] / server.importance[there].sum()).to(returned)
    return tail.average(server.model, memory[torch.as_tensor(there).to(memory.device)], shares, 1.0)
