from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from turnout.config import config
from turnout.report import timeline
from turnout.report.read import recorded


def test_jobs_have_their_parts_and_end_when_they_ended(buffered: Path) -> None:
    run = recorded(buffered)
    found = timeline.timeline(run, "buffered")
    assert found is not None
    jobs = run.jobs()
    assert len(found["start"]) == (jobs["outcome"] != "used_later").sum()
    took = sum(found[name] for name in timeline.PHASES)
    ends = {name: timeline.ENDS.index(name) for name in ("aggregated", "crashed")}
    died = found["outcome"] >= ends["crashed"]
    assert died.any()
    clients = np.repeat(found["rows"], np.diff(found["first"]))
    known = sorted(zip(jobs["client"], jobs["ended_at"] - 0.4 * (jobs["outcome"] != "arrived"), strict=True))
    shown = sorted(zip(clients, found["start"] + took, strict=True))
    np.testing.assert_allclose(shown, known, atol=1e-3)  # a death is heard of a heartbeat later
    assert (found["outcome"] == ends["aggregated"]).sum() == (jobs["weight"] != 0).sum()


def test_an_update_that_counts_later_is_aggregated() -> None:
    table = {
        "client": np.array([3, 4, 3]), "job": np.array([0, 0, 0]), "weight": np.array([0.0, 0.0, 0.5]),
        "outcome": np.array(["arrived", "arrived", "used_later"], object),
    }  # fmt: skip
    assert [timeline.ENDS[end] for end in timeline.endings(table)] == ["aggregated", "not used", "aggregated"]


def test_long_runs_are_thinned_evenly_and_failures_stay() -> None:
    clients = np.repeat(np.arange(100), 50)
    failed = np.isin(clients, [7, 63])
    shown = timeline.thinned(clients, failed, 100, 1000)
    assert len(shown) == 20
    assert {7, 63} <= set(shown.tolist())
    assert np.diff(shown).max() <= 8
    assert timeline.thinned(clients, failed, 100, 5000).tolist() == list(range(100))
    assert len(timeline.thinned(clients, np.ones(5000, bool), 100, 1000)) == 20
    assert timeline.thinned(clients, failed, 100, 1).tolist() == [7]


@pytest.mark.parametrize("which", ["digits", "buffered"])
def test_spells_offline_are_those_of_the_availability_model(which: str, request: pytest.FixtureRequest) -> None:
    run = recorded(request.getfixturevalue(which))
    closes = run.rounds()["time"]
    clients = np.arange(12)
    whose, away, back, remark = timeline.offline(run, clients, float(closes[-1]) + 1)
    presence = config.presence(run.config)
    assert remark == ""
    assert len(whose)
    assert (np.diff(whose) >= 0).all()  # a row of the page finds its own
    for version in range(len(closes) - 1):
        at = (closes[version] + closes[version + 1]) / 2
        gone = {int(clients[i]) for i, a, b in zip(whose, away, back, strict=True) if a <= at < b}
        online = presence.online(0, clients, float(version) if presence.clock == "round" else at)
        assert gone == set(np.flatnonzero(~online).tolist())


def test_what_would_take_long_is_left_out_and_said_so(
    digits: Path, buffered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "PRESENCES", 50)
    for folder in (digits, buffered):
        whose, _, _, remark = timeline.offline(recorded(folder), np.arange(12), 100.0)
        assert len(whose) == 0
        assert "left out" in remark
    found = timeline.timeline(recorded(digits), "digits", jobs=10)
    assert found is not None
    assert found["about"].startswith("3 of 12 clients, evenly chosen")
    assert found["about"].endswith("9 of 36 jobs.")
