"""Convolutions of many clients at once, each with kernels of its own, and the steps their kernels take.

Images are `[C, B, height, width, channels]`, kernels `[C, out, in, kh, kw]`. There are several forms of the same sums;
which is fastest depends on the sizes and the device.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = tuple[int, int]
HAS_TRITON = importlib.util.find_spec("triton") is not None  # it comes with torch for CUDA


class Convolution:
    """One form of the same sums. `forward` gives the output and what `step` needs of it."""

    def __init__(self, stride: Pair, padding: Pair) -> None:
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def step(self, saved: Any, weight: Tensor, dy: Tensor, wanted: bool) -> Tensor:
        """Subtract from the kernels their gradient by `dy`; return the gradient of the images if it is `wanted`."""
        raise NotImplementedError


class Patches(Convolution):
    """Every output pixel's window as a row, and one product for each client."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Any]:
        if any(self.padding):
            above, left = self.padding
            x = F.pad(x, (0, 0, left, left, above, above))
        windows = self.gather(x, weight.shape[3], weight.shape[4])  # [C, B, oh, ow, kh * kw * in]
        rows, kernels = windows.flatten(1, 3), self._kernels(weight, x.dtype)
        y = torch.bmm(rows, kernels) if bias is None else torch.baddbmm(bias[:, None].to(x.dtype), rows, kernels)
        return y.view(*windows.shape[:4], -1), (rows, x.shape)

    def step(self, saved: Any, weight: Tensor, dy: Tensor, wanted: bool) -> Tensor:
        rows, shape = saved
        _, out, into, kh, kw = weight.shape
        flat = dy.reshape(*rows.shape[:2], out)
        spread = torch.bmm(flat, self._kernels(weight, flat.dtype).mT) if wanted else flat
        change = torch.bmm(rows.mT, flat).view(-1, kh, kw, into, out)
        weight.sub_(change.permute(0, 4, 3, 1, 2))
        if not wanted:
            return dy
        dx = self.scatter(spread.view(*dy.shape[:4], -1), shape, kh, kw)
        above, left = self.padding
        return dx[:, :, above : shape[2] - above, left : shape[3] - left]

    @staticmethod
    def _kernels(weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Lay kernels out as `[C, kh * kw * in, out]`."""
        return weight.permute(0, 3, 4, 2, 1).reshape(len(weight), -1, weight.shape[1]).to(dtype)

    def gather(self, x: Tensor, kh: int, kw: int) -> Tensor:
        """Gather the window of every output pixel, `[C, B, oh, ow, kh * kw * in]`."""
        windows = x.unfold(2, kh, self.stride[0]).unfold(3, kw, self.stride[1])
        return windows.permute(0, 1, 2, 3, 5, 6, 4).flatten(4)

    def scatter(self, windows: Tensor, shape: torch.Size, kh: int, kw: int) -> Tensor:
        """Add all windows up where they lie in images of that shape."""
        x, (down, right) = windows.new_zeros(shape), self.stride
        height, width = windows.shape[2:4]
        parts = windows.view(*windows.shape[:4], kh, kw, -1)
        for i in range(kh):
            for j in range(kw):
                x[:, :, i : i + down * height : down, j : j + right * width : right].add_(parts[:, :, :, :, i, j])
        return x


class PatchesInOneKernel(Patches):
    """The same, with kernels of its own that move windows."""

    def gather(self, x: Tensor, kh: int, kw: int) -> Tensor:
        from turnout.engine.kernels import windows

        found = windows.gather(x.flatten(0, 1).contiguous(), (kh, kw), self.stride)
        return found.view(*x.shape[:2], *found.shape[1:])

    def scatter(self, windows: Tensor, shape: torch.Size, kh: int, kw: int) -> Tensor:
        from turnout.engine.kernels import windows as kernels

        images = torch.Size([shape[0] * shape[1], *shape[2:]])
        return kernels.scatter(windows.flatten(0, 1), images, (kh, kw), self.stride).view(shape)


class Implicit(Convolution):
    """Products of windows that are never written down, in kernels of its own; kernels lie `[C, out, kh, kw, in]`."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Any]:
        from turnout.engine.kernels import implicit

        size, x = implicit.sizes(x, self._kernels(weight), self.stride, self.padding), x.contiguous()
        kernels = self._kernels(weight).to(x.dtype)
        return implicit.forward(x, kernels, bias, size), (x, kernels, size)

    def step(self, saved: Any, weight: Tensor, dy: Tensor, wanted: bool) -> Tensor:
        from turnout.engine.kernels import implicit

        x, kernels, size = saved
        up = dy.contiguous()
        dx = implicit.by_images(up, kernels, size) if wanted else dy
        implicit.by_kernels(up, x, size, self._kernels(weight))
        return dx

    @staticmethod
    def _kernels(weight: Tensor) -> Tensor:
        return weight.permute(0, 1, 3, 4, 2)


class ClientByClient(Convolution):
    """The library's own convolution, for one client after another."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Any]:
        shifts = [None] * len(x) if bias is None else bias.to(x.dtype).unbind()
        parts = [
            torch.conv2d(images.permute(0, 3, 1, 2), kernels, shift, self.stride, self.padding).permute(0, 2, 3, 1)
            for images, kernels, shift in zip(x, weight.to(x.dtype), shifts, strict=True)
        ]
        return torch.stack(parts), x

    def step(self, saved: Any, weight: Tensor, dy: Tensor, wanted: bool) -> Tensor:
        dx = []
        for images, kernels, up in zip(saved, weight, dy, strict=True):
            given, change, _ = torch.ops.aten.convolution_backward(
                *(up.permute(0, 3, 1, 2), images.permute(0, 3, 1, 2), kernels.to(dy.dtype), None),
                *(self.stride, self.padding, (1, 1), False, (0, 0), 1, (wanted, True, False)),
            )
            kernels.sub_(change)
            dx.append(given)
        return torch.stack([part.permute(0, 2, 3, 1) for part in dx]) if wanted else dy


class Grouped(Convolution):
    """One convolution in as many groups as there are clients."""

    memory_format = torch.contiguous_format

    def _images(self, x: Tensor) -> Tensor:
        """Lay images out as `[B, C * channels, height, width]`."""
        return x.permute(1, 0, 4, 2, 3).flatten(1, 2).contiguous(memory_format=self.memory_format)

    @staticmethod
    def _back(images: Tensor, clients: int) -> Tensor:
        return images.view(len(images), clients, -1, *images.shape[2:]).permute(1, 0, 3, 4, 2)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Any]:
        images, kernels = self._images(x), weight.flatten(0, 1).to(x.dtype)
        shift = None if bias is None else bias.flatten().to(x.dtype)
        y = torch.conv2d(images, kernels, shift, self.stride, self.padding, groups=len(weight))
        return self._back(y, len(weight)), images

    def step(self, saved: Any, weight: Tensor, dy: Tensor, wanted: bool) -> Tensor:
        clients = len(weight)
        given, change, _ = torch.ops.aten.convolution_backward(
            *(self._images(dy), saved, weight.flatten(0, 1).to(dy.dtype), None),
            *(self.stride, self.padding, (1, 1), False, (0, 0), clients, (wanted, True, False)),
        )
        weight.sub_(change.view_as(weight))
        return self._back(given, clients).contiguous() if wanted else dy


class GroupedChannelsLast(Grouped):
    memory_format = torch.channels_last


FORMS: dict[str, type[Convolution]] = {
    "patches": Patches,
    "patches_triton": PatchesInOneKernel,
    "implicit": Implicit,
    "client_by_client": ClientByClient,
    "grouped": Grouped,
    "grouped_channels_last": GroupedChannelsLast,
}
OURS = frozenset({"patches_triton", "implicit"})  # forms that are kernels of ours, in Triton
