"""Tuning: the best value of an option for each scheme, by short runs, within a budget and without the test data.

Schemes are compared each at its own best learning rate (Fraboni et al., JMLR 2023, section 5, search the 1-2-5 grid
from 1e-5 to 1). Clients hold back a part of their *training* samples for this; test samples are never looked at.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np

from turnout.clients.population import Population
from turnout.config import config, registry
from turnout.core.errors import UserError, unknown
from turnout.core.statistics import UNDEFINED, lower_is_better
from turnout.data.partition import split
from turnout.plan.choices import grid, listed
from turnout.run.experiment import Experiment, execute
from turnout.server.server import Server
from turnout.server.stopping import Evaluation

DEFAULT = "local.lr=1e-5..1"
TUNABLE = ("model", "local", "algorithm", "sampler")
Point = tuple[str, ...]  # a value for each choice, as written on the command line
Report = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """An option and the values it may take, in order; `first` are tried before anything else."""

    option: str
    given: str
    values: Point
    first: Point

    @classmethod
    def parse(cls, text: str) -> Choice:
        """`local.batch_size=16,32,64`: all of these; `local.lr=1e-4..1`: the 1-2-5 grid, decades first."""
        option, _, given = (part.strip() for part in text.partition("="))
        section, _, name = option.partition(".")
        if not name or not given:
            raise UserError(
                f"--option: {text!r} is not section.option=values; write local.lr=1e-4..1 or local.batch_size=16,32"
            )
        if section not in TUNABLE or option == "algorithm.name":
            allowed = f"options of {', '.join(TUNABLE)}, and algorithms by --schemes"
            raise UserError(f"--option: {option} cannot be tuned; allowed: {allowed}")
        if ".." not in given:
            values = listed(given)
            return cls(option, given, values, values)
        points = grid(f"--option: {option}", given)
        decades = tuple(value for value in points if f"{float(value):e}".startswith("1"))
        return cls(option, given, points, decades or points)

    def beside(self, value: str) -> list[str]:
        """Its neighbours on the grid."""
        place = self.values.index(value)
        return [self.values[i] for i in (place - 1, place + 1) if 0 <= i < len(self.values)]

    def at_the_end(self, value: str) -> bool:
        """Whether a number outside of what was given lies next to it."""
        try:
            numbers = sorted(float(other) for other in self.values)
        except ValueError:  # names have no order
            return False
        return len(numbers) > 1 and float(value) in (numbers[0], numbers[-1])


@dataclass(frozen=True)
class Run:
    """One seed's run: the final value of the measure, None if it diverged."""

    seed: int
    value: float | None
    rounds: int
    virtual_seconds: float


@dataclass(frozen=True)
class Trial:
    """One point and its runs. A point at which any seed diverged is worse than every other."""

    point: Point
    values: dict[str, Any]  # by option, as the configuration reads them
    runs: list[Run]

    @property
    def value(self) -> float | None:
        """Mean over seeds."""
        values = [run.value for run in self.runs if run.value is not None]
        return sum(values) / len(values) if len(values) == len(self.runs) else None

    def as_dict(self) -> dict[str, Any]:
        runs = [vars(run) for run in self.runs]
        return {"values": self.values, "value": self.value, "diverged": self.value is None, "runs": runs}


@dataclass
class Tuned:
    """The trials of one scheme, in the order they were made."""

    scheme: str
    lower_is_better: bool
    trials: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial | None:
        """None if every trial diverged."""
        finite = [(trial.value, trial) for trial in self.trials if trial.value is not None]
        sign = 1 if self.lower_is_better else -1
        return min(finite, key=lambda pair: sign * pair[0])[1] if finite else None


