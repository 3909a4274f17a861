"""Recorded presence: exact to the microsecond, repeated, in three file formats; and what is wrong with a file."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.clients.traces import Trace, read
from turnout.core.errors import UserError

TWO = np.arange(2)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def spells(trace: Trace, device: int, until: float) -> list[tuple[float, float]]:
    """The spells of a device that begin before a time, found by asking when it goes and when it comes."""
    one, now, found = np.array([device]), 0.0, []
    while now < until:
        if not trace.online(0, one, now)[0]:
            now = float(trace.online_from(0, one, now)[0])
        if now < until:
            found.append((now, float(trace.online_until(0, one, now)[0])))
            now = found[-1][1]
    return found


def test_a_change_belongs_to_the_new_state() -> None:
    trace = Trace([0, 0, 1], [1.5, 40, 0], [20, 50, 30], period=60)
    for at, expected in ((0, [False, True]), (1.499999, [False, True]), (1.5, [True, True]), (20, [False, True])):
        assert trace.online(0, TWO, at).tolist() == expected
    assert trace.online(0, TWO, np.array([45.0, 30.0])).tolist() == [True, False]
    assert trace.clock == "seconds" and trace.probability is None and trace.correlation is None
    assert trace.shares.tolist() == pytest.approx([28.5 / 60, 0.5])


def test_it_repeats_for_ever_and_always_has() -> None:
    trace = Trace([0, 0], [10, 40], [20, 50], period=60)
    assert spells(trace, 0, 120) == [(10, 20), (40, 50), (70, 80), (100, 110)]
    times = np.arange(0, 60, 0.25)
    ids = np.zeros(len(times), int)
    for lap in (-7, -1, 1, 1000):
        np.testing.assert_array_equal(trace.online(0, ids, times + 60 * lap), trace.online(0, ids, times))
    assert trace.online_until(0, ids[:1], -15.0)[0] == -10  # -20 to -10 is online
    assert trace.online_from(0, ids[:1], -5.0)[0] == 10
    assert trace.online_from(0, ids[:1], 55.0)[0] == 70


def test_spells_that_touch_are_one() -> None:
    """In the middle, and over the end of the period."""
    trace = Trace([0, 0, 0, 0, 1, 1], [20, 0, 30, 50, 0, 5], [30, 10, 40, 60, 5, 60])
    assert spells(trace, 0, 100) == [(0, 10), (20, 40), (50, 70), (80, 100)]
    assert np.isinf(trace.online_until(0, np.array([1]), 17.0)[0])  # round the clock
    assert trace.online(0, np.full(4, 1), np.array([0, 5, 59.999999, 60])).all()


def test_the_period_is_the_end_of_the_last_spell() -> None:
    assert spells(Trace([0, 1], [2, 0], [5, 8]), 0, 20) == [(2, 5), (10, 13), (18, 21)]


def test_devices_without_a_spell_are_never_online() -> None:
    trace = Trace([0, 3, 1], [0, 5, 7], [10, 5, 7])  # 1 and 3 by name only, 2 not even that
    assert trace.online(0, np.arange(8), 3.0).tolist() == [True, False, False, False] * 2
    assert np.isinf(trace.online_from(0, np.arange(1, 4), 3.0)).all()


def test_who_follows_which_device() -> None:
    trace = Trace(np.arange(5), np.arange(5) * 10, np.arange(5) * 10 + 10)
    clients = np.arange(5000)
    assert np.array_equal(trace.online(0, clients, 25.0), clients % 5 == 2)
    drawn = Trace(trace.device, trace.start, trace.end, assign="random")
    shares = [drawn.online(0, clients, 10.0 * device + 5).mean() for device in range(5)]
    assert shares == pytest.approx([0.2] * 5, abs=0.03)
    assert not np.array_equal(drawn.online(0, clients, 5.0), drawn.online(1, clients, 5.0))


def test_clients_may_start_anywhere() -> None:
    """The same spells, at another time for each client."""
    ids, times = np.arange(400), np.arange(0.5, 60)
    shifted = Trace([0, 0], [10, 40], [20, 45], period=60, shift="random")
    online = np.array([shifted.online(3, ids, at) for at in times])
    assert online.sum(0).min() >= 14 and online.sum(0).max() <= 16  # 15 of the 60 seconds
    assert online.mean(1) == pytest.approx(np.full(60, 0.25), abs=0.09)
    away = ids[~online[0]]
    back = shifted.online_from(3, away, 0.5)
    assert not np.array_equal(back, back[0] + np.zeros(len(away)))
    assert shifted.online(3, away, back).all() and not shifted.online(3, away, back - 1e-6).any()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=30, unique=True),
    st.integers(1, 7),
    st.sampled_from(["none", "random"]),
)
def test_it_equals_a_list_of_seconds(cells: list[tuple[int, int]], spare: int, shift: str) -> None:
    """Seconds online given one by one: every answer can be read off a grid."""
    device, start = np.array(cells).T
    period = int(start.max()) + 1 + spare
    trace = Trace(device, start, start + 1, period=period, shift=shift)  # type: ignore[arg-type]
    ids, laps = np.arange(4), 3 * period
    ids = ids[ids <= device.max()]
    if shift == "none":
        table = np.zeros((len(ids), period), bool)
        table[device, start] = True
        grid = np.tile(table, 3)
        for at in range(laps):
            np.testing.assert_array_equal(trace.online(0, ids, at + 0.5), grid[:, at])
    else:  # whole microseconds later
        grid = np.array([trace.online(0, ids, at) for at in range(laps)]).T
    for at in range(period):
        until, back = trace.online_until(0, ids, at), trace.online_from(0, ids, at)
        for i in ids.tolist():
            if grid[i, at]:
                assert not np.isfinite(until[i]) or not trace.online(0, ids, until[i])[i]
                assert grid[i, at : int(min(np.ceil(until[i]), laps))].all()
            else:
                assert not np.isfinite(back[i]) or trace.online(0, ids, back[i])[i]
                assert not grid[i, at : int(min(np.ceil(back[i]), laps))].any()
                assert np.isfinite(back[i]) == grid[i].any()


# files


def test_spells_online_in_a_file(tmp_path: Path) -> None:
    """Devices by any name, in order of appearance; spells in any order; gzipped or not."""
    lines = "device,from_s,until_s", "phone b,40,50", "phone a,0,30.5", "phone b,10,20", "off,0,0"
    for path in (write(tmp_path, *lines), tmp_path / "again.csv.gz"):
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress("\n".join(lines).encode()))
        trace = read(path, period=60)
        assert spells(trace, 0, 60) == [(10, 20), (40, 50)]
        assert spells(trace, 1, 60) == [(0, 30.5)]
        assert len(trace.shares) == 3 and np.isinf(trace.online_from(0, np.array([2]), 0)[0])
    assert spells(read(path), 1, 60) == [(0, 30.5), (50, 80.5)]  # the period ends with the last event
    assert read(path, shift="random", assign="random").shift == "random"


def test_spells_offline_in_a_file(tmp_path: Path) -> None:
    """FedScale's form: online is what is left, up to the end of the last spell or to the period."""
    path = write(tmp_path, "device,unavailable_from_s,duration_s", "0,23,10", "0,40,5", "1,0,45", "2,10,20", "2,30,4")
    trace = read(path)
    assert spells(trace, 0, 90) == [(0, 23), (33, 40), (45, 68), (78, 85)]
    assert trace.shares.tolist() == pytest.approx([30 / 45, 0, 21 / 45])
    assert spells(trace, 2, 45) == [(0, 10), (34, 55)]
    longer = read(path, period=50)
    assert spells(longer, 0, 50) == [(0, 23), (33, 40), (45, 73)]
    assert spells(longer, 1, 50) == [(45, 50)]


