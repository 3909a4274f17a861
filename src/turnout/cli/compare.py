"""`turnout compare` and `turnout sweep`: runs beside each other, and all combinations of options at once."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.markup import escape

from turnout.cli._command import INTERRUPTED, Json, Source, print_json, remark
from turnout.cli._display import err, out, say, show_answers, show_table
from turnout.core.errors import UserError
from turnout.plan.sweep import Combination, combinations, sweep
from turnout.plan.workers import Failed
from turnout.report import page, read, sentences, tables
from turnout.report import paper as printed
from turnout.report.compare import Row, Target, compare

Targets = Annotated[
    str | None, typer.Option(metavar="MEASURE=VALUE", help="When was it reached? As test_accuracy=0.9, train_loss=0.2.")
]
Paper = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Also write tables, figures, BibTeX and a row a run there.")
]
Report = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report of these runs, a HTML page.")]


def compare_runs(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or one of many.")],
    target: Targets = None,
    report: Report = None,
    paper: Paper = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print the table as LaTeX, for booktabs.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print every quantity of every setting as CSV.")] = False,
    as_json: Json = False,
) -> None:
    """Put runs beside each other; those that differ only in their seed are one row, with 95 % intervals.

    Example: turnout compare runs/digits runs/demo --target test_accuracy=0.9
    """
    wanted = [name for name, one in (("latex", latex), ("markdown", markdown), ("csv", csv), ("json", as_json)) if one]
    if len(wanted) > 1:
        raise UserError(f"--{wanted[0]}: with --{wanted[1]}; a table is printed in one form")
    form = wanted[0] if wanted else ""
    _compare("compare", read.below(folders), _aim(target), Files(report, paper), form)


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
    paper: Paper = None,
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
    if paper is not None:
        printed.check(paper)
    if dry_run:
        _list(source, found, as_json)
        return
    carry_out_all("sweep", source, found, workers, ray, aim, Files(report, paper), as_json)


def carry_out_all(
    command: str,
    source: str,
    found: Sequence[Combination],
    workers: int = 0,
    ray: str | None = None,
    aim: Target | None = None,
    files: Files | None = None,
    as_json: bool = False,
) -> None:
    """Carry out what is not finished, and put all runs beside each other; exit code 1 if one failed."""
    failed = _carry_out(source, found, workers, ray)
    done = [one.folder for one in found if one.folder not in failed]
    failures = [{"run": str(folder), "why": why} for folder, why in failed.items()]
    form, beside = "json" if as_json else "", str(found[0].folder.parent)
    _compare(command, done, aim, files or Files(None, None), form, sweep=beside, failed=failures)
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
        raise typer.Exit(INTERRUPTED) from None
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


class Files(NamedTuple):
    """What else is written."""

    report: Path | None
    paper: Path | None


def _compare(command: str, folders: Sequence[Path], aim: Target | None, files: Files, form: str, **more: Any) -> None:
    """Print the runs in these folders beside each other, in a form of tables, or as JSON with `more`; write files."""
    runs = [read.recorded(folder, command) for folder in folders]
    remark(sentence for run in runs for sentence in run.remarks)
    rows = compare(runs, aim)
    if files.report is not None and runs:
        page.write(runs, files.report)
    if files.paper is not None and runs:
        written = printed.write(runs, rows, aim, files.paper)
        say(f"Written to {files.paper}: {', '.join(path.name for path in written)}", err)
    told = sentences.of_rows(rows, aim)
    if form in tables.FORMATS:
        sys.stdout.write(tables.written(rows, aim, form))
    elif form:
        print_json({**more, "answers": told, "target": aim and vars(aim), "rows": [row.as_dict() for row in rows]})
    elif runs:
        show_answers(told)
        show_comparison(rows, aim)


# -- the tables -----------------------------------------------------------------------------------------------


def show_comparison(rows: Sequence[Row], aim: Target | None) -> None:
    """Two tables of columns in which some run has something to say: where the runs ended, and what they took."""
    measured = tables.measured(rows)
    for title, columns in (("Where the runs ended", measured), ("What they took", tables.taken(rows, aim))):
        lines = [
            (escape(name), *(_marked(column, place) for column in columns))
            for place, name in enumerate(tables.names(rows))
        ]
        if columns:
            show_table(lines, ("run", *(column.heading for column in columns)), title)
    seeds = sorted({len(row.runs) for row in rows})
    if seeds[-1] > 1:
        out.print(f"Means over {' to '.join(map(str, seeds))} seeds ± half of the 95 % Student interval.", style="dim")
    if any(column.best for column in measured):
        out.print("* the best mean of a column", style="dim")


def _marked(column: tables.Column, place: int) -> str:
    return f"[bold]{column.cells[place]} *[/bold]" if place in column.best else column.cells[place]
