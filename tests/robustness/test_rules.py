"""Robust rules against other published implementations, against their definitions, and with liars among the clients."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import published
import pytest
import torch
from torch import Tensor

import turnout
from support import experiment, local, population
from turnout.aggregation.rules import RULES, coordinate_median, krum, krum_scores, multi_krum, trimmed_mean
from turnout.algorithms.robust_mean import RobustMean
from turnout.clients.behaviour import SignFlip
from turnout.core.errors import UserError
from turnout.core.random import key, normal, uniform

ROWS = torch.from_numpy(normal(key(3, "rows", np.arange(9)), 5))
EVEN = torch.full((9,), 1 / 9, dtype=torch.float64)
WEIGHTS = torch.from_numpy(uniform(key(3, "weights"), 9))
WEIGHTS = WEIGHTS / WEIGHTS.sum()
WEIGHTED = ("mean", "multi_krum", "norm_clipping")  # where Flower counts samples


def made(name: str, rows: Tensor, weights: Tensor, **options: Any) -> Tensor:
    """What the rule of that name makes of rows, from `start` as its last result."""
    start = options.pop("start", torch.zeros_like(rows[0]))
    return RULES[name](**options).of(rows, weights, start)


def ours(rows: Any, sizes: Any, liars: int) -> dict[str, Tensor]:
    rows = torch.from_numpy(rows)
    start = torch.zeros_like(rows[0])
    options: dict[str, dict[str, Any]] = {
        "trimmed_mean": {"trim": published.TRIM},
        "krum": {"liars": liars},
        "multi_krum": {"liars": liars, "keep": published.KEEP},
        "norm_clipping": {"radius": published.RADIUS},
        "centred_clipping": {"radius": published.RADIUS, "iterations": 3, "start": start},
        "geometric_median": {"iterations": 2000},
    }
    found = {}
    for name in RULES:
        counts = torch.from_numpy(sizes if name in WEIGHTED else np.ones(len(rows))).double()
        found[name] = made(name, rows, counts / counts.sum(), **options.get(name, {}))
    return found


@pytest.mark.parametrize("case", range(len(published.CASES)))
def test_published_implementations_agree(case: int) -> None:
    clients, liars = published.CASES[case]
    stored = json.loads(published.STORED.read_text())[case]
    assert stored.keys() == RULES.keys()
    for name, values in ours(*published.inputs(clients, liars), liars).items():
        np.testing.assert_allclose(values.numpy(), stored[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("clients", [5, 12, 31])
def test_the_installed_flower_agrees(clients: int) -> None:
    pytest.importorskip("flwr")
    rows, sizes = published.inputs(clients, 1)
    found = ours(rows, sizes, 1)
    for name, values in published.flower(rows, sizes, 1).items():
        np.testing.assert_allclose(found[name].numpy(), values, rtol=1e-9, atol=1e-12, err_msg=name)


def test_with_unequal_counts_the_median_and_the_trimmed_mean_weigh_clients_and_flower_does_not() -> None:
    pytest.importorskip("flwr")
    rows, sizes = published.inputs(12, 1)
    theirs, weights = published.flower(rows, sizes, 1), torch.from_numpy(sizes / sizes.sum())
    ruled = {
        "coordinate_median": coordinate_median(torch.from_numpy(rows), weights),
        "trimmed_mean": trimmed_mean(torch.from_numpy(rows), weights, published.TRIM),
        "krum": krum(torch.from_numpy(rows), weights, 1),
    }
    same = {name: np.allclose(values.numpy(), theirs[name], rtol=1e-9) for name, values in ruled.items()}
    assert same == {"coordinate_median": False, "trimmed_mean": False, "krum": True}


# -- definitions ------------------------------------------------------------------------------------------------


def test_a_weight_of_three_is_a_row_three_times() -> None:
    times = [1, 3, 2, 1, 1, 2, 4, 1, 1]
    repeated = ROWS.repeat_interleave(torch.tensor(times), 0)
    weights = torch.tensor(times, dtype=torch.float64) / sum(times)
    torch.testing.assert_close(coordinate_median(ROWS, weights), repeated.quantile(0.5, dim=0))


def test_the_median_of_rows_with_a_heavy_one_is_that_one() -> None:
    weights = torch.full((9,), 0.05, dtype=torch.float64)
    weights[4] = 0.6
    assert torch.equal(coordinate_median(ROWS, weights), ROWS[4])


def test_a_trimmed_mean_value_by_value() -> None:
    for column, value in enumerate(trimmed_mean(ROWS, WEIGHTS, 0.25)):
        order = ROWS[:, column].argsort()[2:-2]
        assert float(value) == pytest.approx(float(WEIGHTS[order] @ ROWS[order, column] / WEIGHTS[order].sum()))


def test_krum_scores_pair_by_pair() -> None:
    for liars, neighbours in ((0, 7), (2, 5), (6, 1), (9, 1)):
        scores = []
        for one in range(9):
            away = sorted(float((ROWS[one] - ROWS[other]).square().sum()) for other in range(9) if other != one)
            scores.append(sum(away[:neighbours]))
        torch.testing.assert_close(krum_scores(ROWS, liars), torch.tensor(scores, dtype=torch.float64))


def test_krum_takes_a_row_as_it_is_and_multi_krum_weighs() -> None:
    best = krum_scores(ROWS, 2).argsort()
    assert torch.equal(krum(ROWS, WEIGHTS, 2), ROWS[best[0]])
    kept = best[:7]  # k - liars
    torch.testing.assert_close(multi_krum(ROWS, WEIGHTS, 2), WEIGHTS[kept] @ ROWS[kept] / WEIGHTS[kept].sum())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("width", [1, 40_000])
def test_wide_rows_are_columns_side_by_side(name: str, width: int) -> None:
    """Columns are looked at some at a time; single precision; a far row is no obstacle to the others' order."""
    rows = torch.from_numpy(normal(key(4, "wide", np.arange(8)), width)).float()
    rows[3] = 1e30
    options: dict[str, dict[str, Any]] = {
        "norm_clipping": {"radius": 1.0},
        "centred_clipping": {"radius": 1.0, "start": torch.zeros(width)},
    }
    weights = torch.full((8,), 1 / 8)
    found = made(name, rows, weights, **options.get(name, {}))
    assert found.shape == (width,)
    if name in ("coordinate_median", "trimmed_mean"):
        one = made(name, rows[:, -1:], weights, **options.get(name, {}))
        assert torch.equal(found[-1:], one)
    if name not in ("mean", "geometric_median", "trimmed_mean"):
        assert float(found.abs().max()) < 10


