"""Typing `turnout ...` into an empty folder and reading what comes back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from turnout import data as datasets
from turnout.cli.commands import app

QUICK = ("run.rounds=3", "engine.threads=1")
OWN = """
[run]
rounds = 2
[clients]
count = 4
[model]
name = "linear"
[local]
lr = 0.1
[algorithm]
name = "fedavg"
[sampler]
name = "full"
[engine]
threads = 1
"""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one document on standard output, strictly."""

        def no_constant(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        return json.loads(self.out, parse_constant=no_constant)


@dataclass
class Terminal:
    here: Path

    def __call__(self, *words: str) -> Answer:
        """The answer, whatever the exit code; an exception that is not a sentence is a failure."""
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    def done(self, *words: str) -> Answer:
        answer = self(*words)
        assert answer.code == 0, answer.err
        return answer

    def refused(self, *words: str) -> str:
        """Exit code 2, nothing on standard output, and exactly one sentence on standard error."""
        answer = self(*words)
        assert answer.code == 2
        assert answer.out == ""
        lines = answer.err.splitlines()
        assert len(lines) == 1, answer.err
        assert lines[0].startswith("turnout: ")
        return lines[0].removeprefix("turnout: ")

    def run(self, name: str, *overrides: str) -> Path:
        """A quick run of the built-in configuration; its folder."""
        self.done("run", "digits", *QUICK, f"run.name={name}", *overrides)
        return self.here / "runs" / name

    @property
    def runs(self) -> list[str]:
        """Every file and folder of every run."""
        return sorted(str(path.relative_to(self.here)) for path in (self.here / "runs").rglob("*"))

    def write(self, name: str, text: str) -> str:
        (self.here / name).write_text(text, encoding="utf-8")
        return name

    def own(self) -> str:
        """A configuration that lacks only its data."""
        return self.write("own.toml", OWN)


def table(rows: int = 40, broken: int | None = None) -> str:
    """A CSV table whose class is the sign of its first column; one cell may be broken."""
    x = np.random.default_rng(0).normal(size=(rows, 3)).round(3)
    cells = [[*map(str, row), str(int(row[0] > 0))] for row in x.tolist()]
    if broken is not None:
        cells[broken][1] = "nan"
    return "\n".join(",".join(row) for row in [["a", "b", "c", "y"], *cells]) + "\n"


def bits(folder: Path) -> dict[str, Any]:
    """What must be the same in two runs that are the same: the model's bytes and every row of the record."""
    import pyarrow.parquet as pq

    record = {part: pq.read_table(folder / part).to_pydict() for part in ("history", "jobs")}
    return {"model": (folder / "model.safetensors").read_bytes(), **{p: repr(rows) for p, rows in record.items()}}


def digits_inputs() -> Any:
    return datasets.load("digits").inputs


def names(listing: dict[str, dict[str, str]]) -> Sequence[tuple[str, str]]:
    return [(kind, name) for kind, things in listing.items() for name in things]
