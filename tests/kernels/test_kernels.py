"""Kernels for CUDA, on a CPU by Triton's interpreter: `make test-kernels`."""

from __future__ import annotations

import os
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turnout
from turnout.engine import gradients, together
from turnout.engine.kernels import attended, implicit, normed, sums
from turnout.local.sgd import Batch

assert os.environ.get("TRITON_INTERPRET") == "1", "run these by make test-kernels"


def near(one: Tensor, other: Tensor, within: float = 1e-5) -> bool:
    return float((one - other).abs().max()) <= within * (1 + float(other.abs().max()))


@pytest.mark.parametrize(
    ("images", "side", "into", "out", "kernel", "stride", "padding"),
    [
        (2, (8, 8), 3, 16, 3, 1, 1),
        (2, (9, 7), 32, 48, 3, 2, 1),
        (3, (6, 6), 16, 40, 5, 1, 0),
        (2, (8, 8), 33, 20, 1, 2, 0),
    ],
)
def test_convolutions(
    images: int, side: tuple[int, int], into: int, out: int, kernel: int, stride: int, padding: int
) -> None:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    x, w, b = draw(2, images, *side, into), draw(2, out, kernel, kernel, into), draw(2, out)
    size = implicit.sizes(x, w, (stride, stride), (padding, padding))
    y = implicit.forward(x, w, b, size)
    dy = draw(*y.shape)
    dx, dw = implicit.by_images(dy, w, size), implicit.by_kernels(dy, x, size)
    stepped = implicit.by_kernels(dy, x, size, w.clone())
    for c in range(2):
        xi, wi = (part[c].permute(0, 3, 1, 2).clone().requires_grad_() for part in (x, w))
        wanted = torch.conv2d(xi, wi, b[c], stride, padding)
        back = torch.autograd.grad(wanted, (xi, wi), dy[c].permute(0, 3, 1, 2))
        rows = wanted, *back, w[c].permute(0, 3, 1, 2) - back[1]
        for mine, theirs in zip((y[c], dx[c], dw[c], stepped[c]), rows, strict=True):
            assert near(mine, theirs.permute(0, 2, 3, 1))


@pytest.mark.parametrize(("rows", "width"), [(9, 12), (40, 32)])
def test_rows_normed(rows: int, width: int) -> None:
    torch.manual_seed(0)
    x, w, b, dy = (
        torch.randn(2, rows, width) * 3 + 5,
        torch.randn(2, width),
        torch.randn(2, width),
        torch.randn(2, rows, width),
    )
    y, *kept = normed.rows_forward(x, w, b, 1e-5)
    mine = y, *normed.rows_backward(dy, x, w, *kept)
    for c in range(2):
        leaves = [part[c].clone().requires_grad_() for part in (x, w, b)]
        wanted = F.layer_norm(leaves[0], (width,), leaves[1], leaves[2])
        for part, theirs in zip(mine, (wanted, *torch.autograd.grad(wanted, leaves, dy[c])), strict=True):
            assert near(part[c], theirs)


@pytest.mark.parametrize(("side", "channels", "groups"), [((5, 4), 8, 4), ((8, 8), 64, 32), ((3, 3), 16, 1)])
def test_images_normed(side: tuple[int, int], channels: int, groups: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, *side, channels) * 3 + 5
    w, b, dy = torch.randn(2, channels), torch.randn(2, channels), torch.randn_like(x)
    y, mean, deviation = normed.images_forward(x, w, b, groups, 1e-5)
    dx, dw, db = normed.images_backward(dy, x, w, mean, deviation, groups)
    for c in range(2):
        leaves = [x[c].permute(0, 3, 1, 2).clone().requires_grad_(), *(p[c].clone().requires_grad_() for p in (w, b))]
        wanted = F.group_norm(leaves[0], groups, leaves[1], leaves[2])
        back = torch.autograd.grad(wanted, leaves, dy[c].permute(0, 3, 1, 2))
        assert near(y[c], wanted.permute(0, 2, 3, 1)) and near(dx[c], back[0].permute(0, 2, 3, 1))
        assert near(dw[c], back[1]) and near(db[c], back[2])


@pytest.mark.parametrize(("length", "keys", "width", "causal"), [(20, 20, 8, True), (17, 40, 32, False)])
def test_attention(length: int, keys: int, width: int, causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, size, 3, width).transpose(1, 2) for size in (length, keys, keys))
    leaves = [part.clone().requires_grad_() for part in (q, k, v)]
    wanted = F.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=causal)
    dy = torch.randn(2, 3, length, width)
    assert attended.fits(q, k, v)
    mine = attended.forward(q, k, v, causal, width**-0.5), *attended.backward(dy, q, k, v, causal, width**-0.5)
    for part, theirs in zip(mine, (wanted, *torch.autograd.grad(wanted, leaves, dy)), strict=True):
        assert near(part, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    torch.manual_seed(0)
    one, two, model = (torch.randn(*shape, dtype=dtype) for shape in ((7, 300), (5, 300), (300,)))
    weights = np.random.default_rng(0).random(6)
    assert torch.equal(sums.weighted_sum(one, [3], weights[:1]), one[3] * float(weights[0]))
    rows = [(one, 0), (two, 1), (one, 4), (two, 2), (two, 3), (one, 6)]
    bounds = [0, 1, 3, 6]
    found = sums.models(model, rows, np.array([1, 1, 1, 1, 0, 1]), weights, np.array(bounds), 0.7)
    for number, (begin, end) in enumerate(pairwise(bounds)):
        total = sum(rows[i][0][rows[i][1]] * float(weights[i]) for i in range(begin, end))
        model = model + 0.7 * total
        assert near(found[number], model, 1e-6 if dtype == torch.float32 else 1e-14)


class Mixed(nn.Module):
    """Every layer that is computed together, and some that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(8, 16)
        self.frozen = nn.BatchNorm2d(16).eval()
        self.second, self.into, self.rows = nn.Conv2d(16, 32, 3, stride=2), nn.Linear(32, 96), nn.LayerNorm(32)
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.frozen(torch.relu(self.norm(self.first(x)))))
        x = self.second(F.max_pool2d(x, 2)).flatten(2).transpose(1, 2)
        q, k, v = self.into(self.rows(x)).view(len(x), -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        scores: Tensor = self.out((x + mixed).mean(1))
        return scores


def test_a_model_of_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_kernels", lambda _: True)
    taken, applied = list[Any](), together._applied

    def noted(kind: Any, *args: Any) -> Tensor:
        taken.append(kind)
        return applied(kind, *args)

    monkeypatch.setattr(together, "_applied", noted)
    torch.manual_seed(0)
    task, x, y = turnout.Task(Mixed, seed=1), torch.randn(6, 3, 12, 12), torch.arange(6)
    task.examine(x, y)
    layers = {name: torch.stack([layer, 1.1 * layer]) for name, layer in task.layers(task.initial).items()}
    rows = torch.arange(6).view(2, 3)
    batch = Batch(x.view(2, 3, 3, 12, 12), y.view(2, 3), torch.full((2, 3), 1 / 3), rows, torch.arange(2), 0)
    mine = gradients.summed(task, layers, batch)
    theirs = gradients.mapped(task, layers, batch)
    assert all(near(one, other) for one, other in zip(mine, theirs.values(), strict=True))
    kinds = {"_Convolution", "_ImagesNormed", "_RowsNormed", "_Attention", "_Linear"}
    assert kinds <= {kind.__name__ for kind in taken}
