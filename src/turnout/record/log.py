"""log.txt: every event, a line each, and below it the traceback of a failure in a user's code; plan.json: every choice
of the engine, the paths that local work took with their reasons, and what was timed."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.core.errors import UserError
from turnout.core.files import append_lines, as_json_text, read_json, write_text
from turnout.engine.plan import Plan
from turnout.record.run_folder import FORMAT, RunFolder
from turnout.server.observer import TRACEBACK, Event, Observer

if TYPE_CHECKING:
    from turnout.server.server import Server


class Log(Observer):
    """Appends; after a resume the lines since the last checkpoint are there twice, around a line `resumed`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_event(self, server: Server, event: Event) -> None:
        trace = str(event.facts.get(TRACEBACK, ""))
        append_lines(
            self.path, [event.told(server.whole_population.names), *(f"    {line}" for line in trace.splitlines())]
        )

    on_path = on_event

    def on_end(self, server: Server) -> None:
        append_lines(self.path, [f"round {server.version}, {server.now:.6g} s: stopped ({server.stopped})"])


NAME = "plan.json"


class PlanFile(Observer):
    """Writes `plan.json` of a run, and again when local work takes a path that is not in it yet. Of a run that is
    resumed it keeps what is known only from its beginning: the paths, and the trial's times."""

    def __init__(self, run: RunFolder, resume: bool) -> None:
        self.run, self.path = run, run.path / NAME
        self._before: dict[str, Any] = read_json(self.path) if resume and self.path.exists() else {}

    def plan(self, given: Plan) -> Plan:
        """Return the choices recorded when the run began, or the plan given to a new one; where a run is computed is
        chosen anew."""
        if not self._before:
            return given
        try:
            known = Plan(**{part.name: self._before[part.name] for part in fields(Plan)})
        except (KeyError, TypeError) as error:
            raise UserError(f"resume: {self.path} is not the plan of a run; restore it") from error
        return replace(known, address=given.address, workers=given.workers)

    def write(self, server: Server) -> None:
        """Write the file; the manifest of the run is the caller's business."""
        paths = self._before.get("paths", [])
        paths = [*paths, *(path for path in server.paths if path not in paths)]
        seconds = server.cohort.trial.seconds or self._before.get("trial_seconds", {})
        known = {**server.plan.as_dict(), "paths": paths, "trial_seconds": seconds, "format": FORMAT}
        write_text(self.path, as_json_text(known))

    def on_path(self, server: Server, event: Event) -> None:
        if event.facts not in self._before.get("paths", []):
            self.run.seal(without=[NAME])
            self.write(server)
            self.run.seal()
