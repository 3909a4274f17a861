"""Numbers with their units, as people write them: 11.2Mparams, 45MB, 10Gbps, 25.4ms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial

from turnout.core.errors import UserError

PARAMETER_BITS = 32
_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _prefixed(units: Mapping[str, float]) -> dict[str, float]:
    return {prefix + unit: scale * size for prefix, scale in _PREFIXES.items() for unit, size in units.items()}


_BITS = _prefixed({"bit": 1, "bits": 1, "B": 8, "byte": 8, "bytes": 8, "params": PARAMETER_BITS})
_BITS |= {"KiB": 8 * 2.0**10, "MiB": 8 * 2.0**20, "GiB": 8 * 2.0**30}
_RATES = _prefixed({"bps": 1, "bit/s": 1})
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}


def _read(units: Mapping[str, float], allowed: str, option: str, text: str, above: float = 0) -> float:
    """The number that an option's text is, above another, by the size of its unit."""
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([A-Za-z/]+)", text.strip())
    try:
        value = float(found[1]) * units[found[2]] if found else math.nan
    except (KeyError, ValueError):
        value = math.nan
    if not above < value < math.inf:
        raise UserError(f"{option}: {text!r} is not {allowed}")
    return value


bits = partial(_read, _BITS, "a size, such as 44.96Mbit, 45MB or 11.2Mparams (32 bits each)")
rate = partial(_read, _RATES, "a bandwidth above 0, such as 10Gbps or 100Mbps")  # bits a second
seconds = partial(_read, _SECONDS, "a time, such as 25.4ms or 1.5s", above=-math.ulp(0))  # nothing is one
