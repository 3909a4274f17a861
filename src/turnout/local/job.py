"""A job of one client, as the engine carries it out: the functions of a local work, those of its modifiers beside them.

With modifiers the carry of a job is a pair: the work's own, and what each modifier carries. What a client keeps of its
optimiser takes the place of what that begins with, and is found again in what the work carries to the end.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_structure, tree_unflatten

from turnout.core.errors import UserError
from turnout.local import transforms
from turnout.local.exchange import NORMS, count_numbers
from turnout.local.modifiers import Kept, Modifier, Slope
from turnout.local.optimisers import State, used
from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task import norms
from turnout.task.norms import Tail
from turnout.task.task import Task

SERVED = "norms.served"  # [P] the model that a client serves, with statistics of its own


def begin(work: LocalSGD, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
    """Begin a job: the parameters `[P]` that it starts from, and its carry."""
    if task.tail is not None:
        task.begin_job(work.version)
        received = _first(task, received, state)
    going_on = work.bind({"start_momentum": lambda at: _kept_state(work, at, state)}) if work.keeps else work
    params, carry = going_on.start(task, received, state, data)
    if not (active := work.active):
        return params, carry
    return params, (carry, tuple(modifier.start(task, received, state, data) for modifier in active))


def advance(work: LocalSGD, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
    """Take one step; modifiers change every gradient that the work takes, and then what came of it."""
    if work.paces:
        work = work.at_step(batch.number, work.job_steps)
    if task.idle and used(work.weight_decay):
        work = work.bind({"decaying": partial(_decaying, task)})
    if not (active := work.active):
        params, carry = work.step(task, params, carry, batch)
        return task.settled(params), carry
    own, kept = carry
    batch, asked = batch._replace(lr=work.lr), list[Tensor]()
    params, own = _modified(work, active, kept, asked).step(task, params, own, batch)
    if batch.number == 0 and not asked:
        _check_followed(work, active)
    carried = []
    for modifier, before in zip(active, kept, strict=True):
        params, after = modifier.step(params, before, batch)
        carried.append(after)
    return task.settled(params), (own, tuple(carried))


def conclude(
    work: LocalSGD, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
) -> tuple[Named, Named]:
    """Conclude a job: what is sent, and what the client keeps."""
    if (tail := task.tail) is None:
        return _concluded(work, task, received, params, carry, state, data)
    payload, after = _concluded(work, task, _first(task, received, state), params, carry, state, data)
    if "delta" in payload:
        payload = payload | {"delta": tail.sent(payload["delta"], params, received)}
    if not tail.keeps:
        return payload, after
    if not work.trains:
        return payload, after | {name: state[name] for name in NORMS}
    kept = params[tail.kept :], params.new_full((), work.version + 1)
    return payload, after | dict(zip(NORMS, kept, strict=True))


def _concluded(
    work: LocalSGD, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
) -> tuple[Named, Named]:
    if not (active := work.active) and not work.keeps:
        return work.answer(task, received, params, carry, state, data)
    own, kept = carry if active else (carry, ())
    payload, after = work.answer(task, received, params, own, state, data)
    after = state | after | (_state_kept(work, params, own) if work.keeps else {})
    for modifier, part in zip(active, kept, strict=True):
        payload, after = modifier.finish(task, received, params, part, payload, after, data)
    return payload, after


def prepare(work: LocalSGD, task: Task, received: Tensor, state: Named, data: ClientData) -> Named:
    """Prepare what a client predicts from, as `LocalSGD.prepare`; who has no statistics may compute its own."""
    served = _joined(task, received, state, received)
    prepared = work.prepare(task, served, state, data)
    if (tail := task.tail) is None:
        return prepared
    prepared = prepared | ({name: state[name] for name in NORMS} if tail.keeps else {})
    if not tail.choice.own_pass:
        return prepared
    measured = norms.measured(task, served, data.shuffled(work.batch_size), data.key)
    return prepared | {SERVED: torch.where(state[NORMS[1]] > 0, served, measured) if tail.keeps else measured}


def predict(work: LocalSGD, task: Task, received: Tensor, state: Named, inputs: Tensor) -> Tensor:
    """Compute what a client serves, as `LocalSGD.predict`, with the normalisation layers that it has of its own."""
    return work.predict(task, _served(task, received, state), state, inputs)


def one_model(work: LocalSGD) -> bool:
    """Say whether what clients serve are the outputs of one model each."""
    return type(work).predict is LocalSGD.predict


def serves(work: LocalSGD, task: Task, received: Tensor, state: Named) -> Tensor:
    """Give the model `[P]` that a client serves, as `LocalSGD.serves`, with the layers that it has of its own."""
    return work.serves(task, _served(task, received, state), state)


def _served(task: Task, received: Tensor, state: Named) -> Tensor:
    return state[SERVED] if SERVED in state else _joined(task, received, state, received)


def _first(task: Task, received: Tensor, state: Named) -> Tensor:
    """Join a model received `[P]` and what the client trains of its own, for the first time perhaps."""
    assert task.tail is not None
    return _joined(task, received, state, received if task.tail.choice.from_average else task.initial)


def _joined(task: Task, received: Tensor, state: Named, otherwise: Tensor) -> Tensor:
    """Join a model received `[P]` and what the client keeps, or what it has otherwise."""
    if (tail := task.tail) is None or not tail.keeps:
        return received
    own, version = (state[name] for name in NORMS)
    return torch.cat([received[: tail.kept], torch.where(version > 0, own, otherwise[tail.kept :])])


def check_looked_after(work: LocalSGD, task: Task) -> None:
    """Raise where a model's statistics would be lost."""
    if (tail := task.tail) is None or work.looks_after == "kept" or (work.looks_after == "shared" and not tail.keeps):
        return
    option, given = (
        ("buffers", task.buffers) if task.batchnorm is None else ("batchnorm", type(task.batchnorm).__name__)
    )
    shared = ", averaged" if work.looks_after == "shared" else ""
    raise UserError(
        f"task.{option}: {given} is for one model a job, and {type(work).__name__} trains several or chooses one of "
        f"several; take frozen{shared}, or convert the model with turnout.models.batchnorm_to_groupnorm"
    )


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
    unsent = 0 if (tail := task.tail) is None else task.size - min(tail.kept, tail.averaged)
    numbers = max(0, work.download_numbers(task) - unsent)
    for modifier in work.modifiers:
        numbers += sum(tensor.numel() for tensor in modifier.tensors.values())
        held = modifier.payload_shapes(task)  # of what the server fills in as it sends it
        numbers += count_numbers({name: held[name] for name in modifier.held if name not in modifier.tensors})
    return numbers


