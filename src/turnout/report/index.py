"""All runs below a folder at a glance, each read again when its files have changed. Nothing is written or locked."""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple

import numpy as np

from turnout.core.errors import UserError, reason
from turnout.core.files import reading
from turnout.core.statistics import OVER_CLIENTS
from turnout.record.progress import duration
from turnout.record.run_folder import MANIFEST, READ, under_way
from turnout.record.views import Columns, splits, telling
from turnout.report.read import Recorded, recorded

State = Literal["running", "finished", "unfinished", "failed", "damaged"]

POINTS = 48  # of a curve
_IS_RUN = ("plan.json", MANIFEST)
_NEEDED = (*READ, "history")
_OPENED = (*_NEEDED, "log.txt")
_SUMS = ("bytes_down", "bytes_up", "arrived", "failed", "cancelled")
_FACTS = ("round", "time", "heard", *_SUMS)
WORST = next(part for part in OVER_CLIENTS if part.endswith("decile"))  # how the names of such columns end
_ENDINGS = re.compile(r"round \d+, \S+ s: (?:died|server app failed) \((.*)\)")  # how a log ends where that is all
_TAIL = 65_536  # bytes of a log


class Mark(NamedTuple):
    """By which it is seen that a file has changed."""

    inode: int
    kind: int
    length: int
    at: int  # of the last change, in nanoseconds since the epoch


class Segment(NamedTuple):
    """A part of the history, which is read once."""

    mark: Mark
    columns: Columns


Marks = dict[str, Mark]
Segments = dict[str, Segment]


@dataclass(frozen=True)
class Row:
    """A run at a glance."""

    name: str  # its folder, below that of the index
    folder: Path
    state: State
    words: str  # how it ended, or how far it is
    begun: float  # seconds since the epoch
    run: Recorded | None = None  # None where it cannot be read
    rounds: int = 0  # recorded
    seconds: float = 0.0  # of virtual time
    sums: dict[str, float] = field(default_factory=dict)  # traffic and jobs
    heard: float | None = None  # clients
    measure: str = ""  # the one that says most
    last: dict[str, float] = field(default_factory=dict)  # of every measure, and how its worst clients fare
    curves: Columns = field(default_factory=dict)  # `round`, `time` and every measure, at most `POINTS` of each


@dataclass
class _Known:
    row: Row
    marks: Marks
    running: bool
    segments: Segments  # of the history, while more are to come


