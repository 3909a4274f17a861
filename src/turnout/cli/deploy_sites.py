"""`turnout deploy enrol | check` at a site, `turnout deploy admit | status` at the server: data that never meet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli._command import Json, print_json, remark
from turnout.cli._display import say
from turnout.config import config
from turnout.core.errors import UserError

SiteFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder, made by deploy init --schema.")]
StudyFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The server's folder.")]


def prepare(folder: Path, settings: config.Settings, schema: Path, sites: list[str], hosts: list[str]) -> None:
    """Make a study's folders from a configuration without data and a schema."""
    from turnout.data.schema import Schema
    from turnout.deploy import study

    for section in ("data", "partition"):
        if settings.get(section):
            raise UserError(f"{section}: sites have tables of their own, which the schema describes; leave it out")
    if settings.get("deploy", {}).get("evaluate") == "server":
        raise UserError("deploy.evaluate: server, but no row reaches it; leave it out: the sites evaluate")
    kept = {name: options for name, options in settings.items() if name in config.SECTIONS}
    known = study.people(Schema.read(schema), [1] * max(1, len(sites)))
    built, _, _ = config.build(json.loads(json.dumps(kept)), known=known)  # what is wrong with it is wrong now
    study.check_measures(built.task.sets.names)
    study.prepare(folder, schema, config.as_toml(kept), sites, hosts)


def enrol(
    folder: SiteFolder,
    data: Annotated[Path, typer.Option(metavar="TABLE", help="The site's own table, CSV or Parquet.")],
    separator: Annotated[str, typer.Option(help="Between the cells of a CSV file.")] = ",",
    decimal: Annotated[str, typer.Option(help="Sign before the decimals in a CSV file: . or ,")] = ".",
) -> None:
    """Make a site's keys, check its table against the schema, and write the enrolment to send to the server.

    Example: turnout deploy enrol wards/sites/berlin --data wards.csv
    """
    from turnout.deploy import keys
    from turnout.deploy.enrol import enrol as enrolled
    from turnout.deploy.rows import MisfitError

    if decimal not in (".", ","):
        raise UserError(f"--decimal: {decimal!r}; allowed: . or ,")
    try:
        written, rows, key = enrolled(folder, data, separator, decimal)
    except MisfitError as error:
        remark(error.misfits[1:])
        raise
    counts = rows.counts
    say(
        f"{data.name} fits: {counts['samples']} rows to train, {counts['validation']} to validate, {counts['test']} to "
        f"test.\nSend {written} to the server; it holds these counts and the public key {keys.fingerprint(key)}. "
        f"Nothing else in {folder} is to be sent."
    )


def admit(
    folder: StudyFolder,
    enrolment: Annotated[Path, typer.Argument(metavar="ENROLMENT", help="What the site has sent.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Let a site take part: check its enrolment and write it into clients.toml.

    Example: turnout deploy admit wards/server enrolment-berlin.json
    """
    from turnout.deploy import keys, study

    found = study.enrolment_of(folder, enrolment)
    told = f"{found.name}: {found.samples} rows to train, key {keys.fingerprint(found.key)}"
    if not yes and not typer.confirm(f"{told}. Is that the site's key, as it told you itself?"):
        raise typer.Exit(1)
    study.admit(folder, found)
    say(f"Admitted {told}")


def check(folder: SiteFolder, as_json: Json = False) -> None:
    """Try everything at a site without a network: table, policy, one step on its own rows, and what would be sent.

    Example: turnout deploy check wards/sites/berlin
    """
    from turnout.deploy.enrol import try_out

    found = try_out(folder)
    refusal = None if found.refusal is None else {"code": found.refusal.code, "why": found.refusal.why}
    document: dict[str, Any] = {
        "study": found.schema.name,
        "rows": found.rows.counts,
        "would_refuse": refusal,
        "agreed": found.agreed,
        "statistics": json.loads(found.statistics) if found.policy.statistics else None,
        "measures": _allowed(found.measures, found.policy.measures),
        "update_bytes": found.update,
        "loss_after_a_step": found.loss,
        "digests": found.digests,
    }
    if as_json:
        print_json(document)
    else:
        _show(document)
    if refusal is not None:
        raise typer.Exit(1)


def _allowed(measures: list[str], allowed: Sequence[str]) -> list[str]:
    """Nothing is told where one of them may not be: the evaluation is refused."""
    return measures if "*" in allowed or {*measures} <= {*allowed} else []


def _show(document: dict[str, Any]) -> None:
    rows = ", ".join(f"{count} {part}" for part, count in document["rows"].items())
    say(f"Table: fits {document['study']}: {rows}")
    refusal = document["would_refuse"]
    say("Policy: read; nothing of this moment is refused" if refusal is None else f"Policy: refuses, {refusal['why']}")
    whose = "the preprocessing that all agreed on" if document["agreed"] else "a preprocessing of its own rows alone"
    say(f"One step with {whose}: loss {document['loss_after_a_step']:.4g}")
    say("What would be sent, and nothing else:")
    if document["statistics"] is None:
        say("  to agree: nothing, as statistics is false")
    else:
        say(f"  once, to agree: {json.dumps(document['statistics'])}")
    say(f"  each job: an update of {document['update_bytes']} bytes, its counts and seconds")
    say(f"  each evaluation: sums of {', '.join(document['measures']) or 'nothing'}, and how many rows")
    for option, digest in document["digests"].items():
        say(f"To pin it in policy.toml: {option} = [{digest!r}]")


def check_admitted(folder: Path) -> None:
    """Raise where a study has no site yet."""
    from turnout.deploy import study

    if study.is_study(folder) and not study.admitted(folder):
        raise UserError(f"deploy: no site is admitted yet; turnout deploy admit {folder} ENROLMENT")


def status(folder: StudyFolder, as_json: Json = False) -> None:
    """Show a study's sites: who is admitted, who is in the preprocessing, what was refused and why.

    Example: turnout deploy status wards/server
    """
    from turnout.deploy import study

    rows = study.status(folder)
    if as_json:
        print_json({"sites": rows})
        return
    for row in rows:
        say(f"{row['site']}: {row['state']}" + "".join(f"; {word}" for word in row["said"]))
