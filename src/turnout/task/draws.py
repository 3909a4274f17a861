"""What a model draws, by keys: the same numbers whoever is trained beside a client, on every path.

While a `KeyedDraws` is entered, functions of torch that draw take their numbers from a key: dropout as a function and
inside attention and recurrent layers, `torch.rand` and its kin, `Tensor.uniform_` and its kin. Draw number i of a pass
has the key `mix(key ^ i)`; its j-th number is made of `mix(that + (j + 1) * GOLDEN)`, as everywhere (`core/random.py`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from turnout.core.random import GOLDEN, mix
from turnout.task import recurrent

Size = Sequence[int]


class KeyedDraws(TorchFunctionMode):
    """Replace what torch's functions draw by draws of a key. `first` is the number of the first draw, less one."""

    def __init__(self, key: Tensor, first: int = 0) -> None:
        super().__init__()
        self.key, self.count = key, first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        drawn = _DRAWN.get(func)
        if drawn is not None:
            return drawn(self, *args, **kwargs)
        if getattr(func, "__name__", "") in recurrent.KINDS and recurrent.draws(args):
            return recurrent.layer_by_layer(func, args, lambda x, p: dropout(self, x, p))
        if func in _COMPOSED:  # written in Python, of functions that may draw
            with self:
                return _COMPOSED[func](*args, **kwargs)
        return func(*args, **kwargs)

    def bits(self, shape: Size) -> Tensor:
        """Draw `[*shape]` int64, where the key is."""
        self.count += 1
        key: Tensor = mix(self.key ^ self.count)
        steps = torch.arange(1, math.prod(shape) + 1, device=key.device) * GOLDEN
        drawn: Tensor = mix(key + steps)
        return drawn.view(*shape)

    def uniform(self, shape: Size, dtype: torch.dtype | None = None) -> Tensor:
        """Draw `[*shape]` numbers in [0, 1): 24 bits of each, 53 in float64, fewer in shorter types."""
        dtype = dtype or torch.get_default_dtype()
        drawn = self.bits(shape)
        if dtype == torch.float64:
            return ((drawn >> 11) & ((1 << 53) - 1)).double() * 2.0**-53
        return (((drawn >> 40) & 0xFFFFFF).float() * 2.0**-24).to(dtype)

    def precise(self, shape: Size) -> Tensor:
        """Draw `[*shape]` float64 numbers in (0, 1)."""
        return self.uniform(shape, torch.float64).clamp(min=2.0**-54)

    def normal(self, shape: Size, dtype: torch.dtype | None = None) -> Tensor:
        """Draw `[*shape]` standard normal numbers, by inversion."""
        drawn: Tensor = torch.special.ndtri(self.precise(shape)).to(dtype or torch.get_default_dtype())
        return drawn

    def kept(self, shape: Size, p: float) -> Tensor:
        """Draw `[*shape]` whether a number is kept, where a share `p` is not."""
        kept: Tensor = ((self.bits(shape) >> 40) & 0xFFFFFF) >= round(p * (1 << 24))
        return kept


# -- dropout ------------------------------------------------------------------------------------------------------


