"""`turnout compare` and `turnout sweep`: runs beside each other, and all combinations of options at once."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.cli._command import Json, Source, print_json, remark
from turnout.cli._display import err, out, say, show_answers, show_table
from turnout.core.errors import UserError
from turnout.core.statistics import WORST_PERCENTILE
from turnout.plan.sweep import Combination, combinations, sweep
from turnout.plan.workers import Failed
from turnout.record.progress import duration
from turnout.record.views import splits
from turnout.report import page, read, sentences
from turnout.report.blocks import megabytes, number
from turnout.report.compare import Quantity, Row, Target, best, compare

Targets = Annotated[
    str | None, typer.Option(metavar="MEASURE=VALUE", help="When was it reached? As test_accuracy=0.9, train_loss=0.2.")
]
Report = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report of these runs, a HTML page.")]


def compare_runs(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, such as runs/digits.")],
    target: Targets = None,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Put runs beside each other; those that differ only in their seed are one row, with 95 % intervals.

    Example: turnout compare runs/digits runs/demo --target test_accuracy=0.9
    """
    _compare("compare", folders, _aim(target), report, as_json)


def sweep_options(
    source: Source,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPTION=VALUES]...", help="seed=0..4, algorithm=fedavg,fedfix, local.lr=0.1,0.3, ..."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that share the runs; 0: as many as there are cores.")] = 0,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="On a Ray cluster: auto, host:port, or local for one of this machine."),
    ] = None,
    target: Targets = None,
    report: Report = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs, and how far each is.")] = False,
    as_json: Json = False,
) -> None:
    """Run every combination of these values; the same command again goes on where it stopped.

    Example: turnout sweep digits algorithm=fedavg,fedfix seed=0..4 run.rounds=20 --target test_accuracy=0.8
    """
    aim = _aim(target)
    if workers < 0:
        raise UserError(f"--workers: {workers} must be at least 1, or 0 for as many as there are cores")
    found = combinations(source, words or [], aim)
    if report is not None and len(found) > page.MOST:
        raise UserError(f"--report: {len(found)} runs; a page shows at most {page.MOST}")
    if dry_run:
        _list(source, found, as_json)
        return
    failed = _carry_out(source, found, workers, ray)
    done = [one.folder for one in found if one.folder not in failed]
    failures = [{"run": str(folder), "why": why} for folder, why in failed.items()]
    _compare("sweep", done, aim, report, as_json, sweep=str(found[0].folder.parent), failed=failures)
    if failed:
        raise typer.Exit(1)


def _carry_out(source: str, found: Sequence[Combination], workers: int, ray: str | None) -> dict[Path, str]:
    """Run what is not finished; which combinations failed, and why."""
    failed, done = {}, sum(one.state == "finished" for one in found)
    if done:
        say(f"{done} of {len(found)} are finished already", err)
    try:
        for one, answer in sweep(source, found, workers, ray):
            done += 1
            say(
                f"{done} of {len(found)}: {one.folder.name} ({answer.why if isinstance(answer, Failed) else answer})",
                err,
            )
            if isinstance(answer, Failed):
                failed[one.folder] = answer.why
    except KeyboardInterrupt:
        say(f"interrupted with {done} of {len(found)} done; the same command goes on", err)
        raise typer.Exit(130) from None
    return failed


def _list(source: str, found: Sequence[Combination], as_json: bool) -> None:
    commands = [shlex.join(["turnout", "run", source, *one.overrides]) for one in found]
    if as_json:
        listed = zip(found, commands, strict=True)
        print_json([{"run": str(one.folder), "state": one.state, "command": command} for one, command in listed])
        return
    show_table([(escape(str(one.folder)), one.state) for one in found], ("run", "state"))


def _aim(target: str | None) -> Target | None:
    return None if target is None else Target.parse(target)


def _compare(
    command: str, folders: Sequence[Path], aim: Target | None, report: Path | None, as_json: bool, **more: Any
) -> None:
    """Print the runs in these folders beside each other, or as JSON with `more`; and write their report."""
    runs = [read.recorded(folder, command) for folder in folders]
    remark(sentence for run in runs for sentence in run.remarks)
    rows = compare(runs, aim)
    if report is not None and runs:
        page.write(runs, report)
    told = sentences.of_rows(rows, aim)
    if as_json:
        print_json({**more, "answers": told, "target": aim and vars(aim), "rows": [row.as_dict() for row in rows]})
    elif runs:
        show_answers(told)
        show_comparison(rows, aim)


# -- the tables -----------------------------------------------------------------------------------------------


def show_comparison(rows: Sequence[Row], aim: Target | None) -> None:
    """Two tables of columns in which some run has something to say: where the runs ended, and what they took."""
    measured = _measured(rows)
    for title, columns in (("Where the runs ended", measured), ("What they took", _taken(rows, aim))):
        names = [escape(row.label if row.finished else f"{row.label} (unfinished)") for row in rows]
        cells = [[_cell(column, row.quantities.get(column)) for column in columns] for row in rows]
        for place, column in enumerate(columns if columns is measured else ()):
            for row in best(rows, column):
                cells[row][place] = f"[bold]{cells[row][place]} *[/bold]"
        if columns:
            show_table(
                [(name, *row) for name, row in zip(names, cells, strict=True)], ("run", *columns.values()), title
            )
    seeds = sorted({len(row.runs) for row in rows})
    if seeds[-1] > 1:
        out.print(f"Means over {' to '.join(map(str, seeds))} seeds ± half of the 95 % Student interval.", style="dim")
    if any(best(rows, column) for column in measured):
        out.print("* the best mean of a column", style="dim")


def _measured(rows: Sequence[Row]) -> dict[str, str]:
    """Measures on the most telling samples, and their headings."""
    split, names = next(iter(splits(rows[0].runs[0].rounds()).items()), ("", []))
    headings = {f"{split}_{name}": f"{split} {name}".replace("_", " ") for name in names}
    for name in (name for name in names if name != "loss"):
        headings[f"{split}_{name}_worst_decile"] = f"{headings[f'{split}_{name}']}, {WORST_PERCENTILE}"
    return _known(rows, headings)


def _taken(rows: Sequence[Row], aim: Target | None) -> dict[str, str]:
    reached = {f"{name}_to_target": f"{word} to {aim}" for name, word in (("seconds", "time"), ("rounds", "rounds"))}
    headings = {"rounds": "rounds", "virtual_seconds": "virtual time", "bytes": "traffic"}
    return (reached if aim else {}) | _known(
        rows, headings | {"energy_wh": "energy (Wh)", "never_heard": "never heard"}
    )


def _known(rows: Sequence[Row], headings: dict[str, str]) -> dict[str, str]:
    known = {name for row in rows for name, quantity in row.quantities.items() if quantity.known}
    return {name: heading for name, heading in headings.items() if name in known}


def _cell(name: str, quantity: Quantity | None) -> str:
    if quantity is None:
        return number(None)
    known, runs = len(quantity.known), len(quantity.values)
    if known < runs:
        return f"in {known} of {runs} runs"
    units = {"virtual_seconds": duration, "seconds_to_target": duration, "bytes": megabytes}
    show, half = units.get(name, number), quantity.half_width
    return show(quantity.mean) + (f" ± {show(float(f'{half:.2g}'))}" if 0 < half < math.inf else "")
