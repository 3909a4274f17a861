"""The exceptions a user is meant to read."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


class UserError(ValueError):
    """Something the user can change: one sentence naming the option, the value and what is allowed."""


class RecordedError(UserError):
    """A mistake in a user's code, whose details are in the log of the run: its folder is kept."""


class FailedError(Exception):
    """A run that could not go on, for a reason nobody has foreseen: one sentence that says where to look."""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> UserError:
    """`UserError` for a misspelt name, with the nearest allowed one."""
    return UserError(f"{kind}: unknown name {name!r}; {meant(name, sorted(allowed))}")


def meant(name: str, allowed: Iterable[str]) -> str:
    """The end of a sentence about a misspelt name: the nearest allowed one, or all of them."""
    options = list(allowed)
    near = difflib.get_close_matches(name, options, n=1)
    return f"did you mean {near[0]}?" if near else f"allowed: {', '.join(options) or 'none'}"


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Say options by the names under which they were given: `{"wait.size": "algorithm.buffer_size"}`."""
    try:
        yield
    except UserError as error:
        for old, new in names.items():
            if str(error).startswith(old):
                raise UserError(new + str(error).removeprefix(old)) from error
        raise


def check_room(name: str, numbers: float) -> None:
    """Raise where so many numbers of eight bytes are more than this machine's memory holds."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 8 * numbers > room:
        raise UserError(f"{name} takes {8 * numbers / 2**30:.3g} GiB; this machine has {room / 2**30:.3g}")


def reason(error: BaseException) -> str:
    """The first sentence of what an exception says."""
    return (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]
