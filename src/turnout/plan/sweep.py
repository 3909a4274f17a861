"""A sweep: every combination of several values of some options, each an ordinary run in a folder of its own.

`algorithm=fedavg,fedfix seed=0..4` are ten runs. What is finished is not run again, what was interrupted goes on to
the same bits, and whatever fails leaves the rest alone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from turnout.config import config
from turnout.core.errors import UserError
from turnout.core.files import read_toml
from turnout.plan.choices import MOST, Values, several
from turnout.plan.workers import Failed, share, share_on_cluster
from turnout.report.compare import Target
from turnout.run.experiment import execute

State = Literal["new", "unfinished", "finished"]
SHORT = {"seed": "run.seed", "lr": "local.lr"} | {section: f"{section}.name" for section in config.SECTIONS}
_MOST_BYTES = 120  # of a folder's name


@dataclass(frozen=True)
class Combination:
    """One run: where it is kept, how it is written on a command line, how far it is."""

    folder: Path
    overrides: list[str]
    state: State


def combinations(source: str, words: Sequence[str], target: Target | None = None) -> list[Combination]:
    """All of them, each found to be a configuration that can be run, measures what is asked for, and belongs in its
    folder."""
    choices: dict[str, Values] = {}
    for option, values in map(_choice, words):
        if option in choices:
            raise UserError(f"sweep: {option} is given twice; give all its values at once")
        choices[option] = values
    if not choices:
        raise UserError("sweep: nothing to sweep; give options their values, such as algorithm=fedavg,fedfix seed=0..4")
    for option in ("run.name", "run.folder"):
        if len(choices.get(option, ("",))) > 1:
            raise UserError(f"{option}: a sweep has one folder; the runs in it are named by their values")
    many = math.prod(len(values) for values in choices.values())
    if many > MOST:
        raise UserError(f"sweep: {many} combinations are more than {MOST}; give fewer values")
    return [_combination(source, choices, values, target) for values in itertools.product(*choices.values())]


def repeated(source: str, overrides: Sequence[str]) -> list[Combination]:
    """The runs of a configuration that asks for several seeds, `run.seeds=0..4`: each of an ordinary configuration."""
    given = [tuple(part.strip() for part in text.partition("=")[::2]) for text in overrides]
    choices: dict[str, Values] = {option: (value,) for option, value in given if option != "run.seeds"}
    choices |= {"run.seeds": ("[]",)}  # of those, none
    if "run.seed" in choices:
        raise UserError("run.seed: run.seeds asks for several; leave one of them out")
    seeds = config.read(source, list(overrides)).get("run", {}).get("seeds")
    many = several("run.seeds", seeds) if isinstance(seeds, str) else tuple(map(str, seeds or ()))
    if not many or not all(re.fullmatch(r"-?\d+", seed) for seed in many):
        raise UserError(f"run.seeds: {seeds!r} are not whole numbers; write 0..4 or [0, 1, 2]")
    return [
        _combination(
            source, {**choices, "run.seed": many}, (*(value for (value,) in choices.values()), seed), None, "seeds"
        )
        for seed in many
    ]


def _choice(word: str) -> tuple[str, Values]:
    """`lr=0.1,0.2`: the option's full name, and its values."""
    written, _, given = (part.strip() for part in word.partition("="))
    option = SHORT.get(written, written)
    if "." not in option or not given:
        raise UserError(
            f"sweep: {word!r} is not an option with values; write algorithm=fedavg,fedfix, seed=0..4, lr=0.1,0.2 or "
            "section.option=VALUES"
        )
    return option, several(option, given)


def _combination(
    source: str, choices: dict[str, Values], values: Values, target: Target | None, kind: str = "sweep"
) -> Combination:
    chosen = dict(zip(choices, values, strict=True))
    names = [option for option in chosen if option.endswith(".name")]  # another thing has other options: it comes first
    overrides = [f"{option}={chosen[option]}" for option in dict.fromkeys([*names, *chosen])]
    settings = config.read(source, overrides)
    run = {"name": "run", "folder": "runs", **settings.get("run", {})}
    above = Path(str(run["folder"])) / (f"{run['name']}" if "run.name" in chosen else f"{run['name']}-{kind}")
    named = {o: value for o, value in chosen.items() if not o.startswith("run.") or len(choices[o]) > 1}
    if "run.seed" in chosen:
        named["run.seed"] = named.pop("run.seed", chosen["run.seed"])  # seeds last
    folder = above / _folder_name(named)
    overrides += [f"run.folder={json.dumps(str(above))}", f"run.name={json.dumps(folder.name)}"]
    if not settings.get("engine", {}).get("threads"):
        overrides.append("engine.threads=1")  # runs share the cores, and their bits do not depend on how many there are
    experiment, _, complete = config.build(config.read(source, overrides))
    if target is not None:
        target.check(experiment.task.measured)
    return Combination(folder, overrides, _state(folder, config.as_toml(complete)))


def _folder_name(values: dict[str, str]) -> str:
    """`algorithm=fedavg,seed=0`; what a folder's name cannot say ends with a digest of it."""
    long = {full: short for short, full in SHORT.items()}
    written = ",".join(f"{long.get(option, option)}={value}" for option, value in values.items()) or "run"
    name = re.sub(r"[^\w.+=,-]+", "_", written).encode()[:_MOST_BYTES].decode(errors="ignore")
    return name if name == written else f"{name}-{hashlib.sha256(written.encode()).hexdigest()[:6]}"


def _state(folder: Path, text: str) -> State:
    """How far the run in this folder is; one of another configuration is refused."""
    if (folder.parent / "plan.json").exists():
        raise UserError(f"run.name: {folder.parent} holds a single run; choose another run.name for the sweep")
    if not (folder / "config.toml").exists():
        return "new"
    before, wanted = config.modernise(read_toml(folder / "config.toml")), tomllib.loads(text)
    if config.fingerprint(before) != config.fingerprint(wanted):
        raise UserError(f"run.name: {folder} holds a run of another configuration; choose another run.name")
    return "finished" if before == wanted and (folder / "result.json").exists() else "unfinished"


def sweep(
    source: str, found: Sequence[Combination], workers: int, cluster: str | None = None
) -> Iterator[tuple[Combination, str | Failed | None]]:
    """Carry out what is not finished, here or on a Ray cluster; each as it ends, with why it stopped or failed."""
    todo = [one for one in found if one.state != "finished"]
    pieces = [(source, one.overrides, one.folder) for one in todo]
    if cluster is None:
        answers = share(_carry_out, pieces, workers or os.cpu_count() or 1)
    else:
        answers = share_on_cluster(_carry_out, pieces, cluster, workers)
    return ((todo[number], answer) for number, answer in answers)


def _carry_out(source: str, overrides: list[str], folder: Path) -> str | None:
    experiment, settings, complete = config.build(config.read(source, overrides))
    return execute(
        experiment,
        folder,
        checkpoint_every=settings.checkpoint_every,
        resume=(folder / "config.toml").exists(),
        configuration=config.as_toml(complete),
    ).server.stopped
