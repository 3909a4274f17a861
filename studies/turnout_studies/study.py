"""What a study is: a setting, trials that are carried out once, and claims judged by rules written before the run.

A claim is a published sentence, a quantity measured once a seed, and a rule. The verdict comes from the 95 % Student
interval of the quantity's mean over seeds:

    holds            the whole interval is where the sentence puts it
    does not hold    no part of the interval is there
    undecided        anything else, and always with fewer than five seeds
    not judged       the run had another size than the one the claims are written for
"""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from turnout.core.errors import UserError, unknown
from turnout.core.files import append_lines, as_json_text, write_text
from turnout.core.random import FloatArray
from turnout.core.statistics import interval
from turnout.engine.plan import Plan
from turnout.record.run_folder import locked

HOLDS, FAILS, UNDECIDED, NOT_JUDGED = "holds", "does not hold", "undecided", "not judged"
JUDGED_SIZE = "default"  # claims speak of this size, and of its data
ENOUGH_SEEDS = 5

Trial = dict[str, Any]  # what is tried: scheme, learning rate, seed, ...
Measures = dict[str, Any]  # what came out, as JSON has it
Experiment = Callable[[Trial], Measures]
Say = Callable[[str], None]


def verdict(values: Sequence[float] | FloatArray, above: float = -math.inf, below: float = math.inf) -> str:
    """Whether the mean lies between the two thresholds."""
    mean, half = interval(values)
    if len(values) < ENOUGH_SEEDS or not math.isfinite(half):
        return UNDECIDED
    if above < mean - half and mean + half < below:
        return HOLDS
    return FAILS if mean + half <= above or mean - half >= below else UNDECIDED


@dataclass(frozen=True)
class Results:
    """Everything a study measured: claims can be judged again from it without running anything."""

    study: str
    size: str
    seeds: list[int]
    setting: dict[str, Any]  # the numbers of the size, and the engine
    tuned: dict[str, float]  # learning rates chosen on the first seed
    trials: list[tuple[Trial, Measures]]

    @cached_property
    def _by_trial(self) -> dict[str, Measures]:
        return {_key(trial): measures for trial, measures in self.trials}

    def each(self, quantity: Callable[[Measures], float], **trial: Any) -> FloatArray:
        """The quantity of this trial, one number a seed."""
        return np.array([quantity(self._by_trial[_key({**trial, "seed": seed})]) for seed in self.seeds])

    def save(self, path: Path, judgements: Sequence[Judgement], not_judged: str | None) -> None:
        claims = [judgement.as_dict() for judgement in judgements]
        write_text(path, as_json_text({**asdict(self), "not_judged": not_judged, "claims": claims}))

    @classmethod
    def read(cls, path: Path) -> Results:
        document = json.loads(path.read_text(encoding="utf-8"))
        for name in ("claims", "not_judged"):  # made anew from the rest
            document.pop(name, None)
        return cls(**{**document, "trials": [(trial, measures) for trial, measures in document["trials"]]})


@dataclass(frozen=True)
class Judgement:
    """A claim after the run."""

    claim: Claim
    values: list[float]
    mean: float
    half_width: float
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        measured = {name: getattr(self, name) for name in ("values", "mean", "half_width", "verdict")}
        return {**self.claim.as_dict(), **measured}


@dataclass(frozen=True)
class Claim:
    """A published sentence that can turn out false. `values` computes one number a seed; comparisons of schemes are
    paired: the difference within each seed. The claim puts their mean between `above` and `below`."""

    name: str
    sentence: str
    source: str
    measured: str  # the quantity in words
    values: Callable[[Results], FloatArray]
    above: float = -math.inf
    below: float = math.inf

    @property
    def rule(self) -> str:
        sides = [f"above {self.above:g}"] if math.isfinite(self.above) else []
        sides += [f"below {self.below:g}"] if math.isfinite(self.below) else []
        return " and ".join(sides)

    def as_dict(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("name", "sentence", "source", "measured", "rule")}

    def judge(self, results: Results) -> Judgement:
        values = self.values(results)
        mean, half = interval(values)
        return Judgement(self, values.tolist(), mean, half, verdict(values, self.above, self.below))


def validation(measures: Measures) -> float:
    """The accuracy on samples held back; 0 where there is no number."""
    return float(measures["validation"] or 0)


