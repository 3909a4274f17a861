"""The report: one HTML file that needs nothing else, for one run or for up to ten compared."""

from __future__ import annotations

import gzip
import hashlib
import json
from base64 import b64encode
from collections.abc import Collection, Sequence
from functools import cache
from html import escape
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core.errors import UserError
from turnout.core.files import write_text
from turnout.core.imports import missing
from turnout.core.version import VERSION
from turnout.record.run_folder import CARD, reseal
from turnout.report import audit, confusion, overview, panels, read, sentences, timeline
from turnout.report.blocks import Answers, Block, Chart, Facts, Folded, Grid, Picture, Timelines, Words
from turnout.report.read import Recorded

MOST = 10  # runs on a page
PLOTLY = "plotly.js"  # where pages share it
MARK = '<meta name="generator" content="Turnout report'
Section = tuple[str, str, list[Block]]  # anchor, title, what is in it


def write(runs: Sequence[Recorded], path: Path) -> Path:
    """Report these runs; a file that is not a report is never overwritten."""
    if path.is_dir():
        raise UserError(f"report: {path} is a folder; name a file with --out")
    if path.exists() and not is_report(path):
        raise UserError(f"report: {path} exists and is not a report; name another file with --out")
    if not 1 <= len(runs) <= MOST:
        raise UserError(f"report: {len(runs)} runs; a page shows from 1 to {MOST}")
    write_text(path, page(runs, home=path.resolve().parent))
    for run in runs:
        if path.resolve().parent == run.folder.resolve():
            reseal(run.folder, path.name)
    return path


def is_report(path: Path) -> bool:
    return MARK in path.read_text(encoding="utf-8", errors="replace")[:500]


def page(runs: Sequence[Recorded], board: str = "", home: Path | None = None) -> str:
    """The file's text, which needs nothing else; in the folder of a run it links what is there, too. Or that of a page
    of a board, the address of whose folder is given: it leads back there, and takes the library that draws charts from
    there."""
    groups = read.settings(runs)
    names = read.labels(groups)
    found = [section for section in sections(groups, names) if section[2]]
    charts: list[Chart] = []
    lanes: list[dict[str, Any]] = []
    links = [(f"#{anchor}", words) for anchor, words, _ in found]
    if home is not None and len(runs) == 1 and home == runs[0].folder.resolve() and (home / CARD).exists():
        links.append((CARD, "Model card"))
    body = "".join(_section(section, charts, lanes) for section in found)
    figures = [{"figure": chart.figure, "byRounds": chart.by_rounds} for chart in charts]
    return asset("page.html").format(
        mark=f'{MARK} {VERSION}">',
        title=escape(names[0] if len(groups) == 1 else f"{len(runs)} runs compared"),
        subtitle=escape(_subtitle(groups)),
        style=asset("page.css"),
        links="".join(f'<a href="{escape(place)}">{escape(words)}</a>' for place, words in links),
        body=body,
        version=VERSION,
        charts=_packed(_document(figures)),
        timelines=_packed(_document(lanes)),
        back=f'<a href="{escape(board)}/index.html">All runs</a> · ' if board else "",
        alone="" if board else " This file needs nothing else: keep it, print it, send it.",
        plotly=f'<script src="{escape(board)}/{PLOTLY}"></script>' if board else _embedded(),
        script=_script(),
    )


def sections(groups: list[list[Recorded]], names: list[str]) -> list[Section]:
    """All there can be; those that are empty are left out of the page."""
    named = [
        (run, name if len(group) == 1 else f"{name}, seed {run.seed}")
        for name, group in zip(names, groups, strict=True)
        for run in group
    ]
    runs, singly = [run for run, _ in named], [name for _, name in named]
    special: list[Block] = []
    for name, group in zip(names, groups, strict=True):
        found = panels.panels(group[0])
        special += [_titled(block, name) for block in found] if len(groups) > 1 else found
    lanes = timeline.timelines(runs, singly)
    return [
        ("result", "Result", [Answers(sentences.of_runs(runs)), *overview.result(groups, names)]),
        ("setting", "What was run", overview.setting(groups, names)),
        ("curves", "Curves", overview.learning(groups, names)),
        ("timeline", "Timeline", [Timelines(lanes)] if lanes else []),
        ("classes", "Which class is taken for which", confusion.confusion(groups, names)),
        ("audit", "Turnout audit: whose data counted", audit.audit(groups, names)),
        ("costs", "Communication, energy, waste", overview.costs(groups, names)),
        ("method", "What is special to the method", special),
        ("log", "Log", overview.logs(runs, singly)),
    ]


def _titled(block: Block, name: str) -> Block:
    return block._replace(title=f"{block.title} ({name})") if isinstance(block, Chart | Grid | Picture) else block


def _subtitle(groups: list[list[Recorded]]) -> str:
    run = groups[0][0]
    if len(groups) > 1:
        words = [f"{len(groups)} settings", ", ".join(sorted({group[0].algorithm for group in groups}))]
    else:
        data, clients = run.config.get("data", {}).get("name"), run.config.get("clients", {}).get("count")
        words = [" on ".join(filter(None, (run.algorithm, data))), f"{clients} clients" if clients else ""]
        words.append(f"{len(groups[0])} seeds" if len(groups[0]) > 1 else f"seed {run.seed}" if run.config else "")
    unfinished = sum(not one.finished for group in groups for one in group)
    words.append(f"{unfinished} unfinished" if unfinished else "")
    return " · ".join(filter(None, words))


