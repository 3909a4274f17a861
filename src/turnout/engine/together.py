"""Layers of common models for all clients of a cohort at once, on CUDA, where `vmap` would take many small steps.

While a model is mapped over clients (`vmap`, gradients taken outside of it), `Together` puts one operation in the place
of a layer whose inputs and weights both have a row for each client: a product with its bias, a convolution, layer and
group normalisation, attention of short sequences; and a product with weights that all share. Whatever else a model
calls, and the same layers with other arguments, is computed as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from turnout.engine.convolutions import HAS_TRITON

_UNASKED = "is_contiguous inside of vmap"  # what cannot be asked of images whose channels lie side by side, as ours do
LARGEST = 1 << 31  # numbers that kernels count to in what one client has


class Together(TorchFunctionMode):
    """Compute known layers for all clients at once, within one `vmap`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        layer = _LAYERS.get(func)
        if layer is not None and _mapped_once():
            found = layer(*args, **(kwargs or {}))
            if found is not None:
                return found
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if _UNASKED not in str(error):
                raise
        laid_out = tree_map(lambda part: part.contiguous() if isinstance(part, Tensor) else part, args)
        return func(*laid_out, **(kwargs or {}))


class _OverClients(torch.autograd.Function):
    """Call a function with the rows of all clients, `[C, ...]`, in the place of one that is mapped over them."""

    @staticmethod
    def forward(*args: Any) -> Any:
        raise NotImplementedError("it is mapped over clients, always")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: gradients are taken of what the function calls."""

    @staticmethod
    def vmap(_: Any, in_dims: tuple[int | None, ...], function: Callable[..., Tensor], *args: Any) -> Any:
        rows = (x if dim is None else x.movedim(dim, 0) for x, dim in zip(args, in_dims[1:], strict=True))
        return function(*rows), 0


def _applied(function: Any, *args: Any) -> Tensor:
    found: Tensor = function.apply(*args)
    return found


def _mapped_once() -> bool:
    stack = torch._C._functorch.get_interpreter_stack()
    return stack is not None and len(stack) == 1


def _each_client(*tensors: Tensor | None) -> bool:
    """Say whether all of these have a row for each client."""
    return all(tensor is None or torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors)


def _halved(*tensors: Tensor | None) -> list[Any]:
    """Convert tensors as automatic precision would."""
    kind = tensors[0].device.type if tensors[0] is not None else "cpu"
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    wanted = torch.get_autocast_dtype(kind)
    return [tensor if tensor is None else tensor.to(wanted) for tensor in tensors]


def _kernels(x: Tensor) -> bool:
    """Say whether kernels of our own are for this tensor."""
    return HAS_TRITON and x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and x.numel() < LARGEST


# -- products ------------------------------------------------------------------------------------------------------


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.shifts = bias is not None
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *dy: Any) -> Any:
        x, weight = ctx.saved_tensors
        (up,) = dy
        dx = torch.bmm(up, weight) if ctx.needs_input_grad[0] else None
        dw = torch.bmm(up.mT, x) if ctx.needs_input_grad[1] else None
        return dx, dw, up.sum(1) if ctx.shifts and ctx.needs_input_grad[2] else None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if weight.ndim != 2 or not _each_client(input):
        return None
    if not any(_each_client(tensor) for tensor in (weight, bias) if tensor is not None):
        shared: Tensor = _applied(_OverClients, F.linear, *_halved(input, weight, bias))
        return shared
    if not _each_client(weight, bias):
        return None

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = _applied(_Linear, x.reshape(len(x), -1, x.shape[-1]), weight, bias)
        return y.view(*x.shape[:-1], -1)

    found: Tensor = _applied(_OverClients, product, *_halved(input, weight, bias))
    return found


# -- convolutions --------------------------------------------------------------------------------------------------


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
        from turnout.engine.kernels import implicit

        size, kernels = implicit.sizes(x, weight, stride, padding), weight.to(x.dtype)
        ctx.save_for_backward(x, kernels)
        ctx.size, ctx.shifts = size, bias is not None
        return implicit.forward(x, kernels, bias, size)

    @staticmethod
    def backward(ctx: Any, *dy: Any) -> Any:
        from turnout.engine.kernels import implicit

        x, weight = ctx.saved_tensors
        up = dy[0].contiguous()
        dx = implicit.by_images(up, weight, ctx.size) if ctx.needs_input_grad[0] else None
        dw = implicit.by_kernels(up, x, ctx.size) if ctx.needs_input_grad[1] else None
        shift = up.sum((1, 2, 3), dtype=torch.float32) if ctx.shifts and ctx.needs_input_grad[2] else None
        return dx, dw, shift, None, None


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    plain = groups == 1 and not isinstance(padding, str) and _pair(dilation) == (1, 1) and input.ndim == 4
    if not plain or not _each_client(input, weight, bias) or not _kernels(input):
        return None

    def convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        images, kernels = x.permute(0, 1, 3, 4, 2).contiguous(), weight.permute(0, 1, 3, 4, 2).contiguous()
        y: Tensor = _applied(_Convolution, images, kernels, bias, _pair(stride), _pair(padding))
        return y.permute(0, 1, 4, 2, 3)

    found: Tensor = _applied(_OverClients, convolved, *_halved(input), weight, bias)
    return found


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


# -- normalisation -------------------------------------------------------------------------------------------------


class _RowsNormed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        from turnout.engine.kernels import normed

        y, *kept = normed.rows_forward(x, weight, bias, epsilon, _between(x))
        ctx.save_for_backward(x, weight, *kept)
        return y

    @staticmethod
    def backward(ctx: Any, *dy: Any) -> Any:
        from turnout.engine.kernels import normed

        return *normed.rows_backward(dy[0].contiguous(), *ctx.saved_tensors), None


class _ImagesNormed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float) -> Tensor:
        from turnout.engine.kernels import normed

        y, *kept = normed.images_forward(x, weight, bias, groups, epsilon, _between(x))
        ctx.save_for_backward(x, weight, *kept)
        ctx.groups = groups
        return y

    @staticmethod
    def backward(ctx: Any, *dy: Any) -> Any:
        from turnout.engine.kernels import normed

        x, weight, mean, deviation = ctx.saved_tensors
        back = normed.images_backward(dy[0].contiguous(), x, weight, mean, deviation, ctx.groups)
        return *back, None, None


def _between(x: Tensor) -> torch.dtype:
    """Choose the numbers between layers."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor | None:
    known = weight is not None and bias is not None and len(normalized_shape) == 1 and normalized_shape[0] <= 8192
    if not known or not _each_client(input, weight, bias) or not _kernels(input):
        return None

    def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = x.reshape(len(x), -1, x.shape[-1]).contiguous()
        y: Tensor = _applied(_RowsNormed, rows, weight.contiguous(), bias.contiguous(), eps)
        return y.view(x.shape)

    found: Tensor = _applied(_OverClients, normed, input, weight, bias)
    return found


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor | None:
    if weight is None or bias is None or input.ndim != 4 or not _each_client(input, weight, bias):
        return None
    channels = input.shape[1]
    powers = all(size & (size - 1) == 0 for size in (channels, num_groups))  # Triton's ranges are powers of two
    if not powers or channels > 2048 or not _kernels(input):
        return None

    def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        images = x.permute(0, 1, 3, 4, 2).contiguous()
        y: Tensor = _applied(_ImagesNormed, images, weight.contiguous(), bias.contiguous(), num_groups, eps)
        return y.permute(0, 1, 4, 2, 3)

    found: Tensor = _applied(_OverClients, normed, input, weight, bias)
    return found


