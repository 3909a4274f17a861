"""Models people use: what is written for each is short, and it trains as a plain `torch.optim` loop does."""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from pathlib import Path

import pytest
import torch

import turnout
from turnout.engine.train import Cohort

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import zoo
import zoo_python
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
        found = turnout.execute(zoo.experiment(zoo.made(name), 1, plan))
    row = zoo.made(name)
    assert not torch.equal(found.model, turnout.Task(row.model, row.loss, **row.task).initial.double())
    assert zoo.difference(found, expected) <= zoo.LIMITS["float64"]


def test_the_table_of_the_documentation_is_what_was_measured() -> None:
    root = Path(__file__).parents[1]
    kept = [json.loads(path.read_text("utf-8")) for path in sorted(root.glob("benchmarks/results/zoo_*.json"))]
    assert [list(document["rows"]) for document in kept] == [[*zoo_rows.ROWS, *zoo_python.ROWS]] * len(kept)
    assert all(zoo.right(row) for document in kept for row in document["rows"].values())
    assert zoo.table(kept) in (root / "docs" / "models.md").read_text("utf-8")


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


class Quantised(torch.nn.Module):
    """Weights that are not trained, as whole numbers; beside them what does change in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.arange(20, dtype=torch.int8).view(4, 5))
        self.register_buffer("scale", torch.ones(4))
        self.norm, self.head = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.get_buffer("weight").to(x.dtype) * self.get_buffer("scale")[:, None]
        seen: torch.Tensor = self.head(self.dropout(self.norm(x @ weight.mT)))
        return seen


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_buffers_that_no_pass_changes_exist_once(precision: str) -> None:
    """For all threads; the module given, and the task it is given to, keep theirs."""
    model, plan = Quantised(), turnout.Plan(engine="sequential", threads=3, precision=precision).resolve()
    task = turnout.Task(model, batchnorm="averaged")
    cohort = Cohort(task, torch.randn(12, 5), torch.arange(12) % 3, plan)
    modules = [cohort.task.module, *(single.module for single in cohort._single)]

    def places(name: str) -> set[int]:
        return {module.get_buffer(name).data_ptr() for module in modules}

    assert [len(places(name)) for name in ("weight", "scale")] == [1, 1]
    assert [len(places(f"norm.{name}")) for name in ("running_mean", "running_var", "num_batches_tracked")] == [4] * 3
    assert model.get_buffer("weight").data_ptr() not in places("weight")
    assert task.module.get_buffer("weight").data_ptr() not in places("weight")
