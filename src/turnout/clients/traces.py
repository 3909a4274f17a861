"""Presence as it was recorded: when each of some devices was online, to the second, over and over again.

A trace is a CSV file (plain or .gz) with the header

    device,from_s,until_s

and a row for each spell online. A device has any name; it is online from the first time to just before the second.
Spells of a device must not overlap; one without length says that there is such a device. Two public forms are known by
their headers and made into that one:

    device,variant,t_s,state                    changes of state, 2: may train. Yang et al., "Characterizing impacts of
                                                heterogeneity in federated learning upon large-scale smartphone data"
                                                (FLASH), WWW 2021, as replayed by Flame: everybody online at first
    device,unavailable_from_s,duration_s        spells offline. Lai et al., "FedScale", ICML 2022

`phones` comes with Turnout: when sixty of FLASH's phones were charging, over six days.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.clients.availability import MICRO, BoolArray, Clock
from turnout.clients.columns import Once
from turnout.core import random
from turnout.core.allowed import NotNegative, Seconds
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt, spelt
from turnout.data.readers import Table, path_of, read_table

RECORDED = Path(__file__).parent / "recorded"  # traces that come with Turnout
Shift = Literal["none", "random"]
Assign = Literal["cycle", "random"]
Spells = tuple[IntArray, FloatArray, FloatArray]  # device, from, until


@dataclass(frozen=True, eq=False)
class Trace(Spelt):
    """Spell j: `device[j]` (0, 1, ...) is online from `start[j]` to `end[j]` seconds; all repeats after `period`.

    Client i follows device i % D, or one drawn for it (`assign`), from the beginning or from a time drawn for it
    (`shift`). The period is the end of the last spell unless given.

    >>> Trace([0, 0, 1], [0, 40, 10], [20, 50, 60]).online(0, np.arange(2), at=65)      # 5 s into the second minute
    array([ True, False])
    """

    section: ClassVar[str] = "trace"
    clock: ClassVar[Clock] = "seconds"
    probability: ClassVar[None] = None
    correlation: ClassVar[None] = None

    device: ArrayLike
    start: ArrayLike
    end: ArrayLike
    period: Seconds | None = None
    shift: Shift = "none"
    assign: Assign = "cycle"
    _first: IntArray = field(init=False, repr=False)  # [D + 1] spells of device d: from _first[d] to _first[d + 1]
    _starts: IntArray = field(init=False, repr=False)  # [spells] microseconds into the period, later by d periods
    _ends: IntArray = field(init=False, repr=False)  # [spells] microseconds into the period
    _until: FloatArray = field(init=False, repr=False)  # [spells] the same, of those that go on in the next one later
    _ticks: int = field(init=False, repr=False)  # microseconds of the period

    def __post_init__(self) -> None:
        spells = np.asarray(self.device, np.int64), *(np.asarray(v, np.float64) for v in (self.start, self.end))
        device, start, end = _joined(spells, lambda spell: f"trace: spell {spell}")
        devices, last = 1 + int(np.max(self.device)), int(end.max(initial=0))
        ticks = last if self.period is None else round(MICRO * self.period)
        if not len(start):
            raise UserError("trace: nobody is ever online; give it a spell online")
        most = 2**62 // devices
        if not last <= ticks <= most:
            bounds = f"from the end of the last spell, {last / MICRO}, to {most / MICRO}"
            raise UserError(f"trace.period: {ticks / MICRO} must be {bounds} seconds")
        first = np.searchsorted(device, np.arange(devices + 1))
        until = end.astype(np.float64)
        some = np.flatnonzero(np.diff(first))
        opens, closes = first[some], first[some + 1] - 1
        round_the_clock = (start[opens] == 0) & (end[closes] == ticks)
        opens, closes = opens[round_the_clock], closes[round_the_clock]
        until[closes] = np.where(opens == closes, np.inf, ticks + until[opens])
        derived = {"_first": first, "_starts": device * ticks + start, "_ends": end, "_until": until, "_ticks": ticks}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def shares(self) -> FloatArray:
        """`[D]` share of the period each device is online."""
        length = np.concatenate([[0], np.cumsum(self._ends - self._starts % self._ticks)])
        return np.asarray(np.diff(length[self._first]) / self._ticks)

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> BoolArray:
        device, time, _, spell = self._find(seed, ids, at)
        return np.asarray((spell >= self._first[device]) & (time < self._ends[spell]))

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        _, _, zero, spell = self._find(seed, ids, at)
        return np.asarray((zero + self._until[spell]) / MICRO)

    def online_from(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        device, _, zero, spell = self._find(seed, ids, at)
        first, after = self._first[device], self._first[device + 1]
        spell, again = np.where(spell + 1 < after, spell + 1, first), spell + 1 >= after
        start = self._starts[np.minimum(spell, len(self._starts) - 1)] - device * self._ticks
        return np.where(first < after, (zero + start + again * self._ticks) / MICRO, np.inf)

    def _find(self, seed: int, ids: IntArray, at: ArrayLike) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Each client's device, the microseconds into its period, when that began, and the last spell begun."""
        device = self._device(seed, ids) if self.assign == "random" else ids % self._devices
        now = np.rint(MICRO * np.asarray(at, np.float64)).astype(np.int64)
        time = (now + self._shift(seed, ids) if self.shift == "random" else now) % self._ticks
        spell = self._starts.searchsorted(device * self._ticks + time, side="right") - 1
        return device, time, now - time, spell

    @property
    def _devices(self) -> int:
        return len(self._first) - 1

    @cached_property
    def _device(self) -> Once:
        return Once(partial(_below, purpose="trace device", high=self._devices))

    @cached_property
    def _shift(self) -> Once:
        return Once(partial(_below, purpose="trace shift", high=self._ticks))


