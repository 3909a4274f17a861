"""`turnout figure` and `turnout cite`: what a paper takes from runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from turnout.cli._command import remark
from turnout.cli._display import say
from turnout.core.files import write_text
from turnout.record.views import Over
from turnout.report import cite as citing
from turnout.report import figures, read
from turnout.report.read import Recorded


def figure(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or one of many, such as runs/digits-sweep.")
    ],
    kind: Annotated[str, typer.Option(help="curves, bars, fairness; of one run: timeline, topology.")] = "curves",
    path: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="A .pdf, .svg or .png; default: KIND.pdf here.")
    ] = None,
    measure: Annotated[str | None, typer.Option(help="A column of the rounds; default: the most telling.")] = None,
    over: Annotated[str, typer.Option(help="The horizontal axis of curves: time or rounds.")] = "time",
    width: Annotated[str, typer.Option(help="column (3.4 inches) or page (7).")] = "column",
) -> None:
    """Draw a figure for a paper, and print its caption.

    Example: turnout figure runs/one runs/two --kind bars --out bars.pdf
    """
    runs = _read(folders, "figure")
    path = path or Path(f"{kind}.pdf")
    about = figures.write(runs, path, kind, measure=measure, over=cast(Over, over), width=width)
    say(f"{about}\nWritten: {path}")


def cite(
    given: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Folders of runs; or names, such as fedprox clustered_size.")
    ],
    path: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it there instead.")] = None,
) -> None:
    """Print BibTeX of the methods that runs have used.

    Example: turnout cite runs/digits
    """
    folders = [Path(one) for one in given if Path(one).is_dir()]
    used = citing.of_runs(_read(folders, "cite")) + citing.of_names([one for one in given if not Path(one).is_dir()])
    text = citing.bibtex(list(dict.fromkeys(used)))
    if path is None:
        say(text.rstrip())
    else:
        write_text(path, text)
        say(f"Written: {path}")


def _read(folders: list[Path], command: str) -> list[Recorded]:
    runs = [read.recorded(folder, command) for folder in read.below(folders)]
    remark(sentence for run in runs for sentence in run.remarks)
    return runs