def numbers_up(work: LocalSGD, task: Task) -> float:
    """Count the numbers' worth of bytes that a client sends beside its reports: transforms make an update smaller."""
    shapes = work.payload_shapes(task)
    added = {name: shape for name, shape in work.sent_shapes(task).items() if name not in shapes}
    unsent = 0 if task.tail is None or "delta" not in shapes else task.size - task.tail.averaged
    sent = work.upload_numbers(task) + count_numbers(added) - unsent
    if not work.transforms or "delta" not in shapes:
        return sent
    update = work.update_numbers(task)
    return sent - update + transforms.numbers(work.transforms, update, task.initial.element_size())


def _kept_state(work: LocalSGD, params: Tensor, state: Named) -> State:
    """Give what the optimiser begins with, or what the client has kept of the job before."""
    leaves, tree = tree_flatten(work.start_momentum(params))
    begun = state["optimiser.begun"] > 0
    return tree_unflatten(
        [torch.where(begun, state[f"optimiser.{number}"], leaf) for number, leaf in enumerate(leaves)], tree
    )


def _state_kept(work: LocalSGD, params: Tensor, carry: Carry) -> Named:
    """Name what the client keeps of its optimiser."""
    found = work.remembered(carry)
    if tree_structure(found) != tree_structure(work.start_momentum(params)):
        raise UserError(
            f"local.optimiser_state: {type(work).__name__} carries more than what its optimiser remembers; let its "
            "`remembered` find that in the carry, or leave it at discarded"
        )
    leaves = {f"optimiser.{number}": leaf for number, leaf in enumerate(tree_leaves(found))}
    return leaves | {"optimiser.begun": params.new_ones(())}


def _decaying(task: Task, gradient: Tensor) -> Tensor:
    """Make `[P]` 1 where weights decay: not those of a parameter without a gradient, which torch.optim leaves alone."""
    decays = torch.ones_like(gradient)
    moves, steps = task.layers(decays), task.layers(gradient)
    for name in task.idle:  # of the samples that were tried: others may reach it
        moves[name].mul_((steps[name] != 0).any())
    return decays


def _modified(work: LocalSGD, modifiers: tuple[Modifier, ...], kept: tuple[Kept, ...], asked: list[Tensor]) -> LocalSGD:
    """Make the same work, whose `self.gradient` asks the modifiers."""

    def gradient(task: Task, params: Tensor, carry: Carry, batch: Batch) -> Tensor:
        asked.append(params)
        slope: Slope = lambda at: work.gradient(task, at, carry, batch)  # noqa: E731
        for modifier, part in zip(modifiers, kept, strict=True):
            slope = partial(_changed, modifier, slope, part, batch, task.tail)
        return slope(params)

    return work.bind({"gradient": gradient})


def _changed(modifier: Modifier, slope: Slope, kept: Kept, batch: Batch, tail: Tail | None, params: Tensor) -> Tensor:
    gradient = modifier.gradient(slope, params, kept, batch)
    return gradient if tail is None else tail.parameters_of(gradient)


def _check_followed(work: LocalSGD, modifiers: tuple[Modifier, ...]) -> None:
    """Raise where modifiers have a gradient to change, and the work took none."""
    for modifier in modifiers:
        if type(modifier).gradient is not Modifier.gradient:
            raise UserError(
                f"local.modifiers: {type(modifier).__name__} changes gradients, and {type(work).__name__} takes none "
                "by self.gradient; let its step ask for them there"
            )
