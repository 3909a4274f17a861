"""The samples that clients share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from turnout import Population, Ragged
from turnout.core.errors import UserError

ROWS = Ragged.from_rows([[0], [1, 2]])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["inputs", "targets"])
def test_samples_that_are_not_finite_are_refused(name: str, bad: float) -> None:
    pools = {"inputs": torch.ones(3, 2), "targets": torch.ones(3)}
    pools[name][1] = bad
    with pytest.raises(UserError, match=f"population: {name} contain NaN or infinity"):
        Population(pools["inputs"], pools["targets"], ROWS)


def test_a_sum_beyond_all_numbers_is_no_sample_beyond_them() -> None:
    assert Population(torch.full((3, 2), 3e38), torch.ones(3), ROWS).size == 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"targets": torch.ones(2)}, "population: 3 inputs but 2 targets"),
        ({"train": Ragged.from_rows([[0], [1, 500]])}, r"population.train: row 500 .*0 to 2"),
        ({"train": Ragged.from_rows([[0], [-1, 2]])}, r"population.train: row -1 .*0 to 2"),
        ({"test": Ragged.from_rows([[], [3]])}, r"population.test: row 3 .*0 to 2"),
        ({"validation": Ragged.from_rows([[3], []])}, r"population.validation: row 3 .*0 to 2"),
    ],
)
def test_rows_lie_in_a_pool_with_a_target_a_sample(change: dict[str, Any], complaint: str) -> None:
    parts: dict[str, Any] = {"inputs": torch.ones(3, 2), "targets": torch.ones(3), "train": ROWS}
    assert Population(**parts | {"test": Ragged.from_rows([[], []])}).size == 2
    with pytest.raises(UserError, match=complaint):
        Population(**parts | change)
