"""Configurations: read, overridden, checked against signatures, completed, written back, and named by a fingerprint."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import turnout
from turnout import UserError
from turnout.algorithms.fedavg import FedAvg
from turnout.config import config, kinds, registry
from turnout.config.options import options_of

BASE: dict[str, dict[str, Any]] = {
    "run": {"rounds": 2, "seed": 3},
    "data": {"name": "quadratics", "clients": 6, "samples": 4},
    "partition": {"name": "natural"},
    "clients": {"count": 6},
    "model": {"name": "linear"},
    "local": {"lr": 0.1},
    "algorithm": {"name": "fedavg"},
    "sampler": {"name": "md", "clients_per_round": 2},
}


def settings(**changes: dict[str, Any]) -> config.Settings:
    """The base configuration with some options replaced; a section with a name of its own is replaced whole."""
    merged = {section: dict(options) for section, options in BASE.items()}
    for section, options in changes.items():
        replaced = "name" in options and section != "run"
        merged[section] = dict(options) if replaced else merged.get(section, {}) | options
    return merged


def refused(**changes: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        config.build(settings(**changes))
    message = str(caught.value)
    assert "\n" not in message
    return message


class Mine(FedAvg):
    """An algorithm of the user's own."""


def net(inputs: int, outputs: int, width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))


def no_net(inputs: int) -> int:
    return inputs


# -- reading --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", config.builtin_names())
def test_built_in_configurations_build(name: str) -> None:
    experiment, run, complete = config.build(config.read(name))
    assert run.name == name
    asked = complete["algorithm"]["name"] not in ("fedbuff", "dpasgd")  # which invite nobody
    assert set(complete) == set(config.SECTIONS) - set(kinds.PARTS) - (set() if asked else {"sampler"})
    assert experiment.fingerprint == config.fingerprint(complete)


def test_overrides() -> None:
    read = config.read(
        "digits",
        [
            "run.rounds=7",
            "local.lr=1e-2",
            "model.hidden=[8, 4]",
            "run.name=my-run",
            'run.folder="a b"',
            "run.target=inf",
        ],
    )
    assert read["run"]["rounds"] == 7
    assert read["run"]["name"] == "my-run"
    assert read["run"]["folder"] == "a b"
    assert read["run"]["target"] == math.inf
    assert read["local"] == {"lr": 0.01, "epochs": 2, "batch_size": 8}
    assert read["model"] == {"name": "mlp", "hidden": [8, 4]}


def test_another_name_forgets_the_options_of_the_first() -> None:
    read = config.read(
        "digits", ["sampler.name=full", "availability.name=bernoulli", "devices.name=fx", "devices.percent=80"]
    )
    assert read["sampler"] == {"name": "full"}
    assert read["availability"] == {"name": "bernoulli", "probability": 0.7}  # the same one keeps them
    assert read["devices"] == {"name": "fx", "percent": 80}


def test_a_new_section_by_override() -> None:
    assert config.read("digits", ["engine.precision=float64"])["engine"] == {"precision": "float64"}


@pytest.mark.parametrize(
    ("source", "overrides", "words"),
    [
        ("digts", [], "did you mean digits?"),
        ("nowhere.toml", [], "nowhere.toml: cannot be read (No such file or directory)"),
        ("digits", ["rounds=3"], "write an override as section.option=value"),
        ("digits", ["run.rounds"], "write an override as section.option=value"),
        ("digits", ["runs.rounds=3"], "section: unknown name 'runs'; did you mean run?"),
    ],
)
def test_refused_sources(source: str, overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        config.read(source, overrides)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [("[run\nrounds = 3", "not valid TOML"), ("rounds = 3", "rounds: options stand in sections such as [run]"),
     ("[runn]\nrounds = 3", "did you mean run?")],
)  # fmt: skip
def test_refused_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        config.read(str(path))
    assert words in str(caught.value)


def test_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError):
        config.read(str(path))


# -- building -------------------------------------------------------------------------------------------------


