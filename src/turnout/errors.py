"""The one exception a user is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user can change: one sentence naming the option, the value and what is allowed."""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> UserError:
    """`UserError` for a misspelt name, with the nearest allowed one."""
    options = sorted(allowed)
    near = difflib.get_close_matches(name, options, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(options)}"
    return UserError(f"{kind}: unknown name {name!r}; {hint}")
