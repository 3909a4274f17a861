"""`--live`, `--tensorboard` and `--mlflow` look on: they change nothing of the result."""

from __future__ import annotations

import sys

import pytest
from terminal import QUICK, Terminal, bits

from turnout.core.imports import extra

RUN = ("run", "digits", *QUICK, "run.report=false")


def test_live_without_a_terminal(terminal: Terminal) -> None:
    answer = terminal.done(*RUN, "--live", "--json")
    assert answer.json()["rounds"] == 3
    assert answer.err.startswith("round 1 of 3, ")


def test_tensorboard_through_a_resume(terminal: Terminal) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    terminal.done(*RUN, "--tensorboard", "board")
    terminal.done("resume", "runs/digits", "run.rounds=5", "--tensorboard", "board", "--live")
    events = EventAccumulator(str(terminal.here / "board/digits")).Reload()
    assert [point.step for point in events.Scalars("test_accuracy")] == list(range(6))
    terminal.done(*RUN, "run.rounds=5", "run.name=alone")
    assert bits(terminal.here / "runs/digits") == bits(terminal.here / "runs/alone")


def test_mistakes_cost_no_earlier_run(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.done(*RUN)
    before = bits(terminal.here / "runs/digits")
    for option, module in (("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        sentence = terminal.refused(*RUN, "--overwrite", f"--{option}", "somewhere")
        assert sentence == f"--{option}: {option} is not installed; pip install {extra('tracking')}"
    assert bits(terminal.here / "runs/digits") == before
