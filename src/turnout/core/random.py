"""Counter-based randomness: every draw is a function of (seed, purpose, client, number).

No generator object is ever advanced, so who else is drawn, in which order, or on which device changes nothing.
A *key* is a 64-bit integer folded from the seed, a purpose and any number of ids; the draws of a key are
SplitMix64 outputs of `key + i * GOLDEN` (Steele, Lea and Flood, OOPSLA 2014). The same code runs on numpy arrays
and on torch tensors (CPU or CUDA) and gives the same integers.

    >>> keys = key(7, "shuffle", np.arange(3), 0)          # one key a client
    >>> uniform(keys, 2).shape
    (3, 2)
"""

from __future__ import annotations

import os
import zlib
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaincinv, log_softmax, ndtri

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


_ALL = (1 << 64) - 1
_MANY = 2048  # draws of which it is quicker to sort numbers first, and then the places of those that are repeated
_AHEAD, _SMALL = 32, 256  # how many subsets are drawn at once, and how large they may be


def _signed(value: int) -> int:
    value &= _ALL
    return value - (1 << 64) if value >> 63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = np.arange(1, 4097, dtype=np.int64) * GOLDEN  # what draws add to their key
_MUL1 = _signed(0xBF58476D1CE4E5B9)
_MUL2 = _signed(0x94D049BB133111EB)
# the same as arrays, which numpy takes as they are
_ROUNDS = tuple((np.array(s, np.uint64), np.array(f & _ALL, np.uint64)) for s, f in ((30, _MUL1), (27, _MUL2)))
_LAST_SHIFT, _GOLDEN = np.array(31, np.uint64), np.array(GOLDEN)


def mix(x: Any) -> Any:
    """SplitMix64's output function on int64 arrays (numpy or torch): a bijection of 64-bit integers. Of a plain integer
    the lowest 64 bits are right."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MUL1  # the mask turns the arithmetic shift into a logical one
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MUL2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def _mixed(x: IntArray) -> IntArray:
    """`mix` of numpy arrays, in fewer operations: shifts of unsigned numbers need no mask."""
    if not x.ndim:
        with np.errstate(over="ignore"):
            return cast(IntArray, mix(x))
    u: Any = x.view(np.uint64)
    for shift, factor in _ROUNDS:
        mixed = u >> shift
        mixed ^= u
        mixed *= factor
        u = mixed
    mixed = u >> _LAST_SHIFT
    mixed ^= u
    return cast(IntArray, mixed.view(np.int64))


@lru_cache(maxsize=1024)
def _root(seed: int, purpose: str) -> int:
    return _signed(mix((mix(_signed(seed) + GOLDEN) ^ zlib.crc32(purpose.encode())) + GOLDEN))


def key(seed: int, purpose: str, *ids: ArrayLike) -> IntArray:
    """Fold seed, purpose and ids (broadcast together) into int64 keys, at least one-dimensional only if an id is."""
    folded: Any = _root(seed, purpose)
    part: Any
    for part in ids:
        if isinstance(folded, int) and isinstance(part, int):  # without the cost of an array
            folded = _signed(mix((folded ^ part) + GOLDEN))
        else:
            folded = fold(np.asarray(folded, np.int64), np.asarray(part, np.int64))
    return np.asarray(folded, np.int64)


def fold(keys: IntArray, ids: IntArray) -> IntArray:
    """Keys with one more id: `key(seed, purpose, a, b)` is `fold(key(seed, purpose, a), b)`."""
    return _mixed(np.asarray(keys ^ ids) + _GOLDEN)


def bits(keys: ArrayLike, count: int) -> IntArray:
    """`[..., count]` int64: the first draws of every key."""
    keys = np.asarray(keys, np.int64)
    steps = _FIRST[:count] if count <= len(_FIRST) else np.arange(1, count + 1, dtype=np.int64) * GOLDEN
    return _mixed(keys[..., None] + steps)


def uniform(keys: ArrayLike, count: int) -> FloatArray:
    """`[..., count]` float64 in [0, 1)."""
    return cast(FloatArray, (bits(keys, count).view(np.uint64) >> 11) * 2.0**-53)


def coins(seed: int, purpose: str, *ids: ArrayLike, each: int = 1) -> FloatArray:
    """`[..., each]` float64 in [0, 1): so many draws at each of these ids, `uniform(key(...), each)`."""
    return uniform(key(seed, purpose, *ids), each)


def normal(keys: ArrayLike, count: int) -> FloatArray:
    """`[..., count]` standard normal, by inversion."""
    return ndtri(np.maximum(uniform(keys, count), 2.0**-54))  # 0 would be minus infinity


def secret_normal(count: int) -> FloatArray:
    """`[count]` standard normal from the operating system's entropy: noise that protects privacy has no key to lose."""
    secret = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)
    return cast(FloatArray, ndtri((secret + 0.5) * 2.0**-53))


