"""The map of docs/architecture.md: every part of the package is on it, and what it says about imports is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/turnout"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Where things are")[2].partition("\n## ")[0]
MAP = SECTION.split("```")[1]
PARTS = {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
PARTS |= {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
NAME = re.compile(r"(?<![\w/])[a-z_]+(?:/|\.py\b)")


def imports(part: str) -> set[str]:
    """The parts that a part imports anywhere, in functions too."""
    found = set()
    for path in (PACKAGE / part).rglob("*.py") if part.endswith("/") else [PACKAGE / part]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    first = {name.split(".")[1] for name in found if name.startswith("turnout.")}
    return {name for name in PARTS if re.sub(r"/|\.py$", "", name) in first} - {part}


def test_every_part_is_on_the_map() -> None:
    assert not PARTS - set(NAME.findall(MAP)), "name these in the map of docs/architecture.md"


def test_the_map_names_nothing_that_is_not_there() -> None:
    inner = {path.name for path in PACKAGE.rglob("*.py")}
    assert set(NAME.findall(MAP)) <= PARTS | inner


def test_who_imports_whom_is_as_it_says() -> None:
    """`- A import none of B` and `- A is imported only by B`, names in backticks; prose may follow."""
    sentences = [re.sub(r"\s+", " ", text) for text in re.findall(r"^- ((?:.|\n(?!\n|- ))+)", SECTION, re.M)]
    assert len(sentences) == 3
    for sentence in sentences:
        who, words, whom = re.findall(r"`([^`]+)` (import none of|is imported only by) `([^`]+)`", sentence)[0]
        left, right = set(NAME.findall(who)), set(NAME.findall(whom))
        assert left | right <= PARTS
        if words == "import none of":
            assert {part: imports(part) & right for part in left} == {part: set() for part in left}
        else:
            (only,) = left
            assert {part for part in PARTS if only in imports(part)} == right
