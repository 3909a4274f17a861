"""What is written is what is read: every name of every section, with its defaults and with each option at other values,
goes from a configuration to an experiment to `config.toml` and back with the same fingerprint, runs, and resumes to the
same bits.

The suite runs every name, and takes one value of each option through its file; with `TURNOUT_WALK=all` (`make
test-walk`) every value that an option takes is run and resumed.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import catalogue
import numpy as np
import pytest
import torch

import turnout
from support import same
from turnout import UserError
from turnout.config import config

ALL = os.environ.get("TURNOUT_WALK") == "all"
THINGS = [(section, thing) for section, thing, _ in catalogue.things()]
OPTIONS = list(catalogue.options())
MEASURED = ("train_", "test_", "unseen_", "central_", "validation_")  # how columns of an evaluation begin
NEEDS_MORE = ("engine.engine", "engine.address")  # a cluster


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(catalogue.__file__).parent)


def survives(experiment: turnout.Experiment, complete: config.Settings) -> None:
    """A configuration that was built is itself again after its file: to the letter, and by name."""
    text = config.as_toml(complete)
    again, _, complete_again = config.build(tomllib.loads(text))
    assert config.as_toml(complete_again) == text
    assert again.fingerprint == experiment.fingerprint == config.fingerprint(complete)


def run(settings: config.Settings, folder: Path | None, rounds: int, resume: bool = False) -> turnout.Result:
    settings = settings | {"run": settings["run"] | {"rounds": rounds}}
    experiment, _, complete = config.build(settings)
    return turnout.execute(
        experiment, folder, checkpoint_every=1, resume=resume, configuration=config.as_toml(complete)
    )


def resumes(settings: config.Settings) -> None:
    """Two rounds in one go, and one round and another after it, end with the same bits."""
    whole = run(settings, None, 2)
    run(settings, Path("halves"), 1)
    resumed = run(config.read("halves/config.toml"), Path("halves"), 2, resume=True)
    assert torch.equal(whole.model, resumed.model)
    assert same(whole.jobs(), resumed.jobs())
    before, after = whole.rounds(), resumed.rounds()
    assert before.keys() == after.keys()
    for name in before:
        if name.startswith(MEASURED) and len(before[name]) > 1 and np.isnan(before[name][1]):
            after[name][1] = np.nan  # the halved run was evaluated there, because it ended
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    assert said(whole) == said(resumed)


def said(result: turnout.Result) -> str:
    """The summary, without what a resumed run says of that."""
    summary = result.summary()
    events = summary["audit"].pop("events")
    return repr((summary, {name: number for name, number in events.items() if name not in ("resumed", "restarted")}))


def built(settings: config.Settings) -> tuple[turnout.Experiment, config.Settings]:
    """The experiment of a configuration, and all of its settings."""
    experiment, _, complete = config.build(settings)
    return experiment, complete


def admissible(option: catalogue.Option) -> Iterator[tuple[config.Settings, turnout.Experiment, config.Settings]]:
    """Configurations with that option at values that it takes, in other types too, and what they build."""
    for value in catalogue.values(option):
        settings = catalogue.settings(option.section, option.thing, **{option.name: value})
        try:
            made = built(settings)
        except UserError:
            continue
        yield settings, *made


@pytest.mark.parametrize(("section", "thing"), THINGS)
def test_every_name_runs_and_resumes(section: str, thing: str) -> None:
    settings = catalogue.settings(section, thing)
    survives(*built(settings))
    resumes(settings)


def one_of_each() -> list[catalogue.Option]:
    """Every option once, where many things share it."""
    return list({(option.section, option.name, str(option.hint)): option for option in OPTIONS}.values())


@pytest.mark.parametrize("section", dict.fromkeys(section for section, _ in THINGS))
def test_every_option_survives_its_file(section: str) -> None:
    for option in OPTIONS if ALL else one_of_each():
        if option.section == section and str(option) not in catalogue.FIXED:
            taken = admissible(option)
            for _, experiment, complete in taken if ALL else [next(taken)]:
                survives(experiment, complete)


@pytest.mark.parametrize("option", [o for o in OPTIONS if ALL and str(o) not in NEEDS_MORE], ids=str)
def test_every_value_runs_and_resumes(
    option: catalogue.Option, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (settings, *_) in enumerate(admissible(option)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        try:
            run(settings, Path("probe"), 1)
        except UserError:
            continue  # found out when the run begins: it is refused in a sentence
        resumes(settings)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), -0.0, 1e-300, 2**63 - 1, -(2**63), True, "", "\x00\x1f\x7f\x80\u2028",
     'a "b" \\ \n\r\t', "é😀", [], [[1, 2.5], ["x"]], {}, {"é \"k\"": {"b.c": [True, None.__class__.__name__]}},
     np.float32(0.5), np.int64(7), np.bool_(True), np.arange(3), (1, 2.0)],
    ids=repr,
)  # fmt: skip
def test_every_kind_of_value_survives(value: Any) -> None:
    made = {"name": "function", "function": "test_round_trip:samples", "arguments": {"anything": value}}
    survives(*built(catalogue.settings("data", "synthetic") | {"data": made, "partition": {"name": "iid"}}))


def test_dates_survive() -> None:
    text = "anything = [1979-05-27, 07:32:00.5, 1979-05-27T07:32:00Z, 1979-05-27T07:32:00]"
    made = {"name": "function", "function": "test_round_trip:samples", "arguments": tomllib.loads(text)}
    survives(*built(catalogue.settings("data", "synthetic") | {"data": made, "partition": {"name": "iid"}}))


def samples(anything: Any) -> dict[str, Any]:
    """Data of one's own, whatever was said of it."""
    del anything
    return catalogue.drawn([4, 1])
