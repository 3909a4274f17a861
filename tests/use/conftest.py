"""Runs over the unclean table of six hospitals, each made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wards import CONFIGURATION

from cli.terminal import Terminal
from unclean import write_hospitals


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, new patients, and runs whose clients share a model, have their own, or rules of theirs."""
    here = tmp_path_factory.mktemp("use")
    write_hospitals(here / "wards.csv")
    write_hospitals(here / "new.csv", rows=30, seed=1, target=False)
    (here / "wards.toml").write_text(CONFIGURATION)
    return here


@pytest.fixture(scope="module")
def run(home: Path) -> Any:
    """Make a run by an algorithm, once."""

    def made(algorithm: str, *overrides: str) -> Path:
        folder = home / "runs" / algorithm
        if not folder.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(home)
                given = [f"algorithm.name={algorithm}", f"run.name={algorithm}", *overrides]
                Terminal(home).done("run", "wards.toml", *given)
        return folder

    return made


@pytest.fixture
def at(home: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.chdir(home)
    return Terminal(home)