class Trials:
    """Carries out each trial once. Finished ones are lines of a file, and are read back by the next run."""

    def __init__(
        self, path: Path, heading: dict[str, Any], prepare: Callable[[], Experiment], say: Say, workers: int = 1
    ) -> None:
        self.path, self.heading, self._prepare, self._say = path, json.loads(as_json_text(heading)), prepare, say
        self.workers = workers
        self._done = dict(self._read())
        self._asked: dict[str, tuple[Trial, Measures]] = {}

    def __call__(self, **trial: Any) -> Measures:
        key = _key(trial)
        if key not in self._done:
            started = time.perf_counter()
            self._done[key] = json.loads(as_json_text(self._experiment(trial)))
            self._append(key, self._done[key])
            words = ", ".join(f"{name} {value}" for name, value in trial.items())
            self._say(f"{words}: {time.perf_counter() - started:.1f} s")
        self._asked[key] = trial, self._done[key]
        return self._done[key]

    @cached_property
    def _experiment(self) -> Experiment:
        return self._prepare()

    def ahead(self, trials: Iterable[Trial]) -> None:
        """Carry out these trials, which do not depend on each other, in as many processes as there are workers.

        The processes are new ones, since CUDA does not outlive a fork."""
        missing = [trial for trial in trials if _key(trial) not in self._done]
        if self.workers == 1 or len(missing) < 2:
            return
        started = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(self.workers, _begin, (self._prepare,)) as pool:
            for trial, measures in pool.imap_unordered(_carry_out, missing):
                self._done[_key(trial)] = measures
                self._append(_key(trial), measures)
        self._say(f"{len(missing)} trials by {self.workers} processes: {time.perf_counter() - started:.1f} s")

    def all(self, trials: Sequence[Trial]) -> None:
        """Carry out these trials, at once where there are several workers, and ask for each."""
        self.ahead(trials)
        for trial in trials:
            self(**trial)

    def tune(
        self,
        cells: Iterable[Trial],
        rates: Sequence[float],
        seeds: Sequence[int],
        score: Callable[[Measures], float] = validation,
    ) -> dict[str, float]:
        """Carry out every cell of a grid at its own learning rate: the first of the best scores on the first seed.
        Returns the rates, each by the values of its cell."""
        grid = [(cell, [{**cell, "lr": lr, "seed": seeds[0]} for lr in rates]) for cell in cells]
        self.ahead(trial for _, tried in grid for trial in tried)
        best = [(cell, max(tried, key=lambda trial: score(self(**trial)))["lr"]) for cell, tried in grid]
        self.all([{**cell, "lr": lr, "seed": seed} for seed in seeds for cell, lr in best])
        return {" ".join(map(str, cell.values())): lr for cell, lr in best}

    @property
    def asked(self) -> list[tuple[Trial, Measures]]:
        """The trials of this run, in the order they were first asked for."""
        return list(self._asked.values())

    def _append(self, key: str, measures: Measures) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [] if self.path.exists() else [{"heading": self.heading}]
        append_lines(self.path, map(json.dumps, [*lines, {"trial": json.loads(key), "measures": measures}]))

    def _read(self) -> Iterator[tuple[str, Measures]]:
        if not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").split("\n")
        if lines[-1]:  # the process was killed while it wrote this one
            write_text(self.path, "".join(line + "\n" for line in lines[:-1]))
        try:
            heading, *records = [json.loads(line) for line in lines[:-1]] or [{"heading": self.heading}]
            found = [(_key(record["trial"]), record["measures"]) for record in records]
            same = heading["heading"] == self.heading
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"study: {self.path} is not a file of trials; choose another folder with --out") from error
        if not same:
            raise UserError(f"study: {self.path} holds trials of another setting; choose another folder with --out")
        yield from found


