"""A population written to a folder and opened again is the same one, to the bit; and other folders are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import WORLD, experiment, population, same
from turnout.clients import adversary, arriving, behaviour, devices, memories
from turnout.clients import saved as folder
from turnout.clients.availability import Always, Availability, Detection
from turnout.clients.chains import Bernoulli, Diurnal, Grouped, Markov
from turnout.clients.devices import AtLeast, Exponential, Gaussian, LogNormal
from turnout.clients.links import Links
from turnout.clients.population import Population
from turnout.clients.traces import Trace
from turnout.core.errors import UserError
from turnout.core.ragged import Ragged

EIGHT = np.linspace(0.3, 0.9, 8)
PRESENCE: dict[str, Availability] = {
    "always": Always(),
    "trace": Trace([0, 0, 1, 2], [0, 4, 1, 0], [2, 5, 6, 6], shift="random", assign="random"),
    "markov": Markov(EIGHT, 0.3),
    "diurnal": Diurnal(EIGHT, 0.1, 0.5, zones=4),
    "grouped": Grouped(Bernoulli(np.array([0.5, 0.9]), clock="seconds"), np.arange(8) % 2),
}
WORLDS: dict[str, dict[str, Any]] = {
    **{name: {"availability": model} for name, model in PRESENCE.items()},
    "drawn": {
        "devices": devices.exponential(EIGHT, minimum=0.1),
        "links": Links(down=LogNormal(1e5, 1.0), up=AtLeast(Gaussian(1e5, 3e4), 1e4), latency=Exponential(0.1)),
        "detection": Detection("heartbeat", 2.0),
    },
    "disturbed": {
        "adversary": adversary.Silence(0.5, clients=[1, 4]),
        "behaviour": behaviour.DisguisedDecay(share=0.25, declared_samples=9),
        "left_at": np.array([np.inf] * 6 + [3.0, 2.0]),
        "importance": np.full(8, 1 / 8),
    },
}


def opened(people: Population, path: Path) -> Population:
    people.save(path / "clients")
    return Population.open(path / "clients")


def agree(people: Population, again: Population, name: str) -> None:
    first, second = (turnout.execute(experiment(name, people=one, rounds=4)) for one in (people, again))
    assert torch.equal(first.model, second.model)
    assert same(first.rounds(), second.rounds()) and same(first.jobs(), second.jobs())


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_over_an_opened_population_has_the_same_bits(world: str, tmp_path: Path) -> None:
    people = population(**{**WORLD, **WORLDS[world]})
    agree(people, opened(people, tmp_path), "fedbuff")


def test_streams_and_central_tests_too(tmp_path: Path) -> None:
    people = replace(population(**WORLD), central=(torch.ones(4, 5), torch.zeros(4, dtype=torch.int64)))
    people = people.streaming(arriving.constant(2), memories.Reservoir(5), fresh=0.5)
    again = opened(people, tmp_path)
    assert isinstance(again.central, tuple)
    agree(people, again, "fedavg")


def test_large_columns_stay_in_their_files(tmp_path: Path) -> None:
    clients = 150_000
    index = Ragged(np.arange(clients + 1), np.arange(clients) % 1000)
    speed = np.linspace(1, 2, clients)
    people = Population(torch.zeros(300_000, 1), torch.zeros(300_000), index, devices=devices.table(speed))
    again = opened(people, tmp_path)
    for column in (again.train.values, again.train.offsets, again.devices.draw.values):  # type: ignore[attr-defined]
        assert isinstance(column.base, np.memmap) and not isinstance(column, np.memmap)
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".npy" in line}
    assert str(tmp_path / "clients" / "population.inputs.npy") in mapped
    some = np.array([7, 149_999])
    assert again.samples(some, np.zeros(2)).values.tolist() == [7, 999]
    assert np.array_equal(again.devices.seconds(0, some, 0, 1, 1), speed[some])


@dataclass(frozen=True)
class Mine(Always):
    """Not one of the library's."""


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        ({"availability": Mine()}, "population.availability: Mine cannot be saved; only numbers"),
        ({"power": object()}, "population.power: object cannot be saved"),
        ({"regions": np.array([None] * 8)}, "population.regions: ndarray cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_said(column: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        population(**column).save(tmp_path / "clients")
    assert not (tmp_path / "clients").exists()


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    facts = json.loads((path / "population.json").read_text())
    change(facts)
    (path / "population.json").write_text(json.dumps(facts))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no facts": (lambda path: (path / "population.json").unlink(), "No such file"),
    "no json": (lambda path: (path / "population.json").write_text("{"), "Expecting property name"),
    "a column less": (lambda path: (path / "population.inputs.npy").unlink(), "No such file"),
    "half a column": (lambda path: (path / "population.inputs.npy").write_bytes(b"\x93NUMPY\x01"), "EOF"),
    "an unknown part": (lambda path: _edit(path, lambda facts: facts["parts"].update(wings=2)), "wings"),
    "no part of the library": (
        lambda path: _edit(path, lambda facts: facts.update({"class": "folder.Path", "parts": {}})),
        "Path is no class of turnout.clients",
    ),
    "another module": (
        lambda path: _edit(path, lambda facts: facts.update({"class": "..os.system"})),
        "system is no class of turnout.clients",
    ),
    "a path": (
        lambda path: _edit(path, lambda facts: facts["parts"]["inputs"].update(tensor="../clients/population.inputs")),
        "is no name of a column",
    ),
    "a number": (lambda path: (path / "population.json").write_text("3"), "holds int, which is no population"),
    "an index": (lambda path: _edit(path, lambda facts: facts.update(facts["parts"]["train"])), "holds Ragged"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_another_folder_is_refused_in_one_sentence(how: str, tmp_path: Path) -> None:
    population().save(tmp_path / "clients")
    damage, why = BROKEN[how]
    damage(tmp_path / "clients")
    with pytest.raises(UserError, match=f"population: .*clients .*{why}") as found:
        Population.open(tmp_path / "clients")
    assert "\n" not in str(found.value)


def test_pickled_columns_are_never_loaded(tmp_path: Path) -> None:
    population().save(tmp_path / "clients")
    np.save(tmp_path / "clients" / "population.targets.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match="Object arrays cannot be loaded"):
        Population.open(tmp_path / "clients")


def test_a_population_is_not_overwritten_and_one_half_written_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    population().save(tmp_path)
    with pytest.raises(UserError, match="holds one already; choose another folder"):
        population().save(tmp_path)

    def fails(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(folder, "write_text", fails)
    with pytest.raises(OSError):
        population().save(tmp_path / "half")
    assert (tmp_path / "half" / "population.inputs.npy").exists()
    with pytest.raises(UserError, match="is not what"):
        Population.open(tmp_path / "half")