def test_changes_of_state_in_a_file(tmp_path: Path) -> None:
    """FLASH's form: state 2 is online; the first 300 s are not real; the last of several rows at a time counts."""
    path = write(
        tmp_path, "device,variant,t_s,state",
        "0,2st,0,2", "0,2st,300,0", "0,2st,400,2", "0,2st,450,0", "0,2st,450,2", "0,2st,500,0",
        "0,3st,0,2", "0,3st,310,1", "0,3st,900,0",
        "1,2st,0,2", "1,2st,700,2", "1,2st,800,0", "2,2st,0,0", "2,2st,600,2",
    )  # fmt: skip
    trace = read(path)
    assert spells(trace, 0, 500) == [(100, 200)]
    assert np.isinf(trace.online_until(0, np.array([1]), 0.0)[0])  # to the end, and then from the beginning
    assert spells(trace, 2, 500) == [(300, 500)]
    assert trace.shares.tolist() == pytest.approx([0.2, 1.0, 0.4])
    whole = read(path, skip=0)
    assert spells(whole, 0, 800) == [(0, 300), (400, 500)]
    other = read(path, variant="3st")
    assert spells(other, 0, 600) == [(0, 10)]
    assert len(other.shares) == 1


FORM = "device,from_s,until_s"


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["device,start,end", "0,1,2"], "trace.csv line 1: the header is device,start,end; it must be device,from_s"),
        ([FORM], "holds no rows"),
        ([FORM, "0,1"], "line 2 has 2 cells for 3 columns"),
        ([FORM, "0,1,2", "0,nan,4"], "line 3: column from_s is missing"),
        ([FORM, "0,1,2", "0,3,inf"], "line 3: column until_s is 'inf', not a finite number"),
        ([FORM, "0,1,2", "0,3,four"], "line 3: column until_s is 'four'"),
        ([FORM, "0,1,2", "", "0,5,4"], "line 4: from 5.0 to 4.0 s is no spell"),
        ([FORM, "0,-1,2"], "line 2: from -1.0 to 2.0 s is no spell"),
        ([FORM, "0,1,2e9"], "line 2: from 1.0 to 2000000000.0 s is no spell"),
        ([FORM, "0,5,9", "1,0,30", "0,1,5.5"], "line 2: the spell begins before another of its device ends"),
        ([FORM, "0,5,5"], "nobody is ever online"),
        (["device,unavailable_from_s,duration_s", "0,1,-2"], "line 2: from 1.0 to -1.0 s is no spell"),
        (["device,unavailable_from_s,duration_s", "0,1,20", "0,3,1"], "line 3: the spell begins before another"),
        (["device,variant,t_s,state", "0,4st,1,2"], "trace.variant: '2st' is not in .*trace.csv; it has 4st"),
        (["device,variant,t_s,state", "0,2st,500,2", "1,2st,0,0", "0,2st,400,0"], "line 4: it is earlier than"),
        (["device,variant,t_s,state", "0,2st,1,2", "0,2st,200,0"], "trace.skip: 300.0 must be below the end"),
    ],
)
def test_what_is_wrong_with_a_file_is_a_sentence(tmp_path: Path, lines: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        read(write(tmp_path, *lines))
    assert "\n" not in str(caught.value)


def test_a_missing_or_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*nowhere.csv: No such file"):
        read(tmp_path / "nowhere.csv")
    (tmp_path / "bad.csv.gz").write_bytes(b"device,from_s,until_s")
    with pytest.raises(UserError, match="cannot read"):
        read(tmp_path / "bad.csv.gz")


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: Trace([0], [0], [9], period=5), r"trace.period: 5.0 must be from the end of the last spell, 9.0"),
        (lambda: Trace([0], [0], [9], period=0), "trace.period: 0"),
        (lambda: Trace([10_000], [0], [9], period=1e9), r"trace.period: 1000000000.0 must be .* to 461"),
        (lambda: Trace([0, 0], [0, 3], [5, 7]), "trace: spell 1: the spell begins before another"),
        (lambda: Trace([0, -1], [0, 3], [5, 7]), "trace: spell 1: "),
        (lambda: Trace([0], [np.nan], [5]), "trace: spell 0: from nan"),
        (lambda: Trace([], [], []), "at least one spell"),
        (lambda: Trace([0, 1], [0], [5]), "the same length"),
        (lambda: Trace([0], [0], [5], shift="some"), "trace.shift"),  # type: ignore[arg-type]
        (lambda: Trace([0], [0], [5], assign="rand"), "did you mean random"),  # type: ignore[arg-type]
    ],
)
def test_impossible_traces_are_refused(build: Callable[[], object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        build()


def test_the_trace_that_comes_with_turnout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty phones, of which one is never there; a file of that name, with its ending, is another one."""
    monkeypatch.chdir(tmp_path)
    trace = read("phones")
    phones, times = np.arange(60), np.linspace(0, 6 * 86400, 50)
    there = np.stack([trace.online(0, phones, at=float(time)) for time in times])
    assert 0.1 < there.mean() < 0.25
    assert np.count_nonzero(~there.any(0)) < 10
    with pytest.raises(UserError, match=r"phones\.csv"):
        read("phones.csv")
