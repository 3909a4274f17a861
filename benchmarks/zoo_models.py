"""Models people use, written out where no package gives them here: pictures, segmentation, text, graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


def groups(channels: int) -> nn.Module:
    """Normalise by groups of eight channels."""
    return nn.GroupNorm(channels // 8, channels)


def _convolved(into: int, out: int, size: int, stride: int, norm: Norm, act: nn.Module, of: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, size, stride, size // 2, groups=of, bias=False), norm(out), act)


# -- ResNet-18 (He et al., CVPR 2016) ---------------------------------------------------------------------------


class Basic(nn.Module):
    def __init__(self, into: int, out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), norm(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), norm(out)
        changes = stride > 1 or into != out
        self.downsample = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), norm(out)) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + kept)


class ResNet18(nn.Module):
    """Pictures `[B, 3, 32, 32]` to ten logits: the form for CIFAR, without the first pooling."""

    def __init__(self, norm: Norm = nn.BatchNorm2d, width: int = 64) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), norm(width)
        widths = [width, *(width << stage for stage in range(4))]
        self.layers = nn.Sequential(
            *(
                Basic(
                    widths[stage] if first else widths[stage + 1], widths[stage + 1], 2 if first and stage else 1, norm
                )
                for stage in range(4)
                for first in (True, False)
            )
        )
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


# -- MobileNet-v3 small (Howard et al., ICCV 2019) and EfficientNet-B0 (Tan and Le, ICML 2019) -------------------


class Squeezed(nn.Module):
    """Weigh channels by what they are on average."""

    def __init__(self, channels: int, inner: int, act: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.fc1, self.fc2, self.act, self.gate = (
            nn.Conv2d(channels, inner, 1),
            nn.Conv2d(inner, channels, 1),
            act,
            gate,
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.fc2(self.act(self.fc1(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """Widen, convolve each channel, narrow; a sample skips it with a chance that grows with depth."""

    def __init__(
        self,
        channels: tuple[int, int, int],
        size: int,
        stride: int,
        norm: Norm,
        act: nn.Module,
        squeeze: nn.Module,
        skip: float = 0.0,
    ) -> None:
        super().__init__()
        into, wide, out = channels
        widen = [_convolved(into, wide, 1, 1, norm, act)] if wide != into else []
        each = _convolved(wide, wide, size, stride, norm, act, of=wide)
        self.body = nn.Sequential(*widen, each, squeeze, _convolved(wide, out, 1, 1, norm, nn.Identity()))
        self.adds, self.skip = stride == 1 and into == out, skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        if not self.adds:
            return y
        if self.training and self.skip:
            kept = torch.empty_like(x[:, :1, :1, :1]).bernoulli_(1 - self.skip)
            y = y * kept / (1 - self.skip)
        return x + y


# (kernel, widened, out, squeeze, hard swish, stride)
_MOBILE = [
    (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1), (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1), (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2), (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
]  # fmt: skip


def mobilenet_v3(norm: Norm = nn.BatchNorm2d) -> nn.Module:
    """Build MobileNet-v3 small for `[B, 3, 32, 32]`."""
    layers: list[nn.Module] = [_convolved(3, 16, 3, 2, norm, nn.Hardswish())]
    into = 16
    for size, wide, out, squeeze, hard, stride in _MOBILE:
        act: nn.Module = nn.Hardswish() if hard else nn.ReLU()
        inner = max(8, (wide // 4 + 4) // 8 * 8)
        gate = Squeezed(wide, inner, nn.ReLU(), nn.Hardsigmoid()) if squeeze else nn.Identity()
        layers.append(Inverted((into, wide, out), size, stride, norm, act, gate))
        into = out
    layers += [_convolved(96, 576, 1, 1, norm, nn.Hardswish()), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(576, 1024), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1024, 10))


# (widening, kernel, stride, out, blocks)
_EFFICIENT = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)]  # fmt: skip  # noqa: E501


def efficientnet_b0(norm: Norm = nn.BatchNorm2d) -> nn.Module:
    """Build EfficientNet-B0 for `[B, 3, 32, 32]`, with stochastic depth."""
    layers: list[nn.Module] = [_convolved(3, 32, 3, 2, norm, nn.SiLU())]
    into, number = 32, 0
    for widen, size, stride, out, blocks in _EFFICIENT:
        for block in range(blocks):
            squeeze = Squeezed(into * widen, max(1, into // 4), nn.SiLU(), nn.Sigmoid())
            step = stride if block == 0 else 1
            layers.append(Inverted((into, into * widen, out), size, step, norm, nn.SiLU(), squeeze, number / 80))
            into, number = out, number + 1
    layers += [_convolved(320, 1280, 1, 1, norm, nn.SiLU()), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(1280, 10))


# -- segmentation -----------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """Pictures `[B, 1, 16, 16]` to logits of a mask `[B, 1, 16, 16]` (Ronneberger et al., MICCAI 2015), two levels."""

    def __init__(self, norm: Norm = groups, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = self._twice(1, width, norm), self._twice(width, 2 * width, norm)
        self.deep, self.up = self._twice(2 * width, 4 * width, norm), nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up2, self.join = nn.ConvTranspose2d(2 * width, width, 2, 2), self._twice(4 * width, 2 * width, norm)
        self.join2, self.out = self._twice(2 * width, width, norm), nn.Conv2d(width, 1, 1)

    @staticmethod
    def _twice(into: int, out: int, norm: Norm) -> nn.Sequential:
        return nn.Sequential(
            *_convolved(into, out, 3, 1, norm, nn.ReLU()), *_convolved(out, out, 3, 1, norm, nn.ReLU())
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        deep = self.deep(F.max_pool2d(second, 2))
        x = self.join(torch.cat([self.up(deep), second], 1))
        return self.out(self.join2(torch.cat([self.up2(x), first], 1)))


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """One minus the soft Dice coefficient of each mask, `[B]`."""
    chances, masks = outputs.sigmoid().flatten(1), targets.flatten(1)
    return 1 - (2 * (chances * masks).sum(1) + 1) / (chances.sum(1) + masks.sum(1) + 1)


# -- others -----------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """Symbols `[B, T]` and lengths `[B]` to logits, by a fused kernel; packed, or the last step of each."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], packed: bool) -> None:
        super().__init__()
        self.embed, self.packed = nn.Embedding(20, 6), packed
        self.rnn, self.head = kind(6, 8, 2, batch_first=True, dropout=0.2), nn.Linear(8, 3)

    def forward(self, symbols: Tensor, lengths: Tensor) -> Tensor:
        x = self.embed(symbols)
        if self.packed:
            rows = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            states, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(rows)[0], batch_first=True, total_length=x.shape[1])
        else:
            states, _ = self.rnn(x)
        return self.head(states[torch.arange(len(x), device=x.device), lengths - 1])


