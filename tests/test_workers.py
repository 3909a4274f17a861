"""Work shared by processes: who dies or fails takes nobody along."""

from __future__ import annotations

import os

import pytest

from turnout import UserError
from turnout.plan.workers import Failed, share


def piece(name: str) -> str:
    if name == "dies":
        os._exit(3)
    if name == "refuses":
        raise UserError("local.lr: -1 must be above 0")
    if name == "breaks":
        raise ZeroDivisionError("by zero")
    return name.upper()


def test_a_death_and_a_mistake_are_answers() -> None:
    found = dict(share(piece, [("dies",), ("refuses",)], 2))
    assert found == {0: Failed("its process died (exit code 3)"), 1: Failed("local.lr: -1 must be above 0")}


def test_one_worker_is_this_process() -> None:
    assert list(share(piece, [("a",), ("breaks",), ("b",)], 1)) == [
        (0, "A"),
        (1, Failed("ZeroDivisionError: by zero")),
        (2, "B"),
    ]


def test_an_interruption_is_no_answer() -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(share(interrupted, [(1,)], 1))