def test_what_is_built() -> None:
    experiment, run, _ = config.build(
        settings(
            algorithm={"name": "fedprox", "mu": 0.25},
            sampler={"name": "uniform", "clients_per_round": 4},
            devices={"name": "fx", "percent": 80},
            availability={"name": "bernoulli", "probability": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]},
            clients={"importance": [0.5, 0.1, 0.1, 0.1, 0.1, 0.1], "left_at": [9, 9, 9, 9, 9, 1.5]},
            engine={"precision": "float64", "threads": 1},
            evaluation={"rounds": 5, "clients": 3},
            run={"seconds": 20, "checkpoint_every": 4},
        )
    )
    algorithm, people = experiment.algorithm, experiment.population
    assert isinstance(algorithm, turnout.FedProx)
    assert (algorithm.mu, algorithm.local.lr) == (0.25, 0.1)
    assert algorithm.sampler == turnout.Uniform(4)
    assert people.devices.seconds(0, people.ids, 0, 1, 1) == pytest.approx([1, 0.84, 0.68, 0.52, 0.36, 0.2])
    assert np.asarray(people.availability.probability).tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert people.base_importance.tolist() == [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]
    assert people.left_at is not None
    assert people.left_at.tolist() == [9, 9, 9, 9, 9, 1.5]
    assert experiment.plan == turnout.Plan(precision="float64", threads=1)
    assert experiment.evaluation == turnout.Evaluation(5, clients=3)
    assert experiment.stopping == turnout.Stopping(2, 20.0)
    assert (run.checkpoint_every, run.seed, experiment.seed, people.seed) == (4, 3, 3, 3)


def test_model_is_fitted_to_the_data() -> None:
    """Inputs and outputs come from the data, the loss from its kind, the initial weights from the seed."""
    experiment, _, complete = config.build(settings())
    assert complete["model"] == {
        "name": "linear", "inputs": 1, "outputs": 1, "bias": True, "zero_init": False
    }  # fmt: skip
    assert complete["task"] == {
        "loss": "mse",
        "metrics": None,
        "prepare": [],
        "augment": [],
        **dict.fromkeys(("batchnorm", "buffers")),
    }
    again, _, _ = config.build(settings())
    other, _, _ = config.build(settings(run={"seed": 4}))
    assert experiment.task.initial.equal(again.task.initial)
    assert not experiment.task.initial.equal(other.task.initial)
    digits = {"data": {"name": "digits"}, "partition": {"name": "iid"}}
    _, _, complete = config.build(settings(**digits))
    assert (complete["model"]["inputs"], complete["model"]["outputs"]) == (64, 10)
    assert complete["task"]["loss"] == "cross_entropy"


def test_own_things_by_dotted_name() -> None:
    experiment, _, complete = config.build(
        settings(algorithm={"name": f"{__name__}:Mine"}, model={"name": f"{__name__}:net", "width": 5})
    )
    assert isinstance(experiment.algorithm, Mine)
    assert experiment.task.size == 5 + 5 + 5 + 1
    assert complete["model"]["width"] == 5


@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_every_algorithm_by_name(name: str) -> None:
    """Options are found through inheritance, whichever module a field was declared in."""
    required = {"deadline": 2.0} if name in ("fedcs", "hierfavg", "hybridfl") else {}
    experiment, _, complete = config.build(settings(algorithm={"name": name, **required}))
    assert type(experiment.algorithm) is registry.find("algorithm", name)
    assert complete["algorithm"]["name"] == name
    assert "local" in options_of(type(experiment.algorithm))
    assert "local" not in complete["algorithm"]