class Study:
    """Subclasses say what is tried (`experiment`), in which order (`script`), and what the paper claims."""

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    setting: ClassVar[str]  # of the default size, in words, with what differs from the paper
    small_data: ClassVar[str]  # what the small size has, and in the place of which data
    sizes: ClassVar[Mapping[str, Any]]  # dataclasses; `small` needs no data and takes seconds
    claims: ClassVar[Sequence[Claim]]

    def experiment(self, size: Any, data: Path | None, plan: Plan) -> Experiment:
        """A function that carries out one trial."""
        raise NotImplementedError

    def script(self, size: Any, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        """Ask for every trial the claims look at; returns the tuned learning rates."""
        raise NotImplementedError

    def run(
        self,
        size: str = "default",
        seeds: Iterable[int] = range(ENOUGH_SEEDS),
        folder: Path = Path("runs/study"),
        *,
        data: Path | None = None,
        device: str = "cpu",
        workers: int = 1,
        say: Say = lambda _: None,
    ) -> Results:
        """Carry out the trials that `folder` does not hold yet; leaves `trials.jsonl`, `results.json` and
        pictures there.

        With several `workers` trials that do not depend on each other run at once; the results are the same.
        """
        if size not in self.sizes:
            raise unknown("study size", size, self.sizes)
        if data is not None and not data.is_dir():
            raise UserError(f"study: there is no data folder {data}")
        chosen, plan, seeds = self.sizes[size], plan_for(device), list(seeds)
        if not seeds:
            raise UserError("study: no seeds; at least one is needed, and five for a verdict")
        setting = {**asdict(chosen), "engine": {**asdict(plan), "torch": torch.__version__}}
        heading = {"study": self.name, "size": size, **setting}
        if workers < 1:
            raise UserError(f"study: {workers} workers; it must be at least 1")
        prepare = partial(self._tidy_experiment, chosen, data, plan)
        with locked(folder):
            return self._carry_out(size, seeds, Trials(folder / "trials.jsonl", heading, prepare, say, workers), folder)

    def _carry_out(self, size: str, seeds: list[int], trials: Trials, folder: Path) -> Results:
        tuned = self.script(self.sizes[size], seeds, trials)
        results = Results(self.name, size, seeds, trials.heading, tuned, trials.asked)
        results.save(folder / "results.json", self.judge(results), self.not_judged(size))
        for name, picture in self.pictures(results).items():
            write_text(folder / f"{name}.svg", picture)
        return results

    def _tidy_experiment(self, size: Any, data: Path | None, plan: Plan) -> Experiment:
        """A server refers to itself: on a device the next trial wants its memory back at once."""
        carry_out = self.experiment(size, data, plan)

        def tidily(trial: Trial) -> Measures:
            measures = carry_out(trial)
            gc.collect()
            return measures

        return carry_out if plan.device == "cpu" else tidily

    def read(self, folder: Path) -> Results:
        """The results of a finished run."""
        path = folder / "results.json"
        if not path.is_file():
            raise UserError(f"study: {folder} holds no results.json; the study has not been run to its end there")
        results = Results.read(path)
        if results.study != self.name:
            raise UserError(f"study: {path} holds the results of {results.study}, not of {self.name}")
        return results

    def pictures(self, results: Results) -> dict[str, str]:
        """Curves that say more than numbers: SVG by name, left beside the results."""
        return {}

    def judge(self, results: Results) -> list[Judgement]:
        """What the claims measure, with their verdicts where the run had the size they are written for."""
        judgements = [claim.judge(results) for claim in self.claims]
        if self.not_judged(results.size) is None:
            return judgements
        return [replace(judgement, verdict=NOT_JUDGED) for judgement in judgements]

    def not_judged(self, size: str) -> str | None:
        """Why a run of this size has no verdicts; None where it has."""
        if size == JUDGED_SIZE:
            return None
        return f"size {size} ({self.small_data}) is for trying the study out; verdicts need size {JUDGED_SIZE}"


def plan_for(device: str) -> Plan:
    """One thread on a CPU, so that the bits do not depend on the machine's cores; a large budget on a GPU."""
    return Plan(threads=1) if device == "cpu" else Plan(device, precision="tf32", threads=1, memory_mib=16384)


_experiment: Experiment | None = None  # what a worker carries out


def _begin(prepare: Callable[[], Experiment]) -> None:
    global _experiment
    _experiment = prepare()


def _carry_out(trial: Trial) -> tuple[Trial, Measures]:
    assert _experiment is not None
    return trial, json.loads(as_json_text(_experiment(trial)))


def _key(trial: Trial) -> str:
    return json.dumps(trial, sort_keys=True)