class Recommender(nn.Module):
    """Items that a user liked `[B, L]` and one more `[B]` to a score; the user's own vector stays with the user."""

    def __init__(self, items: int = 30, width: int = 6) -> None:
        super().__init__()
        self.bag, self.item = nn.EmbeddingBag(items, width, mode="mean"), nn.Embedding(items, width)
        self.user = nn.ParameterDict({"vector": nn.Parameter(torch.randn(width) / 3)})

    def forward(self, liked: Tensor, item: Tensor) -> Tensor:
        return ((self.bag(liked) + self.user["vector"]) * self.item(item)).sum(1)


class Graphs(nn.Module):
    """Nodes `[B, N, 4]` and edges `[B, E, 2]` to logits: two rounds of messages along the edges, then the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(8, 8), nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = nodes
        for layer in (self.first, self.second):
            sent = x.gather(1, edges[..., :1].expand(-1, -1, x.shape[2]))
            heard = torch.zeros_like(x).scatter_add(1, edges[..., 1:].expand(-1, -1, x.shape[2]), sent)
            x = torch.tanh(layer(torch.cat([x, heard] if layer is self.first else [x, nodes], 2)))
        return self.out(x.mean(1))


class Branching(nn.Module):
    """A model whose way depends on a number that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.one, self.other = nn.Parameter(torch.tensor(0.1)), nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.gate * (self.one(x) if self.gate > 0 else self.other(x))
