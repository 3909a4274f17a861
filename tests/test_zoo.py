"""Models people use: what is written for each is short, and it trains as a plain `torch.optim` loop does."""

from __future__ import annotations

import inspect
import sys
import warnings
from pathlib import Path

import pytest
import torch

import turnout
from turnout.engine.train import Cohort

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import zoo
import zoo_rows

LARGE = ("ResNet-18", "MobileNet-v3", "EfficientNet-B0")  # seconds each: by `python benchmarks/zoo.py`
SMALL = [name for name in zoo_rows.ROWS if not name.startswith(LARGE)]


@pytest.mark.parametrize("name", zoo_rows.ROWS)
def test_what_a_user_writes_is_short(name: str) -> None:
    assert len(inspect.getsource(zoo_rows.ROWS[name]).splitlines()) <= 25


@pytest.mark.parametrize("name", SMALL)
def test_a_model_is_trained_as_by_a_plain_loop(name: str) -> None:
    plan = turnout.Plan(precision="float64", threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operations that are mapped one by one
        expected, _ = zoo.plain(zoo.made(name), 1, "cpu", torch.float64)
        found = turnout.execute(zoo.experiment(zoo.made(name), 1, plan)).model
    assert not torch.equal(found, turnout.Task(zoo.made(name).model, zoo.made(name).loss).initial.double())
    torch.testing.assert_close(found, expected, rtol=0, atol=zoo.LIMITS["float64"])


@pytest.mark.parametrize("threads", [1, 3])
def test_frozen_parameters_exist_once(threads: int) -> None:
    base = torch.nn.Linear(64, 64).requires_grad_(False)
    model = torch.nn.Sequential(torch.nn.Linear(5, 64), base, torch.nn.Linear(64, 3))
    plan = turnout.Plan(engine="sequential", threads=threads).resolve()
    cohort = Cohort(turnout.Task(model), torch.randn(12, 5), torch.arange(12) % 3, plan)
    modules = [cohort.task.module, *(task.module for task in cohort._single)]
    assert len(modules) == 1 + threads
    assert {module[1].weight.data_ptr() for module in modules} == {base.weight.data_ptr()}  # type: ignore[index]
    assert len({module[0].weight.data_ptr() for module in modules}) == 1 + threads  # type: ignore[index]
