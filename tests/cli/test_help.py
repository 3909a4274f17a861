"""Every command says what it does and shows an example."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from terminal import Terminal

from turnout.cli.commands import app


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield (*words, name), inner
        yield from commands(inner, (*words, name))


EVERY = dict(commands(typer.main.get_command(app)))


def test_there_are_commands() -> None:
    assert {("run",), ("compare",), ("sweep",), ("study", "run"), ("topology", "design")} <= EVERY.keys()


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_has_an_example_of_this_command(words: tuple[str, ...], terminal: Terminal) -> None:
    text = " ".join(terminal.done(*words, "--help").out.split())
    assert f"Example: turnout {' '.join(words)}" in text
