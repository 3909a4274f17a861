"""All that a paper takes from some runs, in one folder: tables, figures, every run as a row, and what to cite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turnout.core.errors import UserError
from turnout.core.files import write_text
from turnout.report import cite, figures, frame, tables
from turnout.report.compare import Row, Target
from turnout.report.read import Recorded
from turnout.report.sentences import judged_by, of_rows

_TABLES = {"table.tex": "latex", "table.md": "markdown", "table.csv": "csv"}
_FIGURES = ("curves", "bars", "fairness")


def check(folder: Path) -> None:
    """Raise, before anything is run, where nothing could be written."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--paper: {folder} is a file; name a folder")
    figures.matplotlib()


def write(runs: Sequence[Recorded], rows: Sequence[Row], aim: Target | None, folder: Path) -> list[Path]:
    """Write it; the files."""
    check(folder)
    texts = {name: tables.written(rows, aim, form) for name, form in _TABLES.items()}
    texts["runs.csv"] = frame.as_csv(frame.tidy(runs, "runs", aim))
    texts["answers.txt"] = "\n".join(of_rows(rows, aim)) + "\n"
    if all(run.config for run in runs):
        texts["references.bib"] = cite.bibtex(cite.of_runs(runs))
    for name, text in texts.items():
        write_text(folder / name, text)
    captions = {}
    for kind in _drawn(rows, aim):
        measure = judged_by(rows, aim) if kind != "fairness" else None
        captions[f"{kind}.pdf"] = figures.write(runs, folder / f"{kind}.pdf", kind, measure=measure)
    write_text(folder / "figures.tex", "\n".join(_included(name, about) for name, about in captions.items()))
    return [folder / name for name in (*texts, *captions, "figures.tex")]


def _drawn(rows: Sequence[Row], aim: Target | None) -> Sequence[str]:
    """The figures that these runs have something for."""
    found = _FIGURES[:2] if judged_by(rows, aim) else ()
    return [*found, *(_FIGURES[2:] if all(any(run.finished for run in row.runs) for row in rows) else ())]


def _included(name: str, about: str) -> str:
    kind = name.partition(".")[0]
    return "\n".join(
        [
            r"\begin{figure}",
            r"  \centering",
            f"  \\includegraphics{{{name}}}",
            f"  \\caption{{{tables.tex(about)}}}",
            f"  \\label{{fig:{kind}}}",
            r"\end{figure}",
            "",
        ]
    )
