"""Modifiers, optimisers and schedules in files and on the command line: names, tables of options, one sentence for
every mistake, and runs of version 0.1 that go on."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import turnout
from turnout.config import config
from turnout.core.errors import UserError
from turnout.local import (
    AdamW,
    Clip,
    LocalSGD,
    Modifier,
    Noise,
    Proximal,
    Quantise,
    RoundStep,
    SharpnessAware,
    TopK,
    Warmup,
)

SMALL = ["run.rounds=2", "clients.count=4", "sampler.clients_per_round=2", "engine.threads=1"]
OWN = """
from dataclasses import dataclass

from turnout.local import Modifier


@dataclass(frozen=True)
class LessSharp(Modifier):
    rho: float
    share: float = 0.5

    def gradient(self, slope, params, kept, batch):
        return self.share * slope(params)
"""
TABLES = """
[local.clip]
norm = 2

[local.noise]
std = 0.5

[local.proximal]
mu = 0.1
"""


def built(*overrides: str) -> tuple[turnout.Experiment, config.Settings]:
    plan, _, complete = config.build(config.read("digits", [*SMALL, *overrides]))
    return plan, complete


def of(plan: turnout.Experiment) -> tuple[Modifier, ...]:
    return tuple(plan.algorithm.local.modifiers)  # type: ignore[attr-defined]


def test_on_the_command_line() -> None:
    asked = "local.modifiers=proximal,clip", "local.proximal.mu=0.25", "local.clip.norm=1"
    assert of(built(*asked)[0]) == (Proximal(0.25), Clip(1.0))
    asked = "local.modifiers=['clip', 'top_k']", "local.clip.norm=1", "local.top_k.share=0.5"
    assert of(built(*asked)[0]) == (Clip(1.0), TopK(0.5))
    assert of(built("local.modifiers=sharpness_aware")[0]) == (SharpnessAware(0.05),)
    assert of(built()[0]) == ()


def test_in_a_file_and_written_again(tmp_path: Path) -> None:
    text = config.builtin_text("digits").replace("[local]\n", '[local]\nmodifiers = "clip, noise,proximal"\n')
    (tmp_path / "mine.toml").write_text(text + TABLES)
    plan, _, complete = config.build(config.read(str(tmp_path / "mine.toml"), SMALL))
    assert of(plan) == (Clip(2.0), Noise(0.5), Proximal(0.1))
    assert complete["local"]["noise"] == {"std": 0.5, "seed": None}
    (tmp_path / "config.toml").write_text(config.as_toml(complete))
    assert tomllib.loads(config.as_toml(complete))["local"]["proximal"] == {"mu": 0.1}
    for settings in (config.read(str(tmp_path / "config.toml")), config.read_run(tmp_path)):
        again, _, twice = config.build(settings)
        assert twice == complete
        assert again.fingerprint == plan.fingerprint


def test_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "less_sharp.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    for table in ("less_sharp", "LessSharp"):
        plan, complete = built("local.modifiers=proximal,less_sharp:LessSharp", f"local.{table}.rho=1")
        own: Any = of(plan)[1]
        assert (own.rho, own.share) == (1.0, 0.5)
        assert complete["local"]["modifiers"] == ["proximal", "less_sharp:LessSharp"]
        assert complete["local"]["less_sharp"] == {"rho": 1.0, "share": 0.5}
    assert not torch.equal(turnout.execute(plan).model, turnout.execute(built("local.modifiers=proximal")[0]).model)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["local.modifiers=proximl"], r"local\.modifiers: unknown name 'proximl'; did you mean proximal"),
        (["local.modifiers=control_variables"], r"local\.modifiers: unknown name 'control_variables'"),
        (["local.modifiers=3"], r"local\.modifiers: 3 is not a list"),
        (["local.modifiers=clip"], r"local\.clip\.norm: missing; give it a value"),
        (["local.modifiers=proximal", "local.proximal.mv=1"], r"local\.proximal\.mv: unknown option; allowed: mu"),
        (["local.modifiers=proximal", "local.proximal.mu=much"], r"local\.proximal\.mu: 'much' is not a number"),
        (["local.modifiers=proximal", "local.proximal.mu=-1"], r"local\.proximal\.mu: -1\.0 must be at least 0"),
        (["local.modifiers=proximal,proximal"], r"local\.modifiers: proximal stands there twice"),
        (["local.clip.norm=1"], r"local\.clip: options of a modifier that .* not name; write local\.modifiers=clip"),
        (["local.modifiers=clip", "local.clip.norm=1", "local.clop.norm=1"], r"local\.clop: options .*; allowed: clip"),
        (["local.lr.decay=1"], r"local\.lr\.decay: lr is a value there, not a table"),
        (["local.modifiers=turnout:LocalSGD"], r"local\.modifiers: turnout:LocalSGD is not a subclass"),
        (["local.modifiers=noise", "local.noise.std=1"], r"local\.modifiers: noise must stand directly after clip"),
        (
            ["local.transform=clip:1.0,top_k:0.01"],
            r"local\.transform: it is now local\.modifiers; write local\.modifiers=clip,top_k local\.clip\.norm=1\.0 "
            r"local\.top_k\.share=0\.01, in Python",
        ),
        (["local.transform=clop:1.0"], r"local\.transform: 'clop:1\.0' cannot be read; it is now local\.modifiers"),
    ],
)  # fmt: skip
def test_mistakes(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        built(*overrides)


STEPS = """
from turnout.local import Optimiser, Schedule


def leaping(gradient, state, params):
    speed = gradient if state is None else 0.5 * state + gradient
    return speed.sign(), speed


