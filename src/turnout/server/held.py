"""What the server holds for the modifiers of local work: tensors of theirs that change with what clients send.

SCAFFOLD's control variates are one: the server holds c, sends it with the model, and clients send what changed of c_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from turnout.core.errors import UserError
from turnout.local.modifiers import Modifier
from turnout.local.sgd import LocalSGD, Named
from turnout.server.state import unnest
from turnout.server.updates import Updates

if TYPE_CHECKING:
    from turnout.algorithms._algorithm import Algorithm
    from turnout.server.server import Among, Server


class Held:
    """Hold the tensors that modifiers name (`Modifier.held`): zeros at first, then

        held  <-  held + sum over the updates that came in of  importance_i * (what client i sent under that name)

    also of updates that the method then drops, since their clients have changed what they keep: held = sum_i p_i c_i.
    """

    def __init__(self) -> None:
        self.tensors: Named = {}

    def sent(self, server: Server, work: LocalSGD, among: Among | None) -> LocalSGD:
        """The work as it goes out: its modifiers with what is held now."""
        for place, modifier, name in _wanted(work):
            if getattr(modifier, name) is None and name not in self.tensors:
                _check(server, work, modifier, among)
                shape = modifier.payload_shapes(server.task)[name]
                self.tensors[name] = torch.zeros(shape, dtype=server.model.dtype, device=server.model.device)
            if name in self.tensors:
                work = work.bind({f"modifiers.{place}.{name}": self.tensors[name]})
        return work

    def take_in(self, server: Server, updates: Updates) -> Updates:
        """The same updates, once what they say is added; rows that are not finite say nothing."""
        for name in self.tensors if len(updates) else ():
            rows = updates.select([not job.hold and name in job.work.sends(server.task) for job in updates.jobs])
            rows = rows.select(rows.finite(name).cpu().numpy()) if len(rows) else rows
            if len(rows):
                self.tensors[name] = self.tensors[name] + rows.weighted_sum(server.importance[rows.clients], name)
        return updates

    def load(self, algorithm: Algorithm, tensors: Named, device: str) -> None:
        """From a checkpoint; one of version 0.1 has them where the algorithm's `FORMER` says."""
        former = {new: tensors.get(f"algorithm/{old}") for old, new in getattr(algorithm, "FORMER", {}).items()}
        there = {name: tensor for name, tensor in former.items() if tensor is not None} | tensors
        self.tensors = {name: tensor.to(device) for name, tensor in unnest("held", there).items()}


def _wanted(work: LocalSGD) -> Iterator[tuple[int, Modifier, str]]:
    """Place, modifier and name of every tensor that a server is to hold."""
    for place, modifier in enumerate(work.modifiers):
        yield from ((place, modifier, name) for name in modifier.held)


def _check(server: Server, work: LocalSGD, modifier: Modifier, among: Among | None) -> None:
    """Raise where nobody holds it, or where clients train something else than the model that it comes with."""
    method, plain = server.algorithm, type(work).step is LocalSGD.step and type(work).start is LocalSGD.start
    why = method.cannot.get("held")
    if among is not None or not method.sends_updates:
        why = "has no server that clients answer"
    elif method.clients_keep != "nothing":
        why = "lets clients go on without hearing from the server"
    elif server.population.size == 1:
        why = "has one client, which differs from nobody"
    elif not plain and type(work).__module__.startswith("turnout."):
        why = "trains other models than the one sent"
    if why is not None:
        raise UserError(
            f"local.modifiers: {type(modifier).__name__} follows the one model that a server sends, and "
            f"{type(method).__name__} {why}; leave it out"
        )
