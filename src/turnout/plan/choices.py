"""Several values of one option, as a person writes them: `16,32,64`, `0..4` or `1e-4..1`."""

from __future__ import annotations

import math
import re

from turnout.core.errors import UserError

Values = tuple[str, ...]  # as written on the command line
MOST = 10_000  # of a range


def several(option: str, text: str) -> Values:
    """`LOW..HIGH` are all whole numbers from one to the other, or the 1-2-5 grid where an end is not whole; anything
    else is a list."""
    ends = text.split("..")
    if len(ends) != 2 or not all(re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", end.strip(), re.I) for end in ends):
        return listed(text)
    if not all(re.fullmatch(r"-?\d+", end.strip()) for end in ends):
        return grid(option, text)
    low, high = (int(end) if len(end) < 20 else 0 for end in ends)
    if high < low or max(map(len, ends)) >= 20:
        raise UserError(f"{option}={text[:50]} is not a range; write LOW..HIGH with LOW at most HIGH, below 2^63")
    if high - low >= MOST:
        raise UserError(f"{option}={text} are {high - low + 1} values; a range has at most {MOST}")
    return tuple(str(value) for value in range(low, high + 1))


def listed(text: str) -> Values:
    """Values between commas, but not those inside brackets or braces."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return tuple(dict.fromkeys(part.strip() for part in parts))


def grid(option: str, text: str) -> Values:
    """1, 2 and 5 times the powers of ten inside `LOW..HIGH`."""
    try:
        low, high = (float(end) for end in text.split(".."))
    except ValueError:
        low = high = 0.0
    if not 0 < low < high < math.inf:
        raise UserError(f"{option}={text} is not a range; write LOW..HIGH with 0 < LOW < HIGH")
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    values = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    inside = tuple(f"{value:g}" for value in values if low <= value <= high)
    if not inside:
        raise UserError(f"{option}={text} holds no value of the 1-2-5 grid; list the values instead")
    return inside