class Twice(Schedule):
    def factor(self, number, steps):
        return 2.0**number
"""


def work_of(*overrides: str) -> tuple[LocalSGD, dict[str, Any]]:
    plan, complete = built(*overrides)
    return plan.algorithm.local, complete["local"]  # type: ignore[attr-defined]


def test_optimisers_and_schedules(tmp_path: Path) -> None:
    """Options under their own names, and the same again after the file that the run leaves."""
    asked = [
        "local.optimiser=adamw", "local.adamw.beta1=0.8", "local.optimiser_state=kept",
        "local.schedules=warmup,round_step", "local.warmup.length=3", "local.round_step.every=4",
    ]  # fmt: skip
    work, complete = work_of(*asked)
    assert (work.optimiser, work.optimiser_state) == (AdamW(0.8), "kept")
    assert work.schedules == (Warmup(3), RoundStep(every=4))
    assert complete["adamw"] == {"beta1": 0.8, "beta2": 0.999, "eps": 1e-8}
    assert (complete["optimiser"], complete["schedules"]) == ("adamw", ["warmup", "round_step"])
    assert work_of("local.schedules=constant")[1]["schedules"] == []
    plan, settings = built(*asked)
    (tmp_path / "config.toml").write_text(config.as_toml(settings))
    again, _, twice = config.build(config.read_run(tmp_path))
    assert (again.fingerprint, twice) == (plan.fingerprint, settings)
    assert again.algorithm.local == work  # type: ignore[attr-defined]


def test_optimisers_and_schedules_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    asked = ["local.optimiser=steps.py:leaping", "local.schedules=steps.py:Twice", "local.lr=0.01"]
    work, complete = work_of(*asked)
    assert (str(work.optimiser), complete["optimiser"]) == ("leaping", "steps.py:leaping")
    assert not torch.equal(turnout.execute(built(*asked)[0]).model, turnout.execute(built(*asked[1:])[0]).model)


def test_an_option_that_came_later_changes_no_name() -> None:
    """A configuration that means what it meant has the fingerprint it had, so that its runs go on."""
    _, complete = built()
    later = {"nesterov", "optimiser", "optimiser_state", "schedules"}
    before = {**complete, "local": {name: value for name, value in complete["local"].items() if name not in later}}
    assert config.fingerprint(before) == config.fingerprint(complete)
    for change in ("local.optimiser=adam", "local.schedules=cosine"):
        assert config.fingerprint(built(change)[1]) != config.fingerprint(complete)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["local.optimiser=adan"], r"local\.optimiser: unknown name 'adan'; did you mean adam"),
        (["local.optimiser=[1]"], r"local\.optimiser: \[1\] is not text"),
        (["local.optimiser=adam", "local.adam.beta3=1"], r"local\.adam\.beta3: unknown option"),
        (["local.adam.beta1=0.8"], r"local\.adam: options of an optimiser that local\.optimiser does not name; write"),
        (["local.cosine.floor=0.1"], r"local\.cosine: options of a schedule that .*; write local\.schedules=cosine"),
        (["local.schedules=round_step"], r"local\.round_step\.every: missing; give it a value"),
        (["local.schedules=constant,cosine"], r"local\.schedules: constant stands alone; leave it out beside others"),
        (["local.schedules=cosine,cosine"], r"local\.schedules: cosine stands there twice"),
        (["local.schedules=turnout:LocalSGD"], r"local\.schedules: turnout:LocalSGD is not a subclass of .*Schedule$"),
        (["local.optimiser=turnout:LocalSGD"], r"local\.optimiser: turnout:LocalSGD is not a .* and no function$"),
        (
            ["local.optimiser=adam", "local.momentum=0.9"],
            r"local\.momentum: it is that of sgd, and local\.optimiser is",
        ),
    ],
)
def test_mistakes_with_steps(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        built(*overrides)


def test_a_configuration_of_version_0_1() -> None:
    local: dict[str, Any] = {"lr": 0.1, "transform": "clip:1,noise:0.5:7,quantise:8"}
    now = config.modernise({"local": local})["local"]
    assert now == {
        "lr": 0.1, "modifiers": ["clip", "noise", "quantise"], "clip": {"norm": 1.0}, "noise": {"std": 0.5, "seed": 7},
        "quantise": {"bits": 8},
    }  # fmt: skip
    assert config.modernise({"local": {"lr": 0.1, "transform": ""}})["local"] == {"lr": 0.1, "modifiers": []}
    assert config.modernise({"local": now})["local"] == now
    assert local["transform"]


def test_a_run_of_version_0_1_goes_on(tmp_path: Path) -> None:
    """Its configuration is read, and it is known to be the one that wrote its checkpoints, unless it was changed."""
    _, complete = built("algorithm.name=fedavg")
    chain = {"transform": "clip:1,quantise:08"}  # as somebody may have written it
    before = {**complete, "local": {k: v for k, v in complete["local"].items() if k != "modifiers"} | chain}
    (tmp_path / "config.toml").write_text(config.as_toml(before))
    plan = config.build(config.read_run(tmp_path))[0]
    assert of(plan) == (Clip(1.0), Quantise(8))
    assert plan.former == config.fingerprint(before)
    for change in ("local.clip.norm=2", "local.modifiers=['clip', 'quantise', 'proximal']"):
        assert config.build(config.read_run(tmp_path, [change]))[0].former != plan.former
    with pytest.raises(UserError, match=r"it is now local\.modifiers"):
        config.build(config.read(str(tmp_path / "config.toml")))
