"""Who did what when: the jobs of a run as compact arrays, which the page draws on a canvas.

A job is downloading, training and uploading, one after the other, from its start to its end. Between jobs a client is
idle, or offline where the configuration says so. Very long runs are thinned: some clients are shown, with all they did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.record.views import Columns
from turnout.report.read import Recorded

JOBS = 200_000  # on one page
PRESENCES = 400_000  # questions to the availability model, and spells offline: a fraction of a second
ENDS = ("aggregated", "not used", "crashed", "offline", "left", "cancelled", "silenced")
PHASES = ("download_seconds", "compute_seconds", "upload_seconds")


def timeline(run: Recorded, label: str, jobs: int = JOBS) -> dict[str, Any] | None:
    """Arrays for the page: jobs in order of row and start; `rows` are the clients shown."""
    table = run.jobs()
    if not table:
        return None
    ends, begun = endings(table), table["outcome"] != "used_later"
    table, ends = {name: values[begun] for name, values in table.items()}, ends[begun]
    everybody = int(run.config.get("clients", {}).get("count", table["client"].max() + 1))
    shown = thinned(table["client"], ends >= ENDS.index("crashed"), everybody, jobs)
    kept = np.flatnonzero(np.isin(table["client"], shown))
    rows = np.searchsorted(shown, table["client"][kept])
    starts = _starts(table, ends, run)[kept]
    order = np.lexsort((starts, rows))
    kept, rows, starts = kept[order], rows[order], starts[order]
    closes = run.rounds().get("time", np.zeros(1))
    last = float(max(table["ended_at"].max(), closes.max()))
    whose, away, back, remark = offline(run, shown, last)
    about = f"{len(kept):,} jobs of {everybody:,} clients"
    if len(shown) < everybody:
        about = (
            f"{len(shown):,} of {everybody:,} clients, evenly chosen, those with failures first, with all they did: "
            f"{len(kept):,} of {len(ends):,} jobs"
        )
    return {
        "label": label,
        "about": about + (f"; {remark}" if remark else "") + ".",
        "end": last,
        "rows": shown.astype(np.int32),
        "names": None if run.names is None else [run.names[client] for client in shown],
        "first": np.searchsorted(rows, np.arange(len(shown) + 1)).astype(np.int32),  # job of each row
        "start": starts.astype(np.float32),
        **{name: table[name][kept].astype(np.float32) for name in PHASES},
        "outcome": ends[kept].astype(np.uint8),
        "round": table["round"][kept].astype(np.int32),
        "closes": closes.astype(np.float32),
        "away_row": whose.astype(np.int32),
        "away": away.astype(np.float32),
        "back": back.astype(np.float32),
    }


def endings(table: Columns) -> IntArray:
    """A number of `ENDS` for each job: whether it counted, at once or later, and else what became of it."""
    name = table["client"] * (table["job"].max() + 1) + table["job"]
    found = np.full(len(name), ENDS.index("not used"))
    for number, end in enumerate(ENDS):
        found[table["outcome"] == end] = number
    counted = table["weight"] != 0
    if (table["outcome"] == "used_later").any():  # else each job has one row
        counted = np.isin(name, name[counted])
    found[counted] = ENDS.index("aggregated")
    return found


def _starts(table: Columns, ends: IntArray, run: Recorded) -> FloatArray:
    """When jobs began: what they took before they ended. A death is heard of after a heartbeat."""
    detection = run.config.get("detection", {})
    died = (ends >= ENDS.index("crashed")) & (ends < ENDS.index("cancelled"))
    late = died * float(detection.get("seconds", 0.0) if detection.get("kind") == "heartbeat" else 0.0)
    took = sum(table[name] for name in PHASES)
    return np.asarray(np.maximum(table["sent_at"], table["ended_at"] - took - late))


def thinned(clients: IntArray, failed: NDArray[np.bool_], everybody: int, jobs: int) -> IntArray:
    """Which clients to show so that there are about so many jobs: evenly chosen, those with failures first."""
    if len(clients) <= jobs:
        return np.arange(everybody)
    room = max(1, everybody * jobs // len(clients))
    unlucky = np.unique(clients[failed])
    others = np.setdiff1d(np.arange(everybody), unlucky)
    first = _evenly(unlucky, room)
    return np.sort(np.concatenate([first, _evenly(others, room - len(first))]))


def _evenly(values: IntArray, count: int) -> IntArray:
    return values[np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(np.int64)]


Spells = tuple[IntArray, FloatArray, FloatArray, str]
_NOBODY = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)


def offline(run: Recorded, clients: IntArray, last: float) -> Spells:
    """Spells offline of these clients, in order of their place among them: from, to. With a remark where they are left
    out."""
    section = run.config.get("availability", {})
    if not section or section.get("name") == "always":
        return *_NOBODY, ""
    try:
        from turnout.config import config

        presence = config.presence(run.config)
        seed = int(run.seed or 0)
        if presence.clock == "round":
            return _between_rounds(presence, seed, clients, run.rounds()["time"], last)
        return _in_seconds(presence, seed, clients, last)
    except (ImportError, UserError, KeyError):
        return *_NOBODY, "when clients are offline cannot be told"


def _between_rounds(presence: Any, seed: int, clients: IntArray, closes: FloatArray, last: float) -> Spells:
    """Presence that changes with the round: from one close to the next."""
    if len(clients) * len(closes) > PRESENCES:
        return *_NOBODY, "when clients are offline is left out of so long a run"
    versions = np.arange(len(closes))
    away = np.array([~presence.online(seed, clients, float(version)) for version in versions])  # [rounds, clients]
    until = np.append(closes[1:], last)
    edges = np.diff(np.pad(away, ((1, 1), (0, 0))).astype(np.int8), axis=0).T  # a row a client
    whose, begun = np.nonzero(edges == 1)
    ended = np.nonzero(edges == -1)[1]
    return whose, closes[begun], until[ended - 1], ""


def _in_seconds(presence: Any, seed: int, clients: IntArray, last: float) -> Spells:
    """Presence that changes with time: from change to change."""
    parts: list[tuple[IntArray, FloatArray, FloatArray]] = []
    place, now = np.arange(len(clients)), np.zeros(len(clients))
    here = presence.online(seed, clients, 0.0)
    asked = 0
    while len(place):
        asked += len(place)
        if asked > PRESENCES // 20:
            return *_NOBODY, "when clients are offline is left out: it changes too often"
        ids, until = clients[place], np.full(len(place), np.inf)
        until[here] = presence.online_until(seed, ids[here], now[here])
        until[~here] = presence.online_from(seed, ids[~here], now[~here])
        parts.append((place[~here], now[~here], np.minimum(until[~here], last)))
        going = until < last
        place, now, here = place[going], until[going], ~here[going]
    whose, away, back = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((away, whose))
    return whose[order], away[order], back[order], ""


def timelines(runs: Sequence[Recorded], names: Sequence[str]) -> list[dict[str, Any]]:
    """Of every run that has recorded its jobs."""
    found = (timeline(run, name, JOBS // len(runs)) for run, name in zip(runs, names, strict=True))
    return [one for one in found if one is not None]
