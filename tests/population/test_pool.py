"""The samples that clients share."""

from __future__ import annotations

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
