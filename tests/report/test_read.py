from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support import experiment, same
from turnout import UserError, execute
from turnout.record.history import Table, read_segments
from turnout.record.run_folder import reseal
from turnout.report.read import Recorded, differences, labels, recorded, settings


def test_a_recorded_run_tells_what_the_result_told(tmp_path: Path) -> None:
    result = execute(experiment("fedavg"), tmp_path, configuration='[run]\nname = "mine"\nseed = 5\n')
    run = recorded(tmp_path)
    assert same(run.rounds(), result.rounds())
    assert same(run.jobs(), result.jobs())
    assert same(run.clients(), result.clients())
    assert (run.name, run.seed, run.finished) == ("mine", 5, True)
    assert run.summary["audit"] == json.loads(json.dumps(result.audit.as_dict()))
    assert run.last("train_loss") == result.measures["train_loss"]
    assert run.total("bytes_up") == result.efficiency["bytes_up"]
    assert run.log()[-1].endswith("stopped (6 rounds)")


def test_a_run_started_from_python_has_no_configuration(tmp_path: Path) -> None:
    execute(experiment("fedavg", rounds=1), tmp_path / "own")
    run = recorded(tmp_path / "own")
    assert (run.name, run.seed, run.algorithm, run.config) == ("own", None, "", {})


def test_an_unfinished_run_is_read_as_far_as_it_got(digits: Path, tmp_path: Path) -> None:
    shutil.copytree(digits, tmp_path / "half")
    for name in ("result.json", "clients.parquet", "model.safetensors"):
        (tmp_path / "half" / name).unlink()
    reseal(tmp_path / "half")
    run = recorded(tmp_path / "half")
    assert not run.finished
    assert run.clients() == {}
    assert run.last("round") == 6


def test_a_run_that_has_recorded_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    run = recorded(tmp_path)
    assert (run.rounds(), run.jobs(), run.detectors(), run.log()) == ({}, {}, {}, [])
    assert run.last("time") is None
    assert run.total("bytes_up") == 0


@pytest.mark.parametrize("name", ["plan.json", "config.toml", "result.json"])
def test_what_is_no_run_is_said_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        recorded(tmp_path / "nowhere")
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / name).write_text("{ half a")
    with pytest.raises(UserError, match="cannot be read"):
        recorded(tmp_path)


def test_columns_that_came_later_are_not_a_number_before(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.append(("round", "time"), [(0, 0.0)])
    table.flush()
    table.append(("round", "time", "test_loss"), [(1, 2.0, 0.5)])
    table.flush()
    table.append(("round", "outcome"), [(2, "arrived")])
    found = table.read()
    assert found["round"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found["test_loss"], [np.nan, 0.5, np.nan])
    np.testing.assert_array_equal(found["time"], [0.0, 2.0, np.nan])
    assert found["outcome"][2] == "arrived"
    assert read_segments([]) == {}


def invented(name: str, seed: int = 0, **algorithm: object) -> Recorded:
    config = {"run": {"name": name, "seed": seed, "folder": name}, "algorithm": {"name": "fedavg", **algorithm}}
    return Recorded(Path(name), config, {}, {})


def test_seeds_are_one_setting() -> None:
    a, b, c = invented("a-seed0"), invented("a-seed1", seed=1), invented("b", mu=0.1)
    assert settings([a, c, b]) == [[a, b], [c]]
    assert labels([[a, b], [c]]) == ["a", "b"]
    assert differences([[a, b], [c]]) == {"algorithm.mu": [None, 0.1]}


def test_labels_are_never_the_same() -> None:
    one, other = invented("digits"), invented("digits", mu=0.1)
    assert labels([[one], [other]]) == ["digits: None", "digits: 0.1"]
    unknown = [replace(one, config={}, folder=Path(place) / "digits") for place in ("x", "y")]
    groups = settings(unknown)
    assert len(groups) == 2
    assert labels(groups) == ["digits (1)", "digits (2)"]
    assert labels([[invented("0"), invented("1", seed=1)]]) == ["fedavg"]
    assert labels([[invented("sites"), invented("seed=1", seed=1)]]) == ["fedavg"]  # and not "s"
    sweep = [invented(f"algorithm={name},lr={lr}", lr=lr, of=name) for name, lr in (("fedavg", 0.1), ("fedfix", 0.3))]
    assert labels([[run] for run in sweep]) == ["fedavg, lr=0.1", "fedfix, lr=0.3"]
    alike = [invented(f"algorithm={name},engine.threads=1", of=name) for name in ("fedavg", "fedfix")]
    assert labels([[run] for run in alike]) == ["fedavg", "fedfix"]  # what all have says nothing
    assert labels([[invented("x,seed=10"), invented("x,seed=11", seed=1)]]) == ["x"]
