"""A run as its folder tells it: finished, interrupted or still under way."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core.errors import UserError
from turnout.core.files import read_json, read_toml
from turnout.core.spelling import spelt
from turnout.record.history import read_segments
from turnout.record.run_folder import MANIFEST, READ, RECORDS, check_is_run, examine
from turnout.record.views import Columns, Views

# Options of a run that do not make it another setting: runs that differ in nothing else are one, seen several times.
FREE = ("name", "folder", "seed", "seeds", "report", "checkpoint_every")


@dataclass(frozen=True, repr=False)
class Recorded(Views):
    """The record of a run. Tables are arrays by column, as those of `turnout.Result` are.

    >>> run = turnout.read("runs/digits")
    >>> run.rounds()["test_accuracy"], run.summary["audit"]
    """

    folder: Path
    config: dict[str, dict[str, Any]]  # complete; empty for a run that was started from Python
    plan: dict[str, Any]  # engine choices
    summary: dict[str, Any]  # result.json; empty while the run is unfinished
    remarks: Sequence[str] = ()  # about files that are damaged, of which nothing is shown

    @property
    def name(self) -> str:
        return str(self.config.get("run", {}).get("name", self.folder.resolve().name))

    @property
    def seed(self) -> int | None:
        return self.config.get("run", {}).get("seed")

    @property
    def algorithm(self) -> str:
        return str(self.config.get("algorithm", {}).get("name", ""))

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @property
    def setting(self) -> str:
        """The same text for runs that differ in nothing but their seed and where they are kept."""
        if not self.config:
            return str(self.folder.resolve())
        run = {name: value for name, value in self.config.get("run", {}).items() if name not in FREE}
        return json.dumps({**self.config, "run": run}, sort_keys=True, default=str)

    @cached_property
    def _tables(self) -> dict[str, Columns]:
        """Those that were asked for."""
        return {}

    def _table(self, name: str) -> Columns:
        if name not in self._tables:
            self._tables[name] = read_segments(sorted((self.folder / name).glob("*.parquet")))
        return self._tables[name]

    def outcome(self) -> dict[str, Any]:
        return self.summary

    def rounds(self) -> Columns:
        """A row a round."""
        return self._table("history")

    def last(self, column: str) -> float | None:
        """The last value that a column of the rounds has."""
        values = self.rounds().get(column, np.zeros(0))
        known = values[np.isfinite(values)]
        return known[-1].item() if len(known) else None

    def total(self, *columns: str) -> float:
        """The sum of columns of the rounds; those that are not there add nothing."""
        return float(sum(np.nansum(self.rounds()[name]) for name in columns if name in self.rounds()))

    def jobs(self) -> Columns:
        """A row a job."""
        return self._table("jobs")

    def detectors(self) -> Columns:
        """A row an update that detectors looked at."""
        return self._table("detectors")

    @cached_property
    def names(self) -> list[str] | None:
        """What the clients are called; None where they have numbers."""
        return _document(self.folder / "names.json").get("clients")

    def clients(self) -> Columns:
        """A row a client, once the run is finished."""
        path = self.folder / "clients.parquet"
        return read_segments([path] if path.exists() else [])

    def log(self) -> list[str]:
        """What was logged, a line each."""
        path = self.folder / "log.txt"
        return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


@spelt
def recorded(
    folder: Path | str, command: str = "report", mark: str = "plan.json", only: Sequence[str] | None = None
) -> Recorded:
    """Read the run in a folder, for a command that names what is damaged; `mark` is the file by which it is one.
    `only` these files and folders are read, where the command needs no more."""
    folder = Path(folder)
    check_is_run(command, folder, mark)
    remarks = examine(command, folder, only or (*READ, *RECORDS, "clients.parquet"), others=only is None)
    path = folder / "config.toml"
    config = read_toml(path) if path.exists() else {}
    return Recorded(folder, config, _document(folder / "plan.json"), _document(folder / "result.json"), remarks)


def _document(path: Path) -> dict[str, Any]:
    found = read_json(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise UserError(f"{path}: cannot be read (it holds no table of names)")
    return found


@spelt
def below(folders: Sequence[Path | str]) -> list[Path]:
    """The folders of runs among these, and those of all runs in a folder that is not one, such as that of a sweep."""
    found: list[Path] = []
    for folder in map(Path, folders):
        inside = [] if _is_run(folder) or not folder.is_dir() else sorted(filter(_is_run, folder.iterdir()), key=_order)
        found += inside or [folder]
    return found


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("plan.json", "config.toml", MANIFEST))


def _order(folder: Path) -> list[tuple[int, str]]:
    """By name, but `seed=10` after `seed=9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", folder.name)]


def settings(runs: Sequence[Recorded]) -> list[list[Recorded]]:
    """Runs of one setting together, each in the order given: they are one line with a band."""
    groups: dict[str, list[Recorded]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    return list(groups.values())


def differences(groups: Sequence[Sequence[Recorded]]) -> dict[str, list[Any]]:
    """Options in which settings differ, each with its value in every one; None where it has none."""
    first = [group[0].config for group in groups]
    options = dict.fromkeys((section, name) for config in first for section in config for name in config[section])
    found = {f"{section}.{name}": [c.get(section, {}).get(name) for c in first] for section, name in options}
    free = {f"run.{name}" for name in FREE}
    return {
        option: values for option, values in found.items() if option not in free and any(v != values[0] for v in values)
    }


def labels(groups: Sequence[Sequence[Recorded]]) -> list[str]:
    """A short name for every setting, no two the same: the run's own, what the names of its seeds share, or in what it
    differs from the others."""
    found = _without_keys([_shared_name(group) for group in groups])
    if len(set(found)) < len(found):
        differing = list(differences(groups).values())[:3]
        words = [", ".join(str(values[i]) for values in differing) for i in range(len(groups))]
        found = [f"{name}: {word}" if word else name for name, word in zip(found, words, strict=True)]
    return [name if found.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(found)]


def _without_keys(names: list[str]) -> list[str]:
    """Names of a sweep's settings as a person says them: `algorithm=fedfix,lr=0.1` is `fedfix, lr=0.1`. A number keeps
    what it is of; what all have in common is left out."""
    if len(names) < 2 or not all(re.fullmatch(r"[\w.]+=[^,=]+(,[\w.]+=[^,=]+)*", name) for name in names):
        return names
    common = set.intersection(*(set(name.split(",")) for name in names))
    own = [[part for part in name.split(",") if part not in common] for name in names]
    if not all(own):
        return names
    parts = [[part.split("=") for part in one] for one in own]
    speaking = {key for key, _ in parts[0]} - {key for one in parts for key, value in one if not value[:1].isalpha()}
    return [", ".join(value if key in speaking else f"{key}={value}" for key, value in one) for one in parts]


def _shared_name(group: Sequence[Recorded]) -> str:
    if len(group) == 1:
        return group[0].name
    letters = zip(*(run.name for run in group), strict=False)
    shared = "".join(each[0] for each in takewhile(lambda each: len(set(each)) == 1, letters))
    if any(run.name[len(shared) :][:1].isalnum() for run in group):  # a part of a word says nothing
        shared = re.sub(r"[^\W_]+$", "", shared)
    return re.sub(r"[\W_]*(seed[\W_]*\d*)?[\W_]*$", "", shared) or group[0].algorithm
