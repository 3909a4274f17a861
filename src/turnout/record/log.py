"""log.txt: every event, a line each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from turnout.core.files import append_lines
from turnout.server.observer import Event, Observer

if TYPE_CHECKING:
    from turnout.server.server import Server


class Log(Observer):
    """Appends; after a resume the lines since the last checkpoint are there twice, around a line `resumed`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_event(self, server: Server, event: Event) -> None:
        append_lines(self.path, [str(event)])

    on_path = on_event

    def on_end(self, server: Server) -> None:
        append_lines(self.path, [f"round {server.version}, {server.now:.6g} s: stopped ({server.stopped})"])
