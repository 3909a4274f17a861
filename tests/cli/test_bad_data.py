"""Bad data, and whom an adversary would silence, from the command line."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch
from terminal import QUICK, Terminal, bits

from turnout import Population
from turnout.clients.adversary import Silence
from turnout.clients.quality import KINDS, degrade
from turnout.config import config

IMAGES = ("data.shape=image", "clients.count=10", "engine.threads=1")


def built(*words: str) -> tuple[Population, config.Settings]:
    experiment, _, complete = config.build(config.read("digits", [*IMAGES, *words]))
    return experiment.population, complete


def same(one: Population, other: Population) -> bool:
    return torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_bad_data_has_a_name(kind: str) -> None:
    clean, _ = built()
    spoilt, complete = built(f"behaviour.name={kind}", "behaviour.share=0.3")
    expected, tags = degrade(clean, {kind: 0.3}, 0)
    assert (tags == kind).sum() == 3
    assert same(spoilt, expected)
    assert not same(spoilt, clean)
    assert same(config.build(tomllib.loads(config.as_toml(complete)))[0].population, expected)


def test_several_kinds_at_once() -> None:
    clean, _ = built()
    shares = "behaviour.shares={irrelevant = 0.2, blur = 0.3}"
    spoilt, complete = built("behaviour.name=bad_data", shares, "behaviour.strengths={blur = 1.5}")
    expected, tags = degrade(clean, {"irrelevant": 0.2, "blur": 0.3}, 0, blur=1.5)
    assert sorted(np.unique(tags, return_counts=True)[1].tolist()) == [2, 3, 5]
    assert same(spoilt, expected)
    again, _, once_more = config.build(tomllib.loads(config.as_toml(complete)))
    assert same(again.population, expected)
    assert config.fingerprint(once_more) == config.fingerprint(complete)


BAD = {
    "share": (["behaviour.name=blur", "behaviour.share=1.5"], "behaviour.share: 1.5 must be from 0 to 1"),
    "strength": (
        ["behaviour.name=salt_and_pepper", "behaviour.share=0.5", "behaviour.strength=2"],
        "behaviour.strength: 2.0 must be from 0 to 1",
    ),
    "below 0": (
        ["behaviour.name=gaussian_noise", "behaviour.share=0.5", "behaviour.strength=-1"],
        "behaviour.strength: -1.0 must be at least 0 and finite",
    ),
    "flat": (["behaviour.name=blur", "behaviour.share=0.5"], "blur needs images"),
    "kind": (
        ["behaviour.name=bad_data", "behaviour.shares={blurr = 0.5}"],
        "behaviour.shares: unknown name 'blurr'; did you mean blur?",
    ),
    "all": (["behaviour.name=bad_data", "behaviour.shares={irrelevant = 0.7, blur = 0.7}"], "at most 1"),
    "shadow": (["adversary.name=shadow", "adversary.budget=0.2", "adversary.last=3"], "shadow: rounds 5 and 3"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_mistakes(terminal: Terminal, mistake: str) -> None:
    words, sentence = BAD[mistake]
    assert sentence in terminal.refused("run", "digits", *QUICK, *words)


def test_they_are_listed_and_shown(terminal: Terminal) -> None:
    listed = terminal.done("list", "--json").json()
    assert {*KINDS, "bad_data"} <= set(listed["behaviours"])
    assert "shadow" in listed["adversaries"]
    assert all(listed["behaviours"][kind].startswith("A `share` of the clients has bad data.") for kind in KINDS)
    assert "strengths" in terminal.done("show", "bad_data").out
    assert "by_gradient" in terminal.done("show", "shadow").out


def test_a_shadow_finds_whom_to_silence_and_the_run_names_them(terminal: Terminal) -> None:
    few = ("clients.count=8", "sampler.name=full", "local.epochs=1", "run.report=false")
    hunt = ("adversary.name=shadow", "adversary.budget=0.4", "adversary.first=1", "adversary.last=3")
    terminal.run("hunted", *few, *hunt, "adversary.by_gradient=2", "adversary.by_momentum=1")
    written = tomllib.loads((terminal.here / "runs/hunted/config.toml").read_text())["adversary"]
    assert written["name"] == "silence"
    assert len(written["clients"]) == 3
    words = ("adversary.name=silence", "adversary.budget=0.4", f"adversary.clients={written['clients']}")
    assert bits(terminal.run("named", *few, *words)) == bits(terminal.here / "runs/hunted")
    terminal.done("resume", "runs/hunted", "run.rounds=4")
    found = config.build(config.read("digits", [*few, *hunt]))[0].population.adversary
    assert isinstance(found, Silence)
    assert len(found.clients) == 2  # a quarter and a tenth of eight
