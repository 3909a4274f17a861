"""A memory with less room than there are samples: which of them it keeps, or what stands for them. For one client; the
functions work under `vmap`.

Marfoq's thesis, section 3.6.3, keeps a random subset, and learns prototypes in another experiment; k-means of each
class is the simplest form of those.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.core.errors import UserError, unknown

KEEP = ("random", "balanced", "coreset")
PASSES = 10  # of k-means


def check_keep(option: str, keep: str, values: Tensor | None = None) -> None:
    """Raise unless it is a rule for samples with such values."""
    if keep not in KEEP:
        raise unknown(option, keep, KEEP)
    if keep != "random" and values is not None and (values.is_floating_point() or values.ndim > 1):
        raise UserError(f"{option}: {keep} needs class labels; a regression keeps random samples")


def subset(labels: Tensor, among: Tensor, rank: Tensor, number: Tensor | int, balanced: bool) -> Tensor:
    """`[n]` whether a sample is one of the `number` that are kept of those `among` which there are: the last of them by
    their `rank` in a shuffle; where `balanced`, the last of each class in turns."""
    order = torch.where(among, -rank, len(rank)).argsort(stable=True)  # in which they are taken
    if balanced:
        turn = torch.where(among[order], rank_in_class(labels[order]), len(rank))
        order = order[turn.argsort(stable=True)]
    return among & (order.argsort() < number)


def rank_in_class(labels: Tensor) -> Tensor:
    """`[n]` how many of the same label come before each."""
    order = labels.argsort(stable=True)
    ordered, place = labels[order], torch.arange(len(labels), device=labels.device)
    first = torch.where(ordered != ordered.roll(1), place, 0).cummax(0).values  # of its class
    return (place - first)[order.argsort()]


def prototypes(
    keys: Tensor, labels: Tensor, among: Tensor, number: Tensor | int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys `[most, p]` and labels of `number` prototypes, which come first, and whether a row is one: k-means of each
    class of the samples `among` `[n]`, begun at samples far apart, as many of a class as in proportion to its size."""
    place = torch.arange(most, device=keys.device)
    stored = place < number
    by_class = torch.where(among, labels, torch.iinfo(labels.dtype).max).argsort(stable=True)
    share = (place.double() + 0.5) * among.sum() / torch.where(stored, number, torch.inf)
    classes = labels[by_class[share.long()]]
    wide, far = keys.double(), torch.where(among, torch.inf, -1.0).double()
    norms, begun = wide.square().sum(1), []
    for own in classes.unbind():
        row = torch.where(labels == own, far, -torch.inf).argmax()
        centre = wide.index_select(0, row.view(1))
        apart = (norms - 2 * (wide @ centre[0]) + centre.square().sum()).clamp(min=0)
        far = torch.where(labels == own, torch.minimum(far, apart), far)
        begun.append(centre)
    centres = torch.cat([wide[:0], *begun])
    foreign = (labels[:, None] != classes) | ~stored
    for _ in range(PASSES if most else 0):
        apart = centres.square().sum(1) - 2 * wide @ centres.T
        nearest = torch.where(foreign, torch.inf, apart).argmin(1)
        members = ((nearest[:, None] == place) & among[:, None]).to(wide)
        sizes = members.sum(0)[:, None]
        centres = torch.where(sizes > 0, members.T @ wide / sizes.clamp(min=1), centres)
    return centres.to(keys), classes, stored
