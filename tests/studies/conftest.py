from __future__ import annotations

from pathlib import Path

import pytest

from cli.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A shell in an empty folder, without data."""
    for variable in ("TURNOUT_DATA", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return Terminal(tmp_path)
