"""A model is one vector, a cohort one matrix."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Layout:
    """Where each trainable parameter of a module lies in the flat vector; frozen ones stay as they are."""

    def __init__(self, module: nn.Module) -> None:
        parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self.names = list(parameters)
        self.shapes = [parameter.shape for parameter in parameters.values()]
        self.sizes = [parameter.numel() for parameter in parameters.values()]
        self.size = sum(self.sizes)

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
