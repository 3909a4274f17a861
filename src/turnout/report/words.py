"""How sentences say numbers, names and probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

from turnout.report.blocks import number

_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SHOWN = 8  # names in a sentence


def count(value: int) -> str:
    """A small count as a word."""
    return _COUNTS[value] if 0 <= value < len(_COUNTS) else f"{value:,}"


def plural(value: int, thing: str) -> str:
    return f"{value:,} {thing}{'' if value == 1 else 's'}"


def listed(names: Sequence[str], most: int = SHOWN) -> str:
    """Names in a row, the last after an `and`; of many the first, and how many others there are."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1:,} others"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else "nobody"


def chance(p: float) -> str:
    """A p-value; what permutations have never seen is no smaller than they can tell."""
    return "p = 0.001 or less" if p <= 0.001 else f"p = {p:.3f}" if p < 0.0995 else f"p = {p:.2f}"


def within(value: float, half_width: float) -> str:
    """A mean with its interval, in as many digits as that is known."""
    if not 0 < half_width < math.inf:
        return number(value)
    digits = max(0, 1 - math.floor(math.log10(half_width)))
    return f"{value:,.{digits}f} ± {half_width:,.{digits}f}"


def share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.0095 or not value else f"{value:.1%}" if value >= 0.00095 else "less than 0.1%"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