@pytest.mark.parametrize("name", RULES)
def test_a_single_row(name: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "norm_clipping": {"radius": 99.0},
        "centred_clipping": {"radius": 99.0, "start": torch.zeros(5)},
    }
    found = made(name, ROWS[:1], torch.ones(1).double(), **options.get(name, {}))
    torch.testing.assert_close(found, ROWS[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("weights", [EVEN, WEIGHTS])
def test_the_same_on_another_device(name: str, weights: Tensor) -> None:
    clipping: dict[str, dict[str, Any]] = {
        "norm_clipping": {"radius": 1.0},
        "centred_clipping": {"radius": 1.0, "start": ROWS[0]},
    }
    options = clipping.get(name, {})
    there = {key: value.cuda() if isinstance(value, Tensor) else value for key, value in options.items()}
    found = made(name, ROWS.cuda(), weights.cuda(), **there)
    torch.testing.assert_close(found.cpu(), made(name, ROWS, weights, **options))


# -- the algorithm ----------------------------------------------------------------------------------------------


def run(name: str, rounds: int = 3, **options: Any) -> turnout.Result:
    people = options.pop("people", None) or population()
    sampler = options.pop("sampler", None) or turnout.Full()
    method = RobustMean(local(), sampler=sampler, rule=name, **options)
    evaluation = turnout.Evaluation(None)
    return turnout.execute(experiment("fedavg", rounds, algorithm=method, people=people, evaluation=evaluation))


def test_the_mean_is_fedavg() -> None:
    plain = turnout.FedAvg(local(), sampler=turnout.Uniform(4))  # weights that do not sum to 1
    expected = turnout.execute(experiment("fedavg", 3, algorithm=plain, people=population()))
    found = run("mean", sampler=turnout.Uniform(4))
    torch.testing.assert_close(found.model, expected.model, rtol=1e-5, atol=1e-6)
    assert expected.audit.linear
    assert not found.audit.linear


OPTIONS: dict[str, dict[str, Any]] = {
    "coordinate_median": {},
    "trimmed_mean": {"trim": 0.3},
    "krum": {"liars": 2},
    "multi_krum": {"liars": 2},
    "norm_clipping": {"radius": 0.5},
    "centred_clipping": {"radius": 0.3, "iterations": 2},
    "geometric_median": {"iterations": 20},
}


HONEST = population(importance=np.full(8, 1 / 8))
LYING = replace(HONEST, behaviour=SignFlip(clients=[0, 1], factor=-30.0))


@cache
def losses_of_the_mean() -> tuple[float, float]:
    """With liars and without."""
    lying, honest = (run("mean", 6, people=people).measures["test_loss"] for people in (LYING, HONEST))
    return lying, honest


@pytest.mark.parametrize("name", OPTIONS)
def test_liars_that_wreck_the_mean_are_outvoted(name: str) -> None:
    """Two of eight, of equal importance, send -30 times what they should."""
    wrecked, alone = losses_of_the_mean()
    robust = run(name, 6, people=LYING, **OPTIONS[name]).measures["test_loss"]
    assert robust < 0.05 * wrecked
    assert robust < 2 * alone


def test_buckets_are_random_and_of_at_most_as_many_as_answer() -> None:
    one, two, all_in_one = (run("coordinate_median", buckets=buckets).model for buckets in (3, 100, 1))
    assert not torch.equal(one, two)
    torch.testing.assert_close(all_in_one, run("mean").model, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(two, run("coordinate_median").model, rtol=1e-4, atol=1e-5)
    crowded, alone = (run("krum", buckets=buckets, liars=2).model for buckets in (100, 0))
    torch.testing.assert_close(crowded, alone, rtol=1e-4, atol=1e-5)  # no bucket is empty


def test_centred_clipping_goes_on_from_its_last_result() -> None:
    """Clients that always say the same: after enough rounds the result is what they say, however small the radius."""
    method = RobustMean(local(), rule="centred_clipping", radius=0.05, sampler=turnout.Full())
    result = turnout.execute(experiment("fedavg", 4, algorithm=method, people=population()))
    assert float(result.server.law.last["last"].norm()) > 0.05


def test_too_few_rows_for_krum_are_said() -> None:
    result = run("krum", liars=3)
    assert result.audit.events["too_few_rows"] == 3
    assert "too_few_rows" not in run("krum", liars=2).audit.events


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rule": "krumm"}, "algorithm.rule: unknown name 'krumm'; did you mean krum?"),
        ({"rule": "krum", "trim": 0.1}, "algorithm.trim: rule krum does not take it"),
        ({"rule": "norm_clipping"}, "algorithm.radius: missing; rule norm_clipping needs it"),
        ({"rule": "trimmed_mean", "trim": 0.5}, "algorithm.trim: 0.5 must be at least 0 and below 0.5"),
        ({"rule": "krum", "liars": -1}, "algorithm.liars: -1 must be at least 0"),
        ({"buckets": -1}, "algorithm.buckets: -1 must be at least 0"),
        ({"rule": "multi_krum", "keep": 0}, "algorithm.keep: 0 must be at least 1"),
    ],
)
def test_mistakes(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        RobustMean(local(), **options)
