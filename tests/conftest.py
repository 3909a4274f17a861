"""What all tests share."""

from __future__ import annotations

import os

import pytest

# Threads that have nothing to do sleep: spinning, they take the cores from the suite's other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(autouse=True, scope="session")
def no_power_cut() -> None:
    """What a process has written survives its death without being synced; the machine under the tests goes on."""
    os.fsync = lambda fd: None  # noqa: ARG005
