from __future__ import annotations

from pathlib import Path

import pytest
from recordings import SIX, record


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs") / "digits", SIX)


@pytest.fixture(scope="session")
def seeds(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> list[Path]:
    """The same setting with three seeds."""
    folder = tmp_path_factory.mktemp("seeds")
    return [digits, *(record(folder / f"digits-{seed}", SIX, f"run.seed={seed}") for seed in (1, 2))]


@pytest.fixture(scope="session")
def buffered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Asynchronous, with presence that changes in seconds, deaths heard of late, and power."""
    return record(
        tmp_path_factory.mktemp("runs") / "buffered",
        *("algorithm.name=fedbuff", "algorithm.buffer_size=4", "power.speed=1.5", "crashes.probability=0.3"),
        *("availability.name=markov", "availability.probability=0.6", "availability.correlation=0.5"),
        *("availability.clock=seconds", "availability.interval=0.7", "detection.kind=heartbeat"),
        "detection.seconds=0.4",
    )
