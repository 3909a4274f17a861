"""A round asks other packages a bounded number of times, however many clients it has."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

MOST = 45


def test_a_round_crosses_between_packages_few_times() -> None:
    before = sys.getprofile()
    found = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "crossings.py"))["crossings"]()
    assert sys.getprofile() is before
    packages = {package for call in found for package in (call.above, call.below)}
    assert {"algorithms", "server", "sampling", "engine", "clients", "local", "core"} <= packages  # it did count
    assert len(found) <= MOST, "benchmarks/crossings.py lists them"