# -- HTML -----------------------------------------------------------------------------------------------------

_SWITCH = (
    '<div class="switch" role="group" aria-label="Horizontal axis"><button type="button" data-over="time" '
    'aria-pressed="true">virtual time</button><button type="button" data-over="rounds" aria-pressed="false">'
    "rounds</button></div>"
)


def _section(section: Section, charts: list[Chart], lanes: list[dict[str, Any]]) -> str:
    anchor, title, found = section
    parts = []
    for kind, alike in groupby(found, type):
        inside = "".join(_html(block, charts, lanes) for block in alike)
        parts.append(f'<div class="charts">{inside}</div>' if kind is Chart else inside)
    switch = _SWITCH if any(isinstance(block, Chart) and block.by_rounds for block in found) else ""
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{switch}{"".join(parts)}</section>'


def _html(block: Block, charts: list[Chart], lanes: list[dict[str, Any]]) -> str:
    match block:
        case Chart(title, _, about):
            charts.append(block)
            plot = f'<div class="plot" role="img" aria-label="{escape(f"{title}. {about}")}"></div>'
            number = len(charts) - 1
            return f'<figure class="card chart" data-chart="{number}">{_caption(title, about)}{plot}</figure>'
        case Answers(told):
            return f'<div class="answers">{"".join(f"<p>{escape(one)}</p>" for one in told)}</div>'
        case Grid(headers, rows, title, about, best):
            head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headers)
            body = "".join(_row(cells, place, best) for place, cells in enumerate(rows))
            table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
            kind = ' class="pairs"' if len(headers) == 2 and not headers[0] else ""
            reach = f'class="wide" tabindex="0" role="region" aria-label="{escape(title or "table")}"'
            return f'<div class="card">{_caption(title, about)}<div {reach}><table{kind}>{table}</table></div></div>'
        case Words(text):
            return f"<p>{escape(text)}</p>"
        case Facts(values):
            return f'<dl class="facts">{"".join(_fact(*map(escape, value)) for value in values)}</dl>'
        case Picture(title, svg, about):
            source = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
            image = f'<img alt="{escape(f"{title}. {about}")}" src="{source}">'
            return f'<figure class="card picture">{_caption(title, about)}{image}</figure>'
        case Folded(title, text):
            return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
        case Timelines(found):
            lanes.extend(found)
            options = "".join(f'<option value="{i}">{escape(one["label"])}</option>' for i, one in enumerate(found))
            return asset("timeline.html").format(options=options, hidden="" if len(found) > 1 else "hidden")


def _row(cells: Sequence[str], row: int, best: Collection[tuple[int, int]]) -> str:
    first, *others = map(escape, cells)
    shown = (f"<strong>{text}</strong>" if (row, place) in best else text for place, text in enumerate(others, 1))
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{text}</td>" for text in shown)}</tr>'


def _fact(what: str, value: str, hint: str) -> str:
    return f'<div class="fact"><dt>{what}</dt><dd>{value}</dd>{f"<dd><small>{hint}</small></dd>" if hint else ""}</div>'


def _caption(title: str, about: str) -> str:
    words = (f"<h3>{escape(title)}</h3>" if title else "") + (f"<p>{escape(about)}</p>" if about else "")
    return f'<div class="caption">{words}</div>' if words else ""


# -- what is embedded -----------------------------------------------------------------------------------------


def asset(name: str) -> str:
    return (resources.files("turnout.report") / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    return asset("theme.js") + asset("timeline.js") + asset("page.js")


def policy() -> str:
    """What a report that a board serves may do, as a Content-Security-Policy; plotly makes styles as it draws."""
    return (
        f"default-src 'none'; script-src 'self' {digest(_script())}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """A style or script that is part of a page, as a Content-Security-Policy names it."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def plotly_library() -> bytes:
    """The library that draws the charts, as its package ships it."""
    try:
        return (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise missing("report", "plotly", "'plotly>=6'") from error


@cache
def _embedded() -> str:
    return f'<script type="text/plain" id="plotly">{_packed(plotly_library())}</script>'


def _packed(content: bytes) -> str:
    """Compressed, in letters that may stand in HTML; the same bytes give the same text."""
    return b64encode(gzip.compress(content, 6, mtime=0)).decode()


def _document(content: Any) -> bytes:
    return json.dumps(content, default=_typed, allow_nan=False).encode()


_KINDS = {"f": ("f4", np.float32), "i": ("i4", np.int32), "u": ("u1", np.uint8)}


def _typed(values: Any) -> Any:
    """Arrays as plotly reads them: the kind of number, and the bytes."""
    if isinstance(values, np.generic):
        return values.item()
    name, kind = _KINDS[values.dtype.kind]
    shape = {} if values.ndim == 1 else {"shape": ",".join(map(str, values.shape))}
    return {"dtype": name, "bdata": b64encode(np.ascontiguousarray(values, kind).tobytes()).decode(), **shape}
