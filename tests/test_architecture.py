"""The table of docs/architecture.md: every package is in it, with its level, and imports only from lower levels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/turnout"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Where things are")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (\d+) \| `(\w+)` \| (.*) \|$", SECTION, re.M)
LEVELS = {package: int(level) for level, package, _ in ROWS}
PACKAGES = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")


LONGEST = 400  # lines


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports when it runs, in functions too; what is for type checkers only is left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typed = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    skipped = {inner for node in typed for part in node.body for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide where things are"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_package_has_a_level() -> None:
    assert sorted(LEVELS) == PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_from_lower_levels(package: str) -> None:
    upwards = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in (PACKAGE / package).rglob("*.py")
        for name in imported(path)
        if name.startswith("turnout.") and name.split(".")[1] != package
        if LEVELS.get(name.split(".")[1], 99) >= LEVELS[package]
    }
    assert not upwards


def test_nobody_imports_the_studies() -> None:
    assert not [path for path in PACKAGE.rglob("*.py") for name in imported(path) if name.startswith("turnout_studies")]


def test_the_table_names_files_that_are_there() -> None:
    for _, package, words in ROWS:
        for name in re.findall(r"`(\w+\.py)`", words):
            assert (PACKAGE / package / name).is_file(), f"{package}/{name}"


def test_no_file_is_long() -> None:
    found = {
        f"{path.parent.name}/{path.name}"
        for folder in (PACKAGE, ROOT / "studies")
        for path in folder.rglob("*.py")
        if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST
    }
    assert not found
