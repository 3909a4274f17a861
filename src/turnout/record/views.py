"""What a run shows of itself in Python: data frames, a plot, and a summary where a notebook displays it."""

from __future__ import annotations

from html import escape
from typing import Any, Literal, get_args

import numpy as np

from turnout.core.errors import UserError, unknown
from turnout.core.imports import optional
from turnout.core.statistics import OVER_CLIENTS
from turnout.record.curves import line_chart

Columns = dict[str, np.ndarray[Any, Any]]
Table = Literal["rounds", "jobs", "clients"]
_PARTS = tuple(OVER_CLIENTS)


class Views:
    """For whatever has the record of a run."""

    def rounds(self) -> Columns:
        raise NotImplementedError

    def jobs(self) -> Columns:
        raise NotImplementedError

    def clients(self) -> Columns:
        raise NotImplementedError

    def outcome(self) -> dict[str, Any]:
        """Where the run ended and what the audit found, as `result.json` has it; empty while it is under way."""
        raise NotImplementedError

    def frame(self, table: Table = "rounds") -> Any:
        """A pandas data frame: a row a round, a job or a client."""
        if table not in get_args(Table):
            raise unknown("frame", table, get_args(Table))
        return optional("frame", "pandas", "pandas").DataFrame(getattr(self, table)())

    def plot(self, measure: str | None = None, over: Literal["time", "rounds"] = "time") -> Any:
        """A plotly figure of a column of the rounds, over virtual time or over rounds."""
        from turnout.record.charts import chart

        if over not in ("time", "rounds"):
            raise unknown("plot", over, ("time", "rounds"))
        name = measure or self._telling()
        figure = chart([[self]], [name], name, name.replace("_", " "), over) if name in self.rounds() else None
        if figure is None:
            raise unknown("plot", name, self.rounds())
        return optional("plot", "plotly.graph_objects", "plotly").Figure(figure)

    def _telling(self) -> str:
        """The measure that says most."""
        from turnout.record.charts import splits

        split, names = next(iter(splits(self.rounds()).items()), ("", []))
        if not names:
            raise UserError("plot: nothing was measured; name a column of the rounds")
        return f"{split}_{next((name for name in names if name != 'loss'), names[0])}"

    def __repr__(self) -> str:
        outcome, rounds = self.outcome(), self.rounds()
        if not outcome:
            return f"{type(self).__name__}(unfinished, {rounds['round'][-1] if rounds else 0} rounds recorded)"
        measures = [f"{name} {value:.4g}" for name, value in outcome["measures"].items() if _plain(name, value)]
        length = f"{outcome['rounds']} rounds, {outcome['virtual_seconds']:.6g} virtual seconds"
        return f"{type(self).__name__}({', '.join([length, *measures])})"

    def _repr_html_(self) -> str:
        outcome = self.outcome()
        parts = [f"<p><b>{escape(repr(self))}</b></p>"]
        if outcome:
            parts += [_measures(outcome["measures"]), *(f"<div>{escape(line)}</div>" for line in _audit(outcome))]
        try:
            name, rounds = self._telling(), self.rounds()
            words = name.replace("_", " ")
            picture = line_chart({words: (rounds["time"], rounds[name])}, title="", x="virtual seconds", y=words)
            parts.append(f'<div style="max-width: 480px">{picture}</div>')
        except UserError:  # nothing to draw
            pass
        return "\n".join(parts)


def _plain(name: str, value: float | None) -> bool:
    """Whether this is a measure itself, not how it is spread over clients."""
    return value is not None and not name.endswith(_PARTS[1:])


def _measures(measures: dict[str, float | None]) -> str:
    heads = "".join(f"<th>{head}</th>" for head in ("measure", *OVER_CLIENTS.values()))
    rows = []
    for name in (name for name in measures if not name.endswith(_PARTS[1:])):
        values = [measures.get(name + part) for part in _PARTS]
        cells = "".join(f"<td>{'' if value is None else f'{value:.4f}'}</td>" for value in values)
        rows.append(f"<tr><td>{escape(name.replace('_', ' '))}</td>{cells}</tr>")
    return f"<table><tr>{heads}</tr>{''.join(rows)}</table>"


def _audit(outcome: dict[str, Any]) -> list[str]:
    """Whose data counted, in three lines."""
    audit = outcome["audit"]
    failures = ", ".join(f"{count} {reason}" for reason, count in sorted(audit["failures"].items())) or "none"
    if audit["linear"] and audit["ratio_min"] is not None:
        shares = f"{audit['ratio_min']:.2f} to {audit['ratio_max']:.2f} (1 = as intended)"
    else:
        shares = "the rule is not a weighted sum, or nobody was heard"
    heard = audit["clients"] - audit["never_heard"]
    return [
        f"Clients heard: {heard} of {audit['clients']}, with {audit['contributions']} updates",
        f"Realised / intended share: {shares}",
        f"Jobs that brought nothing: {failures}",
    ]
