"""What clients say of the model they received, beside the result of their work.

Reports are asked for by name, several joined by commas, each with an argument after a colon where it has one. `loss`
is the mean loss over the client's samples; `profile:LAYER` the mean and variance of every element of a layer (see
`turnout.local.profile`), which takes a pass of its own over the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from turnout.core.errors import unknown
from turnout.local.profile import client_profile, profile_shape

if TYPE_CHECKING:
    from turnout.local.sgd import ClientData
    from turnout.task.task import Task


class Report(NamedTuple):
    """One number or array a client, as pure functions of one client; the last argument is what follows the colon."""

    shape: Callable[[Task, str], tuple[int, ...]]
    value: Callable[[Task, Tensor, ClientData, str], Tensor]
    passes: int = 0  # over the client's samples, in time


def _loss(task: Task, received: Tensor, data: ClientData, _: str) -> Tensor:
    return data.mean(data.scan(lambda inputs, targets: task.losses(received, inputs, targets)))


REPORTS = {
    "loss": Report(lambda _task, _argument: (), _loss),
    "profile": Report(profile_shape, client_profile, passes=1),
}


def parse(reports: str) -> list[tuple[str, str]]:
    """Split reports into (name, argument) of each."""
    found = [part.partition(":")[::2] for part in reports.split(",") if part]
    for name, _ in found:
        if name not in REPORTS:
            raise unknown("local.report", name, REPORTS)
    return found


def shapes(reports: str, task: Task) -> dict[str, tuple[int, ...]]:
    """Name what comes back."""
    return {name: REPORTS[name].shape(task, argument) for name, argument in parse(reports)}


def values(reports: str, task: Task, received: Tensor, data: ClientData) -> dict[str, Tensor]:
    """Compute the reports of one client on the model received."""
    return {name: REPORTS[name].value(task, received, data, argument) for name, argument in parse(reports)}


def passes(reports: str) -> int:
    """Count the passes over a client's samples that reports take."""
    return sum(REPORTS[name].passes for name, _ in parse(reports))
