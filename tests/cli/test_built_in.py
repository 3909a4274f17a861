"""Built-in configurations run, and say what they are; every section can be shown."""

from __future__ import annotations

import pytest
from terminal import Terminal

from turnout.config import config
from turnout.config.kinds import NAMED, PLAIN
from turnout.config.sections import ABOUT
from turnout.run.experiment import execute

BUILT_IN = config.builtin_names()


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_configuration_learns_from_the_first_rounds(name: str) -> None:
    read = config.read(name, ["run.rounds=3", "engine.threads=1", "evaluation.rounds=1"])
    experiment, settings, _ = config.build(read)
    assert settings.name == name
    losses = execute(experiment).rounds()["train_loss"]
    assert losses[-1] < losses[0]


def test_each_is_listed_with_its_line(terminal: Terminal) -> None:
    listed = terminal.done("list", "configs", "--json").json()["configs"]
    assert list(listed) == BUILT_IN
    assert len(BUILT_IN) == 6
    for name, line in listed.items():
        assert config.builtin_text(name).startswith(f"# {line}\n")
        assert line.endswith(".")


def test_a_configuration_is_shown_as_it_is_written(terminal: Terminal) -> None:
    """No line is broken: what is printed can be a file."""
    text = config.builtin_text("writers")
    assert terminal.done("show", "writers").out.startswith(text)


def test_every_section_is_known_and_has_a_line(terminal: Terminal) -> None:
    assert tuple(ABOUT) == config.SECTIONS
    assert terminal.done("list", "sections", "--json").json() == {"sections": ABOUT}
    assert {*PLAIN, *NAMED} >= set(config.SECTIONS)


@pytest.mark.parametrize(
    ("section", "option", "thing"),
    [
        ("availability", "groups", "markov"),
        ("stream", "drift", "poisson"),
        ("rule", "name", "krum"),
        ("algorithm", "name", "scaffold"),
        ("crashes", "probability", ""),
        ("task", "loss", "focal"),
    ],
)
def test_a_section_is_shown_with_its_options_and_the_names_that_it_knows(
    terminal: Terminal, section: str, option: str, thing: str
) -> None:
    shown = terminal.done("show", section).out
    assert shown.startswith(f"[{section}] {ABOUT[section]}\n")
    assert f"\n{option} " in shown
    assert thing in shown


def test_required_names_are_said_to_be(terminal: Terminal) -> None:
    assert "required" in terminal.done("show", "model").out
    assert "required" not in terminal.done("show", "partition").out