def dropout(draws: KeyedDraws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropped(draws, input, input.shape, p, training, inplace)


def _of_channels(sides: int) -> Callable[..., Tensor]:
    """Make dropout of whole channels, which have so many sides."""

    def function(
        draws: KeyedDraws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        lead = input.ndim - sides if input.ndim in (sides + 1, sides + 2) else 2  # torch's rule for a batch without one
        lead = 2 if sides == 2 and input.ndim == 3 else lead
        shape = (*input.shape[:lead], *(1 for _ in input.shape[lead:]))
        return _dropped(draws, input, shape, p, training, inplace)

    return function


def _dropped(draws: KeyedDraws, input: Tensor, shape: Size, p: float, training: bool, inplace: bool) -> Tensor:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    factor = draws.kept(shape, p).to(input.dtype) / (1 - p or 1.0)
    return input.mul_(factor) if inplace else input * factor


def _alpha(
    draws: KeyedDraws,
    input: Tensor,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
    of_features: bool = False,
) -> Tensor:
    """Drop to the value where SELU saturates, and keep mean and variance."""
    if not training or p == 0:
        return input
    shape = (*input.shape[:2], *(1 for _ in input.shape[2:])) if of_features else input.shape
    kept, alpha = draws.kept(shape, p).to(input.dtype), 1.7580993408473766
    scale = 0.0 if p == 1 else ((alpha * alpha * p + 1) * (1 - p)) ** -0.5
    changed = input * (kept * scale) + ((kept - 1) * (alpha * scale) + alpha * scale * p)
    return input.copy_(changed) if inplace else changed


def _feature_alpha(
    draws: KeyedDraws, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    return _alpha(draws, input, p, training, inplace, of_features=True)


def _attention(
    draws: KeyedDraws,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attend as torch does; where some weights are dropped, step by step."""
    if dropout_p == 0:
        attend = F.scaled_dot_product_attention
        return attend(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (part.repeat_interleave(groups, -3) for part in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    if is_causal or attn_mask is not None:  # a row that sees nothing
        weights = weights.nan_to_num(0.0) if attn_mask is not None and attn_mask.dtype == torch.bool else weights
    return dropout(draws, weights, dropout_p) @ value


def _rrelu(
    draws: KeyedDraws,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    if not training:
        return F.rrelu(input, lower, upper, False, inplace)
    slope = lower + (upper - lower) * draws.uniform(input.shape, input.dtype)
    changed = torch.where(input < 0, input * slope, input)
    return input.copy_(changed) if inplace else changed


# -- tensors of draws ---------------------------------------------------------------------------------------------


def _shape(size: tuple[Any, ...], given: Any = None) -> tuple[int, ...]:
    found = given if given is not None else size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return tuple(int(side) for side in found)


def _made(values: Tensor, options: dict[str, Any]) -> Tensor:
    """Put new values where they are wanted."""
    if options.get("generator") is not None:
        raise ValueError("a generator of its own has a state that cannot be replayed; leave it out")
    device = options.get("device")
    made = values if device is None or torch.device(device) == values.device else values.to(device)
    out = options.get("out")
    return made.requires_grad_() if options.get("requires_grad") else made if out is None else out.copy_(made)


def _rand(draws: KeyedDraws, *size: Any, **options: Any) -> Tensor:
    return _made(draws.uniform(_shape(size, options.get("size")), options.get("dtype")), options)


def _randn(draws: KeyedDraws, *size: Any, **options: Any) -> Tensor:
    return _made(draws.normal(_shape(size, options.get("size")), options.get("dtype")), options)


def _integers(draws: KeyedDraws, low: int, high: int, shape: Size, dtype: torch.dtype) -> Tensor:
    return (draws.uniform(shape, torch.float64) * (high - low)).floor().to(torch.int64).add(low).to(dtype)


def _randint(draws: KeyedDraws, *bounds: Any, **options: Any) -> Tensor:
    given = [*bounds, *(options[name] for name in ("low", "high", "size") if name in options)]
    *ends, size = given
    low, high = (0, ends[0]) if len(ends) == 1 else ends
    dtype = options.get("dtype") or torch.int64
    return _made(_integers(draws, int(low), int(high), _shape((size,)), dtype), options)


def _randperm(draws: KeyedDraws, n: int, **options: Any) -> Tensor:
    return _made(draws.bits((n,)).argsort(stable=True).to(options.get("dtype") or torch.int64), options)


def _rand_like(draws: KeyedDraws, input: Tensor, **options: Any) -> Tensor:
    return _rand(draws, input.shape, **{"dtype": input.dtype, "device": input.device} | _given(options))


def _randn_like(draws: KeyedDraws, input: Tensor, **options: Any) -> Tensor:
    return _randn(draws, input.shape, **{"dtype": input.dtype, "device": input.device} | _given(options))


def _randint_like(draws: KeyedDraws, input: Tensor, *bounds: int, **options: Any) -> Tensor:
    return _randint(draws, *bounds, input.shape, **{"dtype": input.dtype, "device": input.device} | _given(options))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and name != "memory_format"}


def _bernoulli(draws: KeyedDraws, input: Tensor, p: float | None = None, **options: Any) -> Tensor:
    chance = input if p is None else p
    return _made((draws.uniform(input.shape, torch.float64) < chance).to(input.dtype), options)


def _normal(draws: KeyedDraws, mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> Tensor:
    parts = [part for part in (mean, std) if isinstance(part, Tensor)]
    shape = (mean + std * torch.zeros(())).shape if size is None else _shape((size,))
    dtype = options.get("dtype") or (parts[0].dtype if parts else None)
    return _made(mean + std * draws.normal(shape, dtype), options)


def _multinomial(
    draws: KeyedDraws, input: Tensor, num_samples: int, replacement: bool = False, **options: Any
) -> Tensor:
    shares = input.double() / input.double().sum(-1, keepdim=True)
    if replacement:
        drawn = draws.uniform((*input.shape[:-1], num_samples), torch.float64)
        return _made(torch.searchsorted(shares.cumsum(-1), drawn).clamp(max=input.shape[-1] - 1), options)
    rank = shares.log() - (-draws.precise(input.shape).log()).log()  # the largest of shares with Gumbel noise
    return _made(rank.topk(num_samples, -1).indices, options)


# -- tensors filled by draws --------------------------------------------------------------------------------------


def _filling(values: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a method that fills its tensor with such values."""

    def function(draws: KeyedDraws, self: Tensor, *args: Any, generator: object = None, **kwargs: Any) -> Tensor:
        if generator is not None:
            raise ValueError("a generator of its own has a state that cannot be replayed; leave it out")
        return self.copy_(values(draws, self, *args, **kwargs))

    return function


def _uniform(draws: KeyedDraws, like: Tensor, a: float = 0.0, b: float = 1.0, **named: float) -> Tensor:
    low, high = named.get("from", a), named.get("to", b)
    return low + (high - low) * draws.uniform(like.shape, like.dtype)


def _gaussian(draws: KeyedDraws, like: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return mean + std * draws.normal(like.shape, like.dtype)


def _exponential(draws: KeyedDraws, like: Tensor, lambd: float = 1.0) -> Tensor:
    return draws.precise(like.shape).log().neg() / lambd


def _geometric(draws: KeyedDraws, like: Tensor, p: float) -> Tensor:
    return (draws.precise(like.shape).log() / math.log1p(-p)).ceil()


def _cauchy(draws: KeyedDraws, like: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    return median + sigma * torch.tan(math.pi * (draws.precise(like.shape) - 0.5))


def _log_normal(draws: KeyedDraws, like: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    return (mean + std * draws.normal(like.shape, torch.float64)).exp()


def _random(draws: KeyedDraws, like: Tensor, *bounds: int, **named: int) -> Tensor:
    ends = [*bounds, *(named[name] for name in ("from", "to") if named.get(name) is not None)]
    most = {torch.float32: 1 << 24, torch.float64: 1 << 53, torch.bool: 2, torch.uint8: 1 << 8, torch.int8: 1 << 7}
    low, high = (0, ends[0]) if len(ends) == 1 else ends or (0, most.get(like.dtype, 1 << 31))
    return _integers(draws, low, high, like.shape, torch.int64)


def _coin(draws: KeyedDraws, like: Tensor, p: Any = 0.5) -> Tensor:
    coins: Tensor = draws.uniform(like.shape, torch.float64) < p
    return coins


_DRAWN: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((F.dropout, torch.dropout), dropout),
    torch.dropout_: lambda draws, input, p, train: dropout(draws, input, p, train, inplace=True),
    F.dropout1d: _of_channels(1),
    **dict.fromkeys((F.dropout2d, torch.feature_dropout), _of_channels(2)),
    F.dropout3d: _of_channels(3),
    **dict.fromkeys((F.alpha_dropout, torch.alpha_dropout), _alpha),
    **dict.fromkeys((F.feature_alpha_dropout, torch.feature_alpha_dropout), _feature_alpha),
    F.scaled_dot_product_attention: _attention,
    F.rrelu: _rrelu,
    torch.rand: _rand,
    torch.randn: _randn,
    torch.randint: _randint,
    torch.randperm: _randperm,
    torch.rand_like: _rand_like,
    torch.randn_like: _randn_like,
    torch.randint_like: _randint_like,
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli), _bernoulli),
    torch.normal: _normal,
    **dict.fromkeys((torch.multinomial, Tensor.multinomial), _multinomial),
    Tensor.uniform_: _filling(_uniform),
    torch.nn.init.uniform_: lambda draws, tensor, a=0.0, b=1.0, **rest: _filling(_uniform)(draws, tensor, a, b, **rest),
    Tensor.normal_: _filling(_gaussian),
    torch.nn.init.normal_: lambda draws, tensor, *rest, **named: _filling(_gaussian)(draws, tensor, *rest, **named),
    Tensor.exponential_: _filling(_exponential),
    Tensor.geometric_: _filling(_geometric),
    Tensor.cauchy_: _filling(_cauchy),
    Tensor.log_normal_: _filling(_log_normal),
    Tensor.random_: _filling(_random),
    Tensor.bernoulli_: _filling(_coin),
}


def _unguarded(function: Any) -> FunctionType:
    """Copy a function of torch without its question whether somebody overrides it: somebody does, and wants the
    functions that it calls."""
    said = {name: lambda *_: False for name in function.__globals__ if name.startswith("has_torch_function")}
    copy = FunctionType(
        function.__code__, function.__globals__ | said, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_COMPOSED: dict[Any, Callable[..., Any]] = {
    function: _unguarded(function)
    for _, function in inspect.getmembers(F, inspect.isfunction)
    if function not in _DRAWN and any(part.startswith("has_torch_function") for part in function.__code__.co_names)
}
_COMPOSED[torch.autograd.grad] = _unguarded(torch.autograd.grad)  # it calls checkpointed parts again
