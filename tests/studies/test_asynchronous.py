"""The studies of waiting policies at their small size, and what they measure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import turnout_studies as studies
from turnout import AsyncFedAvg, FedAvg, Full, LocalSGD, Plan, Population, Ragged, devices
from turnout_studies import images, losses
from turnout_studies.asynchronous_bias import speeds
from turnout_studies.study import NOT_JUDGED, Measures, Results

# -- the studies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["asynchronous_bias", "asynchronous_steps", "asynchronous_speed"])
def test_the_small_size_runs_and_is_read_back(name: str, tmp_path: Path) -> None:
    study = studies.find(name)
    lines: list[str] = []
    results = study.run("small", [0], tmp_path, say=lines.append)
    assert len(lines) == len(results.trials)
    for _, measures in results.trials:
        assert len(measures["losses"]) == len(measures["times"])
    judgements = study.judge(results)
    assert len(judgements) == len(study.claims)
    for judgement in judgements:
        assert len(judgement.values) == 1
        assert math.isfinite(judgement.mean)
        assert judgement.verdict == NOT_JUDGED
    lines.clear()
    assert study.run("small", [0], tmp_path, say=lines.append) == results == Results.read(tmp_path / "results.json")
    assert not lines


def test_a_trial_is_the_same_twice() -> None:
    study = studies.find("asynchronous_bias")
    carry_out = study.experiment(study.sizes["small"], None, Plan(threads=1))
    trial = {"task": "mnist iid", "rule": "unbiased", "lr": 0.5, "seed": 3}
    assert carry_out(trial) == carry_out(trial)
    assert carry_out(trial) != carry_out({**trial, "seed": 4})


def test_the_surrogate_weights_are_speeds() -> None:
    assert speeds(5) * 137 == pytest.approx([12, 15, 20, 30, 60])


# -- what is measured -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [10, 60, 400, 1000])
def test_evaluations_are_in_order_and_end_in_ten_late_ones(horizon: float) -> None:
    times = losses.evaluation_times(horizon)
    assert (np.diff(times) > 0).all()
    assert times[-1] <= horizon
    late = times[-losses.LATE :]
    assert late[0] >= horizon - max(10, horizon / 10)
    assert len(set(np.round(late % 1, 2))) == losses.LATE  # every one at another phase
    assert times[:3] == pytest.approx([0.01 * horizon, 0.02 * horizon, 0.05 * horizon])


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.theta * torch.ones(len(inputs), 1)


def _people(percent: float) -> Population:
    """Two clients, whose optima are 0 and 1."""
    targets = torch.tensor([[0.0], [1.0]])
    rows = Ragged(np.array([0, 1, 2]), np.array([0, 1]))
    return Population(torch.zeros(2, 1), targets, rows, importance="equal", devices=devices.fx(percent, 2))


def _seen(algorithm: Any, percent: float, times: list[float]) -> np.ndarray[Any, Any]:
    from turnout import Evaluation, Simulation, Stopping, Task

    observer = losses.ClientLosses(np.array(times))
    Simulation(
        Task(Point, "mse"),
        _people(percent),
        algorithm,
        plan=Plan(threads=1),
        stopping=Stopping(None, 3),
        evaluation=Evaluation(rounds=None),
        observers=[observer],
    ).run()
    return np.array(observer.measures()["losses"])


def test_the_model_in_force_at_a_time_is_looked_at() -> None:
    """Synchronous rounds at 1, 2 and 3, each halving the distance to the optimum 0.5 (lr 0.25, loss (theta - y)^2)."""
    algorithm = FedAvg(LocalSGD(0.25, steps=1), Full())
    seen = _seen(algorithm, 0, [0.5, 1.0, 1.5, 2.9, 3.0])
    theta = np.array([0, 0.25, 0.25, 0.375, 0.4375])
    assert seen == pytest.approx(np.stack([theta**2, (theta - 1) ** 2], axis=1))


def test_a_diverged_run_counts_as_useless() -> None:
    algorithm = AsyncFedAvg(LocalSGD(1e30, steps=1))
    measures = {"times": [0.1, 1.0, 2.0, 3.0], "losses": _seen(algorithm, 0, [0.1, 1.0, 2.0, 3.0]).tolist()}
    assert losses.federated(measures)[0] == pytest.approx(0.5)
    assert not math.isfinite(losses.late_loss(measures))
    assert losses.bounded_loss(measures) == losses.USELESS


MEASURES: Measures = {"times": [1.0, 2.0], "losses": [[1.0, 3.0], [0.5, None]]}


def test_federated_loss_and_spread() -> None:
    weights = np.array([0.75, 0.25])
    assert losses.federated(MEASURES) == pytest.approx([2.0, math.nan], nan_ok=True)
    assert losses.federated(MEASURES, weights)[0] == pytest.approx(1.5)
    assert losses.spread(MEASURES)[0] == pytest.approx(1.0)
    assert losses.spread(MEASURES, weights)[0] == pytest.approx(math.sqrt(0.75 * 0.25 + 0.25 * 2.25))


def test_a_useless_model_is_bounded_only_for_comparing_learning_rates() -> None:
    measures = {"times": [1.0], "losses": [[100.0, 200.0]]}
    assert losses.late_loss(measures) == 150
    assert losses.bounded_loss(measures) == losses.USELESS


def test_unrest_does_not_count_steady_progress() -> None:
    steady = np.linspace(2, 1, losses.LATE)
    wave = 0.1 * np.array([1, -1] * (losses.LATE // 2))
    times = np.arange(losses.LATE).tolist()
    assert losses.unrest({"times": times, "losses": steady[:, None].tolist()}) == pytest.approx(0, abs=1e-12)
    assert losses.unrest({"times": times, "losses": (steady + wave)[:, None].tolist()}) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("best", [0, 3, 7, len(losses.RATES) - 1])
def test_climbing_finds_the_best_rate_from_anywhere(best: int) -> None:
    for start in losses.RATES:
        found = losses.climb(lambda lr: abs(losses.RATES.index(lr) - best), start)
        assert found == losses.RATES[best]


# -- images ---------------------------------------------------------------------------------------------------


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Six official batches of fifty random pictures, five a class."""
    draws = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        labels = np.arange(50, dtype=np.uint8)[:, None] % 10
        pixels = draws.integers(0, 256, (50, 3072), dtype=np.uint8)
        (tmp_path / f"{name}.bin").write_bytes(np.hstack([labels, pixels]).tobytes())
    return tmp_path