@pytest.mark.parametrize("name", registry.names("sampler"))
def test_every_sampler_by_name(name: str) -> None:
    experiment, _, _ = config.build(settings(sampler={"name": name}))
    assert type(experiment.algorithm.sampler) is registry.find("sampler", name)  # type: ignore[attr-defined]


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": {"round": 3}}, "run.round: unknown option; did you mean rounds?"),
        ({"run": {"rounds": "many"}}, "run.rounds: 'many' is not a whole number"),
        ({"run": {"rounds": 2.5}}, "run.rounds: 2.5 is not a whole number"),
        ({"run": {"rounds": -1}}, "run.rounds: -1 must be at least 0"),
        ({"run": {"name": 7}}, "run.name: 7 is not text"),
        ({"local": {"lr": "fast"}}, "local.lr: 'fast' is not a number"),
        ({"local": {"lr": -0.1}}, "local.lr: -0.1 must be"),
        ({"local": {"lr": math.nan}}, "local.lr: nan must be"),
        ({"local": {"batch_size": 0}}, "local.batch_size: 0 must be"),
        ({"local": {"batching": "random"}}, "local.batching: unknown name 'random'; allowed: draws, epochs"),
        ({"algorithm": {"name": "fedaverage"}}, "algorithm.name: unknown name 'fedaverage'; did you mean fedavg?"),
        ({"algorithm": {"name": "fedavg", "mu": 1}}, "algorithm.mu: unknown option; allowed: server_lr, deadline"),
        ({"algorithm": {"name": "nowhere:Mine"}}, "algorithm.name: 'nowhere:Mine' cannot be imported"),
        ({"algorithm": {"name": f"{__name__}:net"}}, "is not a subclass of turnout.Algorithm"),
        ({"sampler": {"name": "mdd"}}, "sampler.name: unknown name 'mdd'; did you mean md?"),
        ({"data": {"name": "quadratic"}}, "dataset: unknown name 'quadratic'; did you mean quadratics?"),
        ({"data": {"name": "quadratics", "dims": "two"}}, "data.dims: 'two' is not a whole number"),
        ({"data": {"name": "csv_table", "path": "x.csv"}}, "data.target: missing; give it a value"),
        ({"partition": {"name": "naturel"}}, "partition.name: unknown name 'naturel'; did you mean natural?"),
        ({"partition": {"name": "iid", "alpha": 1}}, "partition.alpha: unknown option"),
        ({"clients": {"importance": [0.5, 0.5]}}, "population.importance: 2 values for 6 clients"),
        ({"clients": {"importance": [0.5] * 6}}, "population.importance: the values sum to 3, they must sum to 1"),
        ({"clients": {"importance": "size"}}, "population.importance: 'size' is not samples, equal or a list"),
        ({"clients": {"joined_at": [1.0]}}, "population.joined_at: 1 values for 6 clients"),
        ({"clients": {"test": "some"}}, "clients.test: unknown name 'some'; allowed: matched, none, split"),
        ({"clients": {"count": 7}}, "partition natural: 7 clients asked, the data has 6 groups"),
        ({"devices": {"name": "fast"}}, "devices.name: unknown name 'fast'"),
        ({"devices": {"name": "fx", "percent": 120}}, "devices.percent: 120.0 must be at least 0 and below 100"),
        ({"availability": {"name": "bernoulli"}}, "availability.probability: missing"),
        ({"availability": {"name": "bernoulli", "probability": 2}}, "availability.probability: 2.0 must be from"),
        ({"detection": {"kind": "gossip"}}, "detection.kind: unknown name 'gossip'; allowed: heartbeat, none, oracle"),
        ({"model": {"name": "lineer"}}, "model.name: unknown name 'lineer'; did you mean linear?"),
        ({"model": {"name": "linear", "depth": 3}}, "model.depth: unknown option"),
        ({"model": {"name": "linear", "loss": "mae"}}, "task.loss: unknown name 'mae'"),
        ({"model": {"name": f"{__name__}:no_net"}}, "no_net returned int, not a torch.nn.Module"),
        ({"engine": {"engine": "gpu"}}, "engine.engine: unknown name 'gpu'; allowed: auto, ray"),
        ({"engine": {"precision": "half"}}, "engine.precision: unknown name 'half'"),
        ({"evaluation": {"rounds": 0}}, "evaluation.rounds: 0 must be at least 1"),
    ],
)  # fmt: skip
def test_refused_options(changes: dict[str, Any], words: str) -> None:
    assert words in refused(**changes)


@pytest.mark.parametrize("section", ["data", "model", "algorithm"])
def test_name_is_needed(section: str) -> None:
    without = {name: options for name, options in settings().items() if name != section}
    with pytest.raises(UserError, match=rf"{section}\.name: missing; say which one with {section}\.name="):
        config.build(without)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"links": {"down": "fast"}}, id="links.down=fast"),
        pytest.param({"availability": {"name": "bernoulli", "probability": "often"}}, id="probability=often"),
        pytest.param({"crashes": {"probability": "never"}}, id="crashes.probability=never"),
    ],
)
def test_text_is_not_a_number(changes: dict[str, Any]) -> None:
    try:
        experiment, _, _ = config.build(settings(**changes))
        people = experiment.population
        people.links.download_seconds(0, people.ids, 8)
    except UserError:
        return
    raise AssertionError("it was accepted")


def test_devices_from_a_table() -> None:
    experiment, _, _ = config.build(settings(devices={"name": "table", "source": [1, 2, 3, 4, 5, 6]}))
    assert experiment.population.devices.seconds(0, np.arange(6), 0, 1, 1).tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["", ".", "..", "../other"])
def test_run_name_is_a_name(name: str) -> None:
    assert "run.name" in refused(run={"name": name})


@pytest.mark.parametrize(("option", "value"), [("steps", -1), ("clip_norm", -1.0), ("clip_norm", 0.0)])
def test_local_options_are_checked(option: str, value: float) -> None:
    assert f"local.{option}" in refused(local={option: value})


def test_device_that_does_not_exist() -> None:
    experiment, _, _ = config.build(settings(engine={"device": "gpu"}))
    with pytest.raises(UserError, match=r"engine\.device"):
        experiment.plan.resolve()


# -- completing, writing, naming ------------------------------------------------------------------------------


