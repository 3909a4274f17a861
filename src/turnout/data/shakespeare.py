"""The next character in Shakespeare's plays, one speaking role a client (text in the public domain; as LEAF).

File: `roles.json`, plain or .gz, here or in shakespeare/: an object "play/ROLE" -> [speech, ...].
"""

from __future__ import annotations

import json
import string
from collections.abc import Sized
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core.allowed import Count, WholeNumber
from turnout.core.errors import UserError
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held
from turnout.data.readers import Layout, locate, read_text

WINDOW = 80
CODE = np.array([string.printable.find(chr(code)) for code in range(128)])
ROLES = Layout(("roles.json",), ("shakespeare", ""))


@spelt
def load(
    *,
    folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
    clients: Count | None = None,  # roles that are kept, the first so many; none: all
    min_speeches: WholeNumber = 2,  # roles with fewer are left out
    stride: Count = WINDOW,  # characters from one sample to the next
    test_fraction: Held = 0.2,  # share of a role's text, the end of it, for testing
) -> Dataset:
    """`[n, 80]` tokens, the target being the token that follows; tokens index Python's 100 printable characters.

    A role's speeches are joined by spaces and cut at every `stride` characters: 80 gives chunks that do not
    overlap, 1 is LEAF's (4 million samples). The last `test_fraction` of its text is for testing. Roles with fewer
    than `min_speeches`, or too little text for one sample, are left out; `clients` keeps the first so many.
    Facts: `vocabulary`, `clients` (the roles).
    """
    _, (path,) = locate("shakespeare", folder, ROLES)
    texts: dict[str, NDArray[np.int64]] = {}
    for role, speeches in _speeches(path).items():
        text = " ".join(speeches)
        if len(texts) != clients and len(speeches) >= min_speeches and _kept(text, test_fraction) > WINDOW:
            texts[role] = _encode(role, text)
    if not texts:
        raise UserError(f"dataset shakespeare: no role of {path} has {min_speeches} speeches and text for a sample")
    inputs, targets, groups = _samples([text[: _kept(text, test_fraction)] for text in texts.values()], stride)
    tests = _samples([text[_kept(text, test_fraction) :] for text in texts.values()], stride)
    test_inputs, test_targets, test_groups = tests if len(tests[0]) else (None, None, None)
    facts: dict[str, object] = {"vocabulary": string.printable, "clients": list(texts)}
    size = len(string.printable)
    return Dataset("shakespeare", inputs, targets, size, test_inputs, test_targets, groups, test_groups, facts)


def _kept(text: Sized, test_fraction: float) -> int:
    """How much of the text is for training."""
    return len(text) - int(test_fraction * len(text))


def _speeches(path: Path) -> dict[str, list[str]]:
    text = read_text("shakespeare", path)
    try:
        roles = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"dataset shakespeare: {path} is not JSON: {error}") from error
    lists = roles.values() if isinstance(roles, dict) else [None]
    if not all(isinstance(speeches, list) and all(isinstance(s, str) for s in speeches) for speeches in lists):
        raise UserError(f"dataset shakespeare: {path} should be a JSON object of lists of speeches, by role")
    return dict(roles)


def _encode(role: str, text: str) -> NDArray[np.int64]:
    strange = set(text) - set(string.printable)
    if strange:
        found = ", ".join(map(repr, sorted(strange)))
        raise UserError(f"dataset shakespeare: role {role} has characters that are not printable ASCII: {found}")
    return CODE[np.frombuffer(text.encode("ascii"), np.uint8)]


def _samples(texts: list[NDArray[np.int64]], stride: int) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """`[n, 80]` characters, the `[n]` next ones, and whose they are."""
    inputs, targets = [np.empty((0, WINDOW), np.int64)], [np.empty(0, np.int64)]
    for text in texts:
        if len(text) > WINDOW:
            inputs.append(np.lib.stride_tricks.sliding_window_view(text[:-1], WINDOW)[::stride])
        targets.append(text[WINDOW::stride])
    groups = np.repeat(np.arange(len(texts)), [len(part) for part in targets[1:]])
    return torch.from_numpy(np.concatenate(inputs)), torch.from_numpy(np.concatenate(targets)), groups
