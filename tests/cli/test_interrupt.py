"""Ctrl-C: the round is finished and saved, and a sentence says how to go on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from terminal import QUICK, Terminal, bits

from turnout.cli import _carry_out
from turnout.config import config
from turnout.server.observer import Observer, Round
from turnout.server.server import Server

RUN = ("run", "digits", *QUICK, "run.rounds=6", "run.report=false", "run.checkpoint_every=50", "run.name=a")


@pytest.fixture
def pressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody presses Ctrl-C while the third round is recorded."""

    def press(_self: Observer, _server: Server, record: Round) -> None:
        if record.number == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_carry_out.Remarks, "on_round", press)


@pytest.mark.usefixtures("pressed")
@pytest.mark.parametrize("method", ["fedavg", "async_fedavg"])
def test_the_round_is_saved_and_the_run_goes_on(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    words = (*RUN, f"algorithm.name={method}", "clients.count=20")
    answer = terminal(*words)
    assert answer.code == 130
    assert answer.out == ""
    assert "finishing this round to save it" in answer.err
    last = answer.err.splitlines()[-1]
    assert last == "interrupted: runs/a is saved up to round 3 of 6; go on with: turnout resume runs/a"
    assert signal.getsignal(signal.SIGINT) is handler
    monkeypatch.undo()
    monkeypatch.chdir(terminal.here)
    terminal.done("resume", "runs/a")
    terminal.done(*words[:-1], words[-1], "run.name=b")
    assert bits(Path("runs/a")) == bits(Path("runs/b"))


def test_twice_stops_at_once_and_keeps_the_last_checkpoint(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(_self: Observer, _server: Server, record: Round) -> None:
        if record.number == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_carry_out.Remarks, "on_round", press)
    answer = terminal(*RUN, "run.checkpoint_every=2")
    assert answer.code == 130
    assert "runs/a is saved up to round 2 of 6" in answer.err


def test_before_the_first_checkpoint_nothing_is_left(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "evaluate", press)
    answer = terminal(*RUN)
    assert (answer.code, answer.err) == (130, "interrupted before the first round: nothing was written\n")
    assert not Path("runs").exists()


def test_elsewhere_it_is_one_word(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "build", press)
    answer = terminal(*RUN)
    assert (answer.code, answer.err) == (130, "turnout: interrupted\n")
