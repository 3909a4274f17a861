"""What an installed distribution registers is known by its name: algorithms, samplers, datasets, studies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal

from turnout import UserError, data
from turnout.config import registry
from turnout.core.imports import registered

MODULE = '''
"""A distribution of somebody else's."""
from dataclasses import dataclass
import numpy as np
import turnout
from turnout_studies import Study
from turnout_studies.study import Claim

@dataclass
class Eager(turnout.FedAvg):
    """Step twice as far."""
    stride: float = 2.0  # how many times as far
    def weights(self, server, updates, chosen):
        return self.stride * super().weights(server, updates, chosen)

class First(turnout.Sampler):
    """Ask the first two clients."""
    def sample(self, server):
        return turnout.Selection(np.arange(2), np.full(2, 0.5))

def dice(faces: int = 3) -> turnout.Dataset:
    """Thrown dice."""
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    return turnout.Dataset("dice", rows, np.arange(60) % faces, faces)

@dataclass
class Size:
    rounds: int = 1

class Shortest(Study):
    name, title, source, setting, small_data = "shortest", "Nothing is learnt", "nobody, 2024", "one trial", "none"
    sizes = {"default": Size(), "small": Size()}
    claims = [Claim("one", "One is one.", "nobody", "one", lambda results: results.each(lambda m: m["one"]), 0.5)]
    def experiment(self, size, data, plan):
        return lambda trial: {"one": 1.0}
    def script(self, size, seeds, trials):
        trials.all([{"seed": seed} for seed in seeds])
        return {}

STUDY = Shortest()
number = 3
'''
ENTRIES = """
[turnout.algorithms]
eager = tiny_parts:Eager
[turnout.samplers]
first = tiny_parts:First
[turnout.datasets]
dice = tiny_parts:dice
[turnout.studies]
shortest = tiny_parts:STUDY
"""
GROUPS = ("turnout.algorithms", "turnout.samplers", "turnout.datasets", "turnout.studies")


def install(folder: Path, name: str, entries: str) -> None:
    """Put the record of an installed distribution into a folder of the path."""
    record = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(entries)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the path with one distribution, `tiny-parts`."""
    folder = tmp_path / "site"
    install(folder, "tiny-parts", ENTRIES)
    (folder / "tiny_parts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    registered.cache_clear()
    yield folder
    monkeypatch.undo()
    registered.cache_clear()


RUN = ("run.rounds=1", "engine.threads=1", "data.name=dice", "algorithm.name=eager", "sampler.name=first")


@pytest.mark.usefixtures("site")
def test_parts_run_by_name(terminal: Terminal) -> None:
    words = ("run", "digits", *RUN, "algorithm.stride=0.5", "clients.count=5", "run.name=mine", "--json")
    answer = terminal(*words)
    assert answer.code == 0, answer.err
    assert answer.json()["audit"]["contributions"] == 2
    written = (terminal.here / "runs/mine/config.toml").read_text()
    assert 'name = "eager"' in written and "stride = 0.5" in written and 'name = "dice"' in written
    assert terminal("resume", "runs/mine", "run.rounds=2", "--json").json()["rounds"] == 2


@pytest.mark.usefixtures("site")
def test_a_study_runs_by_name(terminal: Terminal) -> None:
    assert "shortest" in terminal("study", "list").out
    answer = terminal("study", "run", "shortest", "--size", "small", "--seeds", "2")
    assert answer.code == 0, answer.err
    assert "shortest, size small, 2 seeds" in answer.out


@pytest.mark.usefixtures("site")
def test_they_are_listed_with_their_distribution_and_explained(terminal: Terminal) -> None:
    listing = terminal("list", "--json").json()
    assert listing["algorithms"]["eager"] == "Step twice as far. (of tiny-parts)"
    assert listing["samplers"]["first"] == "Ask the first two clients. (of tiny-parts)"
    assert listing["datasets"]["dice"] == "Thrown dice. (of tiny-parts)"
    assert "stride" in terminal("show", "eager").out
    assert "faces" in terminal("show", "dice").out


@pytest.mark.usefixtures("site")
def test_a_mistake_in_an_option_of_theirs(terminal: Terminal) -> None:
    answer = terminal("run", "digits", *RUN, "clients.count=5", "algorithm.stryde=1")
    assert (answer.code, answer.err.strip()) == (2, "turnout: algorithm.stryde: unknown option; did you mean stride?")


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        (
            "[turnout.algorithms]\neager = tiny_parts:Eager",
            "eager is registered by other and tiny-parts; uninstall",
        ),
        (
            "[turnout.algorithms]\nfedavg = tiny_parts:Eager",
            "fedavg is built in, and other registers it too; rename",
        ),
        (
            "[turnout.algorithms]\nlost = nowhere:Eager",
            r"lost of other is broken \(nowhere:Eager cannot be imported: ",
        ),
        ("[turnout.algorithms]\nnumber = tiny_parts:number", "number is not a subclass of turnout.Algorithm"),
    ],
)
def test_a_name_that_cannot_be_used_is_one_sentence(site: Path, entries: str, sentence: str) -> None:
    install(site, "other", entries)
    registered.cache_clear()
    name = entries.split()[1]
    with pytest.raises(UserError, match=rf"^algorithm\.name: {sentence}"):
        registry.find("algorithm", name)


def test_a_dataset_that_cannot_be_used_is_one_sentence(site: Path) -> None:
    install(site, "other", "[turnout.datasets]\ndigits = tiny_parts:dice\nnumber = tiny_parts:number")
    registered.cache_clear()
    with pytest.raises(UserError, match=r"^data\.name: digits is built in, and other registers it too"):
        data.loader("digits")
    with pytest.raises(UserError, match=r"^data\.name: number of other is not a function"):
        data.loader("number")
    assert data.load("dice", faces=4).num_classes == 4
