"""`turnout unlearn`: forget clients of a run, with a certificate."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.cli._command import Json, print_json, remark
from turnout.cli._display import err, out, say, show_table
from turnout.cli.report import leave_report
from turnout.config import config
from turnout.core.errors import UserError
from turnout.core.names import number_of
from turnout.record.branch import stored_bytes
from turnout.record.progress import ProgressBar, duration
from turnout.record.run_folder import READ, check_is_run, examine, locked
from turnout.trust import request
from turnout.trust.forget import Branches, Rollback
from turnout.trust.request import cost, stopping_of

_FACTORS = (0.2, 0.5, 1.0, 2.0, 5.0)  # of sigma, for the outlook of a dry run


def unlearn(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="The folder of a run; of one with unlearning.track=true, or --from-scratch."
        ),
    ],
    client: Annotated[list[str], typer.Option(metavar="NAME", help="Whom to forget, by name or number; repeatable.")],
    epsilon: Annotated[
        float | None, typer.Option(help="Of the promise; default: the run's unlearning.epsilon.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Of the promise; default: the run's unlearning.delta.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Of the noise; default: the run's unlearning.sigma.")] = None,
    noise_seed: Annotated[
        int | None, typer.Option(help="Repeatable noise, for tests: the certificate then says that it is not private.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Retrain for so many rounds at most; default: run.rounds.")] = None,
    target: Annotated[
        float | None, typer.Option(help="Stop retraining when run.measure has reached this; default: run.target.")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Retrain from the initial model: exact, for any run.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done, and its cost.")] = False,
    as_json: Json = False,
) -> None:
    """Forget clients: roll back, add noise once, retrain with the others, write a certificate and an audit log.

    Run it again after a crash to go on. Clients that never took part need neither noise nor retraining.

    Example: turnout unlearn runs/digits --client 3 --epsilon 10 --delta 0.01 --dry-run
    """
    with locked(folder):
        check_is_run("unlearn", folder)
        tracked = () if from_scratch else ("sensitivity", "model.safetensors")
        remark(examine("unlearn", folder, (*READ, *tracked, "unlearning")))
        given = {"epsilon": epsilon, "delta": delta, "sigma": sigma}
        for name, value in {**given, "noise-seed": noise_seed}.items():
            if from_scratch and value is not None:
                raise UserError(
                    f"--{name}: {value} with --from-scratch, which is exact and adds no noise; leave it out"
                )
        experiment, settings, _ = config.build(config.read_run(folder))
        if experiment.unlearning is not None:
            changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
            experiment.unlearning = replace(experiment.unlearning, **changed)
        run = request.Run(folder, experiment, from_scratch)
        people = experiment.population
        whom = [number_of("--client", people.names, people.size, name) for name in client]
        stopping = stopping_of(run, rounds, target)
        if dry_run:
            plan = request.plan(run, whom)
            _dry_run(run, plan, cost(run, plan, stopping or experiment.stopping), as_json)
            return
        with ProgressBar(err) if err.is_terminal else nullcontext() as bar:
            certificate = request.unlearn(
                run,
                whom,
                noise_seed=noise_seed,
                stopping=stopping,
                checkpoint_every=settings.checkpoint_every,
                observers=[bar] if bar else [],
            )
        if settings.report:
            leave_report(folder)
        path = folder / "unlearning" / f"certificate{certificate['request']}.json"
        if as_json:
            print_json({"run": str(folder), "certificate": str(path), **certificate})
            return
        say(certificate["statement"])
        found = certificate["assumptions"]
        show_table([(one["state"], escape(one["sentence"]), escape(one["why"])) for one in found])
        say(f"Written: {path}, {path.with_suffix('.html')}\nLast hash of the log: {run.log.head}")


def _dry_run(run: request.Run, plan: Rollback, price: dict[str, Any], as_json: bool) -> None:
    branches = run.branches
    last = len(branches.tables[-1])
    cut = None if plan.absent else plan.cut
    kept = {name: stored_bytes(name, run.experiment.task.size, last, branches.clients, every=run.settings.every)
            for name in ("all", "thinned", "frugal")}  # fmt: skip
    fixed = branches.requests or plan.absent or run.from_scratch
    outlook = [] if fixed else [_with_noise(branches, plan, factor) for factor in _FACTORS]
    document = {
        "run": str(run.folder),
        "request": plan.request,
        "clients": plan.clients,
        "rollback": cut,
        "lineage": plan.lineage,
        "rounds_kept": cut.round if cut is not None and cut.branch == 0 else None,
        "rounds": last,
        "cost": price,
        "noised": plan.noised,
        "threshold": run.settings.threshold,
        "guarantee": asdict(plan.guarantee),
        "files_destroyed": 0 if plan.absent else len(list(run.dead(plan.lineage))),
        "stored_bytes": kept,
        "outlook": outlook,
    }
    if as_json:
        print_json(document)
        return
    out.print(_sentences(run, plan, price, last), highlight=False, soft_wrap=True)
    rows = [(f"{row['sigma']:g}", str(row["round"]), f"{row['epsilon']:.4g}") for row in outlook]
    if rows:
        show_table(rows, ("sigma", "rollback to round", "epsilon"))


def _sentences(run: request.Run, plan: Rollback, price: dict[str, Any], last: int) -> str:
    if plan.absent:
        return f"Request {plan.request} would change nothing: these clients never took part."
    branch, number = plan.cut
    until = "" if price["target"] is None else f", or until {run.experiment.stopping.measure} is {price['target']:g}"
    return (
        f"Request {plan.request} would roll back to round {number} of branch {branch} ({last} rounds in the last one), "
        f"and promise epsilon = {plan.guarantee.epsilon:.4g} at delta = {run.settings.delta:g}.\n"
        f"Its retraining would take {price['rounds']:.0f} rounds at most{until}: "
        f"{duration(price['virtual_seconds'])} of virtual time, {price['bytes_down'] / 1e6:.4g} MB down and "
        f"{price['bytes_up'] / 1e6:.4g} MB up."
    )


def _with_noise(branches: Branches, plan: Rollback, factor: float) -> dict[str, Any]:
    sigma = factor * branches.settings.sigma
    other = replace(branches, settings=replace(branches.settings, sigma=sigma)).plan(plan.clients)
    return {"sigma": sigma, "round": other.cut.round, "epsilon": other.guarantee.epsilon}