def exponential(keys: ArrayLike, count: int) -> FloatArray:
    """`[..., count]` exponential of mean 1, by inversion."""
    return -np.log1p(-uniform(keys, count))


def dirichlet(keys: ArrayLike, count: int, alpha: float) -> FloatArray:
    """`[..., count]` of Dir(alpha): normalised gamma draws, in logarithms since most vanish at small alpha.

    Gamma(alpha) = Gamma(alpha + 1) * U^(1 / alpha); reference: Marsaglia and Tsang, ACM TOMS 2000.
    """
    draws = np.maximum(uniform(keys, 2 * count), 2.0**-54)
    gammas = np.log(gammaincinv(alpha + 1, draws[..., :count])) + np.log(draws[..., count:]) / alpha
    return cast(FloatArray, np.exp(log_softmax(gammas, axis=-1)))


def integers(keys: ArrayLike, count: int, high: ArrayLike) -> IntArray:
    """`[..., count]` integers in [0, high); the bias is below high * 2**-53."""
    return cast(IntArray, (uniform(keys, count) * np.asarray(high)[..., None]).astype(np.int64))


def permutation(keys: ArrayLike, size: int) -> IntArray:
    """`[..., size]` a permutation of range(size) for every key: the argsort of its draws."""
    return np.argsort(bits(keys, size), axis=-1, kind="stable")


def subset(key: IntArray, size: int, population: int, first: int | None = None) -> IntArray:
    """`size` distinct integers below `population` by one key, all subsets equally likely, in O(size) when size is much
    smaller; or only the `first` so many of them, which takes less.

    Independent draws, keeping first occurrences, give a uniform subset; beyond a third of the population a
    permutation is cheaper.
    """
    wanted = size if first is None else min(first, size)
    if 3 * size > population:
        return permutation(key, population)[:wanted]
    count = wanted + wanted // 2 + 16  # mostly enough
    while True:
        distinct = _first_occurrences(integers(key, count, population))
        if len(distinct) >= wanted:
            return distinct[:wanted]
        count *= 2


def _first_occurrences(draws: IntArray) -> IntArray:
    """Leave out what came before."""
    if len(draws) < _MANY:
        order = np.argsort(draws, kind="stable")
        ranked = draws[order]
        new: Any = order[np.concatenate([[True], ranked[1:] != ranked[:-1]])]
        new.sort()
        return cast(IntArray, draws[new])
    ranked = np.sort(draws)  # five times as fast as to sort places
    repeated = ranked[1:][ranked[1:] == ranked[:-1]]
    if not len(repeated):
        return draws
    places = np.flatnonzero(np.isin(draws, repeated))
    again = np.ones(len(places), bool)
    again[np.unique(draws[places], return_index=True)[1]] = False
    return np.delete(draws, places[again])


def nth_subset(seed: int, purpose: str, number: int, size: int, population: int) -> IntArray:
    """The first `size` of `subset(key(seed, purpose, number), 2 * size + 16, population)`, or of all there are. Whoever
    asks for one asks for the next: small ones are drawn some numbers ahead, all at once."""
    if size > _SMALL:
        return subset(key(seed, purpose, number), min(2 * size + 16, population), population, first=size)
    block, row = divmod(number, _AHEAD)
    return _subsets(seed, purpose, block, size, population)[row].copy()


@lru_cache(maxsize=4)
def _subsets(seed: int, purpose: str, block: int, size: int, population: int) -> list[IntArray]:
    keys = key(seed, purpose, np.arange(block * _AHEAD, (block + 1) * _AHEAD))
    asked = min(2 * size + 16, population)
    if 3 * asked > population:
        return list(permutation(keys, population)[:, :size])
    draws = integers(keys, size + size // 2 + 16, np.full(_AHEAD, population))
    found = [np.fromiter(dict.fromkeys(row), np.int64) for row in draws.tolist()]  # without what came before
    return [
        new[:size] if len(new) >= size else subset(one, asked, population, first=size)
        for one, new in zip(keys, found, strict=True)
    ]


def generator(keys: IntArray) -> np.random.Generator:
    """A numpy generator seeded by one key, for distributions without an inverse (Dirichlet, gamma)."""
    return np.random.Generator(np.random.Philox(key=int(keys) & ((1 << 64) - 1)))