def test_a_fifth_of_every_class_the_same_from_the_file_and_from_all(cifar: Path, tmp_path: Path) -> None:
    assert images.main([str(cifar), str(tmp_path / "carried")]) == 0
    carried, whole = images.cifar10_subset(tmp_path / "carried"), images.cifar10_subset(cifar)
    assert torch.equal(carried.inputs, whole.inputs)
    assert torch.equal(carried.targets, whole.targets)
    assert carried.targets.bincount().tolist() == [5] * 10
    assert carried.inputs.shape == (50, 3, 32, 32)


def test_the_folder_of_the_environment_holds_the_subset_too(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.main([str(cifar), str(tmp_path / "carried")])
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path / "carried"))
    assert len(images.cifar10_subset(None)) == 50


def test_shrinking_takes_the_mean_of_four_pixels(cifar: Path) -> None:
    from turnout.data import cifar10

    shrunk = images.cifar10_shrunk(cifar)
    corner = cifar10.load(folder=cifar).inputs[7, 1, 2:4, 4:6].mean()
    assert shrunk.inputs.shape == (250, 768)
    assert shrunk.inputs[7, 256 + 16 + 2] == pytest.approx(float(corner), abs=1e-6)


def test_mistakes_of_the_subset_maker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert images.main([]) == 2
    assert images.main([str(tmp_path / "nowhere"), str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert not list(tmp_path.iterdir())
