"""The law: what the server makes of updates and their weights.

    model  <-  model + server_lr * sum over contributing jobs i of  weight_i * (returned_i - received_i)

Parts of a method may take the place of its parts: `weigh` makes other weights, `remember` adds the updates of silent
clients, `rule` takes the place of the sum, `optimiser` that of the step.
"""

from __future__ import annotations

import copy
import math
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from turnout.aggregation.optimisers import Step
from turnout.aggregation.rules import Rule
from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.server import averages, ensembles
from turnout.server.privacy import check_summed
from turnout.server.updates import Updates

if TYPE_CHECKING:
    from turnout.algorithms._algorithm import Algorithm
    from turnout.server.server import Server


class Law:
    """Move the model of a server, which is told which one: an object that knew would keep it alive."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.given = algorithm.optimiser  # one that takes the place of the method's own
        self.optimiser: Step = copy.copy(algorithm.own_optimiser() if self.given is None else self.given)
        self._optimiser_has_state = any(not part.init for part in fields(self.optimiser))
        self.rule = algorithm.rule if isinstance(algorithm.rule, Rule) else algorithm.own_rule()
        self.weigh = algorithm.own_weigh() if algorithm.weigh is None else algorithm.weigh
        self.remember = algorithm.remember
        self.last: dict[str, Tensor] = {}  # [P] what the rule made last, by the group of a method with several models

    def step(self, server: Server, updates: Updates, weights: ArrayLike) -> Updates:
        """Move the model by updates that have not counted before; returns those that counted."""
        updates, weights = updates.sealed(False), _checked(updates, weights)
        if updates.used:
            raise UserError("step: an update may be used once; use publish for methods that remember old ones")
        counted, weights = self._screened(server, updates, weights)
        if server.privacy is not None:
            check_summed(self)
        if self.rule is not None or self.remember is not None:  # NaN has no place in an order, or in a memory
            counted, weights = self._finite_rows(server, counted, weights)
        if self.weigh is not None and len(counted):
            weights = self.weigh.of(server, counted, weights)
        counted, weights = ensembles.counted(server, counted, weights)
        if server.privacy is not None:
            weights = server.privacy.bounded(counted.clients, weights)
        applied = self._apply(server, counted, weights)
        updates.mark_used()
        updates = counted
        if not applied:
            updates, weights = self._finite_rows(server, updates, weights)
            if not self._apply(server, updates, weights):
                server.diverge("the model is no longer finite")
        if self.remember is not None:
            weights = server.importance[updates.clients]
        linear = self.rule is None
        server.close_aggregation(updates, weights if linear else np.ones(len(updates)), linear)
        return updates.sealed(server.privacy is not None)

    def publish(self, server: Server, model: Tensor, updates: Updates, weights: ArrayLike | None) -> None:
        """Replace the model by another, or by what the optimiser given makes of the difference."""
        if model.shape != server.model.shape or model.dtype != server.model.dtype:
            wanted = tuple(server.model.shape)
            raise UserError(f"publish: a model of shape {wanted} is needed, not {tuple(model.shape)}")
        ensembles.check_published(server)
        averages.check_published(server)
        if server.privacy is not None:
            raise UserError("privacy.noise: it hides a sum of updates, and this algorithm replaces the model itself")
        applied = _checked(updates, np.ones(len(updates)) if weights is None else weights)
        if self.rule is not None:
            applied = np.where(applied != 0, 1.0, 0.0)
        moved = model.clone()
        if self.given is not None:
            learnt = server.task.learnt
            change = model[:learnt] - server.model[:learnt]
            moved = torch.cat([self.optimiser.step(server.model[:learnt], change), model[learnt:]])
        if is_finite(moved):
            server.model = moved
        else:
            server.diverge("the model is no longer finite")
        server.close_aggregation(updates, applied, linear=weights is not None and self.rule is None)

    def combined(
        self, server: Server, rows: Tensor, weights: FloatArray, around: Tensor | None = None, group: int = 0
    ) -> Tensor:
        """Add rows `[k, P]` up by weight: `[P]`, or their weights' sum times what the rule makes of them. Where rows
        are models, it sees their differences from `around` `[P]`; every `group` has a last result of its own."""
        total = float(weights.sum())
        if self.rule is None or not total > 0:
            summed: Tensor = torch.tensordot(torch.as_tensor(weights).to(rows), rows, dims=1)
            return summed
        if (why := self.rule.too_few(len(rows))) is not None:
            server.log("too_few_rows", rows=min(self.rule.buckets or len(rows), len(rows)), why=why)
        name = f"last{group or ''}"
        last = self.last.get(name, torch.zeros_like(server.model[: server.task.learnt]))
        key = random.key(server.seed, "buckets", server.version, *([group] if group else []))
        rows = rows if around is None else rows - around
        shares = torch.as_tensor(weights / total).to(rows)
        rows, *statistics = (rows,) if server.task.tail is None else torch.tensor_split(rows, [len(last)], dim=1)
        with server.cohort.all_threads():
            self.last[name] = made = self.rule(rows, shares, last, key)
        if statistics:
            made = torch.cat([made, averages.middle(self.rule, statistics[0], shares)])
        return total * (made if around is None else around + made)

    def finite(self, server: Server, updates: Updates, weights: FloatArray | None = None) -> Updates:
        """Drop rows that hold NaN or infinity, and log them with the weight that is lost."""
        if not len(updates):
            return updates
        good = updates.finite().cpu().numpy()
        for row in np.flatnonzero(~good).tolist():
            job, lost = updates.jobs[row], {} if weights is None else {"weight": float(weights[row])}
            server.log("rejected_update", client=job.client, job=job.number, why="not finite", **lost)
        return updates if good.all() else updates.select(good)

    def _screened(self, server: Server, updates: Updates, weights: FloatArray) -> tuple[Updates, FloatArray]:
        """Leave out what observers have looked at and do not let count."""
        for observer in server.observers:
            counted = observer.on_step(server, updates, weights)
            if counted is not weights and server.privacy is not None:
                name = type(observer).__name__
                raise UserError(f"privacy.noise: nobody's weight may follow from updates, and {name} changes weights")
            if counted is not weights:
                updates, weights = updates.select(counted != 0), counted[counted != 0]
        return updates, weights

    def _finite_rows(self, server: Server, updates: Updates, weights: FloatArray) -> tuple[Updates, FloatArray]:
        """Drop rows that are not `finite`, and their weights."""
        kept = self.finite(server, updates, weights)
        left = set(kept.jobs)
        return kept, weights[[job in left for job in updates.jobs]]

    def _apply(self, server: Server, updates: Updates, weights: FloatArray) -> bool:
        """Move the model, unless it would no longer be finite."""
        if not len(updates):
            server.log("empty_round")
            if server.privacy is None and self.remember is None:
                return True
        optimiser = copy.copy(self.optimiser) if self._optimiser_has_state else self.optimiser
        model = self._moved(server, optimiser, updates, weights)
        if not is_finite(model):
            return False
        server.model, self.optimiser = model, optimiser
        return True

    def _moved(self, server: Server, optimiser: Step, updates: Updates, weights: FloatArray) -> Tensor:
        """Compute the model `[P]` after a step."""
        if self.remember is None:
            change, factor = self._aggregated(server, updates, weights), 1.0
        else:
            change = self.combined(server, self.remember.take(server, updates), server.importance)
            factor = self.remember.factor(server)
        model = server.model
        if server.task.tail is not None:  # statistics do not move by differences
            model, change = model[: server.task.learnt], change[: server.task.learnt]
        if self.remember is None:
            moved = optimiser.step(model, change)
        elif type(optimiser) is Step:  # one product, as published
            moved = model + (optimiser.lr * factor) * change
        else:
            moved = optimiser.step(model, factor * change)
        if server.task.tail is None:
            return moved
        return torch.cat([moved, averages.averaged(server, updates, weights, optimiser, self.rule)])

    def _aggregated(self, server: Server, updates: Updates, weights: FloatArray) -> Tensor:
        """Add differences up: `[P]`, with noise where that is asked for, or what a rule puts in its place."""
        if server.privacy is not None:
            return server.privacy.noised_sum(updates, weights, server.model, server.version)
        if self.rule is None or not weights.sum() > 0:
            return updates.weighted_sum(weights)
        return self.combined(server, updates.deltas, weights)


def is_finite(model: Tensor) -> bool:
    """Tell whether every number is; a sum that is finite says so in one go."""
    return math.isfinite(float(model.sum())) or bool(torch.isfinite(model).all())


def _checked(updates: Updates, weights: ArrayLike) -> FloatArray:
    weights = np.array(weights, np.float64)  # its own: they are recorded when the round closes
    if weights.shape != (len(updates),) or not np.isfinite(weights).all():
        raise UserError(f"step: {len(updates)} updates need as many finite weights, not {weights!r}")
    return weights