# -- attention -----------------------------------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
        from turnout.engine.kernels import attended

        ctx.save_for_backward(q, k, v)
        ctx.causal, ctx.scale = causal, scale
        return attended.forward(q, k, v, causal, scale)

    @staticmethod
    def backward(ctx: Any, *dy: Any) -> Any:
        from turnout.engine.kernels import attended

        q, k, v = ctx.saved_tensors
        return *attended.backward(dy[0], q, k, v, ctx.causal, ctx.scale), None, None


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    if attn_mask is not None or dropout_p or enable_gqa or query.ndim != 4 or not _each_client(query, key, value):
        return None
    if not _kernels(query):
        return None
    from turnout.engine.kernels import attended

    if not attended.fits(query, key, value):
        return None

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = [part.flatten(0, 1) for part in (q, k, v)]
        flat = [part if part.stride(3) == 1 else part.contiguous() for part in flat]
        y: Tensor = _applied(_Attention, *flat, is_causal, q.shape[-1] ** -0.5 if scale is None else scale)
        return y.view(*q.shape[:2], *y.shape[1:])

    found: Tensor = _applied(_OverClients, mixed, *_halved(query, key, value))
    return found


_LAYERS: dict[Any, Callable[..., Tensor | None]] = {
    F.linear: _linear,
    F.conv2d: _conv2d,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    F.scaled_dot_product_attention: _attention,
}
