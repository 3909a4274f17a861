"""History: a row a round and a row a job, in memory or as Parquet segments readable with pandas in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from turnout.core.files import reading, write_durably
from turnout.core.random import FloatArray, IntArray
from turnout.server.jobs import ARRIVED, Columns, columns_of, together
from turnout.server.observer import NO_FACTS, Observer, Round

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.stretch import Stretch

_WORDS = {"outcome", "upload", "decision"}
_COUNTS = {
    "round", "invited", "arrived", "failed", "cancelled", "used", "heard", "bytes_down", "bytes_up", "staleness_max",
    "client", "job", "version", "staleness", "samples", "steps", "declared",
}  # fmt: skip
_JOB_COLUMNS = (
    "round", "client", "job", "outcome", "weight", "version", "staleness", "sent_at", "ended_at", "samples", "steps",
    "progress", "download_seconds", "compute_seconds", "upload_seconds", "bytes_down", "bytes_up",
)  # fmt: skip
_OF_A_CREW = ("version", "sent_at", "bytes", "client", "number", "ends_at", "samples", "steps", "seconds")
_NO_SECONDS, _NO_BYTES = (0.0, 0.0, 0.0), (0, 0)
_FLUSH_ROWS = 50_000


Source = list[tuple[Any, ...]] | Callable[[], Iterable[Any]]  # rows, or what makes their columns


class Table:
    """Rows that grow; with a folder, they are written out as Parquet segments and leave memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.rows = 0
        self.segments: list[str] = []
        self._columns: dict[str, list[Any]] = {}
        self._new: list[tuple[Sequence[str], int, Source]] = []  # names, how many rows, rows: not yet in the columns

    def append(self, names: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
        """Add rows. A column new to the table is empty in the rows before."""
        self._new.append((names, len(rows), rows))
        self.rows += len(rows)

    def extend(self, names: Sequence[str], count: int, columns: Callable[[], Iterable[Any]]) -> None:
        """Add so many rows, column by column, when they are looked at."""
        self._new.append((names, count, columns))
        self.rows += count

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The rows in memory."""
        done = len(next(iter(self._columns.values()), []))
        for names, count, rows in self._new:
            columns = zip(*rows, strict=True) if isinstance(rows, list) else rows()
            block = dict(zip(names, columns, strict=True))
            for name in names:
                self._columns.setdefault(name, [None] * done)
            for name, values in self._columns.items():
                more = block.get(name, [None] * count)
                values.extend(more.tolist() if isinstance(more, np.ndarray) else more)
            done += count
        self._new = []
        return self._columns

    def flush(self) -> None:
        """Write what is in memory as a new segment."""
        if self.folder is None or not self.rows:
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        def typed(name: str) -> Any:
            return pa.string() if name in _WORDS else pa.int64() if name in _COUNTS else pa.float64()

        table = pa.table({name: pa.array(values, typed(name)) for name, values in self.columns.items()})
        segment = f"{len(self.segments):06d}.parquet"
        write_durably(self.folder / segment, lambda path: pq.write_table(table, path))
        self.segments.append(segment)
        self._columns = {name: [] for name in self._columns}
        self.rows = 0

    def cut_back(self, segments: list[str], rows: dict[str, list[Any]]) -> None:
        """Forget whatever was written after those segments, and have these rows in memory."""
        self.segments, self._columns, self._new = list(segments), rows, []
        self.rows = len(next(iter(rows.values()), []))
        if self.folder is not None and self.folder.exists():
            for path in self.folder.iterdir():
                if path.name not in segments:
                    path.unlink()

    def read(self) -> dict[str, np.ndarray[Any, Any]]:
        """All rows, as arrays by column; a missing number is NaN."""
        fresh = {name: _array(name, values) for name, values in self.columns.items()}
        if not self.segments:
            return fresh
        assert self.folder is not None
        written = read_segments([self.folder / segment for segment in self.segments])
        before, names = len(next(iter(written.values()))), dict.fromkeys([*written, *fresh])
        parts = {name: (written.get(name, _none(before)), fresh.get(name, _none(self.rows))) for name in names}
        return {name: np.concatenate(pair) if self.rows else pair[0] for name, pair in parts.items()}


def read_segments(paths: Sequence[Path]) -> dict[str, np.ndarray[Any, Any]]:
    """What these files hold, as arrays by column; a missing number is NaN."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not paths:
        return {}
    tables = []
    for path in paths:
        with reading(path):
            tables.append(pq.read_table(path))
    with reading(paths[0].parent):
        table = pa.concat_tables(tables, promote_options="default")
        return {name: table[name].to_numpy() for name in table.column_names}


def _none(rows: int) -> np.ndarray[Any, Any]:
    return np.full(rows, np.nan)


def _array(name: str, values: list[Any]) -> np.ndarray[Any, Any]:
    if name in _WORDS:
        return np.array(values, dtype=object)
    if name in _COUNTS:
        return np.array(values, np.int64)
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _crew_columns(number: int, weights: FloatArray, staleness: IntArray, ticks: int, crew: Any) -> Iterator[Any]:
    """The values of a round's jobs, in the order of `_JOB_COLUMNS`."""
    count = len(crew.client)
    yield from ([number] * count, crew.client, crew.number, [ARRIVED] * count, weights, [crew.version] * count)
    yield from (staleness, [crew.sent_at / ticks] * count, crew.ends_at / ticks, crew.samples, crew.steps)
    yield from ([1.0] * count, *crew.seconds.T, *([size] * count for size in crew.bytes))


def _wave_columns(number: int, weights: FloatArray, staleness: IntArray, ticks: int, job: Columns) -> Iterator[Any]:
    yield from ([number] * len(weights), job.client, job.number, job.outcome, weights, job.version, staleness)
    yield from ([tick / ticks for tick in column.tolist()] for column in (job.sent_at, job.ends_at))
    yield from (job.samples, job.steps, job.progress, job.down_seconds, job.compute_seconds, job.up_seconds)
    yield from (job.bytes_down, job.bytes_up)


def _stretch_columns(stretch: Stretch) -> Iterator[Any]:
    count, costs, client = len(stretch.client), stretch.costs, stretch.client
    yield from (stretch.first + stretch.round, client, stretch.number, [ARRIVED] * count, stretch.weights)
    yield from (stretch.version, stretch.staleness, *map(stretch.in_seconds, (stretch.begun_at, stretch.ends_at)))
    yield from (costs.samples[client], costs.steps[client], [1.0] * count, *stretch.seconds.T)
    yield from ([size] * count for size in costs.bytes)


class History(Observer):
    """`rounds` and `jobs`: what happened, row by row. With a folder: `folder/history` and `folder/jobs`."""

    def __init__(self, folder: Path | None = None, jobs: bool = True) -> None:
        self.rounds = Table(None if folder is None else folder / "history")
        self.jobs = Table(None if folder is None else folder / "jobs") if jobs else None

    def on_evaluate(self, server: Server, measures: dict[str, float]) -> None:
        if not server.begun:
            added = {name: 0.0 for observer in server.observers for name in observer.columns}
            self._append_round(Round(0, 0.0, added, measures=measures))

    def on_round(self, server: Server, record: Round) -> None:
        self._append_round(record)
        if self.jobs is not None and len(record.jobs):
            self._append_jobs(server, record)
            if self.jobs.rows > _FLUSH_ROWS:
                self.jobs.flush()

    def on_rounds(self, server: Server, stretch: Stretch) -> None:
        columns = {"round": range(stretch.first, stretch.first + len(stretch.times)), "time": stretch.times}
        columns |= {name: stretch.facts[name] for name in (*NO_FACTS, *stretch.facts)}
        if stretch.measures:  # of the last
            last = len(stretch.times) - 1
            columns = {name: values[:last] for name, values in columns.items()}
        self.rounds.extend(tuple(columns), len(columns["time"]), columns.values)
        if stretch.measures:
            self._append_round(stretch.last)
        if self.jobs is not None:
            self.jobs.extend(_JOB_COLUMNS, len(stretch.client), partial(_stretch_columns, stretch))
            if self.jobs.rows > _FLUSH_ROWS:
                self.jobs.flush()

    def _append_round(self, record: Round) -> None:
        row = {"round": record.number, "time": record.time, **NO_FACTS, **record.facts, **record.measures}
        self.rounds.append(tuple(row), [tuple(row.values())])

    def _append_jobs(self, server: Server, record: Round) -> None:
        assert self.jobs is not None
        ticks, crew = server.population.ticks_per_second, together(record.jobs)
        if crew is not None:
            kept = SimpleNamespace(**{name: getattr(crew, name) for name in _OF_A_CREW})  # no model for a table's sake
            values = record.weights.copy(), record.staleness.copy()
            self.jobs.extend(
                _JOB_COLUMNS, len(record.jobs), partial(_crew_columns, record.number, *values, ticks, kept)
            )
            return
        if (some := columns_of(record.jobs)) is not None:
            job = some.wave.columns.take(some.rows)
            values = record.weights.copy(), record.staleness.copy()
            self.jobs.extend(_JOB_COLUMNS, len(some), partial(_wave_columns, record.number, *values, ticks, job))
            return
        columns = record.weights.tolist(), record.staleness.tolist()
        rows = [
            (
                record.number,
                job.client,
                job.number,
                "used_later" if job.logged else job.outcome,
                weight,
                job.version,
                staleness,
                job.sent_at / ticks,
                job.ends_at / ticks,
                job.samples,
                job.steps,
                job.progress,
                *(_NO_SECONDS if job.logged else job.seconds),  # a job that is in the table already costs nothing more
                *(_NO_BYTES if job.logged else job.bytes),
            )
            for job, weight, staleness in zip(record.jobs, *columns, strict=True)
        ]
        self.jobs.append(_JOB_COLUMNS, rows)

    def on_checkpoint(self, server: Server) -> None:
        for table in self._tables:
            table.flush()

    on_end = on_checkpoint

    @property
    def _tables(self) -> list[Table]:
        return [self.rounds] if self.jobs is None else [self.rounds, self.jobs]

    def clear(self) -> None:
        """Forget everything, on disk too."""
        for table in self._tables:
            table.cut_back([], {})

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        kept = [table.columns if table.folder is None else {} for table in self._tables]
        return {"segments": [table.segments for table in self._tables], "rows": kept}, {}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for table, segments, rows in zip(self._tables, facts["segments"], facts["rows"], strict=True):
            table.cut_back(segments, rows)