@dataclass(frozen=True)
class Tuning:
    """What is tuned, on what, and how it is run."""

    source: str
    overrides: list[str]
    choices: list[Choice]
    measure: str
    points: int  # tried at most, for each scheme
    seeds: int

    def written(self, scheme: str, point: Point) -> list[str]:
        """The overrides that make this trial, and that run it for good."""
        tuned = [choice.option for choice in self.choices]
        given = [text for text in self.overrides if text.partition("=")[0].strip() not in tuned]
        named = [] if scheme == _algorithm(self.source, given) else [f"algorithm.name={scheme}"]
        return [*given, *named, *(f"{option}={value}" for option, value in zip(tuned, point, strict=True))]

    def command(self, scheme: str, point: Point) -> str:
        return shlex.join(["turnout", "run", self.source, *self.written(scheme, point)])

    def ends(self, best: Trial) -> list[str]:
        """A sentence for each option whose best value is the last one on a side."""
        pairs = zip(self.choices, best.point, strict=True)
        return [
            f"{choice.option}={value} is at an end of {choice.given}: a better value may lie beyond"
            for choice, value in pairs
            if choice.at_the_end(value)
        ]

    def in_order(self, trials: list[Trial]) -> list[Trial]:
        """By value instead of by when they were made."""
        places = [{value: place for place, value in enumerate(choice.values)} for choice in self.choices]
        return sorted(
            trials, key=lambda trial: [place[value] for place, value in zip(places, trial.point, strict=True)]
        )

    def experiment(self, overrides: list[str]) -> Experiment:
        """The run as configured, except that it ends with rounds or time, and is evaluated once, without test data."""
        experiment, _, complete = config.build(config.read(self.source, overrides))
        allowed = [f"{part}_{name}" for part in ("validation", "train") for name in experiment.task.measured]
        if self.measure not in allowed:
            raise UserError(f"--measure: {self.measure!r} cannot be tuned on; allowed: {', '.join(allowed)}")
        on_train = self.measure.startswith("train")
        fraction = 0.0 if on_train else complete["clients"]["test_fraction"]
        return replace(
            experiment,
            population=without_test_data(experiment.population, fraction, required=not on_train),
            stopping=replace(experiment.stopping, target=None, judge=None, patience=None),
            evaluation=Evaluation(rounds=None, train=on_train),
        )

    def search(self, scheme: str, report: Report) -> Tuned:
        """The first values of every option, then the neighbours of the best until all of them have been tried."""
        found = Tuned(scheme, lower_is_better(self.measure))
        waiting = list(itertools.product(*(choice.first for choice in self.choices)))
        while waiting and len(found.trials) < self.points:
            trial = self._try(scheme, waiting.pop(0))
            found.trials.append(trial)
            tried = " ".join(f"{option}={value}" for option, value in trial.values.items())
            found_value = "diverged" if trial.value is None else f"{trial.value:.6g}"
            report(f"{scheme} {tried}: {self.measure} {found_value}")
            if not waiting and found.best is not None:
                done = {trial.point for trial in found.trials}
                waiting = [point for point in self._around(found.best.point) if point not in done]
        return found

    def _around(self, point: Point) -> list[Point]:
        """Points that differ in one option by one place on its grid."""
        return [
            (*point[:i], value, *point[i + 1 :])
            for i, choice in enumerate(self.choices)
            for value in choice.beside(point[i])
        ]

    def _try(self, scheme: str, point: Point) -> Trial:
        overrides = self.written(scheme, point)
        settings = config.read(self.source, overrides)
        values = {choice.option: reduce(getitem, choice.option.split("."), settings) for choice in self.choices}
        first = int(settings.get("run", {}).get("seed", 0))
        return Trial(point, values, [self._run(overrides, first + extra) for extra in range(self.seeds)])

    def _run(self, overrides: list[str], seed: int) -> Run:
        server = execute(self.experiment([*overrides, f"run.seed={seed}"])).server
        measured = self.measure.replace("validation_", "test_")
        value = server.measures.get(measured)
        if value is None:
            raise UserError(f"--measure: nobody is left at the end of the run to take {self.measure} of")
        if server.measures.get(f"{measured}{UNDEFINED}") and math.isnan(value) and not self._diverged(server):
            raise UserError(f"--measure: {self.measure} is not defined for any client at the end of the run")
        diverged = not math.isfinite(value) or self._diverged(server)
        return Run(seed, None if diverged else value, server.version, server.now)

    @staticmethod
    def _diverged(server: Server) -> bool:
        return (server.stopped or "").startswith("diverged")


def _algorithm(source: str, overrides: list[str]) -> Any:
    """What a configuration says its algorithm is."""
    return config.read(source, overrides).get("algorithm", {}).get("name")


def without_test_data(population: Population, fraction: float, required: bool) -> Population:
    """The same clients without any test sample, `fraction` of their training samples held back in its place. Importance
    stays what it was."""
    train, held_back = split(population.train, fraction, population.seed)
    counts = held_back.counts[population.base_importance > 0]
    if required and not counts.any():
        raise UserError(
            f"--measure: with clients.test_fraction={fraction} no client has samples to hold back for validation; "
            "use train_loss"
        )
    kept = np.asarray(population.base_importance)
    test = held_back if counts.any() else None
    return replace(population, train=train, test=test, central=None, importance=kept)


def tune(
    source: str,
    overrides: Sequence[str] = (),
    *,
    options: Sequence[str] = (DEFAULT,),
    schemes: Sequence[str] = (),
    measure: str = "validation_loss",
    budget: int = 20,
    seeds: int = 1,
    report: Report = lambda _: None,
) -> tuple[Tuning, list[Tuned]]:
    """The best values of `options` for each scheme (the configuration's own algorithm, unless named), by at most
    `budget` runs a scheme. Mistakes are found before the first run, as far as the first values can tell."""
    choices = [Choice.parse(text) for text in options or (DEFAULT,)]
    names = [choice.option for choice in choices]
    for name, value in (("budget", budget), ("seeds", seeds)):
        if value < 1:
            raise UserError(f"--{name}: {value} must be at least 1")
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--option: {name} is given twice; give all its values at once")
    first = math.prod(len(choice.first) for choice in choices)
    if first * seeds > budget:
        raise UserError(f"--budget: {budget} runs do not cover the {first * seeds} to begin with; allow at least these")
    tuning = Tuning(source, list(overrides), choices, measure, budget // seeds, seeds)
    chosen = list(dict.fromkeys(schemes)) or [_algorithm(source, list(overrides))]
    for scheme in chosen:
        if not isinstance(scheme, str):
            raise UserError("algorithm.name: missing; say which one with algorithm.name=... or with --schemes")
        if ":" not in scheme and scheme not in registry.names("algorithm"):
            raise unknown("--schemes", scheme, registry.names("algorithm"))
        tuning.experiment(tuning.written(scheme, tuple(choice.first[0] for choice in choices)))
    return tuning, [tuning.search(scheme, report) for scheme in chosen]


def as_dict(tuning: Tuning, found: list[Tuned]) -> dict[str, Any]:
    """For scripts: every trial, the best of each scheme, and the command that runs it."""
    return {
        "measure": tuning.measure,
        "seeds": tuning.seeds,
        "options": {choice.option: choice.given for choice in tuning.choices},
        "schemes": {
            tuned.scheme: {
                "trials": [trial.as_dict() for trial in tuned.trials],
                "best": tuned.best and tuned.best.as_dict(),
                "at_the_end": [] if tuned.best is None else tuning.ends(tuned.best),
                "command": tuned.best and tuning.command(tuned.scheme, tuned.best.point),
            }
            for tuned in found
        },
    }
