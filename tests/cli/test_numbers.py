"""Numbers that people read: shares are shares, counts count what they say, and a round-off is 0."""

from __future__ import annotations

import re
from pathlib import Path

from terminal import Terminal

import turnout_studies as studies
from turnout.cli._display import times
from turnout.core.statistics import EXACT_DECIMALS, without_round_off
from turnout.report.read import recorded

UNEVEN = (
    "clients.count=6", "clients.importance=[0.7, 0.06, 0.06, 0.06, 0.06, 0.06]", "sampler.name=uniform",
    "sampler.clients_per_round=2", "crashes.probability=0.5", "behaviour.name=free_rider", "behaviour.share=0.5",
    'detectors.names=["identical_upload","norm"]', "run.rounds=12", "evaluation.rounds=12",
)  # fmt: skip


def test_a_run_with_heavy_clients_that_crash_and_liars(terminal: Terminal) -> None:
    folder = terminal.run("uneven", *UNEVEN)
    shown = terminal.done("inspect", str(folder)).out
    shares = [float(text) for text in re.findall(r"([-\d.]+) ?%", shown)]
    assert len(shares) >= 3
    assert all(0 <= share <= 100 for share in shares)
    rounds = recorded(folder).rounds()
    assert rounds["missing_epsilon"].max() > 1
    assert rounds["missing_share"].max() <= 1
    (suspected,) = re.findall(r"logged: suspected.*?(\d+) times, (\d+) clients", shown)
    assert int(suspected[0]) >= int(suspected[1]) == 3


def test_everybody_every_time_has_no_variance_on_the_page(terminal: Terminal) -> None:
    folder = terminal.run(
        "even", "clients.count=7", "sampler.name=full", "crashes.probability=0", "availability.name=always"
    )
    page = Path(folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r">-?\d\.\d+e-1\d<", page)
    assert re.search(r"variance of weights</t[dh]><td[^>]*>0<", page)


def test_a_round_off_is_nothing_and_a_threshold_is_something() -> None:
    assert [without_round_off(value) for value in (-1.7e-17, 2.8e-17, 0.25)] == [0, 0, 0.25]
    assert str(without_round_off(-1.7e-17)) == "0.0"
    rules = [abs(side) for name in studies.names() for claim in studies.find(name).claims
             for side in (claim.above, claim.below) if side]  # fmt: skip
    assert min(rules) > 10 * 10**-EXACT_DECIMALS


def test_how_often_and_of_how_many() -> None:
    assert [times(1, None), times(9, 3), times(2, 1)] == ["once", "9 times, 3 clients", "2 times, 1 client"]
