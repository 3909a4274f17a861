"""The dashboard: what it says is what happened, and it takes at most a fiftieth of the time."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass, field

import numpy as np
import pytest
from rich.console import Console

from support import experiment
from turnout import Observer, Result, execute
from turnout.record.progress import BLOCKS, Dashboard, sparkline
from turnout.server.observer import Round
from turnout.server.server import Server


@dataclass
class Clock(Observer):
    """A wall clock: a round takes so long, and so does a picture."""

    a_round: float = 1.0
    a_picture: float = 0.0
    now: float = 100.0
    at_work: list[int] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def on_round(self, server: Server, record: Round) -> None:
        self.now += self.a_round
        self.at_work.append(server.in_flight)
        if record.number == 3:
            server.log("something", why="[bold]odd")


class Slow(io.StringIO):
    """A terminal that takes its time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def flush(self) -> None:
        self.clock.now += self.clock.a_picture


def watched(terminal: bool, clock: Clock, rounds: int = 6) -> tuple[str, Dashboard, Result]:
    file = Slow(clock)
    console = Console(file=file, force_terminal=terminal, width=100)
    with Dashboard(console, clock) as dashboard:
        result = execute(experiment("windowed", rounds), observers=[clock, dashboard])
    return re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", file.getvalue()), dashboard, result


def test_the_last_picture() -> None:
    clock = Clock()
    shown, dashboard, result = watched(True, clock)
    assert dashboard.pictures == 6
    last, rounds = shown[shown.rindex("╭") :], result.rounds()
    assert "Windowed" in last
    assert f"test accuracy  {sparkline(rounds['test_accuracy'].tolist())} {rounds['test_accuracy'][-1]:.4g}" in last
    assert "round 6 of 6, 3 s of virtual time" in last
    assert "1 rounds/s, 0 s to go" in last
    assert f"{clock.at_work[-1]} at work, 0 online and free, {rounds['heard'][-1]} of 8 heard" in last
    assert f"{rounds['arrived'].sum()} arrived, {rounds['failed'].sum()} failed" in last
    assert f"{rounds['staleness_mean'][-1]:.3g} on average, at most {rounds['staleness_max'][-1]}" in last
    assert "something (why [bold]odd)" in last


def test_how_long_it_will_take() -> None:
    shown, _, _ = watched(True, Clock(a_round=2.0))
    assert re.findall(r"0.5 rounds/s, (\d+) s to go", shown)[:4] == ["10", "8", "6", "4"]


def test_not_a_terminal_gets_a_line_every_ten_seconds() -> None:
    shown, _, _ = watched(False, Clock(a_round=4.0), rounds=8)
    assert [line.split(",")[0] for line in shown.splitlines()] == [f"round {n} of 8" for n in (1, 4, 7)]
    assert re.match(r"round 1 of 8, .* of virtual time, 0.25 rounds/s, 28 s to go, test_accuracy 0\.\d+", shown)


@pytest.mark.parametrize(("a_round", "a_picture", "pictures"), [(0.01, 0.0, 1), (0.125, 0.001, 10), (1.0, 0.1, 4)])
def test_pictures_wait_for_their_time(a_round: float, a_picture: float, pictures: int) -> None:
    """A quarter of a second, and fifty times as long as the last one took: 2 % of the time at most."""
    clock = Clock(a_round, a_picture)
    _, dashboard, _ = watched(True, clock, rounds=20)
    assert dashboard.pictures == pictures
    assert pictures * a_picture <= 0.02 * (clock.now - 100) + 2 * a_picture  # the first comes at once, and so the last


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], BLOCKS),
        ([1.0], BLOCKS[0]),
        ([], ""),
        ([0, math.nan, 1], f"{BLOCKS[0]} {BLOCKS[-1]}"),
        ([math.nan], " "),
    ],
)
def test_sparkline(values: list[float], line: str) -> None:
    assert sparkline(values) == line


def test_a_long_sparkline_is_as_wide_as_asked() -> None:
    line = sparkline(np.linspace(0, 1, 1000).tolist(), width=16)
    assert line == "".join(block * 2 for block in BLOCKS)
