"""Values that nobody means: refused in one sentence that names the option, at once, and nothing is left behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import catalogue
import pytest
import random_configurations

from turnout import UserError, execute
from turnout.config import config
from turnout.config.options import call, check
from turnout.plan import choices, sweep

DEEP = "[" * 3000 + "]" * 3000
REFUSED = {
    "local.batch_size=1" + "0" * 30: "local.batch_size: 1000000000",
    "local.epochs=1" + "0" * 24: "is too large; whole numbers go from -2^63 to 2^63 - 1",
    "local.epochs=1" + "0" * 18: "local.epochs: 1000000000000000000 must be from 0 to 1000000000",
    "run.seed=" + "9" * 5000: "run.seed: '999999",
    "run.seed=0x" + "f" * 6000: "run.seed: a whole number of 24000 bits is too large",
    "local.lr=1e300": "local.lr: 1e+300 is out of range; allowed: 0, inf, and sizes from 1e-300 to 1e+38",
    "local.lr=5e-324": "local.lr: 5e-324 is out of range",
    f"model.hidden={DEEP}": "model.hidden: its lists and tables are nested too deep to be read",
    "model.hidden=" + "[" * 40 + "]" * 40: "model.hidden: lists and tables are nested more than 32 deep",
    "model.hidden=[true]": "model.hidden: [True] is not a list",
    "model.hidden=[9000000000]": "model: it takes",
    "task.loss=3": "task.loss: 3 is not text",
    "model.name=math:hypot": "it has no options that can be read",
    "model.name=sys:path": "it has no options that can be read",
    "model.name=this_does_not:exist": "cannot be imported",
    "clients.count=1000000000000": "clients.count: 1000000000000 clients takes",
    "run.name=" + "a" * 300: "is longer than 200 bytes; shorten it",
    'run.name="a\\u0000b"': "must be the name of a folder inside run.folder",
    'run.folder="a\\u0000b"': "cannot be the name of a folder",
    "run.name=\udcff": "is not text: some of its bytes are not UTF-8",
    "availability.groups=[[1, 2], [3]]": "availability.groups: [[1, 2], [3]] is not a whole number or a list",
    "engine.threads=1000000000": "engine.threads: 1000000000 must be from 0 to 1024",
    "detection.seconds=inf": "detection.seconds: inf must be at least 0 and finite",
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda text: text[:30])
def test_extreme_overrides(change: str) -> None:
    with pytest.raises(UserError) as caught:
        config.build(config.read("digits", [change]))
    assert REFUSED[change] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("section", "thing", "options", "words"),
    [
        ("stream", "once", {"periods": 2**63 - 1}, "stream.periods: 9223372036854775807 must be from 1 to 1000000"),
        ("stream", "spread", {"periods": 2**62}, "stream.periods"),
        ("stream", "bursts", {"cycle": 2**62}, "stream.cycle"),
        ("stream", "constant", {"rate": 1e-9}, "stream.rate: 1e-09 must be from 1e-06 to 1e12"),
        ("data", "synthetic", {"clients": 10**12}, "dataset synthetic: clients=1000000000000, dims=4, classes=3 takes"),
        ("data", "linear_mixture", {"test_samples": 2**62}, "test_samples=4611686018427387904 takes"),
        ("data", "quadratics", {"samples": 2**62}, "samples=4611686018427387904 takes"),
        ("model", "char_lstm", {"layers": 2**40}, "model: 1099511627776 layers of 100 takes"),
        ("partition", "pachinko", {"superclasses": [0, 1, float("inf")]}, "superclasses must be 3 numbers"),
    ],
)
def test_builds_that_would_never_end(
    section: str, thing: str, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(catalogue.__file__).parent)
    with pytest.raises(UserError) as caught:
        config.build(catalogue.settings(section, thing, **options))
    assert words in str(caught.value)


@pytest.mark.parametrize("text", [f"x = {DEEP}", f"[run]\nx = {DEEP}", "[run]\nseed = " + "9" * 5000])
def test_files_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        config.read(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["a" * 300, "a" * 300 + ".toml", "a\0b", "a\0b.toml", "/" * 5000])
def test_names_that_no_file_has(source: str) -> None:
    with pytest.raises(UserError):
        config.read(source)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["seed=0..99999999999"], "run.seed=0..99999999999 are 100000000000 values; a range has at most 10000"),
        (["seed=0.." + "9" * 5000], "is not a range"),
        (["seed=0..999", "lr=" + ",".join(map(str, range(1, 30)))], "sweep: 29000 combinations are more than 10000"),
    ],
)
def test_sweeps_of_everything(words: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        sweep.combinations("digits", words)
    assert sentence in str(caught.value)
    assert choices.several("x", "0..3") == ("0", "1", "2", "3")


def test_folders_of_a_sweep_have_names_that_file_systems_know() -> None:
    assert len(sweep._folder_name({"data.path": "名" * 300}).encode()) <= 130


@pytest.mark.parametrize("slow", ["links.latency=1e38", "links.server=1e-300", "devices.median=1e30"])
def test_time_has_an_end(slow: str) -> None:
    """Jobs that take for ever are not over at once, nor does the clock turn back."""
    small = ["run.rounds=9", "clients.count=20", "sampler.clients_per_round=5", "local.epochs=1", "engine.threads=1"]
    experiment, _, _ = config.build(config.read("digits", [*small, slow]))
    with pytest.raises(UserError, match="the most a clock can tell"):
        execute(experiment)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("engine.device=cpu:0", "engine.device: 'cpu:0' is not a device; write cpu, cuda or cuda:1"),
        ("sampler.clients_per_round=1000000000000", "sampler.clients_per_round: 1000000000000 draws takes"),
        ("model.outputs=2", "task.loss: it cannot compare outputs of shape (2,)"),
    ],
)
def test_what_only_a_run_can_tell(change: str, words: str) -> None:
    experiment, _, _ = config.build(config.read("digits", ["sampler.name=md", "engine.threads=1", change]))
    with pytest.raises(UserError) as caught:
        execute(experiment)
    assert words in str(caught.value)


class Sloppy:
    """Defaults of other types than declared."""

    def __init__(self, width: float = 5, depth: int = 0.5, name: Any = None, sizes: list[float] = (1, 2)) -> None:  # type: ignore[assignment]
        self.given = width, depth, name, sizes


def test_defaults_are_recorded_as_they_are_read() -> None:
    """Also those of a user's own: what is recorded is what is passed, and what cannot be read is left to the code."""
    made, complete = call("model", Sloppy, {}, {})
    assert repr(complete) == "{'width': 5.0, 'name': None, 'sizes': [1.0, 2.0]}"
    assert repr(made.given) == "(5.0, 0.5, None, [1.0, 2.0])"
    assert repr(check("model", Sloppy, complete | {"name": "x"}, set())[1]) == repr(complete | {"name": "x"})


def test_random_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of those that `random_configurations.py` draws."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(catalogue.__file__).parent), *sys.path])
    outcomes, failures = random_configurations.walk(150, seed=0)
    assert not failures, "\n".join(failures)
    assert outcomes["refused"] > 30
    assert outcomes["built"] + outcomes["ran"] > 20