class Index:
    """What is known of the runs in a folder, which is looked at again after `fresh` seconds; any thread may ask."""

    def __init__(self, folder: Path, fresh: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        if not folder.is_dir():
            raise UserError(f"board: {folder} is not a folder; give the one that holds your runs, such as runs")
        self.folder, self.fresh, self.clock = folder, fresh, clock
        self.changes = 0  # how often a run was found new, changed or gone
        self._known: dict[str, _Known] = {}
        self._due, self._lock = -math.inf, Lock()

    def rows(self) -> list[Row]:
        """Look at the folder; a row a run, the newest first."""
        with self._lock:
            if self.clock() >= self._due:
                self._look()
                self._due = self.clock() + self.fresh
            return sorted((one.row for one in self._known.values()), key=lambda row: (-row.begun, row.name))

    def _look(self) -> None:
        folders = {_named(folder, self.folder): folder for folder in found(self.folder)}
        working = under_way(folders.values())
        before, self._known = self._known, {}
        for name, folder in folders.items():
            marks, running = _marks(folder), folder in working
            known = before.get(name)
            if known is None or (known.marks, known.running) != (marks, running):
                known = _read(name, folder, marks, running, known)
                self.changes += 1
            self._known[name] = known
        self.changes += len(before.keys() - self._known.keys())


def found(folder: Path) -> Iterator[Path]:
    """The folders of runs in this one, however deep; links are not followed, and what is hidden is left alone."""
    with suppress(OSError):
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        if any(entry.name in _IS_RUN for entry in entries):
            yield folder
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from found(Path(entry.path))


def _named(folder: Path, top: Path) -> str:
    return folder.relative_to(top).as_posix() if folder != top else folder.resolve().name


def _marks(folder: Path) -> Marks:
    """Of the files of a run, and of the parts of its history."""
    marks: Marks = {}
    for place, above in ((folder, ""), (folder / "history", "history/")):
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                about = entry.stat(follow_symlinks=False)
                marks[above + entry.name] = Mark(about.st_ino, about.st_mode, about.st_size, about.st_mtime_ns)
    return marks


def _read(name: str, folder: Path, marks: Marks, running: bool, before: _Known | None) -> _Known:
    first = ("history/000000.parquet", "config.toml", "plan.json", MANIFEST)  # of what a run writes
    begun = next((marks[file].at for file in first if file in marks), 0) / 1e9
    try:
        _refuse_links(folder, marks)
        run = recorded(folder, "board", only=_NEEDED)
        run = replace(run, summary={name: value for name, value in run.summary.items() if name != "clients"})  # long
        segments = _history(folder, marks, {} if before is None else before.segments)
        row = _row(name, run, segments, running, begun)
    except Exception as error:  # whatever is in one folder, the others are shown
        if running and before is not None and before.row.run is not None:  # it was about to change
            return _Known(before.row, {}, running, {})
        why = str(error) if isinstance(error, UserError | OSError) else f"cannot be read ({reason(error)})"
        words = why.removeprefix("board: ").removeprefix(f"{folder}{os.sep}")
        return _Known(Row(name, folder, "damaged", words, begun), marks, running, {})
    return _Known(row, marks, running, segments if running else {})


def _refuse_links(folder: Path, marks: Marks) -> None:
    for name, mark in marks.items():
        if name.partition("/")[0] in _OPENED and stat.S_ISLNK(mark.kind):
            raise linked(folder / name)


def linked(path: Path) -> UserError:
    return UserError(f"board: {path} is a link; a board reads only what lies in its own folder")


# -- the record -----------------------------------------------------------------------------------------------


def _history(folder: Path, marks: Marks, known: Segments) -> Segments:
    """Segments of the history by name; those that are known are not read again."""
    found: Segments = {}
    for name in sorted(name for name in marks if re.fullmatch(r"history/\d+\.parquet", name)):
        same = name in known and known[name].mark == marks[name]
        found[name] = known[name] if same else Segment(marks[name], _segment(folder / name))
    return found


def _segment(path: Path) -> Columns:
    """What a row needs of a segment: the measure that says most comes first."""
    import pyarrow.parquet as pq

    with reading(path):
        file = pq.ParquetFile(path)
        names = dict.fromkeys(file.schema_arrow.names)
        first = "_".join(telling(names) or ())
        measures = dict.fromkeys([first, *(f"{split}_{one}" for split, ones in splits(names).items() for one in ones)])
        wanted = [*_FACTS, *measures, *(measure + WORST for measure in measures)]
        table = file.read([name for name in wanted if name in names], use_threads=False)
        return {name: table[name].to_numpy().astype(np.float64) for name in wanted if name in names}


def joined(parts: Iterable[Columns]) -> Columns:
    """Tables below each other; a column that one of them lacks has no values there."""
    parts = [part for part in parts if part and len(part["round"])]
    gaps = [np.full(len(part["round"]), np.nan) for part in parts]
    return {
        name: np.concatenate([part.get(name, gap) for part, gap in zip(parts, gaps, strict=True)])
        for name in dict.fromkeys(name for part in parts for name in part)
    }


def _row(name: str, run: Recorded, segments: Segments, running: bool, begun: float) -> Row:
    if not all(isinstance(section, dict) for section in run.config.values()):
        raise UserError("config.toml has options outside of sections")
    rounds = joined(segment.columns for segment in segments.values())
    state, words = _state(run, int(rounds["round"][-1]) if rounds else 0, running)
    if running:
        words = _speed(segments, run.config.get("run", {}).get("rounds"))
    row = Row(name, run.folder, state, words, begun, run)
    if not rounds:
        return row
    others = [column for column in rounds if column not in _FACTS]
    measures = [column for column in others if not column.endswith(WORST)]
    known = {column: values[np.isfinite(values)] for column, values in rounds.items()}
    return replace(
        row,
        rounds=int(rounds["round"][-1]),
        seconds=float(rounds["time"][-1]),
        sums={column: float(np.nansum(rounds[column])) for column in _SUMS if column in rounds},
        heard=float(known["heard"][-1]) if len(known.get("heard", ())) else None,
        measure=measures[0] if measures else "",
        last={column: float(known[column][-1]) for column in others if len(known[column])},
        curves=_thinned(rounds, measures),
    )


def _thinned(rounds: Columns, measures: list[str]) -> Columns:
    """Rounds in which something was measured; of many some, evenly chosen, with the first and the last."""
    known = np.isfinite([rounds[name] for name in measures]).reshape(len(measures), -1)
    measured = np.flatnonzero(known.any(0))
    places = np.linspace(0, len(measured) - 1, min(len(measured), POINTS)).round().astype(np.int64)
    return {name: rounds[name][measured[places]] for name in ("round", "time", *measures)}


def _speed(segments: Segments, rounds: int | None) -> str:
    """How fast the last segments came, and what is left at that speed."""
    recent = list(segments.values())[-6:]
    if len(recent) < 2:
        return "its first rounds"
    first, last = recent[0], recent[-1]
    done, reached = (float(segment.columns["round"][-1]) for segment in (first, last))
    seconds = (last.mark.at - first.mark.at) / 1e9
    if seconds <= 0 or reached <= done:
        return ""
    speed = (reached - done) / seconds
    left = float(f"{((rounds or 0) - reached) / speed:.2g}")
    pace = f"{speed:.2g} rounds/s" if speed >= 1 else f"{duration(float(f'{1 / speed:.2g}'))} a round"
    return pace + (f", about {duration(left)} to go" if left > 0 else "")


# -- how it stands --------------------------------------------------------------------------------------------


def _state(run: Recorded, reached: int, running: bool) -> tuple[State, str]:
    """In a word, and in words that a person reads after it."""
    planned = run.config.get("run", {}).get("rounds")
    far = f"round {reached}" + (f" of {planned}" if planned else "")
    if run.remarks and not running:
        return "damaged", "; ".join(sentence.removeprefix(f"{run.folder}{os.sep}") for sentence in run.remarks)
    if running:
        return "running", ""
    if run.finished:
        stopped = str(run.summary.get("stopped"))
        if run.summary.get("nobody_heard"):
            return "failed", f"nobody was ever heard (stopped: {stopped})"
        return ("failed", stopped) if stopped.startswith("diverged") else ("finished", stopped)
    why = _last_words(run.folder / "log.txt")
    if why:
        return "failed", f"{why} ({far})"
    return "unfinished", f"stopped in {far}; go on with: turnout resume {run.folder}"


def _last_words(log: Path) -> str:
    """What the log of a run that could not go on says last; nothing of one that was only interrupted."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line and not line.startswith(" ")), "")
    ending = _ENDINGS.fullmatch(last)
    return ending[1] if ending else ""
