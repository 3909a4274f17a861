"""Every command says what it does and shows an example."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from terminal import Terminal

from turnout.cli.commands import COMMANDS, _line, app


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


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "study"])  # which another distribution brings
def test_the_line_in_the_list_is_the_first_of_the_help(name: str) -> None:
    assert _line(*COMMANDS[name].split(":")) == EVERY[(name,)].help.split("\n")[0]


def test_help_imports_no_command() -> None:
    script = """
import sys
from typer.testing import CliRunner
from turnout.cli.commands import app
assert "simulate-flower" in CliRunner().invoke(app, ["--help"]).output
print(*sorted(name for name in sys.modules if name.startswith("turnout.")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if not name.startswith("turnout.core")} == {
        "turnout.cli", "turnout.cli.commands",
    }  # fmt: skip


def test_a_command_that_is_misspelt(terminal: Terminal) -> None:
    answer = terminal("rum")
    assert answer.code == 2
    assert "'run'" in answer.err
