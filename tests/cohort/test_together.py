"""Layers that all clients compute together give the gradients of each client's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from turnout import Task
from turnout.engine import gradients, together
from turnout.local.sgd import Batch


class Base(nn.Module):
    """A frozen layer, one with a bias, one without, one of several dimensions, and a map of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.down = nn.Linear(5, 8).requires_grad_(False), nn.Linear(5, 2, bias=False)
        self.up, self.out = nn.Linear(2, 8), nn.Linear(8, 3)
        self.shift = nn.Linear(8, 8)
        self.shift.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.frozen(x) + self.up(self.down(x)))
        x = self.shift(torch.stack([x, 2 * x], 1)).mean(1)
        scores: Tensor = vmap(self.out)(x)
        return scores


def case() -> tuple[Task, dict[str, Tensor], Batch]:
    torch.manual_seed(0)
    task, x, y = Task(Base, seed=1).to(dtype=torch.float64), torch.randn(6, 5).double(), torch.arange(6) % 3
    task.examine(x, y)
    layers = {name: torch.stack([layer, 1.1 * layer]) for name, layer in task.layers(task.initial).items()}
    rows, weights = torch.arange(6).view(2, 3), torch.rand(2, 3).double()
    return task, layers, Batch(x.view(2, 3, 5), y.view(2, 3), weights, rows, torch.arange(2), 0)


def test_gradients_of_layers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    task, layers, batch = case()
    taken, applied = list[Any](), together._applied

    def noted(kind: Any, *args: Any) -> Tensor:
        taken.append(kind)
        return applied(kind, *args)

    monkeypatch.setattr(together, "_applied", noted)
    mine = gradients.summed(task, layers, batch)
    theirs = gradients.mapped(task, layers, batch)
    for one, other in zip(mine, theirs.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    assert taken.count(together._Linear) == 2  # down and up; the frozen is one product, out is mapped again
    assert taken.count(together._OverClients) == 3


def test_a_step_by_an_ordinary_pass() -> None:
    task, layers, batch = case()
    theirs = gradients.mapped(task, layers, batch)
    for client in range(2):
        own = {name: layer[client].clone() for name, layer in layers.items()}
        gradients.step_alone(
            task, own, *(part[client] for part in (batch.inputs, batch.targets, batch.weights, batch.key))
        )
        for name, layer in own.items():
            torch.testing.assert_close(layer, layers[name][client] - theirs[name][client], rtol=1e-12, atol=1e-14)
