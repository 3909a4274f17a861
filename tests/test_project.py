"""The files around the package agree: one version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

import turnout

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_version_has_one_place() -> None:
    """The project reads it from the package; the citation repeats it."""
    assert "version" not in PROJECT["project"] and PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "turnout.__version__"}}
    assert re.fullmatch(r"\d+\.\d+\.\d+", turnout.__version__)
    assert read("CITATION.cff")["version"] == turnout.__version__


def test_the_citation_has_what_its_format_requires() -> None:
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == PROJECT["project"]["license"]
