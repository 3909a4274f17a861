"""A part in any method changes something or is refused in one sentence: some of each here, all with TURNOUT_WALK=all.

What is refused is on the page that lists the reasons, docs/parts.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from part_cells import MARK, Cell, cells, found, reason, sample

from turnout.config import registry

WALKED = cells() if os.environ.get("TURNOUT_WALK") == "all" else sample()
PAGE = (Path(__file__).parents[2] / "docs" / "parts.md").read_text(encoding="utf-8").partition(MARK)[2]


@pytest.mark.parametrize("cell", WALKED, ids="-".join)
def test_a_part_changes_something_or_is_refused(cell: Cell) -> None:
    result = found(cell)
    assert result != "same" and not result.startswith("DEFECT") and "\n" not in result
    assert result == "runs" or f"| {reason(cell, result)} |" in PAGE


def test_the_sample_has_every_algorithm_and_every_part() -> None:
    assert {cell[0] for cell in sample()} == set(registry.names("algorithm"))
    assert {cell[1:] for cell in sample()} == {cell[1:] for cell in cells()}


def test_the_page_has_every_algorithm() -> None:
    assert all(f"| `{name}` |" in PAGE for name in registry.names("algorithm"))
