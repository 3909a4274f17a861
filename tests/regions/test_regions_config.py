"""Regions, the way to the cloud and energy, as a configuration has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import turnout
from turnout.algorithms.hybridfl import HybridFL
from turnout.clients.regions import deal
from turnout.config import config
from turnout.core.errors import UserError

HYBRID = ["algorithm.name=hybridfl", "algorithm.deadline=20", "run.rounds=3", "model.hidden=[4]"]


def built(*overrides: str) -> tuple[turnout.Experiment, dict[str, Any]]:
    experiment, _, complete = config.build(config.read("digits", [*HYBRID, *overrides]))
    return experiment, complete


def test_a_run_with_regions_from_its_configuration() -> None:
    words = ("clients.regions=5", "clients.region_sd=0.3", "links.backhaul=1e6", "power.transmit=0.5", "run.seed=4")
    experiment, complete = built(*words, "crashes.during=job", "algorithm.slack=censored")
    people = experiment.population
    assert people.regions is not None
    assert people.regions.tolist() == deal(100, 5, 4, relative_sd=0.3).tolist()
    assert people.power is not None
    assert (people.power.transmit, people.power.compute) == (0.5, 0.7)
    assert people.crashes.during == "job"
    assert complete["clients"]["regions"] == 5
    assert complete["power"] == {"speed": 1.0, "transmit": 0.5, "compute": 0.7}
    assert isinstance(experiment.algorithm, HybridFL)
    assert complete["algorithm"]["slack"] == "censored"
    result = turnout.execute(experiment)
    assert result.server.version == 3
    assert result.efficiency["energy_wh"] > result.efficiency["wasted_wh"] > 0


def test_a_region_for_each_client() -> None:
    regions = [i % 3 for i in range(100)]
    experiment, complete = built(f"clients.regions={regions}")
    assert experiment.population.regions is not None
    assert experiment.population.regions.tolist() == regions
    again, _, _ = config.build(_read_back(complete))
    assert again.fingerprint == experiment.fingerprint
    np.testing.assert_array_equal(again.population.regions, experiment.population.regions)


def _read_back(complete: dict[str, Any]) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(config.as_toml(complete))


def test_nobody_asks() -> None:
    experiment, complete = built()
    assert experiment.population.regions is None
    assert experiment.population.power is None
    assert complete["power"] == {}
    assert config.build(_read_back(complete))[0].population.power is None


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("clients.regions=0", "clients.regions: 0 must be from 1 to the 100 clients"),
        ("clients.regions=[0, 1]", "population.regions: 2 values for 100 clients"),
        ("clients.regions=many", "clients.regions: 'many' is not"),
        ("power.transmit=-1", "power.transmit: -1.0 must be above 0 and finite"),
        ("links.backhaul=0", "links.backhaul: 0.0 must be above 0"),
        ("crashes.during=night", "crashes.during: unknown name 'night'; allowed: job, work"),
        ("algorithm.slack=late", "algorithm.slack: unknown name 'late'"),
    ],
)
def test_what_is_refused(words: str, answer: str) -> None:
    with pytest.raises(UserError, match=answer.replace("[", r"\[")):
        built(words)