@spelt
def read(
    path: str | Path,  # of the CSV file, or phones: the one that comes with Turnout
    *,
    period: Seconds | None = None,  # seconds after which all repeats; none: the end of the last event
    shift: Shift = "none",  # where a client begins: at the start, or at a time drawn for it
    assign: Assign = "cycle",  # which device a client follows: in turn, or drawn
    variant: str = "2st",  # of FLASH's files: the rows that are read
    skip: NotNegative = 300.0,  # of FLASH's files: seconds left out at the start
) -> Trace:
    """Recorded presence, replayed from a CSV file with the header device,from_s,until_s: a row for each spell online.

    Files of FLASH (device,variant,t_s,state) and of FedScale (device,unavailable_from_s,duration_s) are known by their
    headers.
    """
    own = RECORDED / f"{path}.csv"
    table = read_table("trace", own if str(path).isidentifier() and own.is_file() else path_of(path))
    forms: dict[tuple[str, ...], Callable[[], tuple[Spells, float | None]]] = {
        ("device", "from_s", "until_s"): lambda: _online_spells(table),
        ("device", "unavailable_from_s", "duration_s"): lambda: _offline_spells(table, period),
        ("device", "variant", "t_s", "state"): lambda: _states(table, variant, skip),
    }
    header = tuple(table.header)
    if header not in forms:
        known = ", or ".join(",".join(form) for form in forms)
        raise UserError(f"trace: {table.path} line 1: the header is {','.join(header)}; it must be {known}")
    (device, start, end), last = forms[header]()
    return Trace(device, start, end, last if period is None else period, shift, assign)


def _online_spells(table: Table) -> tuple[Spells, None]:
    spells = _numbered(table.words("device")), *table.numbers("from_s", "until_s").T
    _joined(spells, _line(table))
    return spells, None


def _offline_spells(table: Table, period: float | None) -> tuple[Spells, float]:
    """What lies between the spells offline, from 0 to the period."""
    device, (start, length) = _numbered(table.words("device")), table.numbers("unavailable_from_s", "duration_s").T
    _joined((device, start, start + length), _line(table))
    last = float((start + length).max()) if period is None else period
    order = np.lexsort((start, device))
    device, start, end = device[order], start[order], (start + length)[order]
    opens = np.diff(device, prepend=-1) != 0
    closes = np.append(opens[1:], True)
    before = np.where(opens, 0.0, np.roll(end, 1))
    after = np.minimum(end[closes], last)
    between = np.concatenate([device, device[closes]]), np.concatenate([before, after])
    return (*between, np.concatenate([start, np.full(len(after), last)])), last


def _states(table: Table, variant: str, skip: float) -> tuple[Spells, float]:
    """State 2 is online, from its row to the next of that device or to the end."""
    variants = np.array(table.words("variant"))
    if variant not in variants:
        raise UserError(f"trace.variant: {variant!r} is not in {table.path}; it has {', '.join(np.unique(variants))}")
    chosen = np.flatnonzero(variants == variant)
    device = _numbered(np.array(table.words("device"))[chosen].tolist())
    time, state = table.numbers("t_s", "state")[chosen].T
    order = np.argsort(device, kind="stable")
    device, time, state = device[order], time[order], state[order]
    goes_on = device[1:] == device[:-1]
    back = np.flatnonzero(goes_on & (np.diff(time) < 0))
    if len(back):
        raise UserError(f"{_line(table)(chosen[order][back[0] + 1])}: it is earlier than the row before of its device")
    last = float(time.max())
    if skip >= last:
        raise UserError(f"trace.skip: {skip} must be below the end of the trace, {last} s")
    end = np.append(np.where(goes_on, time[1:], last), last)
    start, end = np.maximum(time, skip) - skip, np.maximum(end, skip) - skip
    return (device, start, np.where(state == 2, end, start)), last - skip


def _joined(spells: tuple[NDArray[Any], ...], place: Callable[[int], str]) -> tuple[IntArray, IntArray, IntArray]:
    """Spells in order of device and time, in microseconds, those that touch as one; `place` says where each stands."""
    device, start, end = spells
    if not device.ndim == 1 <= len(device) or not device.shape == start.shape == end.shape:
        raise UserError("trace: device, start and end must be of the same length, and of at least one spell")
    fine = (device >= 0) & (start >= 0) & (end >= start) & (end <= 1e9)
    if not fine.all():
        wrong = int(np.argmin(fine))
        raise UserError(
            f"{place(wrong)}: from {start[wrong]} to {end[wrong]} s is no spell; it must begin at 0 or later, "
            "end no sooner than it begins, and before 1e9 s"
        )
    order = np.lexsort((end, start, device))
    device, start, end = device[order], *(np.rint(MICRO * time[order]).astype(np.int64) for time in (start, end))
    overlaps = np.flatnonzero((device[1:] == device[:-1]) & (start[1:] < end[:-1]))
    if len(overlaps):
        raise UserError(f"{place(int(order[overlaps[0] + 1]))}: the spell begins before another of its device ends")
    some = end > start
    device, start, end = device[some], start[some], end[some]
    opens, closes = np.ones(len(device), bool), np.ones(len(device), bool)
    opens[1:] = closes[:-1] = (device[1:] != device[:-1]) | (start[1:] > end[:-1])
    return device[opens], start[opens], end[closes]


def _below(seed: int, ids: IntArray, purpose: str, high: int) -> IntArray:
    """A number from 0 to `high` - 1 for each client."""
    return random.integers(random.key(seed, purpose, ids), 1, high)[:, 0]


def _line(table: Table) -> Callable[[int], str]:
    return lambda row: f"trace: {table.path} line {table.lines[row]}"


def _numbered(names: list[str]) -> IntArray:
    """Devices by number, in the order in which they appear."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
