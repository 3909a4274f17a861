"""What all tests share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_power_cut() -> None:
    """What a process has written survives its death without being synced; the machine under the tests goes on."""
    os.fsync = lambda fd: None  # noqa: ARG005
