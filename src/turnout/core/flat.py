"""A model is one vector, a cohort one matrix."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn


class Layout:
    """Where each trainable parameter of a module lies in the flat vector, and behind them the buffers that are named;
    frozen parameters stay as they are. What has a rank lies behind what has a lower one, or none."""

    def __init__(self, module: nn.Module, buffers: Sequence[str] = (), ranks: Mapping[str, int] | None = None) -> None:
        parts: dict[str, Tensor] = {name: own for name, own in module.named_parameters() if own.requires_grad}
        parts |= {name: module.get_buffer(name) for name in buffers}
        self._place(
            parts if not ranks else {name: parts[name] for name in sorted(parts, key=lambda n: ranks.get(n, 0))}
        )
        self.buffers = tuple(buffers)

    def _place(self, parts: Mapping[str, Tensor]) -> None:
        self.names = list(parts)
        self.shapes = [part.shape for part in parts.values()]
        self.sizes = [part.numel() for part in parts.values()]
        self.size = sum(self.sizes)

    def only(self, names: Sequence[str]) -> Self:
        """Lay out these alone."""
        some = copy.copy(self)
        shapes = dict(zip(self.names, self.shapes, strict=True))
        some._place({name: torch.empty(shapes[name], device="meta") for name in names})
        return some

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of `flat` ([..., P]) by name; the backward pass of the split is one concatenation."""
        parts = torch.split(flat, self.sizes, dim=-1)
        lead = flat.shape[:-1]
        return {
            name: part.view((*lead, *shape)) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def flatten(self, named: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """The inverse of `unflatten`, as a copy; the first `lead` dimensions stay."""
        parts = (named[name].detach() for name in self.names)
        return torch.cat([part.reshape(*part.shape[:lead], -1) for part in parts], -1)


def clip_factors(rows: Tensor, radius: float) -> Tensor:
    """`[k]` what brings each row to a norm of at most `radius`."""
    norms: Tensor = rows.norm(dim=1)
    return (radius / norms.clamp(min=1e-30)).clamp(max=1)
