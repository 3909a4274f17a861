"""A part in any method changes something or is refused in one sentence: a sample here, all in `part_cells.py`."""

from __future__ import annotations

import os

import pytest
from part_cells import Cell, cells, found

EVERY = 1 if os.environ.get("TURNOUT_WALK") == "all" else 41


@pytest.mark.parametrize("cell", cells()[::EVERY], ids="-".join)
def test_a_part_changes_something_or_is_refused(cell: Cell) -> None:
    result = found(cell)
    assert result != "same" and not result.startswith("DEFECT") and "\n" not in result
