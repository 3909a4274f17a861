"""A progress bar with live loss, accuracy, virtual time and clients heard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from turnout.server.observer import Event, Observer, Round

if TYPE_CHECKING:
    from turnout.server.server import Server


def duration(seconds: float) -> str:
    """Virtual seconds for people: 90 s, 12.5 min, 3.2 h, 4.1 d."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 86400:.4g} d"


class ProgressBar(Observer):
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

    def on_event(self, server: Server, event: Event) -> None:
        self.bar.console.print(str(event), style="yellow", markup=False)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
