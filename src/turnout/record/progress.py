"""A run under way on a terminal: a progress bar, or a dashboard with the curve of its measure."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from turnout.server.observer import Event, Observer, Round

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.stretch import Stretch


def duration(seconds: float) -> str:
    """Virtual seconds for people: 90 s, 12.5 min, 3.2 h, 4.1 d."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 86400:.4g} d"


class ProgressBar(Observer, AbstractContextManager["ProgressBar"]):
    """Draws on the given console (standard error), and prints events above the bar."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(12), TextColumn("{task.description}"), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console, transient=True)

    def on_start(self, server: Server) -> None:
        self.line = self.bar.add_task("", total=server.stopping.rounds, completed=server.version)
        self.bar.start()

    def on_round(self, server: Server, record: Round) -> None:
        loss, accuracy = server.measures.get("train_loss"), server.measures.get("test_accuracy")
        parts = [f"round {record.number}"]
        parts += [f"loss {loss:.4f}"] if loss is not None else []
        parts += [f"acc {accuracy:.1%}"] if accuracy is not None else []
        parts += [duration(record.time), f"{record.facts['heard']:.0f}/{server.population.size} heard"]
        self.bar.update(self.line, completed=record.number, description=" · ".join(parts))

    def on_rounds(self, server: Server, stretch: Stretch) -> None:
        self.on_round(server, stretch.last)

    def on_event(self, server: Server, event: Event) -> None:
        self.bar.console.print(event.told(server.whole_population.names), style="yellow", markup=False)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


BLOCKS = "▁▂▃▄▅▆▇█"
SHARE = 0.02  # of the wall time, at most, is spent on drawing
_AT_LEAST = {True: 0.25, False: 10.0}  # seconds between two pictures on a terminal, between two lines in a file
_COUNTED = 100_000  # clients, at most, are asked whether they are online


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """A curve of one line of text, from the smallest to the largest value; a gap where nothing is finite."""
    parts = [part[np.isfinite(part)] for part in np.array_split(np.asarray(values, np.float64), width) if len(part)]
    means = [part.mean() if len(part) else math.nan for part in parts]
    low, high = (np.nanmin(means), np.nanmax(means)) if np.isfinite(means).any() else (0.0, 1.0)
    heights = [(mean - low) / ((high - low) or 1.0) * (len(BLOCKS) - 1) for mean in means]
    return "".join(" " if math.isnan(height) else BLOCKS[round(height)] for height in heights)


class Dashboard(Observer, AbstractContextManager["Dashboard"]):
    """Draws on a terminal; into a file it writes a line now and then."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.clock = console, clock
        self.screen = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self.pictures = 0
        self._events: deque[str] = deque(maxlen=4)
        self._curve: list[float] = []
        self._failed = self._arrived = 0

    def on_start(self, server: Server) -> None:
        self._began, self._first = self.clock(), (server.version, server.now)
        self._next = self._began
        if self.screen is not None:
            self.screen.start()

    def on_evaluate(self, server: Server, measures: dict[str, float]) -> None:
        name = server.stopping.measure
        self._measure = name if name in measures else next(iter(measures), name)
        self._curve.append(measures.get(self._measure, math.nan))

    def on_event(self, server: Server, event: Event) -> None:
        self._events.append(event.told(server.whole_population.names))

    def on_round(self, server: Server, record: Round) -> None:
        self._arrived += int(record.facts["arrived"])
        self._failed += int(record.facts["failed"])
        self._draw(server, record)

    def on_rounds(self, server: Server, stretch: Stretch) -> None:
        self._arrived += int(sum(stretch.facts["arrived"]))
        self._failed += int(sum(stretch.facts["failed"]))
        self._draw(server, stretch.last)

    def _draw(self, server: Server, record: Round) -> None:
        began = self.clock()
        if began < self._next:
            return
        self.pictures += 1
        if self.screen is None:
            line = f"{self._progress(server)}, {self._speed(server)}, {self._value()}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            self.screen.update(self._picture(server, record), refresh=True)
        ended = self.clock()
        self._next = ended + max(_AT_LEAST[self.screen is not None], (ended - began) / SHARE)

    def _picture(self, server: Server, record: Round) -> Panel:
        facts, people = record.facts, server.population
        table = Table.grid(padding=(0, 2))
        if self._curve:
            table.add_row(f"[bold]{escape(self._measure.replace('_', ' '))}[/bold]", self._value(drawn=True))
        table.add_row("progress", self._progress(server))
        table.add_row("speed", self._speed(server))
        online = f", {server.online().count} online and free" if people.size <= _COUNTED else ""
        heard = f"{facts['heard']:.0f} of {people.size} heard"
        table.add_row("clients", f"{server.in_flight} at work{online}, {heard}")
        table.add_row("jobs", f"{self._arrived} arrived, {self._failed} failed since the start of this process")
        table.add_row("staleness", f"{facts['staleness_mean']:.3g} on average, at most {facts['staleness_max']:.0f}")
        for event in self._events:
            table.add_row("[yellow]event[/yellow]", escape(event))
        return Panel(table, title=escape(type(server.algorithm).__name__), title_align="left", expand=False)

    def _value(self, drawn: bool = False) -> str:
        if not self._curve:
            return "nothing measured yet"
        return f"{sparkline(self._curve)} {self._curve[-1]:.4g}" if drawn else f"{self._measure} {self._curve[-1]:.4g}"

    def _progress(self, server: Server) -> str:
        rule = server.stopping
        rounds = f"round {server.version}" + (f" of {rule.rounds}" if rule.rounds is not None else "")
        end = f" of {duration(rule.seconds)}" if rule.seconds is not None else ""
        return f"{rounds}, {duration(server.now)}{end} of virtual time"

    def _speed(self, server: Server) -> str:
        """Since this process took the run up; the end is where the first of the stop rules is."""
        wall = (self.clock() - self._began) or math.inf
        (version, now), rule = self._first, server.stopping
        done = [(server.version, version, rule.rounds), (server.now, now, rule.seconds)]
        left = [wall * (end - at) / (at - first) for at, first, end in done if end is not None and at > first]
        eta = f", {duration(max(0.0, min(left)))} to go" if left and math.isfinite(min(left)) else ""
        return f"{(server.version - version) / wall:.3g} rounds/s{eta}"

    def __exit__(self, *_: object) -> None:
        if self.screen is not None:
            self.screen.stop()
