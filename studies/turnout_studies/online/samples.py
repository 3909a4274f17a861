"""What the clients receive in one step of time: ragged, padded to one tensor, rows are clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from turnout.core.errors import UserError

Received = Mapping[int, Tensor | tuple[Tensor, Tensor]]  # by client: inputs, or inputs and labels


class Samples(NamedTuple):
    """A sample that counts 0 is padding; points of a quadrature may count any share."""

    inputs: Tensor  # [C, n, ...]
    targets: Tensor  # [C, n, ...]; zeros where samples have no labels
    counted: Tensor  # [C, n]

    @classmethod
    def full(cls, inputs: Tensor, targets: Tensor | None = None) -> Samples:
        """As many samples at every client."""
        shape = inputs.shape[:2]
        labels = torch.zeros(shape, dtype=torch.int64) if targets is None else targets
        return cls(inputs, labels, torch.ones(shape, dtype=inputs.dtype))

    @classmethod
    def of(cls, received: Received, clients: int) -> Samples:
        """From what each client received; one that is not named received nothing."""
        strangers = sorted(set(received) - set(range(clients)))
        if strangers:
            raise UserError(f"online.observe: client {strangers[0]} has never played; there are {clients}, from 0 on")
        named = sorted(client for client in received if len(_columns(received[client])[0]))
        if not named:
            raise UserError("online.observe: nobody received a sample; skip the step")
        columns = [_columns(received[client]) for client in named]
        if len({tuple(column.shape[1:] for column in own) for own in columns}) > 1:
            raise UserError("online.observe: the clients' samples differ in shape, or some have labels and others none")
        inputs, *labels = (torch.cat(parts) for parts in zip(*columns, strict=True))
        targets = labels[0] if labels else torch.zeros(len(inputs), dtype=torch.int64)
        if len(targets) != len(inputs):
            raise UserError(f"online.observe: {len(inputs)} inputs but {len(targets)} labels")
        counts = torch.zeros(clients, dtype=torch.int64)
        counts[named] = torch.tensor([len(own[0]) for own in columns])
        real = torch.arange(int(counts.max())) < counts[:, None]  # [C, n]
        return cls(_scattered(inputs, real), _scattered(targets, real), real.to(inputs.dtype))

    @property
    def counts(self) -> Tensor:
        """`[C]`"""
        return self.counted.sum(1)

    def part(self, number: int, parts: int) -> Samples:
        """Every `parts`-th sample from `number` on: a client with so many has some in each part."""
        return Samples(*(column[:, number::parts] for column in self))

    def with_clients(self, clients: int) -> Samples:
        """The same, with rows for clients that received nothing."""
        more = clients - len(self.inputs)
        return Samples(*(F.pad(column, (0, 0) * (column.ndim - 1) + (0, more)) for column in self))

    def then(self, later: Samples) -> Samples:
        """What the same clients receive in two steps."""
        pairs = zip(self.with_clients(len(later.inputs)), later, strict=True)
        return Samples(*(torch.cat(pair, 1) for pair in pairs))


def _columns(given: Tensor | tuple[Tensor, Tensor]) -> list[Tensor]:
    return [torch.as_tensor(column) for column in (given if isinstance(given, tuple) else (given,))]


def _scattered(rows: Tensor, real: Tensor) -> Tensor:
    padded = rows.new_zeros(*real.shape, *rows.shape[1:])
    padded[real] = rows
    return padded