def test_complete_settings_say_everything() -> None:
    _, _, complete = config.build(settings())
    asked = complete["algorithm"]["name"] not in ("fedbuff", "dpasgd")  # which invite nobody
    assert set(complete) == set(config.SECTIONS) - set(kinds.PARTS) - (set() if asked else {"sampler"})
    assert complete["local"] == {
        "lr": 0.1, "epochs": 1, "steps": None, "batch_size": 32, "batching": "epochs", "momentum": 0.0,
        "weight_decay": 0.0, "clip_norm": None, "lr_decay": 1.0, "lr_power": 0.0, "report": "", "modifiers": [],
        "nesterov": False, "optimiser": "sgd", "optimiser_state": "discarded", "schedules": [],
    }  # fmt: skip
    assert complete["algorithm"] == {
        "name": "fedavg", "server_lr": 1.0, "deadline": None, "wait_for": None, "wait_for_crashed": False, "retry": 1.0,
        "normalise": "invited",
    }  # fmt: skip
    assert complete["devices"]["name"] == "fixed"
    assert complete["availability"] == {"name": "always"}


def test_complete_partition() -> None:
    changes: dict[str, Any] = {"data": {"name": "digits"}, "partition": {"name": "dirichlet", "alpha": 1.0}}
    _, _, complete = config.build(settings(**changes))
    rest = {"min_samples": 1, "attempts": 20, "label_groups": None}
    assert complete["partition"] == {"name": "dirichlet", "alpha": 1.0, **rest}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"name": "scaffold"}, "availability": {"name": "bernoulli", "probability": [0.5] * 6}},
        {"devices": {"name": "fx", "percent": 80}, "links": {"down": 1e6, "latency": 0.25}},
        {
            "devices": {"name": "exponential", "mean": [1, 2, 3, 4, 5, 6]},
            "detection": {"kind": "heartbeat", "seconds": 2},
        },
        {"clients": {"importance": [0.5, 0.1, 0.1, 0.1, 0.1, 0.1], "joined_at": [0, 0, 0, 0, 1, 2]}},
        {
            "data": {"name": "digits"},
            "partition": {"name": "dirichlet", "alpha": 1},
            "model": {"name": "mlp", "hidden": [4]},
        },
    ],
)
def test_written_and_read_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    """config.toml builds the same experiment: same complete settings, same fingerprint, same initial model."""
    experiment, _, complete = config.build(settings(**changes))
    path = tmp_path / "config.toml"
    path.write_text(config.as_toml(complete))
    again, _, complete_again = config.build(config.read(str(path)))
    assert complete_again == complete
    assert again.fingerprint == experiment.fingerprint
    assert again.task.initial.equal(experiment.task.initial)
    assert again.population.train.values.tolist() == experiment.population.train.values.tolist()


def test_arguments_of_a_function_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rows.py").write_text(
        "import numpy as np\ndef make(n):\n    return {'inputs': np.ones((n, 2), 'f4'), 'targets': np.arange(n) % 2}\n"
    )
    monkeypatch.chdir(tmp_path)
    own = {"name": "function", "function": "my_rows:make", "arguments": {"n": 30}}
    _, _, complete = config.build(settings(data=own, partition={"name": "iid"}))
    assert tomllib.loads(config.as_toml(complete))["data"]["arguments"] == {"n": 30}


def test_toml_values() -> None:
    odd: dict[str, Any] = {
        "text": 'he said "no" \\ ünïcode',
        "line": "a\nb",
        "flag": True,
        "number": 3,
        "real": 1e-7,
        "endless": math.inf,
        "list": [1, 2.5, "x"],
        "nested": [[1.0, 2.0], [3.0]],
        "nothing": None,
    }
    written = tomllib.loads(config.as_toml({"run": odd}))["run"]
    assert written == {name: value for name, value in odd.items() if value is not None}


@pytest.mark.parametrize(
    "changes",
    [{"local": {"lr": 0.2}}, {"run": {"seed": 4}}, {"sampler": {"name": "md", "clients_per_round": 3}},
     {"data": {"name": "quadratics", "clients": 6, "samples": 5}}, {"crashes": {"probability": 0.5}},
     {"engine": {"threads": 1}}],
)  # fmt: skip
def test_fingerprint_names_the_result(changes: dict[str, Any]) -> None:
    assert config.build(settings(**changes))[0].fingerprint != config.build(settings())[0].fingerprint


def test_fingerprint_leaves_room_to_go_on() -> None:
    """How long, how often it is saved and what it is called do not change the bits of the rounds both have."""
    free = {"rounds": 99, "name": "x", "folder": "y", "seconds": 5.0, "target": 0.5, "measure": "test_loss"}
    longer = config.build(settings(run={**free, "checkpoint_every": 3}))[0]
    assert longer.fingerprint == config.build(settings())[0].fingerprint


def test_the_built_experiment_runs() -> None:
    ended = turnout.execute(config.build(settings(engine={"threads": 1}))[0])
    assert ended.server.version == 2
    assert bool(torch.isfinite(ended.model).all())
