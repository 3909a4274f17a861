"""The board: one page over all runs of a folder, which `loopback` serves and `write` leaves as a static folder."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from turnout.core.errors import UserError
from turnout.core.files import write_durably
from turnout.core.statistics import lower_is_better
from turnout.core.version import VERSION
from turnout.record.progress import duration
from turnout.report import page, read
from turnout.report.blocks import megabytes
from turnout.report.index import WORST, Index, Row, linked

MARK = '<meta name="generator" content="Turnout board'
FREE = tuple(f"run.{name}" for name in read.FREE)
Document = dict[str, Any]


# -- what the page knows --------------------------------------------------------------------------------------


def document(rows: Sequence[Row], folder: Path, live: bool) -> Document:
    """All that the page shows, as JSON has it."""
    measures = [name for row in rows for name in row.curves if name not in ("round", "time")]
    groups, numbers = _settings(rows)
    options = [_options(row) for row in rows]
    differing = _differing(options)
    runs = [_run(row) | {"setting": numbers[row.name]} for row in rows]
    for run, has in zip(runs, options, strict=True):
        run["options"] = {option: has[option] for option in differing if option in has}
    return {
        "folder": folder.resolve().name or str(folder),
        "live": live,
        "at": time.time(),
        "measures": {name: _measure(name) for name in dict.fromkeys(measures)},
        "first": next(iter(Counter(row.measure for row in rows if row.measure).most_common(1)), ("",))[0],
        "settings": groups,
        "runs": runs,
    }


def _measure(name: str) -> Document:
    return {"words": name.replace("_", " "), "lower": lower_is_better(name)}


def _settings(rows: Sequence[Row]) -> tuple[list[str], dict[str, int | None]]:
    """What settings are called, and the number of each run's."""
    runs = {row.name: row.run for row in rows if row.run is not None}
    groups = read.settings(list(runs.values()))
    number = {id(run): place for place, group in enumerate(groups) for run in group}
    return read.labels(groups), {row.name: number.get(id(row.run)) for row in rows}


def _options(row: Row) -> dict[str, str]:
    """Of a run that can be read, those that make it another setting."""
    config = {} if row.run is None else row.run.config
    every = {f"{section}.{name}": value for section, has in config.items() for name, value in has.items()}
    return {
        option: _plain(value) for option, value in every.items() if option not in FREE and value not in ("", [], None)
    }


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 120 else f"{text[:117]}…"


def _differing(options: Sequence[dict[str, str]]) -> list[str]:
    """The options in which not all are alike."""
    names = dict.fromkeys(name for has in options for name in has)
    return [name for name in names if len({has.get(name) for has in options if has}) > 1]


def _run(row: Row) -> Document:
    config = {} if row.run is None else row.run.config
    clients = config.get("clients", {}).get("count")
    jobs = [row.sums.get(name, 0.0) for name in ("arrived", "failed", "cancelled")]
    traffic = row.sums.get("bytes_down", 0.0) + row.sums.get("bytes_up", 0.0)
    return {
        "name": row.name,
        "state": row.state,
        "words": row.words,
        "begun": round(row.begun),
        "algorithm": "" if row.run is None else row.run.algorithm,
        "data": config.get("data", {}).get("name", ""),
        "clients": clients,
        "seed": None if row.run is None else row.run.seed,
        "round": row.rounds,
        "rounds": config.get("run", {}).get("rounds"),
        "time": [row.seconds, duration(row.seconds)],
        "traffic": [traffic, megabytes(traffic)],
        "heard": row.heard,
        "lost": sum(jobs[1:]) / sum(jobs) if sum(jobs) else None,
        "last": {name: _short(value) for name, value in row.last.items() if not name.endswith(WORST)},
        "worst": {name.removesuffix(WORST): _short(value) for name, value in row.last.items() if name.endswith(WORST)},
        "curves": {name: [_short(value) for value in values.tolist()] for name, values in row.curves.items()},
        "address": quote(os.fsencode(row.name)),
        "report": row.run is not None,
    }


def _short(value: float) -> float | None:
    """A number that a curve or a cell shows; whole ones stay what they are."""
    if not math.isfinite(value):
        return None
    return value if value == int(value) else float(f"{value:.5g}")


# -- the page -------------------------------------------------------------------------------------------------


def board(known: Document) -> str:
    """The page's text: it needs nothing else, and asks nobody but the server it came from for more."""
    style, script = _style_and_script()
    return page.asset("board.html").format(
        mark=f'{MARK} {VERSION}">',
        policy=policy(),
        title=escape(known["folder"]),
        style=style,
        data=json.dumps(known, allow_nan=False).replace("<", "\\u003c"),  # no name can end what it stands in
        script=script,
        version=VERSION,
    )


@cache
def _style_and_script() -> tuple[str, str]:
    style = page.asset("page.css") + page.asset("board.css")
    return style, "".join(page.asset(f"{name}.js") for name in ("theme", "parts", "board"))


@cache
def policy() -> str:
    """What the page may do, as a Content-Security-Policy: its own style and script, by their digests, and questions to
    its own server."""
    style, script = map(page.digest, _style_and_script())
    return (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def report(row: Row) -> str:
    """The report of a run of the board, whose page is at `runs/NAME/report.html`."""
    return page.page([_recorded(row)], "/".join([".."] * (2 + row.name.count("/"))))


def compared(rows: Sequence[Row]) -> str:
    """The report of several runs, at `compare.html`."""
    if not 1 <= len(rows) <= page.MOST:
        raise UserError(f"board: {len(rows)} runs; a report shows from 1 to {page.MOST}")
    return page.page([_recorded(row) for row in rows], ".")


def _recorded(row: Row) -> read.Recorded:
    """All of a run, of which nothing may lie elsewhere."""
    for place, folders, files in os.walk(row.folder):
        for name in (*folders, *files):
            path = Path(place) / name
            if path.is_symlink():
                raise linked(path)
    return read.recorded(row.folder, "board")


# -- as a folder ----------------------------------------------------------------------------------------------


def write(index: Index, target: Path) -> tuple[Path, list[str]]:
    """Leave the board and its reports in a folder of their own, which needs no server; return its page, and a sentence
    for each run of which there is no report."""
    first = target / "index.html"
    _check_target(target, first)
    rows = index.rows()
    known = document(rows, index.folder, live=False)
    remarks, kept = [], set()
    for row, run in zip(rows, known["runs"], strict=True):
        path = target / "runs" / row.name / "report.html"
        try:
            _write(path, report(row).encode(errors="replace"))
            kept.add(path)
        except UserError as error:
            remarks.append(str(error))
            run["report"] = False
    _write(target / page.PLOTLY, page.plotly_library())
    _write(first, board(known).encode(errors="replace"))
    for path in (target / "runs").rglob("report.html"):  # of runs that are gone
        if path not in kept and page.is_report(path):
            path.unlink()
    return first, remarks


def _write(path: Path, content: bytes) -> None:
    write_durably(path, lambda partial: partial.write_bytes(content))


def _check_target(target: Path, first: Path) -> None:
    """Raise unless the folder is new, empty or an earlier board."""
    if target.exists() and not target.is_dir():
        raise UserError(f"--write: {target} is not a folder")
    if not target.exists() or not any(target.iterdir()):
        return
    if not first.is_file() or MARK not in first.read_text(encoding="utf-8", errors="replace")[:500]:
        raise UserError(f"--write: {target} is not empty and not a board; name another folder")
