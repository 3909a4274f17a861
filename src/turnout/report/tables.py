"""Settings beside each other as a table: for a terminal, and for a paper as LaTeX, Markdown or CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from turnout.core.statistics import CONFIDENCE, WORST_PERCENTILE, lower_is_better
from turnout.record.progress import duration
from turnout.record.views import splits
from turnout.report import better
from turnout.report.blocks import megabytes, number
from turnout.report.compare import Quantity, Row, Target, best
from turnout.report.words import within

FORMATS = ("latex", "markdown", "csv")
_NARROW = 4  # columns of a table that a page has room for


@dataclass(frozen=True)
class Column:
    """A quantity of every setting: what it is called, its cells, and which of them stand out."""

    quantity: str
    heading: str
    cells: list[str]
    best: Collection[int] = ()  # rows of the best mean
    level: Collection[int] = ()  # rows that chance does not tell from it


def names(rows: Sequence[Row]) -> list[str]:
    return [row.label if row.finished else f"{row.label} (unfinished)" for row in rows]


def measured(rows: Sequence[Row]) -> list[Column]:
    """Where the runs ended: measures on the most telling samples."""
    split, found = next(iter(splits(rows[0].runs[0].rounds()).items()), ("", []))
    headings = {f"{split}_{name}": f"{split} {name}".replace("_", " ") for name in found}
    for name in (name for name in found if name != "loss"):
        headings[f"{split}_{name}_worst_decile"] = f"{headings[f'{split}_{name}']}, {WORST_PERCENTILE}"
    return [_judged(rows, name, heading) for name, heading in _known(rows, headings).items()]


def taken(rows: Sequence[Row], aim: Target | None) -> list[Column]:
    """What the runs took."""
    reached = {f"{name}_to_target": f"{word} to {aim}" for name, word in (("seconds", "time"), ("rounds", "rounds"))}
    headings = {"rounds": "rounds", "virtual_seconds": "virtual time", "bytes": "traffic"}
    headings |= {"energy_wh": "energy (Wh)", "never_heard": "never heard"}
    shown = (reached if aim else {}) | _known(rows, headings)
    return [Column(name, heading, _cells(rows, name)) for name, heading in shown.items()]


def _known(rows: Sequence[Row], headings: dict[str, str]) -> dict[str, str]:
    """Columns in which some run has something to say."""
    known = {name for row in rows for name, quantity in row.quantities.items() if quantity.known}
    return {name: heading for name, heading in headings.items() if name in known}


def _judged(rows: Sequence[Row], name: str, heading: str) -> Column:
    """A measure, with those that its seeds do not tell from the best: none where one seed says nothing."""
    first, level = best(rows, name), set[int]()
    settings = [better.of_row(row, name) for row in rows]
    ranking = better.rank(name, settings, lower_is_better(name))
    if first and ranking is not None and all(gap.seeds > 1 for gap in ranking.against):
        level = {place for place, one in enumerate(settings) if one.label in ranking.tied} - first
    return Column(name, heading, _cells(rows, name), first, level)


def _cells(rows: Sequence[Row], name: str) -> list[str]:
    return [_cell(name, row.quantities.get(name)) for row in rows]


def _cell(name: str, quantity: Quantity | None) -> str:
    if quantity is None:
        return number(None)
    known, runs = len(quantity.known), len(quantity.values)
    if known < runs:
        return f"in {known} of {runs} runs"
    units = {"virtual_seconds": duration, "seconds_to_target": duration, "bytes": megabytes}
    if name not in units:
        return within(quantity.mean, quantity.half_width)
    show, half = units[name], quantity.half_width
    return show(quantity.mean) + (f" ± {show(float(f'{half:.2g}'))}" if 0 < half < math.inf else "")


def about(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """What the numbers are: the caption."""
    seeds = sorted({len(row.runs) for row in rows})
    found = [
        f"Means over {' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds ± half of the "
        f"{CONFIDENCE:.0%} Student interval."
        if seeds[-1] > 1
        else "One seed each, which proves nothing."
    ]
    if any(column.best for column in columns):
        found.append("Bold: the best mean.")
    if any(column.level for column in columns):
        found.append("†: not worse by more than chance (t-tests over seeds, Holm's method over all pairs, 5%).")
    return " ".join(found)


# -- for a paper ----------------------------------------------------------------------------------------------


def written(rows: Sequence[Row], aim: Target | None, form: str) -> str:
    """The text of the table in one of `FORMATS`."""
    if form == "csv":
        return _csv(rows)
    told = [column for column in taken(rows, aim) if len(set(column.cells)) > 1 or len(rows) == 1]  # what differs
    columns = [*measured(rows), *told]
    return (_latex if form == "latex" else _markdown)(rows, columns)


_SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "†": r"$^\dagger$", "<": r"$<$", ">": r"$>$", **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip


def tex(text: str) -> str:
    """Text as LaTeX sets it, letter by letter."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def _latex(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    arrows = {True: r" $\downarrow$", False: r" $\uparrow$"}
    heads = [
        tex(column.heading) + (arrows[lower_is_better(column.quantity)] if column.best else "") for column in columns
    ]
    wide = len(columns) > _NARROW
    lines = [
        f"% needs \\usepackage{{booktabs{',graphicx' if wide else ''}}}",
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{tex(about(rows, columns))}}}",
        r"  \label{tab:comparison}",
        *([r"  \resizebox{\linewidth}{!}{%"] if wide else []),
        f"  \\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"    \toprule",
        f"    {' & '.join(['', *heads]).strip()} \\\\",
        r"    \midrule",
    ]
    for place, name in enumerate(names(rows)):
        cells = [_tex_cell(column, place) for column in columns]
        lines.append(f"    {' & '.join([tex(name), *cells])} \\\\")
    end = r"  \end{tabular}" + ("}" if wide else "")
    return "\n".join([*lines, r"    \bottomrule", end, r"\end{table}", ""])


def _tex_cell(column: Column, place: int) -> str:
    text = tex(column.cells[place])
    if place in column.best:
        return f"\\textbf{{{text}}}"
    return text + (r"$^\dagger$" if place in column.level else "")


def _markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    bar = "\\|"  # inside a cell

    def cell(column: Column, place: int) -> str:
        text = column.cells[place]
        return f"**{text}**" if place in column.best else text + (" †" if place in column.level else "")

    table = [["", *(column.heading for column in columns)], ["---", *["---:"] * len(columns)]]
    table += [[name, *(cell(column, place) for column in columns)] for place, name in enumerate(names(rows))]
    lines = [f"| {' | '.join(text.replace('|', bar) for text in line)} |" for line in table]
    return "\n".join([*lines, "", about(rows, columns), ""])


def _csv(rows: Sequence[Row]) -> str:
    """Every quantity in full, a row a setting: mean, half of its 95 % interval, and of how many runs."""
    quantities = list(dict.fromkeys(name for row in rows for name in row.quantities))
    text = io.StringIO()
    file = csv.writer(text, lineterminator="\n")
    heads = [f"{name}{part}" for name in quantities for part in ("", "_half_width", "_runs")]
    file.writerow(["setting", "algorithm", "runs", "seeds", *heads])
    for row in rows:
        cells: list[str] = []
        for name in quantities:
            quantity = row.quantities.get(name, Quantity([]))
            half = quantity.half_width if quantity.known else math.nan
            cells += [*(repr(v) if math.isfinite(v) else "" for v in (quantity.mean, half)), str(len(quantity.known))]
        seeds = " ".join(str(run.seed) for run in row.runs)
        file.writerow([row.label, row.runs[0].algorithm, len(row.runs), seeds, *cells])
    return text.getvalue()
