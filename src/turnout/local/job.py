"""A job of one client, as the engine carries it out: the functions of a local work, those of its modifiers beside them.

With modifiers the carry of a job is a pair: the work's own, and what each modifier carries.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from turnout.core.errors import UserError
from turnout.local import transforms
from turnout.local.exchange import count_numbers
from turnout.local.modifiers import Kept, Modifier, Slope
from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


def begin(work: LocalSGD, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
    """Begin a job: the parameters `[P]` that it starts from, and its carry."""
    params, carry = work.start(task, received, state, data)
    if not (active := work.active):
        return params, carry
    return params, (carry, tuple(modifier.start(task, received, state, data) for modifier in active))


def advance(work: LocalSGD, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
    """Take one step; modifiers change every gradient that the work takes, and then what came of it."""
    if not (active := work.active):
        return work.step(task, params, carry, batch)
    own, kept = carry
    batch, asked = batch._replace(lr=work.lr), list[Tensor]()
    params, own = _modified(work, active, kept, asked).step(task, params, own, batch)
    if batch.number == 0 and not asked:
        _check_followed(work, active)
    carried = []
    for modifier, before in zip(active, kept, strict=True):
        params, after = modifier.step(params, before, batch)
        carried.append(after)
    return params, (own, tuple(carried))


def conclude(
    work: LocalSGD, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
) -> tuple[Named, Named]:
    """Conclude a job: what is sent, and what the client keeps."""
    if not (active := work.active):
        return work.answer(task, received, params, carry, state, data)
    own, kept = carry
    payload, after = work.answer(task, received, params, own, state, data)
    after = state | after
    for modifier, part in zip(active, kept, strict=True):
        payload, after = modifier.finish(task, received, params, part, payload, after, data)
    return payload, after


def check_names(work: LocalSGD, task: Task) -> None:
    """Raise where two parts of a work send or keep something under one name."""
    for method, does in (("payload_shapes", "send"), ("state_shapes", "keep")):
        seen: dict[str, str] = {}
        for part in work.parts.values():
            for name in getattr(part, method)(task):
                if name in seen:
                    both = f"{seen[name]} and {type(part).__name__}"
                    raise UserError(f"local.modifiers: {both} both {does} {name!r}; leave one of them out")
                seen[name] = type(part).__name__


def numbers_down(work: LocalSGD, task: Task) -> int:
    """Count the numbers sent to a client: the model, and the tensors of the work and its modifiers."""
    numbers = work.download_numbers(task)
    for modifier in work.modifiers:
        numbers += sum(tensor.numel() for tensor in modifier.tensors.values())
        held = modifier.payload_shapes(task)  # of what the server fills in as it sends it
        numbers += count_numbers({name: held[name] for name in modifier.held if name not in modifier.tensors})
    return numbers


def numbers_up(work: LocalSGD, task: Task) -> float:
    """Count the numbers' worth of bytes that a client sends beside its reports: transforms make an update smaller."""
    shapes = work.payload_shapes(task)
    added = {name: shape for name, shape in work.sent_shapes(task).items() if name not in shapes}
    sent = work.upload_numbers(task) + count_numbers(added)
    if not work.transforms or "delta" not in shapes:
        return sent
    update = work.update_numbers(task)
    return sent - update + transforms.numbers(work.transforms, update, task.initial.element_size())


def _modified(work: LocalSGD, modifiers: tuple[Modifier, ...], kept: tuple[Kept, ...], asked: list[Tensor]) -> LocalSGD:
    """Make the same work, whose `self.gradient` asks the modifiers."""

    def gradient(task: Task, params: Tensor, carry: Carry, batch: Batch) -> Tensor:
        asked.append(params)
        slope: Slope = lambda at: work.gradient(task, at, carry, batch)  # noqa: E731
        for modifier, part in zip(modifiers, kept, strict=True):
            slope = partial(_changed, modifier, slope, part, batch)
        return slope(params)

    return work.bind({"gradient": gradient})


def _changed(modifier: Modifier, slope: Slope, kept: Kept, batch: Batch, params: Tensor) -> Tensor:
    return modifier.gradient(slope, params, kept, batch)


def _check_followed(work: LocalSGD, modifiers: tuple[Modifier, ...]) -> None:
    """Raise where modifiers have a gradient to change, and the work took none."""
    for modifier in modifiers:
        if type(modifier).gradient is not Modifier.gradient:
            raise UserError(
                f"local.modifiers: {type(modifier).__name__} changes gradients, and {type(work).__name__} takes none "
                "by self.gradient; let its step ask for them there"
            )
