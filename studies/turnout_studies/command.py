"""`turnout study`: published conclusions, tried here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import turnout_studies as studies
from turnout.cli._command import Json, print_json, sentences
from turnout.cli._display import err, out
from turnout.core.errors import UserError
from turnout.core.statistics import without_round_off
from turnout_studies.study import FAILS, Judgement, Results

app = typer.Typer(
    help="Published conclusions, tried here: setting, claim, measured, verdict.\n\nExample: turnout study list",
    no_args_is_help=True,
)
StudyName = Annotated[str, typer.Argument(metavar="NAME", help="A name that `turnout study list` prints.")]


@app.command("list")
def list_studies(as_json: Json = False) -> None:
    """List the studies.

    Example: turnout study list
    """
    found = {name: studies.find(name) for name in studies.names()}
    if as_json:
        print_json(
            {
                name: {"title": study.title, "source": study.source, "claims": [claim.name for claim in study.claims]}
                for name, study in found.items()
            }
        )
        return
    table = Table("study", "", "claims", box=None)
    for name, study in found.items():
        table.add_row(f"[bold]{name}[/bold]", escape(study.title), str(len(study.claims)))
    out.print(table)


@app.command("show")
def show_study(
    name: StudyName,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Judge the results that a run left there again.")
    ] = None,
) -> None:
    """Explain a study without running it: setting, sizes, claims; or show the results of an earlier run.

    Example: turnout study show asynchronous_bias
    """
    with sentences():
        study = studies.find(name)
        if folder is not None:
            results = study.read(folder)
            show_judgements(study, results, study.judge(results))
            return
        sizes = f"Sizes: {', '.join(study.sizes)}; small has {study.small_data}"
        for text in (study.title, study.source, f"{study.setting}\n\n{sizes}"):
            out.print(f"{text}\n", highlight=False, markup=False, soft_wrap=True)
        table = Table("claim", "published", "measured a seed", "holds if the interval is", show_lines=True)
        for claim in study.claims:
            table.add_row(*map(escape, (claim.name, f"{claim.sentence} ({claim.source})", claim.measured, claim.rule)))
        out.print(table)


Size = Annotated[str, typer.Option(help="small (seconds, stand-in data, no verdicts) or default.")]
Seeds = Annotated[int, typer.Option(help="Fewer than five decide nothing.")]
DataFolder = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where the data lies; else the folder TURNOUT_DATA.")
]
Device = Annotated[str, typer.Option(help="cpu, or cuda.")]
Workers = Annotated[int, typer.Option(help="Processes that share the trials.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 3 if a claim does not hold; needs size default.")]


@app.command("run")
def run_study(
    name: StudyName,
    size: Size = "default",
    seeds: Seeds = 5,
    data: DataFolder = None,
    device: Device = "cpu",
    workers: Workers = 1,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="For trials and results; finished ones are reused.")
    ] = None,
    as_json: Json = False,
    strict: Strict = False,
) -> None:
    """Run a study and judge its claims; run it again to go on where it stopped.

    Example: turnout study run asynchronous_bias --size small
    """
    with sentences():
        _check_strict(strict, [name], size)
        document, failed = _study(name, size, seeds, data, device, workers, folder, as_json)
    if as_json:
        print_json(document)
    if strict and failed:
        raise typer.Exit(3)


@app.command("all")
def run_studies(
    size: Size = "default",
    seeds: Seeds = 5,
    data: DataFolder = None,
    device: Device = "cpu",
    workers: Workers = 1,
    folder: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="With a folder for each study.")] = Path(
        "runs"
    ),
    as_json: Json = False,
    strict: Strict = False,
) -> None:
    """Run every study, one after the other, and judge its claims.

    Example: turnout study all --size small
    """
    found = []
    with sentences():
        _check_strict(strict, studies.names(), size)
        for name in studies.names():
            found.append(_study(name, size, seeds, data, device, workers, folder / f"{name}-{size}", as_json))
    if as_json:
        print_json([document for document, _ in found])
    if strict and any(failed for _, failed in found):
        raise typer.Exit(3)


def _check_strict(strict: bool, chosen: list[str], size: str) -> None:
    for name in chosen if strict else ():
        study = studies.find(name)
        why = study.not_judged(size) if size in study.sizes else None
        if why is not None:
            raise UserError(f"--strict: {study.name} has no verdicts to be strict about: {why}")


def _study(
    name: str,
    size: str,
    seeds: int,
    data: Path | None,
    device: str,
    workers: int,
    folder: Path | None,
    as_json: bool,
) -> tuple[dict[str, Any], bool]:
    """Run one, and show it unless it goes into a document; whether a claim does not hold."""
    study = studies.find(name)
    folder = folder or Path("runs") / f"{name}-{size}"

    def say(line: str) -> None:
        err.print(line, highlight=False, markup=False, soft_wrap=True)

    results = study.run(size, range(seeds), folder, data=data, device=device, workers=workers, say=say)
    judgements = study.judge(results)
    if not as_json:
        show_judgements(study, results, judgements)
    about: dict[str, Any] = {
        "study": name,
        "size": size,
        "seeds": results.seeds,
        "folder": str(folder),
        "tuned": results.tuned,
    }
    about["not_judged"] = study.not_judged(size)
    document = {**about, "claims": [judgement.as_dict() for judgement in judgements]}
    return document, any(judgement.verdict == FAILS for judgement in judgements)


def show_judgements(study: studies.Study, results: Results, judgements: list[Judgement]) -> None:
    out.print(f"\n[bold]{study.name}[/bold], size {results.size}, {len(results.seeds)} seeds", highlight=False)
    if results.tuned:
        rates = ", ".join(f"{name} {rate:g}" for name, rate in results.tuned.items())
        out.print(f"learning rates: {rates}", highlight=False, soft_wrap=True)
    not_judged = study.not_judged(results.size)
    if not_judged is not None:
        out.print(f"Not judged: {not_judged}.", highlight=False, markup=False, soft_wrap=True)
    table = Table("claim", "mean, 95 %", *(["rule", "verdict"] if not_judged is None else []))
    for judgement in judgements:
        mean, half = (without_round_off(value) for value in (judgement.mean, judgement.half_width))
        measured = f"{mean:.4g} +- {half:.2g}"
        ruled = [judgement.claim.rule, judgement.verdict] if not_judged is None else []
        table.add_row(escape(judgement.claim.name), measured, *ruled)
    out.print(table)
