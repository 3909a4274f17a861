"""What clients are called: what the data call them, and their numbers where nothing does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError, meant

_LISTED = 40  # names in a sentence
Names = NDArray[np.str_] | Sequence[str] | None  # of all clients in their order; None: they have numbers


def names_of(values: Sequence[Any] | None, clients: int) -> NDArray[np.str_] | None:
    """Give the names of the first `clients`, or None where they say no more than the numbers 0, 1, 2, ..."""
    if values is None or len(values) < clients:
        return None
    names = np.array([str(value) for value in values[:clients]], np.str_)
    plain = len(set(names.tolist())) == clients and names.tolist() != [str(number) for number in range(clients)]
    return names if plain else None


def called(names: Names, client: int, unnamed: str = "client {}") -> str:
    """Give a client's name, or its number in these words."""
    return unnamed.format(int(client)) if names is None else str(names[int(client)])


def listed(names: Names, clients: Iterable[int], most: int = 40) -> str:
    """Name clients between commas, the first so many of them."""
    words = [called(names, client, "{}") for client in clients]
    return ", ".join(words[:most]) + (", …" if len(words) > most else "")


def number_of(option: str, names: Names, clients: int, given: str | int) -> int:
    """Find a client by its name, or by its number where nobody has that for a name."""
    text, known = str(given), [] if names is None else [str(name) for name in names]
    if text in known:
        return known.index(text)
    if text.isdecimal() and int(text) < clients:
        return int(text)
    near = known if len(known) <= _LISTED else known[:_LISTED]
    allowed = f"a name ({meant(text, near)}), or a number" if known else "a number"
    raise UserError(f"{option}: there is no client {text}; give {allowed} from 0 to {clients - 1}")
