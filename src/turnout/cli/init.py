"""`turnout init`: look at somebody's data, ask what a person would ask, and write a configuration that trains."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from turnout.cli._command import Json, print_json
from turnout.cli._display import say, show_table
from turnout.config import config
from turnout.config.draft import Answers, Draft, draft, measures, target_of
from turnout.config.look import Column, Look, look
from turnout.core.errors import UserError
from turnout.core.files import write_text


def init(
    source: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A .csv or .parquet table, a folder of them or of images, or a .py file."),
    ],
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What is predicted; of a .py file: the function with the data.")
    ] = None,
    clients: Annotated[
        str | None, typer.Option(metavar="COLUMN|NUMBER", help="Whose a row is; or deal the rows to so many.")
    ] = None,
    measure: Annotated[
        str | None, typer.Option(metavar="NAME", help="Measured beside the loss: turnout list metrics.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where it is written; default: NAME.toml here.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: take the guesses.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented configuration for a table, a folder or Python code, after a look at it.

    Example: turnout init patients.csv --target outcome --clients hospital --yes
    """
    found, answers = look(source), Answers(target, clients, measure)
    if found.columns and not as_json:
        _show(found)
    asking = not (yes or as_json) and on_terminal()
    if asking:
        answers = _ask(found, answers)
    made = draft(found, answers)
    path = to or Path(f"{made.settings['run']['name']}.toml")
    if os.path.exists(path) and not overwrite and not (asking and typer.confirm(f"{path} exists; replace it?")):
        raise UserError(f"--to: {path} exists; give another file, or --overwrite")
    if not path.parent.is_dir():
        raise UserError(f"--to: there is no folder {path.parent} to write {path.name} into")
    _check(made)
    text = made.text().replace("turnout run THIS FILE", shlex.join(["turnout", "run", str(path)]))
    write_text(path, text)
    if as_json:
        print_json({"config": str(path), "settings": made.settings, "remarks": dict(made.remarks)})
        return
    for option in (
        "data.target",
        "data.client",
        "data.function",
        "data.task",
        "data.drop",
        "data.inputs",
        "data.missing",
    ):
        if remark := made.remarks.get(option):
            section, name = option.split(".")
            value = made.settings[section][name]
            say(f"{option}: {remark}" if isinstance(value, list) else f"{option} = {value}: {remark}")
    say(f"{path} is written; next: {shlex.join(['turnout', 'run', str(path)])}")


def on_terminal() -> bool:
    """Whether there is a person to ask."""
    return sys.stdin.isatty()


def _check(made: Draft) -> None:
    """Raise where it would not train: what was guessed of the first look is made as a run makes it."""
    try:
        config.build(made.settings)
    except UserError as error:
        raise UserError(f"init: nothing is written, since this would not train: {error}") from error


def _show(found: Look) -> None:
    """Print what the columns seem to be."""
    rows = [
        (escape(column.name), column.kind, str(column.distinct), str(column.missing), "names the rows" * column.is_id)
        for column in found.columns
    ]
    show_table(rows, ("column", "holds", "different", "missing", ""))


def _ask(found: Look, answers: Answers) -> Answers:
    """Ask for what was not given, and ask again where an answer does not fit."""
    if found.columns and answers.target is None:
        answers = replace(
            answers, target=_answer("What is predicted", found.target(answers.clients).name, found, answers, "target")
        )
    if found.columns and not found.per_file and answers.clients is None:
        guess: Column | None = found.client
        default = "10" if guess is None or guess.name == answers.target else guess.name
        question = "Which column says whose a row is (or: to how many clients are they dealt)"
        answers = replace(answers, clients=_answer(question, default, found, answers, "clients"))
    fitting = measures(target_of(found, answers))
    if answers.measure is None and len(fitting) > 1:
        answers = replace(answers, measure=_answer("What is measured", fitting[0], found, answers, "measure"))
    return answers


def _answer(question: str, default: str, found: Look, answers: Answers, part: str) -> str:
    """Prompt until a draft can be made with the answer."""

    def fits(text: str) -> str:
        try:
            draft(found, replace(answers, **{part: text}))
        except UserError as error:
            raise typer.BadParameter(str(error)) from error
        return text

    return str(typer.prompt(question, default=default, value_proc=fits))
