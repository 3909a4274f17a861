"""The notebooks run from top to bottom, and are kept without what they show."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    return list(document["cells"])


def display(value: object) -> str:
    """As a notebook shows the last expression of a cell."""
    shown: str = value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
    return shown


def test_there_are_four() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own-algorithm", "quickstart", "table-to-model", "unreliable-clients"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # tests share the cores
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in (cell for cell in cells(path) if cell["cell_type"] == "code"):
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), path.name, "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(display(eval(compile(ast.Expression(last.value), path.name, "eval"), names)))
    assert len(shown) >= 3
    assert all(shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_is_kept(path: Path) -> None:
    for cell in cells(path):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_own_data_takes_less_than_ten_lines() -> None:
    """Of the quickstart: without imports, and the name that shows the result."""
    first = next(cell for cell in cells(NOTEBOOKS[1]) if cell["cell_type"] == "code")
    body = [part for part in ast.parse("".join(first["source"])).body if isinstance(part, ast.Assign)]
    assert 5 <= len(body) < 10
